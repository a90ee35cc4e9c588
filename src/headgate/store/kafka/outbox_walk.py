"""Walks over records of the topic `outbox` that were read before: what counts is decided as it was the first time.

A walk begins at a checkpoint (`checkpoints.py`), of which the takeover's state is known.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from headgate.errors import UnavailableError
from headgate.limits import KAFKA_READ_S_MAX
from headgate.store.config import KafkaConfig
from headgate.store.kafka.checkpoints import KnownPlace
from headgate.store.kafka.consumers import committed_reader, watermarks
from headgate.store.kafka.library import Faults, library, translated
from headgate.store.kafka.outbox_decoder import decode
from headgate.store.kafka.outbox_takeover import Matched, OutboxTakeover
from headgate.store.kafka.pages import headers_of, offset_of
from headgate.store.kafka.records import RecordError

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

_DOING: Final = "the outbox cannot be read again"
_POLL_S: Final = 0.2
_RECORDS_A_TIME: Final = 500


class WalkedMatch(NamedTuple):
    """An event that counts.

    Attributes:
        position: Of its rows: the offset of its last record.
        time_us: When that was written, microseconds since 1970 UTC.
        matched: The event and its targets.
    """

    position: int
    time_us: int
    matched: Matched


class OutboxWalker:
    """Walks, one after the other. Blocking; for one thread.

    Args:
        config: Of the deployment.
        closing: Ends a walk early.

    Raises:
        InvalidInputError: The library is missing, or an option is none of its own.
    """

    def __init__(self, config: KafkaConfig, closing: threading.Event) -> None:
        self.topic: Final = config.topic("outbox")
        self.closing: Final = closing
        self._config = config
        self._events_topic = config.topic("events")
        self._faults = Faults()
        self._consumer = committed_reader(config, self._faults)

    def begin(self, partition: int, place: KnownPlace) -> OutboxWalk:
        """A walk over a partition, from a checkpoint of it on.

        Raises:
            UnavailableError: Kafka does not answer.
        """
        return OutboxWalk(self, partition, self._config.topics.outbox.partitions, place)

    def close(self) -> None:
        """Gives everything back."""
        self._consumer.close()

    def go(self, partition: int, offset: int) -> None:
        """Reads on there."""
        self._consumer.assign([library().TopicPartition(self.topic, partition, offset)])

    def bounds(self, partition: int) -> tuple[int, int]:
        """The first offset that a partition of the outbox still has, and its end; raises as `begin`."""
        return self._bounds(self.topic, partition)

    def floor(self, source: int) -> int:
        """The first offset that a source partition still has; raises as `begin`."""
        return self._bounds(self._events_topic, source)[0]

    def records(self, partition: int) -> tuple[list[Message], int]:
        """The records that come next, and the end of the partition where it was met; none where we close.

        Raises:
            UnavailableError: Kafka does not answer, or has removed what comes next.
        """
        kafka = library().KafkaError
        found: list[Message] = []
        end = -1
        deadline = time.monotonic() + KAFKA_READ_S_MAX
        while not found and end < 0:
            if time.monotonic() > deadline:
                raise UnavailableError(f"{_DOING}: {self.topic}/{partition} does not answer")
            if self.closing.is_set():
                break
            first = self._consumer.poll(_POLL_S)  # `consume` would wait for as many as it is asked for
            if first is None:
                continue
            for message in [first, *self._consumer.consume(_RECORDS_A_TIME, 0)]:
                error = message.error()
                if error is None:
                    found.append(message)
                elif error.code() in (kafka.OFFSET_OUT_OF_RANGE, kafka._AUTO_OFFSET_RESET):
                    raise UnavailableError(f"{_DOING}: {self.topic}/{partition} was trimmed meanwhile")
                elif error.code() == kafka._PARTITION_EOF:
                    end = offset_of(message)
                elif not error.retriable():
                    raise self._translated(error)
        return found, end

    def _bounds(self, topic: str, partition: int) -> tuple[int, int]:
        place = library().TopicPartition(topic, partition)
        return watermarks(self._consumer, place, self._config, self._faults, _DOING)

    def _translated(self, error: KafkaError) -> Exception:
        return translated(self._faults.cause(error), _DOING, self._config)


class OutboxWalk:
    """One walk; `OutboxWalker.begin` makes it.

    Attributes:
        first: The first offset that the partition had at the start.
        end: Where it ended then.
        count: Records that were read.
        is_cut: Whether retention has removed records behind the checkpoint: the walk begins at `first`.
    """

    def __init__(self, walker: OutboxWalker, partition: int, partitions: int, place: KnownPlace) -> None:
        self._walker = walker
        self._partition = partition
        self._partitions = partitions
        self.first, self.end = walker.bounds(partition)
        self.count = 0
        self.is_cut = place.offset < self.first
        offset = max(place.offset, self.first)
        self._takeover = OutboxTakeover(partitions, walker.floor, offset, place.state)
        walker.go(partition, offset)

    @property
    def position(self) -> int:
        """Offset of the next record to read."""
        return self._takeover.next_position

    @property
    def place(self) -> KnownPlace:
        """Where it is: another walk may begin here."""
        return KnownPlace(self.position, self._takeover.resume_at, self._takeover.state)

    def watermark(self, source: int) -> int:
        """Every event of the source partition below it was met, if it came behind the checkpoint."""
        return self._takeover.watermark(source) or 0

    def step(self) -> list[WalkedMatch]:
        """Goes on with what has come; nothing where the walker closes.

        Raises:
            UnavailableError: Kafka does not answer, or has removed what comes next.
        """
        records, end_seen = self._walker.records(self._partition)
        found = [match for message in records for match in self._take(message)]
        self.count += len(records)
        if not records and end_seen > self._takeover.next_position:  # offsets have holes
            self._takeover.pass_over(end_seen - 1)
        return found

    def _take(self, message: Message) -> list[WalkedMatch]:
        offset = offset_of(message)
        try:
            headers = headers_of(message)
            record = decode(headers, message.key(), message.value(), self._partition, self._partitions)
            outcomes = self._takeover.feed(offset, record)
        except RecordError:
            self._takeover.pass_over(offset)  # it was told when it was read the first time
            return []
        time_us = message.timestamp()[1] * 1_000
        return [WalkedMatch(offset, time_us, one) for one in outcomes if isinstance(one, Matched)]
