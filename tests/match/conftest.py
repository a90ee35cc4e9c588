from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from headgate.match.driver_link import DriverLink
from headgate.match.requirements import connector_jar
from headgate.match.session import start_session, task_slots
from headgate.store.kafka.spark_jars import spark_jars
from tests.match.fakes import FakeDispatcher


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One JVM for all tests of the session: its start costs seconds."""
    session = start_session(
        jar=connector_jar(),
        threads=task_slots(2),
        scratch=tmp_path_factory.mktemp("spark"),
        heap_mib=1_024,
        more_jars=spark_jars(),
    )
    yield session
    with warnings.catch_warnings():
        # PySpark leaves its gateway's sockets to the garbage collector.
        warnings.simplefilter("ignore", ResourceWarning)
        session.stop()


@pytest.fixture
def dispatcher() -> Iterator[FakeDispatcher]:
    with FakeDispatcher() as fake:
        yield fake


@pytest.fixture
def link(dispatcher: FakeDispatcher) -> Iterator[DriverLink]:
    connected = DriverLink.connect(dispatcher.address)
    yield connected
    connected.close()
