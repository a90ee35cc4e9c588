"""`read_events` gives the same of a topic as of a chunk log with the same events."""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from clusters.kafka import Kafka
from confluent_kafka import Producer
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from headgate.backend.kafka.appender import KafkaAppender
from headgate.backend.kafka.records import encode_record
from headgate.backend.kafka.topics import Admin
from headgate.ingress.encode import Entries
from headgate.objects.kinds.specs import DEFAULT_RULE
from headgate.objects.store.store import Store
from headgate.spark.reading import read_events
from headgate.testing.server import free_port
from headgate_api.errors import HeadgateError
from headgate_api.event.model import Event
from tests.backend.stores import EmbeddedStore, KafkaStore, kafka_config
from tests.filter.hostile_events import random_event
from tests.support import DEPTH

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

OTHER = "default/other/1b4e28ba"
FILTERS: dict[str, Any] = {
    "attributes": 'ce.type == "order.created"',
    "data": "data.n > 3",
    "hard": 'ce.source.startsWith("/") && data.tags.exists(t, t == "a")',
    "object": {"attributes": {"specversion": "0.3"}},
}


class Stores:
    """The same events in a data directory and in a topic, in two parts with a moment between them."""

    def __init__(self, kafka: Kafka, data: Path) -> None:
        data.mkdir()
        with closing(Store.open(data / "control.db")) as store:
            served = store.served("default/default")
        assert served is not None
        self.data = data
        self.identity = served.identity
        self.prefix = f"t{time.monotonic_ns()}."
        self.address = f"kafka://{kafka.bootstrap}/?prefix={self.prefix}"
        self._log = EmbeddedStore(data / "log")
        self._topic = KafkaStore(kafka_config(kafka.bootstrap, self.prefix))
        Admin(self._topic.config).create_missing()
        self.events: list[tuple[str, Event]] = []
        rng = random.Random(17)
        self.append(rng, 60)
        self.between = moment()
        self.append(rng, 40)
        self._log.close()

    def append(self, rng: random.Random, count: int) -> None:
        """Batches, which are transactions, and single events; in both partitions."""
        drawn: list[tuple[str, Event]] = []
        for number in range(len(self.events), len(self.events) + count):
            event = msgspec.structs.replace(random_event(rng), id=f"{number:03}")
            drawn.append((self.identity if rng.random() < 0.8 else OTHER, event))
        self.events += drawn
        asyncio.run(self._append([drawn[start : start + 7] for start in range(0, count, 7)]))

    async def _append(self, parts: Sequence[Sequence[tuple[str, Event]]]) -> None:
        log, topic = await self._log.appender(), KafkaAppender(self._topic.config, "test")
        for number, part in enumerate(parts):
            for broker in sorted({broker for broker, _ in part}):
                entries = Entries(broker, DEFAULT_RULE, [event for of, event in part if of == broker])
                await log.append({number % 2: entries}, 1_000)
                stored = await topic.append({number % 2: entries}, 1_000)
                await asyncio.to_thread(self._topic.settle, stored)
        await log.close()
        await topic.close()
        await asyncio.to_thread(self._give_up)

    def _give_up(self) -> None:
        """A batch that is in the topic and never was stored."""
        producer = Producer({"bootstrap.servers": self._topic.config.bootstrap, "transactional.id": self.prefix})
        producer.init_transactions(30)
        producer.begin_transaction()
        record = encode_record(self.identity, Event("1.0", "given up", "/s", "order.created"))
        producer.produce(self._topic.config.topic("events"), None, partition=0, headers=record.headers)
        assert producer.flush(30) == 0
        producer.abort_transaction(30)

    def ids(self, broker: str) -> list[str]:
        return [event.id for of, event in self.events if of == broker]


