"""The examples that properties try: the same ones at every run, so that a change is judged by what it changed.

`make nightly` tries new ones. No example has a deadline: how long something takes is for
benchmarks, not for tests on a busy machine.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from clusters.kafka import Kafka
from hypothesis import HealthCheck, settings
from pyspark.sql import SparkSession

from headgate.backend.kafka.spark_jars import spark_jars
from headgate.match.requirements import connector_jar
from headgate.match.session import start_session, task_slots
from headgate.objects.store.store import Store
from headgate_api.event.json_text import allow_deep_json
from tests.support import DEPTH, examples

pytest_plugins = ["tests.gate"]

settings.register_profile(
    "headgate",
    max_examples=examples(100),
    deadline=None,
    derandomize=DEPTH != "nightly",
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("headgate")

allow_deep_json()  # as at the start of every process of Headgate
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # else its notes of closed connections mix with pytest's lines

KAFKA_USERS = {"admin": "admin-secret", "guest": "guest-secret"}
KAFKA_SETTINGS = {"log.cleaner.backoff.ms": "1000"}
"""Compaction begins soon where a test asks for it."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty store of objects."""
    with closing(Store.open(tmp_path / "control.db")) as opened:
        yield opened


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """One real Kafka for all tests that need one; each has topics of its own."""
    with Kafka(tmp_path_factory.mktemp("kafka"), users=KAFKA_USERS, settings=KAFKA_SETTINGS) as running:
        yield running


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One JVM for all tests that need one: its start costs seconds."""
    session = start_session(
        jar=connector_jar(),
        threads=task_slots(2),
        scratch=tmp_path_factory.mktemp("spark"),
        heap_mib=2_048,  # with less, a fifth of the JVM's work is to collect garbage
        more_jars=spark_jars(),
    )
    yield session
    with warnings.catch_warnings():
        # PySpark leaves its gateway's sockets to the garbage collector.
        warnings.simplefilter("ignore", ResourceWarning)
        session.stop()
