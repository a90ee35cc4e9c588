"""Whole events in the records of the outbox, or references to the topic `events`: bytes and processor time of both.

    python -m benchmarks.references [--events 20000] [--bytes 400 4000] [--json]

A matched event goes to each outbox partition that has a target of it (its *fan*). Written whole, the record has the
event's headers and data. Written as a reference, it has Headgate's header alone, and a dispatcher reads the topic
`events` beside its outbox partition, both in the order of offsets, and takes the data from there. (To seek each event
alone would be a request an event.) Each of four outbox partitions has a dispatcher of its own; so with references each
of them reads all of `events`.

Written and read with librdkafka on one broker without compression. Processor time: of the broker by /proc, of writer
and reader by their own process, an event of the topic `events`. What is the same for both, storing the events and
reading them for the match, is left out.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from clusters.kafka import Kafka
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from benchmarks.shards import own_s
from benchmarks.tables import print_whole
from headgate.backend.kafka.events import headers_of
from headgate.backend.kafka.outbox_records import (
    EVENT,
    HEAD,
    HEADER,
    TARGET,
    EventRecord,
    OutboxKind,
    decode,
    decode_event,
)
from headgate.backend.kafka.records import KafkaRecord, decode_stored, encode_record
from headgate.outbox.shards import dispatcher_of
from headgate_api.event.model import DataKind, Event

OUTBOX: Final = 4
"""Partitions of the outbox, each with a dispatcher."""
TARGETS: Final = (0, 4, 1, 3)
"""A target of each outbox partition, see `outbox.shards.dispatcher_of`; checked at the start."""
CASES: Final = ((1.0, 4), (1.0, 1), (0.1, 1), (0.01, 1))
"""Share of events that any target wants, and in how many outbox partitions."""
GOLDEN: Final = 0.618034
"""Multiples of it are spread evenly."""
SETTLED_S: Final = 0.5


@dataclass(frozen=True)
class Result:
    """One form in one case.

    Attributes:
        form: `whole` or `references`.
        data_bytes: Of an event's data.
        share: Of events that a target wants.
        fan: In how many outbox partitions.
        written_bytes: Of the outbox, an event of `events`.
        read_bytes: By all dispatchers, the same.
        writer_us: Processor time of the outbox's writer, the same.
        broker_us: Of the broker, the same.
        reader_us: Of all dispatchers, the same.
    """

    form: str
    data_bytes: int
    share: float
    fan: int
    written_bytes: float
    read_bytes: float
    writer_us: float
    broker_us: float
    reader_us: float

    @property
    def total_us(self) -> float:
        """Processor time altogether."""
        return self.writer_us + self.broker_us + self.reader_us


@dataclass(frozen=True)
class Case:
    """What is measured.

    Attributes:
        form: `whole` or `references`.
        data_bytes: Of an event's data.
        share: Of events that a target wants.
        fan: In how many outbox partitions.
        topic: The events.
        records: What is in it.
    """

    form: str
    data_bytes: int
    share: float
    fan: int
    topic: str
    records: list[KafkaRecord]


def made(count: int, data_bytes: int) -> list[Event]:
    """Events such as producers send."""
    rng = random.Random(3)
    filler = "x" * max(0, data_bytes - 60)
    return [
        Event(
            specversion="1.0",
            id=f"e{number}",
            source=f"/shop/node-{rng.randrange(100)}",
            type=f"com.example.t{rng.randrange(1_000)}",
            subject=f"order/{number}",
            datacontenttype="application/json",
            data_kind=DataKind.JSON,
            data=json.dumps({"order": number, "total": rng.random(), "note": filler}).encode(),
        )
        for number in range(count)
    ]


class Place:
    """The topics of one case, and the broker's processor time."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self._producer = Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True, "linger.ms": 5})

    def create(self, topics: dict[str, int]) -> None:
        """Makes topics with so many partitions."""
        admin = AdminClient({"bootstrap.servers": self._kafka.bootstrap})
        for done in admin.create_topics([NewTopic(name, count, 1) for name, count in topics.items()]).values():
            done.result()

    def broker_s(self) -> float:
        """Processor time so far."""
        return sum(own_s(pid) for pid in self._kafka.pids.values())

    def write(self, topic: str, partition: int, key, value, headers) -> None:
        """One record; waits while the library's queue is full."""
        while True:
            try:
                self._producer.produce(topic, value, key, partition, headers=headers)
                break
            except BufferError:
                self._producer.poll(0.01)
        self._producer.poll(0)

    def flush(self) -> None:
        """Waits for every acknowledgement."""
        assert self._producer.flush(60) == 0

    def read(self, topic: str, partition: int, count: int) -> Iterator[Message]:
        """So many records from the beginning on."""
        consumer = Consumer({"bootstrap.servers": self._kafka.bootstrap, "group.id": "benchmark"})
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
        while count:
            for message in consumer.consume(min(count, 500), timeout=1.0):
                assert message.error() is None
                count -= 1
                yield message
        consumer.close()


