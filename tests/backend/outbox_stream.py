"""A test's matcher: the records of the topic `outbox` that runs would write, without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from confluent_kafka import KafkaException, TopicPartition

from headgate.backend.config import KafkaConfig
from headgate.backend.kafka.outbox_reader import OutboxMember
from headgate.backend.kafka.outbox_records import (
    EVENT,
    HEAD,
    HEADER,
    TARGET,
    Checkpoint,
    HelloRecord,
    OutboxKind,
    OverRecord,
    PassedRecord,
    encode,
    encode_state,
)
from headgate.backend.kafka.records import encode_record
from headgate.event.kafka import Header
from headgate.outbox.shards import dispatcher_of
from headgate_api.event.model import DataKind, Event
from tests.backend.stores import kafka_config

OUTBOX_PARTITIONS = 4
TARGETS = 40
BROKER = "default/default/1b4e28ba"


def outbox_config(bootstrap: str, prefix: str) -> KafkaConfig:
    """A deployment whose outbox has more partitions than there are members."""
    return kafka_config(bootstrap, prefix, outbox=OUTBOX_PARTITIONS)


@dataclass(frozen=True)
class Record:
    """What is produced to one outbox partition."""

    partition: int
    headers: list[Header]
    value: bytes | None = None


def encode_event(
    run: int,
    generation: int,
    source: int,
    offset: int,
    targets: Sequence[tuple[int, int]],
    event: Event,
    *,
    more: bool = False,
    broker: str = BROKER,
) -> tuple[list[Header], bytes | None]:
    """Headers and value of an event's record in the outbox."""
    own = HEAD.pack(OutboxKind.EVENT, more, run, generation, source, offset) + EVENT.pack(1_000_000 + offset)
    record = encode_record(broker, event)
    return [(HEADER, own + b"".join(TARGET.pack(*each) for each in targets)), *record.headers], record.value


@dataclass(frozen=True)
class Run:
    """One run over the source partitions, all of whose events are wanted by targets of its generation."""

    number: int
    generation: int
    sources: int
    partitions: int

    def targets(self, source: int, offset: int, partition: int) -> list[tuple[int, int]]:
        """Which targets of an outbox partition want an event."""
        first = self.generation * TARGETS
        wanted = [first + (offset * 7 + source + each * 11) % TARGETS for each in range(4)]
        return [(target, 3) for target in sorted(set(wanted)) if dispatcher_of(target, self.partitions) == partition]

    def hello(self, starts: Sequence[int]) -> Iterator[Record]:
        for partition in range(self.partitions):
            for source, start in enumerate(starts):
                hello = HelloRecord(self.number, self.generation, source, start, self.sources, self.partitions)
                yield Record(partition, [(HEADER, encode(hello))])

    def events(self, source: int, offset: int) -> Iterator[Record]:
        """An event's records, one in each outbox partition that has targets of it."""
        event = Event("1.0", f"{source}-{offset}", "/s", "t", data_kind=DataKind.TEXT, data=b"x" * 40)
        for partition in range(self.partitions):
            if targets := self.targets(source, offset, partition):
                headers, value = encode_event(self.number, self.generation, source, offset, targets, event)
                yield Record(partition, headers, value)

    def passed(self, source: int, passed: int) -> Iterator[Record]:
        header = encode(PassedRecord(self.number, self.generation, source, passed))
        for partition in range(self.partitions):
            yield Record(partition, [(HEADER, header)])

    def over(self) -> Iterator[Record]:
        header = encode(OverRecord(self.number, all_before=False, generation=self.generation))
        for partition in range(self.partitions):
            yield Record(partition, [(HEADER, header)])


def commit(member: OutboxMember, places: Iterable[Checkpoint]) -> bool:
    """Commits for the group, as a dispatcher does in its transactions; False while the group is changing."""
    mine = [
        TopicPartition(member._topic, each.partition, each.offset, encode_state(each.state))
        for each in places
        if each.partition in member._assigned
    ]
    try:
        done = member._consumer.raw.commit(offsets=mine, asynchronous=False) if mine else []
    except KafkaException:
        return False
    return all(place.error is None for place in done)
