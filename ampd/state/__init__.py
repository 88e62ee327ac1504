"""The shared state: a protocol, its Redis and in-memory stores, and the rows they hold."""
