"""The Coordinator: the Dynamo service that binds sessions, measures their history, routes their rounds and streams the answers."""
