"""The examples that properties try: the same ones at every run, so that a change is judged by what it changed.

`make nightly` tries new ones (HEADGATE_EXPLORE=1). No example has a deadline: how long something takes is for
benchmarks, not for tests on a busy machine.
"""

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from headgate.event.json_text import allow_deep_json
from headgate.testing.kafka import Kafka

_EXPLORES = bool(os.environ.get("HEADGATE_EXPLORE"))
settings.register_profile(
    "headgate", deadline=None, derandomize=not _EXPLORES, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("headgate")

allow_deep_json()  # as at the start of every process of Headgate
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # else its notes of closed connections mix with pytest's lines

KAFKA_USERS = {"admin": "admin-secret", "guest": "guest-secret"}
KAFKA_SETTINGS = {"log.cleaner.backoff.ms": "200"}
"""Compaction begins soon where a test asks for it."""


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """One real Kafka for all tests that need one; each has topics of its own."""
    with Kafka(tmp_path_factory.mktemp("kafka"), users=KAFKA_USERS, settings=KAFKA_SETTINGS) as running:
        yield running
