"""Real servers for tests, benchmarks and examples: Headgate itself and Kafka. Nothing in the server imports it."""

from headgate.testing.server import START_S_MAX, ApiError, Server, condition, free_port, object_of, parts_of

__all__ = ["START_S_MAX", "ApiError", "Server", "condition", "free_port", "object_of", "parts_of"]
