"""A real Kafka broker for the tests: its jars, its process, and what is asked of it."""
