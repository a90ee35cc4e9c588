"""What the Kafka of the tests is made with."""

USERS = {"admin": "admin-secret", "guest": "guest-secret"}
SETTINGS = {"log.cleaner.backoff.ms": "200"}
"""Compaction begins soon where a test asks for it."""