def write(place: Place, case: Case, outbox: str, wanted: list[int]) -> int:
    """Writes the outbox; returns how many bytes headers and data have."""
    written = 0
    for number in wanted:
        record = case.records[number]
        for partition in range(case.fan):
            head = HEAD.pack(OutboxKind.EVENT, 0, 1, 1, 0, number) + EVENT.pack(1_700_000_000_000_000)
            own = (HEADER, head + TARGET.pack(TARGETS[partition], 3))
            if case.form == "whole":
                headers = [own, *record.headers]
                place.write(outbox, partition, record.key, record.value, headers)
                written += sum(len(name) + len(value) for name, value in headers) + len(record.value or b"")
            else:
                place.write(outbox, partition, None, None, [own])
                written += len(own[0]) + len(own[1])
    place.flush()
    return written


def read(place: Place, case: Case, outbox: str, partition: int, count: int) -> int:
    """Reads an outbox partition as its dispatcher would, with what it refers to; returns how many bytes came."""
    size = 0
    stored = place.read(case.topic, 0, len(case.records)) if case.form == "references" else iter(())
    for message in place.read(outbox, partition, count):
        size += len(message)
        found = decode(headers_of(message), message.key(), message.value(), partition, OUTBOX)
        assert isinstance(found, EventRecord)
        if case.form == "whole":
            decode_event(found)
            continue
        for event in stored:
            size += len(event)
            if event.offset() == found.offset:
                decode_stored(headers_of(event), event.value())
                break
    return size + sum(len(event) for event in stored)  # behind the last one it reads on all the same


def measure(place: Place, case: Case, outbox: str) -> Result:
    """Writes the outbox of all events in one form, and reads it."""
    wanted = [number for number in range(len(case.records)) if number * GOLDEN % 1 < case.share]
    place.create({outbox: OUTBOX})
    began, broker = time.process_time(), place.broker_s()
    written = write(place, case, outbox, wanted)
    writer_s = time.process_time() - began
    began = time.process_time()
    came = sum(read(place, case, outbox, partition, len(wanted)) for partition in range(case.fan))
    reader_s = time.process_time() - began
    time.sleep(SETTLED_S)
    broker_s = place.broker_s() - broker
    each = 1 / len(case.records)
    return Result(
        form=case.form,
        data_bytes=case.data_bytes,
        share=case.share,
        fan=case.fan,
        written_bytes=round(written * each, 1),
        read_bytes=round(came * each, 1),
        writer_us=round(writer_s * each * 1e6, 1),
        broker_us=round(broker_s * each * 1e6, 1),
        reader_us=round(reader_s * each * 1e6, 1),
    )


def run(place: Place, arguments: argparse.Namespace, tell: Callable[[str], None]) -> Iterator[Result]:
    """Every case, in both forms; the first one twice, as what is cold does not count."""
    for data_bytes in arguments.bytes:
        records = [encode_record("default/default/1", event) for event in made(arguments.events, data_bytes)]
        topic = f"events-{data_bytes}"
        place.create({topic: 1})
        for record in records:
            place.write(topic, 0, record.key, record.value, record.headers)
        place.flush()
        for number, (share, fan) in enumerate([CASES[0], *CASES]):
            for form in ("whole", "references"):
                tell(f"{data_bytes} bytes, {share:.0%} wanted, in {fan} outbox partitions, {form}")
                case = Case(form, data_bytes, share, fan, topic, records)
                found = measure(place, case, f"{topic}-{number}-{form}")
                if number:
                    yield found


def show(results: list[Result]) -> None:
    """A row a result."""
    table = Table(title="An event of the topic events, in the outbox")
    for name in (
        "form",
        "data",
        "wanted",
        "fan",
        "bytes written",
        "read",
        "writer us",
        "broker us",
        "reader us",
        "all",
    ):
        table.add_column(name, justify="left" if name == "form" else "right")
    for one in results:
        sizes = [f"{one.written_bytes:,.0f}", f"{one.read_bytes:,.0f}"]
        times = [f"{figure:.0f}" for figure in (one.writer_us, one.broker_us, one.reader_us, one.total_us)]
        table.add_row(one.form, f"{one.data_bytes:,}", f"{one.share:.0%}", str(one.fan), *sizes, *times)
    print_whole(table)


def main() -> None:
    """Parses the flags, runs, prints a table or one JSON object a line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=20_000, help="of each case (default: %(default)s)")
    parser.add_argument("--bytes", type=int, nargs="+", default=[400, 4_000], help="of an event's data")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line instead of a table")
    arguments = parser.parse_args()
    assert [dispatcher_of(target, OUTBOX) for target in TARGETS] == list(range(OUTBOX))
    results, console = [], Console(stderr=True)
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="headgate-bench-"))
        status = stack.enter_context(console.status("starts"))
        kafka = stack.enter_context(Kafka(Path(scratch)))
        for found in run(Place(kafka), arguments, status.update):
            results.append(found)
            if arguments.json:
                print(json.dumps(asdict(found) | {"total_us": round(found.total_us, 1)}), flush=True)
    if not arguments.json:
        show(results)


if __name__ == "__main__":
    main()
