"""One real Kafka for the tests of this folder; each has topics of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headgate.testing.kafka import Kafka

USERS = {"admin": "admin-secret", "guest": "guest-secret"}
SETTINGS = {"log.cleaner.backoff.ms": "200"}
"""Compaction begins soon where a test asks for it."""


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    with Kafka(tmp_path_factory.mktemp("kafka"), users=USERS, settings=SETTINGS) as running:
        yield running
