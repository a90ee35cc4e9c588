"""A real server for the demo, tests, benchmarks and examples. Nothing in the server imports it."""

from headgate.testing.server import START_S_MAX, ApiError, Server, condition, free_port, object_of, parts_of

__all__ = ["START_S_MAX", "ApiError", "Server", "condition", "free_port", "object_of", "parts_of"]
