"""What the tests of dispatching on Kafka share: a matcher's records, with the events where they were stored."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

from confluent_kafka import Producer

from headgate.backend.config import KafkaConfig
from headgate.backend.kafka.outbox_records import HEADER, HelloRecord, PassedRecord, encode
from headgate.backend.kafka.records import encode_record
from headgate.filter.compile.plan import CompiledFilter
from headgate.objects.kinds.routing import Target
from headgate.outbox.shards import dispatcher_of
from headgate_api.event.model import DataKind, Event
from tests.backend.outbox_stream import BROKER, encode_event
from tests.delivery.harness import spec

SOURCES = 2
KEYS = 3
"""Partition keys of each source partition's events."""
FLUSH_S_MAX = 60.0


def made_event(source: int, offset: int, size_bytes: int = 40) -> Event:
    """An event of a partition of the topic `events`, with one of its keys."""
    return Event(
        "1.0",
        f"{source}-{offset}",
        "/s",
        "t",
        extensions={"partitionkey": f"{source}-{offset % KEYS}"},
        data_kind=DataKind.TEXT,
        datacontenttype="text/plain",
        data=b"x" * size_bytes,
    )


def made_target(number: int, uri: str, **delivery: object) -> Target:
    """A target of the feed's broker that takes everything."""
    return Target(number, f"default/t{number}", BROKER, CompiledFilter("true", ()), uri, spec(**delivery))


class Feed:
    """Stores events, and what one run of a matcher finds for them.

    Args:
        config: Of the deployment.
        targets: Which targets want an event, by source partition and offset; ascending.
        make: Makes the events, by source partition, offset and size of their data.
        broker: Their broker's identity.
        verdict: The matcher's, of each.
    """

    def __init__(
        self,
        config: KafkaConfig,
        targets: Callable[[int, int], Sequence[int]],
        *,
        make: Callable[[int, int, int], Event] = made_event,
        broker: str = BROKER,
        verdict: int = 3,
    ) -> None:
        self._make, self._broker, self._verdict = make, broker, verdict
        self._outbox, self._events = config.topic("outbox"), config.topic("events")
        self._partitions = config.topics.outbox.partitions
        self._targets = targets
        self._producer = Producer({"bootstrap.servers": config.bootstrap, "enable.idempotence": True, "linger.ms": 5})
        self._expected: dict[int, set[str]] = {}
        self.next = [0] * SOURCES
        self._matched = [0] * SOURCES
        for source in range(SOURCES):
            hello = encode(HelloRecord(1, 1, source, 0, SOURCES, self._partitions))
            for partition in range(self._partitions):
                self._produce(self._outbox, partition, [(HEADER, hello)])
        self.flush()

    def store(self, count: int, size_bytes: int = 40, sources: Sequence[int] = range(SOURCES)) -> None:
        """So many further events of each of these source partitions, and what the run finds for them."""
        self.append(count, size_bytes, sources)
        self.match(size_bytes)

    def append(self, count: int, size_bytes: int = 40, sources: Sequence[int] = range(SOURCES)) -> None:
        """So many further events of each of these source partitions, which the run has not come to yet."""
        for source in sources:
            first = self.next[source]
            for offset in range(first, first + count):
                record = encode_record(self._broker, self._make(source, offset, size_bytes))
                self._produce(self._events, source, record.headers, record.value, record.key)
            self.next[source] = first + count
        self.flush()

    def match(self, size_bytes: int = 40) -> None:
        """The run comes to everything that is stored."""
        for source in range(SOURCES):
            for offset in range(self._matched[source], self.next[source]):
                event = self._make(source, offset, size_bytes)
                for target in self._targets(source, offset):
                    self._expected.setdefault(target, set()).add(event.id)
                for partition, wanted in self._sharded(self._targets(source, offset)):
                    rows = [(target, self._verdict) for target in wanted]
                    headers, value = encode_event(1, 1, source, offset, rows, event, broker=self._broker)
                    self._produce(self._outbox, partition, headers, value)
            self._matched[source] = self.next[source]
            passed = encode(PassedRecord(1, 1, source, self.next[source]))
            for partition in range(self._partitions):
                self._produce(self._outbox, partition, [(HEADER, passed)])
        self.flush()

    def expected(self, target: int) -> set[str]:
        """Ids of the events that a target is to get of what is stored."""
        return self._expected.get(target, set())

    def flush(self) -> None:
        """Waits until everything is acknowledged."""
        assert self._producer.flush(FLUSH_S_MAX) == 0

    def _sharded(self, targets: Iterable[int]) -> list[tuple[int, list[int]]]:
        found: dict[int, list[int]] = {}
        for target in targets:
            found.setdefault(dispatcher_of(target, self._partitions), []).append(target)
        return sorted(found.items())

    def _produce(
        self, topic: str, partition: int, headers: list, value: bytes | None = None, key: bytes | None = None
    ) -> None:
        while True:
            try:
                self._producer.produce(topic, value, key, partition, headers=headers)
                break
            except BufferError:
                self._producer.poll(0.1)
        self._producer.poll(0)


def in_order(arrived: Sequence[str], key: str) -> bool:
    """Whether a key's events came in the order of the log; after a repeat, again from there on."""
    source, _, rest = key.partition("-")
    numbers = [
        int(offset)
        for id_ in arrived
        for of, _, offset in [id_.partition("-")]
        if of == source and int(offset) % KEYS == int(rest)
    ]
    steps = sorted({*numbers})
    place = {number: index for index, number in enumerate(steps)}
    return all(place[later] <= place[earlier] + 1 for earlier, later in itertools.pairwise(numbers))
