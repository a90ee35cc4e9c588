"""The writer of events that brokers store once, for one partition of the topic `events`.

Who writes them has first fenced whoever did before, and then read what was stored until then. So no two processes can
ever store one event, whoever takes himself for the partition's owner: that there is one matters for speed alone.
docs/adr/0044-who-stores-once-has-fenced-and-read.md has the reasons.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from headgate.backend.config import KafkaConfig
from headgate.backend.kafka.client import Came, KafkaAdmin, TopicConsumer, library, offset_of
from headgate.backend.kafka.events import headers_of
from headgate.backend.kafka.producer_numbers import group_of, number_place, producer_name, read_numbers
from headgate.backend.kafka.records import RecordError, checked_record, decode_stored
from headgate.backend.kafka.transactions import FencedName, FencedWriter, fenced_by
from headgate.event.arrow import from_batch_all
from headgate.event.kafka import BROKER
from headgate.ingress.deduplication import DeduplicatingWriter
from headgate.ingress.producers import NumbersMovedError
from headgate.log.group_commit import Sifted
from headgate.log.writer import Encoded, Numbers, wall_clock_us
from headgate_api.errors import HeadgateError, UnavailableError
from headgate_api.limits import KAFKA_READ_S_MAX, PRODUCERS_MAX

if TYPE_CHECKING:
    from confluent_kafka import Message

_log = structlog.get_logger(__name__)


class WriterFencedError(UnavailableError):
    """Another process writes the partition now."""

    code = "writer-fenced"


class PartitionGoesError(UnavailableError):
    """The partition goes to another process."""

    code = "partition-goes"

    def __init__(self) -> None:
        super().__init__("another process is about to write the partition", hint="try again in a few seconds")


@dataclass(frozen=True, slots=True)
class StoredName:
    """Which event a record holds, where it is, and when it was stored, microseconds since 1970."""

    offset: int
    time_us: int
    broker: str
    source: str
    id: str


class FencedAppends(Protocol):
    """The one way to append, until a newer one is made, wherever. After an error with `is_failed` it takes nothing."""

    @property
    def is_failed(self) -> bool: ...

    def append(self, chunk: Encoded) -> Sequence[int]:
        """Stores a chunk durably with its numbers, all or nothing; the offsets of its records, which may be none.

        WriterFencedError: there is a newer one. After another UnavailableError it may be stored or not.
        """

    def announce(self, offset: int) -> None:
        """Tells everybody who it is; up to `offset` it knows what is stored."""

    def close(self) -> None: ...


class OwnedPartition(Protocol):
    """A partition of the topic as its writer needs it; blocking, for one thread at a time."""

    def fence(self) -> FencedAppends:
        """From here on nobody appends by an earlier one; what was appended by one has been stored or never will be."""

    def first(self) -> int:
        """The first offset that retention has kept."""

    def at_time(self, time_us: int) -> int:
        """Where begins what was stored at or after a time, or what is not committed yet."""

    def end(self) -> int:
        """Everything that is there now is below it, also what others have not committed yet."""

    def newest(self, broker: str, producer: str) -> tuple[int, int]:
        """The newest number of a producer of a broker, by its identity, that is stored here, -1 for none; its stream.

        Waits as `names` does.
        """

    def names(
        self, start: int, end: int, brokers: Container[str], stopped: Callable[[], bool]
    ) -> Iterator[StoredName | None]:
        """The events of some brokers up to an end that `end` said; None where records are gone or no events.

        Waits for what others have not committed yet. UnavailableError where it does not come, PartitionGoesError once
        it is `stopped`.
        """


class WindowWriter:
    """Group commit's writer of a partition, see `Appender`; what appends is one thread.

    `windows` are those of the brokers that store an event once, by identity, microseconds.
    """

    def __init__(
        self,
        partition: OwnedPartition,
        windows: Callable[[], Mapping[str, int]],
        *,
        events_max: int,
        clock_us: Callable[[], int] = wall_clock_us,
    ) -> None:
        self._partition = partition
        self._windows = windows
        self._clock_us = clock_us
        self._sink = _Sink(clock_us)
        self._once = DeduplicatingWriter(self._sink, events_max=events_max, clock_us=clock_us)
        self._known_to: int | None = None
        """What is stored below it is known, as far as it is of a window; None before the first look."""
        self._newest: dict[tuple[str, str], tuple[int, int]] = {}
        """The numbers and streams of producers that were asked for since the last look."""
        self._stopped = threading.Event()
        self.lacking = self._once.lacking

    def take(self) -> None:
        """Makes this the partition's writer, if it is not: fences the one before it, and reads what that has stored.

        Raises PartitionGoesError after `stop`, UnavailableError when Kafka does not answer; it may be tried again.
        """
        if self._stopped.is_set():
            raise PartitionGoesError
        if self._sink.appends is not None:
            return
        self._newest.clear()
        appends = self._partition.fence()
        try:
            self._catch_up()
            appends.announce(self._known_to or 0)
        except BaseException:
            appends.close()
            raise
        self._sink.appends = appends

    def append(self, chunk: Encoded) -> int | Sifted:
        """See `Appender`; NumbersMovedError where its numbers do not follow what is stored, see `Numbers`."""
        self.take()
        newest = self._followed(chunk.numbers)
        try:
            stored = self._once.append(chunk)
            if newest and isinstance(stored, Sifted) and stored.was_there and all(stored.was_there):
                self._sink.append(chunk._replace(batch=chunk.batch.slice(0, 0), filter_values=[]))
        except HeadgateError:
            self._drop_failed()
            raise
        self._known_to = max(self._known_to or 0, self._sink.end)
        self._newest |= newest
        return stored

    def _followed(self, numbers: Sequence[Numbers]) -> dict[tuple[str, str], tuple[int, int]]:
        """The newest numbers of producers once these are stored; each has to follow what is stored now."""
        found: dict[tuple[str, str], tuple[int, int]] = {}
        for one in numbers:
            key = one.broker, one.producer
            newest = found.get(key) or self._newest.get(key)
            if newest is None or not (one.follow(*newest) or key in found):
                newest = self._partition.newest(*key)  # fronts that do not know of a window yet store numbers, too
            if not one.follow(*newest):
                raise NumbersMovedError(
                    f"another stream of the producer {one.producer!r} has begun, or has stored events: open a new one"
                )
            found[key] = one.last, one.stream
        if len(self._newest) + len(found) > PRODUCERS_MAX:
            self._newest.clear()
        return found

    def probe(self) -> None:
        self.take()

    def stop(self) -> None:
        """Takes nothing more, and ends what reads; for any thread."""
        self._stopped.set()

    def close(self) -> None:
        """Gives everything back; nothing is appended any more."""
        self._stopped.set()
        if self._sink.appends is not None:
            self._sink.appends.close()
            self._sink.appends = None

    def _drop_failed(self) -> None:
        """After an error the next chunk fences once more, and looks what has become of the last one."""
        appends = self._sink.appends
        if appends is not None and appends.is_failed:
            self._sink.appends = None
            appends.close()

    def _catch_up(self) -> None:
        """Learns what is stored, on from what is known; what is read stays known when it fails."""
        windows, now_us, end = dict(self._windows()), self._clock_us(), self._partition.end()
        first_us: int | None = None
        if self._known_to is None:
            self._known_to = self._partition.at_time(now_us - max(windows.values())) if windows else end
            if self._known_to == self._partition.first() > 0:
                first_us = now_us  # retention may have removed some of the window before it
        try:
            for name in self._partition.names(self._known_to, end, windows, self._stopped.is_set):
                if name is None:
                    self._once.lack(windows, now_us)
                    continue
                if first_us is not None:
                    first_us = min(first_us, name.time_us)
                self._once.learn([(name.broker, name.source, name.id)], [name.offset], name.time_us, windows)
                self._known_to = name.offset + 1
        finally:
            if first_us is not None:
                self._once.lack(windows, first_us)
        self._known_to = max(self._known_to, end)


class _Sink:
    """Where new events go, see `ChunkWriter`; `end` is behind the last one."""

    def __init__(self, clock_us: Callable[[], int]) -> None:
        self._clock_us = clock_us
        self.appends: FencedAppends | None = None
        self.append_time_us = self.end = 0

    def append(self, chunk: Encoded) -> Sequence[int]:
        assert self.appends is not None, "`take` has made it"
        offsets = self.appends.append(chunk)
        self.append_time_us = self._clock_us()
        if offsets:
            self.end = offsets[-1] + 1
        return offsets

    def probe(self) -> None:
        """`take` asks Kafka."""


# --- in Kafka -------------------------------------------------------------------------------------
# The owner says where it is in a commit of a group, which is part of a transaction: only the newest one can.

GROUP: Final = "fronts"
"""The consumer group whose members share the partitions; its commits say who writes each of them."""
_DOING: Final = "events that are stored once cannot be appended"
READING: Final = "events of a window cannot be read"
"""What an owner asks Kafka for."""
_UNSURE: Final = "it is not known whether they are stored; sent again, they are stored once"
_POLL_S: Final = 0.1


class KafkaPartition:
    """A partition of the topic `events`; the owner is announced as `name`. Others may use `admin`, too."""

    def __init__(self, config: KafkaConfig, partition: int, name: str, admin: KafkaAdmin) -> None:
        self._config = config
        self._admin = admin
        self._partition = partition
        self._name = name
        self._topic = config.topic("events")

    def fence(self) -> FencedAppends:
        return _KafkaAppends(self._config, self._partition, self._name)

    def first(self) -> int:
        return self._admin.offsets(self._topic, [self._partition], "earliest")[self._partition]

    def at_time(self, time_us: int) -> int:
        admin, partitions = self._admin, [self._partition]
        # What lies behind an open transaction has no time yet: then the answer is that there is nothing as new.
        committed = admin.offsets(self._topic, partitions, "latest")[self._partition]
        found = admin.offsets(self._topic, partitions, max(0, time_us // 1_000))[self._partition]
        return found if found >= 0 else committed

    def end(self) -> int:
        return TopicConsumer.very_end(self._config, READING, self._topic, self._partition)

    def newest(self, broker: str, producer: str) -> tuple[int, int]:
        found = read_numbers(self._admin, producer_name(broker, producer), [self._partition])
        return found.get(self._partition, (-1, 0))

    def names(
        self, start: int, end: int, brokers: Container[str], stopped: Callable[[], bool]
    ) -> Iterator[StoredName | None]:
        if start >= end:
            return
        with closing(TopicConsumer.committed(self._config, READING)) as reader:
            reader.go(self._topic, self._partition, start)
            position, deadline = start, time.monotonic() + KAFKA_READ_S_MAX
            while position < end:
                if stopped():
                    raise PartitionGoesError
                for what, message in reader.polled(_POLL_S):
                    deadline = time.monotonic() + KAFKA_READ_S_MAX
                    if what is Came.RECORD:
                        position = offset_of(message) + 1
                        yield from _name_of(message, brokers)
                    elif what is Came.END:
                        position = max(position, offset_of(message))
                    elif what is Came.REMOVED:
                        position = max(position, reader.bounds(self._topic, self._partition)[0])
                        reader.go(self._topic, self._partition, position)
                        yield None
                if time.monotonic() > deadline:
                    raise UnavailableError(
                        f"{READING}: partition {self._partition} of {self._topic} is not readable up to its end",
                        hint="a batch is being written by a process that does not answer: try again in a few seconds",
                    )


def _name_of(message: Message, brokers: Container[str]) -> Iterator[StoredName | None]:
    """Which event a record holds, where it is one of these brokers; None for no event of ours."""
    try:
        headers = headers_of(message)
        broker = next((value for name, value in headers if name == BROKER), None)
        if broker is None or broker.decode(errors="replace") not in brokers:
            return
        stored, _ = decode_stored(headers, message.value())
    except RecordError as error:
        _log.error("an event that is stored cannot be read", offset=message.offset(), error=error.message)
        yield None
        return
    event = stored.event
    yield StoredName(offset_of(message), message.timestamp()[1] * 1_000, stored.broker, event.source, event.id)


class _KafkaAppends:
    """See `FencedAppends`: each chunk is a transaction. Making one ends what an earlier one left open."""

    def __init__(self, config: KafkaConfig, partition: int, name: str) -> None:
        self._config = config
        self._partition = partition
        self._name = name
        fenced = fenced_by(
            WriterFencedError,
            f"another process has taken partition {partition} of {config.topic('events')} over",
            "try again in a few seconds",
        )
        self._writer = FencedWriter(config, FencedName("events", f"once-{partition}", _DOING, _UNSURE, fenced))
        self._groups: dict[str, object] = {}

    @property
    def is_failed(self) -> bool:
        return self._writer.is_failed

    def append(self, chunk: Encoded) -> Sequence[int]:
        events, produced = from_batch_all(chunk.batch), chunk.batch.column("produced").to_pylist()
        records = [checked_record(one.broker, one.event, text) for one, text in zip(events, produced, strict=True)]
        newest = {producer_name(one.broker, one.producer): one for one in chunk.numbers}
        places = [
            (number_place(self._config, self._partition, one.last, one.stream), self._group(name))
            for name, one in newest.items()
        ]
        stored = self._writer.send_records(("events", self._partition, record) for record in records)
        for place, group in places:
            self._writer.add_places([place], group)
        self._writer.commit()
        return stored.get(("events", self._partition), [])

    def _group(self, name: str) -> object:
        if name not in self._groups:
            if len(self._groups) >= PRODUCERS_MAX:
                self._groups.clear()
            self._groups[name] = group_of(self._config, name, _DOING)
        return self._groups[name]

    def announce(self, offset: int) -> None:
        topic = self._config.topic("events")
        with closing(TopicConsumer.committed(self._config, _DOING, group=GROUP)) as reader:
            group = reader.raw.consumer_group_metadata()
        self._writer.send(())
        self._writer.add_places([library().TopicPartition(topic, self._partition, offset, self._name)], group)
        self._writer.commit()

    def close(self) -> None:
        self._writer.close()


class AnnouncedOwners:
    """Says who has announced himself for each partition last, by his name; blocking, for one thread at a time."""

    def __init__(self, config: KafkaConfig) -> None:
        self._consumer = TopicConsumer.committed(config, "the writers of partitions are not known now", group=GROUP)
        topic = config.topic("events")
        partitions = range(config.topics.events.partitions)
        self._places = [library().TopicPartition(topic, partition) for partition in partitions]

    def __call__(self) -> Mapping[int, str]:
        found = self._consumer.commits(self._places)
        return {place.partition: place.metadata for place in found if place.offset >= 0 and place.metadata}

    def close(self) -> None:
        self._consumer.close()