def moment() -> str:
    """A time of which both clocks say that it is neither before nor at what is stored on its other side."""
    at_ms = time.time_ns() // 1_000_000 + 5
    while time.time_ns() // 1_000_000 <= at_ms + 5:
        time.sleep(0.001)
    return datetime.fromtimestamp(at_ms / 1_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


OF_STORE = {"partition", "offset", "append_time_us"}
"""Kafka numbers otherwise, and stores at another time."""


def answer(frame: DataFrame) -> dict[str, Any]:
    columns = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    table = frame.select(*(name for name in columns if name not in OF_STORE)).toArrow()
    rows = [{name: found.hex() if isinstance(found, bytes) else found for name, found in row.items()}
            for row in table.to_pylist()]  # fmt: skip
    return {"columns": columns, "rows": sorted(rows, key=lambda row: row["id"])}


def streamed(spark: SparkSession, frame: DataFrame, name: str) -> DataFrame:
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = frame.writeStream.format("memory").queryName(name).trigger(availableNow=True)
        writer.option("checkpointLocation", checkpoint).start().awaitTermination()
    return spark.table(name)


def read(spark: SparkSession, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    try:
        frame = read_events(spark, **arguments)
        return answer(streamed(spark, frame, name) if arguments.get("streaming") else frame)
    except (HeadgateError, PySparkException) as error:
        return {"error": type(error).__name__, "message": str(error)}


@pytest.mark.slow
def test_a_topic_gives_what_the_log_gives(spark: SparkSession, kafka: Kafka, tmp_path: Path) -> None:
    stores = Stores(kafka, tmp_path / "data")
    asked: dict[str, dict[str, Any]] = {
        "everything": {},
        "later": {"from_": stores.between},
        "earlier": {"to": stores.between, "filter": FILTERS["data"]},
        "nothing": {"from_": stores.between, "to": stores.between},
        "until_now": {"to": "next"},
        "from_now": {"from_": "next"},
        **{name: {"filter": filter_} for name, filter_ in FILTERS.items()},
        "stream": {"streaming": True, "filter": FILTERS["attributes"]},
        "stream_part": {"streaming": True, "from_": "earliest", "to": stores.between},
    }
    if DEPTH == "gate":
        asked = {name: asked[name] for name in ("everything", "later", "attributes", "stream_part")}
    both = {"log": str(stores.data), "topic": stores.address}
    cases = {f"{name}_{of}": {"address": both[of], **one} for name, one in asked.items() for of in both}
    cases["other"] = {"address": stores.address, "broker": "other"}
    cases["identity"] = {"address": stores.address, "broker": stores.identity}
    cases |= refusals(kafka, stores)
    found = {name: read(spark, name, arguments) for name, arguments in cases.items()}
    for name in asked:
        log, topic = found[f"{name}_log"], found[f"{name}_topic"]
        assert "error" not in log, log
        assert topic == log, name
    every = [row["id"] for row in found["everything_topic"]["rows"]]
    assert every == found_ids(found["identity"]) == stores.ids(stores.identity)
    assert found_ids(found["other"]) == stores.ids(OTHER)
    assert len(every) > len(found_ids(found["attributes_topic"])) > 3
    later, part = found_ids(found["later_topic"]), found_ids(found["stream_part_topic"])
    assert sorted(later + part) == every
    assert later
    assert part
    if DEPTH != "gate":
        assert found_ids(found["stream_topic"]) == found_ids(found["attributes_topic"])
        assert found_ids(found["nothing_topic"]) == found_ids(found["from_now_topic"]) == []
    check_refusals(found)


def found_ids(one: Mapping[str, Any]) -> list[str]:
    return [row["id"] for row in one["rows"]]


def refusals(kafka: Kafka, stores: Stores) -> dict[str, dict[str, Any]]:
    """What cannot be read; and a topic with records that somebody else wrote."""
    config = kafka_config(kafka.bootstrap, f"f{time.monotonic_ns()}.")
    Admin(config).create_missing()
    writer = Producer({"bootstrap.servers": kafka.bootstrap})
    topic = config.topic("events")
    good = [("ce_specversion", b"1.0"), ("ce_id", b"1"), ("ce_source", b"/s"), ("ce_type", b"t"),
            ("headgate_broker", b"default/default/1"), ("headgate_data_kind", b"1")]  # fmt: skip
    for headers in (good, [*good, ("ce_id", b"2")], good[:-1], [*good[:-1], ("headgate_data_kind", b"9")],
                    [("ce_id", b"\xff"), *good[:1], *good[2:]], [],
                    [*good[:4], ("headgate_broker", b""), good[-1]]):  # fmt: skip
        writer.produce(topic, b"{}", partition=0, headers=headers)
    writer.produce(topic, None, partition=0, headers=good)
    assert writer.flush(30) == 0
    impatient = {"default.api.timeout.ms": "2000", "request.timeout.ms": "1000"}
    address = f"kafka://{kafka.bootstrap}/?prefix={config.topic_prefix}"
    return {
        "foreign_stop": {"address": address},
        "foreign_skip": {"address": address, "on_corrupt": "skip"},
        "no_topic": {"address": f"kafka://{kafka.bootstrap}/?prefix=nosuch."},
        "no_kafka": {"address": f"kafka://127.0.0.1:{free_port()}", "kafka_options": impatient},
        "ours": {"address": stores.address, "kafka_options": {"isolation.level": "read_uncommitted"}},
        "bad_option": {"address": stores.address, "kafka_options": {"security.protocol": "nosuch"}},
        "no_place": {"address": stores.address, "from_": "yesterday"},
        "no_partition": {"address": stores.address, "from_": "7:1"},
    }  # fmt: skip


def check_refusals(found: Mapping[str, Any]) -> None:
    def refused(name: str, error: str, said: str) -> None:
        assert found[name].get("error") == error, found[name]
        assert said in found[name]["message"]

    assert "no event that Headgate stored" in found["foreign_stop"]["message"]
    assert "events/0 at offset 1" in found["foreign_stop"]["message"]
    assert found_ids(found["foreign_skip"]) == ["1"]
    refused("no_topic", "EventsAddressError", "there is no topic nosuch.events")
    refused("no_kafka", "EventsUnreachableError", "does not answer")
    refused("ours", "EventsAddressError", "isolation.level")
    refused("bad_option", "EventsAddressError", "no client of Kafka")
    refused("no_place", "PositionError", "is no place in the topic")
    refused("no_partition", "PositionError", "is no position of this log")
