"""The move of a real server into a fresh deployment on a real Kafka: nothing that was accepted is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
import uuid
from pathlib import Path
from typing import Any

import pytest
from clusters.kafka import Kafka

from headgate.backend.config import ClusterConfig, SparkConfig
from headgate.backend.kafka.topics import Admin
from headgate.testing.server import Object, Server, parts_of
from tests.backend.contract import PARTITIONS
from tests.backend.outbox_stream import outbox_config
from tests.support import eventually
from tests.system.keeping import OWN
from tests.system.publishing import Publisher
from tests.system.subscriber import Subscriber

pytestmark = [pytest.mark.slow, pytest.mark.kafka, pytest.mark.spark, pytest.mark.system, pytest.mark.timeout(900)]

MATCHED = 40
ALL = 52
"""The matcher has not come to those from MATCHED on when the server dies."""
KINDS = ("brokers", "triggers")


def specs(subscriber: Subscriber) -> dict[str, Object]:
    return {
        "taken": {},
        "waiting": {"delivery": {"backoffDelay": "PT1S", "backoffPolicy": "linear"}},
        "ordered": {"delivery": {"order": "ordered", "backoffDelay": "PT1S", "backoffPolicy": "linear"}},
        "dead": {
            "filter": {"attributes": {"type": "odd"}},
            "delivery": {"retry": 0, "deadLetterSink": {"uri": subscriber.url("sink")}},
        },
    }


def publish(server: Server, numbers: range) -> None:
    publisher = Publisher(server)
    for number in numbers:
        kind = "odd" if number % 2 else "even"
        assert publisher.publish(str(number), kind, {"n": number}, partitionkey=f"k{number % 3}") == 202
    publisher.close()


def stop_matching(server: Server) -> None:
    """Ends the matcher's JVM, and lets nothing start another one."""
    matcher = parts_of(server.pid)["matcher"]
    os.kill(matcher, signal.SIGSTOP)
    for child in Path(f"/proc/{matcher}/task/{matcher}/children").read_text().split():
        os.kill(int(child), signal.SIGKILL)


def moved(*arguments: str) -> tuple[int, str, str]:
    """Exit status, what was said, and why not."""
    command = [str(Path(sys.executable).with_name("headgate")), "cluster", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    return done.returncode, done.stdout, done.stderr


def objects(server: Server) -> dict[str, list[tuple[str, str, Any]]]:
    """Name, uid and spec of what users made."""
    found = {kind: server.list(kind, "default") for kind in KINDS}
    return {
        kind: [(one["metadata"]["name"], one["metadata"]["uid"], one.get("spec")) for one in items]
        for kind, items in found.items()
    }


def test_a_server_moves_with_what_it_has_not_delivered(kafka: Kafka, tmp_path: Path) -> None:
    with Subscriber() as subscriber:
        subscriber.answers = dict.fromkeys(("waiting", "ordered", "sink"), (503, b"")) | {"dead": (400, b"no")}
        data, log = tmp_path / "embedded", tmp_path / "server.log"
        embedded = Server(data, arguments=("--dispatchers", "2"), log=log)
        config = outbox_config(kafka.bootstrap, f"m{uuid.uuid4().hex[:8]}.")
        file = tmp_path / "headgate.yaml"
        spark = SparkConfig(master=f"local[{2 * PARTITIONS}]")
        file.write_text(ClusterConfig(kafka=config, spark=spark).model_dump_json())  # JSON is YAML
        server = Server(tmp_path / "new", arguments=("--config", str(file)), log=log)
        arguments = ("--data", str(data), "--config", str(file))
        try:
            embedded.start()
            for name, spec in specs(subscriber).items():
                of_all = {"broker": "default", "subscriber": {"uri": subscriber.url(name)}}
                embedded.create("triggers", "default", name, of_all | spec)
            for name in specs(subscriber):
                embedded.wait_trigger_ready("default", name)
            publish(embedded, range(MATCHED))
            eventually(lambda: len(subscriber.ids("taken")) == MATCHED, "events are missing")
            eventually(lambda: len(subscriber.ids("dead")) == MATCHED // 2, "events are missing")
            letters = f"{OWN}/deadletters"

            def dead(of: Server) -> list[str]:
                return sorted(one["eventId"] for one in of.call("GET", f"{of.url}{letters}")["items"])

            eventually(lambda: len(dead(embedded)) == MATCHED // 2, "dead letters are missing")
            before = objects(embedded)
            assert moved("import", *arguments)[0] == 2, "the server runs"
            stop_matching(embedded)
            publish(embedded, range(MATCHED, ALL))
            embedded.kill()

            assert moved("import", *arguments)[0] == 2, "there are no topics"
            Admin(config).create_missing()
            status, said, why = moved("import", *arguments)
            assert status == 0, why
            found = json.loads(said)
            assert (found["events"], found["dead_letters"]) == (ALL, MATCHED // 2)
            assert found["undelivered"] >= 2 * MATCHED
            assert found["objects"]["Trigger"] == len(specs(subscriber))
            status, _, why = moved("import", *arguments)
            assert status == 2
            assert "not empty" in why

            subscriber.answers = {"dead": (400, b"no"), "sink": (503, b"")}
            moved_at = len(subscriber.deliveries)

            def taken(name: str) -> list[str]:
                """Ids of what was taken: what came before the move was refused, but for one trigger's."""
                first = 0 if name == "taken" else moved_at
                return [one.id for one in subscriber.deliveries[first:] if one.path == f"/{name}"]

            server.start()
            everything = {str(number) for number in range(ALL)}
            for name in ("taken", "waiting", "ordered"):
                eventually(lambda name=name: set(taken(name)) == everything, f"{name} lacks events")
            eventually(lambda: len(dead(server)) == ALL // 2, "dead letters are missing")
            assert dead(server) == sorted(str(number) for number in range(1, ALL, 2))
            assert objects(server) == before
            for key in range(3):
                own = [int(id_) for id_ in taken("ordered") if int(id_) % 3 == key]
                assert list(dict.fromkeys(own)) == sorted({*own}), "the order of a key is kept"
            url = f"{server.url}/default/default/events?limit=1000&from=earliest"
            request = urllib.request.Request(url, headers={"accept": "application/cloudevents-batch+json"})
            with urllib.request.urlopen(request, timeout=60) as answer:
                assert {one["id"] for one in json.loads(answer.read())} == everything
            publish(server, range(ALL, ALL + 5))
            eventually(lambda: len(taken("waiting")) >= ALL + 5, "events after the move are missing")
            assert server.stop() == 0
        finally:
            embedded.kill()
            server.kill()
            print(log.read_text()[-12_000:])
