"""A server with control, front and matcher on a real Kafka: a trigger counts when its filter is in force."""

from __future__ import annotations

import time
import urllib.request
import uuid
from pathlib import Path

import pytest

from headgate.store.config import ClusterConfig, SparkConfig
from headgate.store.kafka.admin import Admin
from headgate.testing.kafka import Kafka
from headgate.testing.server import ApiError, Server
from tests.store.matcher_world import SOURCES, WAIT_S_MAX, Reader, Worker, world_config

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.system]
SUBSCRIBER = {"uri": "http://127.0.0.1:9/"}
FILTERS = {"large": "data.n > 10", "small": "data.n <= 10"}


def post(server: Server, number: int) -> None:
    headers = {"ce-id": str(number), "ce-source": "/s", "ce-type": "t", "ce-specversion": "1.0"}
    headers["content-type"] = "application/json"
    request = urllib.request.Request(f"{server.url}/default/default", b'{"n":%d}' % number, headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 202


def create(server: Server, name: str, expression: str) -> None:
    """Creates a trigger, once a control process leads."""
    spec = {"broker": "default", "subscriber": SUBSCRIBER, "filter": {"expression": expression}}
    deadline = time.monotonic() + WAIT_S_MAX
    while True:
        try:
            server.create("triggers", "default", name, spec)
            return
        except ApiError as error:
            if error.status != 503:
                raise
        except OSError:
            pass
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_trigger_is_ready_when_its_filter_counts_in_every_outbox_partition(kafka: Kafka, tmp_path: Path) -> None:
    config = world_config(kafka.bootstrap, f"k{uuid.uuid4().hex[:8]}.")
    Admin(config).create_missing()
    file, log = tmp_path / "headgate.yaml", tmp_path / "server.log"
    spark = SparkConfig(master=f"local[{2 * SOURCES}]")
    file.write_text(ClusterConfig(kafka=config, spark=spark).model_dump_json())  # JSON is YAML
    arguments = ("--config", str(file), "--role", "control,front,matcher")
    reader = Reader(config)
    dispatcher = Worker(reader.run)
    server = Server(tmp_path / "data", arguments=arguments, log=log)
    try:
        server.start(wait=False)
        for name, expression in FILTERS.items():
            create(server, name, expression)
        for name in FILTERS:
            server.wait_trigger_ready("default", name)
        for number in range(20):
            post(server, number)
        deadline = time.monotonic() + WAIT_S_MAX
        while len(reader.rows) < 20:
            dispatcher.check()
            assert time.monotonic() < deadline, reader.rows
            time.sleep(0.02)
        assert server.stop() == 0
    finally:
        server.kill()
        dispatcher.end()
        print(log.read_text()[-6_000:])
    assert [len(found) for found in reader.rows.values()] == [1] * 20
    taken = [target for ((_, verdicts),) in reader.rows.values() for target in verdicts]
    assert sorted(map(taken.count, set(taken))) == [9, 11]
