"""The Coordinator: binds sessions, measures their history, routes and dispatches their rounds."""
