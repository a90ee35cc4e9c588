"""A member of the dispatchers' consumer group, which reads the partitions of the topic `outbox` that it is given.

The group's commit (`changelog.py`) is the offset to go on at, with the takeover's state as its metadata; who is given a
partition restores both. What was handed out and not committed comes again, here or at another member.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from headgate.backend.config import KafkaConfig
from headgate.backend.kafka.client import BOUNDED_FETCH, Came, GroupConsumer, library, offset_of
from headgate.backend.kafka.events import headers_of
from headgate.backend.kafka.outbox_records import (
    Checkpoint,
    OutboxEvent,
    OutboxListener,
    OutboxPage,
    decode,
    decode_event,
    decode_state,
)
from headgate.backend.kafka.outbox_takeover import Matched, OutboxTakeover
from headgate.backend.kafka.records import RecordError
from headgate.outbox.link_format import RunActive, RunRejected
from headgate_api.limits import OUTBOX_READ_BYTES_MAX, OUTBOX_READ_RECORDS, OUTBOX_SESSION_S

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message, TopicPartition

_DOING: Final = "the outbox cannot be read"
_FETCH_WAIT_MS: Final = 100
"""How long a broker keeps a fetch that finds nothing new."""


@dataclass(slots=True)
class _Assigned:
    """A partition that the member has now."""

    takeover: OutboxTakeover
    events: list[OutboxEvent] = field(default_factory=list)
    runs: list[RunActive | RunRejected] = field(default_factory=list)
    has_moved: bool = False


class OutboxMember:
    """A member of the group, named `name` there (`client.id`; empty: the library's own). Blocking; for one thread."""

    def __init__(self, config: KafkaConfig, listener: OutboxListener, name: str = "") -> None:
        self._topic = config.topic("outbox")
        self._events_topic = config.topic("events")
        self._partition_count = config.topics.outbox.partitions
        self._listener = listener
        self._assigned: dict[int, _Assigned] = {}
        self._closed = False
        own = {"auto.offset.reset": "error", "fetch.wait.max.ms": _FETCH_WAIT_MS, **BOUNDED_FETCH}
        self._consumer = GroupConsumer(config, _DOING, config.topic("dispatchers"), OUTBOX_SESSION_S, own, name=name)
        self._consumer.raw.subscribe(
            [self._topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    def read(self, timeout_s: float) -> list[OutboxPage]:
        """Takes what has come, OUTBOX_READ_RECORDS at most; waits `timeout_s` for the first record.

        Returns a page for each partition of which records were read, but not of one that is revoked meanwhile. Raises
        RecordError when the committed state of a partition cannot be read.
        """
        for message in self._consumer.batch(timeout_s, OUTBOX_READ_RECORDS, OUTBOX_READ_BYTES_MAX):
            what = self._consumer.came(message)
            if what is Came.RECORD:
                self._take(message)
            elif what is Came.REMOVED:
                self._go_on_behind_removed(message)
        pages = []
        for partition, assigned in sorted(self._assigned.items()):
            if assigned.has_moved:
                takeover = assigned.takeover
                place = Checkpoint(partition, takeover.resume_at, takeover.state)
                pages.append(OutboxPage(assigned.events, assigned.runs, place))
                assigned.events, assigned.runs, assigned.has_moved = [], [], False
        return pages

    def pause(self, partitions: Collection[int]) -> None:
        """Stops reading these for now; those that the member does not have are passed over.

        `read` must go on: Kafka takes a member that does not call it for dead. A pause is for the rare case: the
        library throws away what it has fetched of the partition, and asks for it again only when the fetch of all
        partitions that is under way has ended (_FETCH_WAIT_MS).
        """
        self._consumer.raw.pause(self._places(partitions))

    def resume(self, partitions: Collection[int]) -> None:
        self._consumer.raw.resume(self._places(partitions))

    def close(self) -> None:
        """Leaves the group: the listener is told of every partition first, and the others have them at once."""
        if not self._closed:
            self._closed = True
            self._consumer.close()
            self._consumer.raise_problem()

    def _take(self, message: Message) -> None:
        partition, offset = message.partition(), offset_of(message)
        assert partition is not None, "a record that was read has a partition"
        assigned = self._assigned.get(partition)
        if assigned is None:
            return  # came before the partition went
        assigned.has_moved = True
        try:
            headers, count = headers_of(message), self._partition_count
            outcomes = assigned.takeover.feed(offset, decode(headers, message.key(), message.value(), partition, count))
        except RecordError as error:
            assigned.takeover.pass_over(offset)
            self._listener.passed_over(partition, offset, error)
            return
        for outcome in outcomes:
            if not isinstance(outcome, Matched):
                assigned.runs.append(outcome)
                continue
            try:
                assigned.events.append(matched_event(outcome, offset))
            except RecordError as error:
                self._listener.passed_over(partition, offset, error)

    def _on_assign(self, _consumer: Consumer, places: list[TopicPartition]) -> None:
        if self._closed:  # they came behind the last read: a consumer that closes is told of no commit any more
            return
        with self._consumer.calling_back():
            self._listener.taking(sorted(place.partition for place in places))
            committed = self._consumer.commits(places)
            self._consumer.raw.incremental_assign([self._restored(place) for place in committed])

    def _on_revoke(self, _consumer: Consumer, places: list[TopicPartition]) -> None:
        self._forget(places, is_lost=False)

    def _on_lost(self, _consumer: Consumer, places: list[TopicPartition]) -> None:
        self._forget(places, is_lost=True)

    def _forget(self, places: Sequence[TopicPartition], *, is_lost: bool) -> None:
        partitions = sorted(place.partition for place in places if place.partition in self._assigned)
        if partitions:
            with self._consumer.calling_back():
                self._listener.revoked(partitions, is_lost=is_lost)
        for partition in partitions:
            del self._assigned[partition]

    def _restored(self, place: TopicPartition) -> TopicPartition:
        """The partition is the member's: where it goes on."""
        first, _ = self._consumer.bounds(self._topic, place.partition)
        position, state = 0, None
        if place.offset >= 0:
            position, state = place.offset, decode_state(place.metadata or "")
        if position < first:
            self._listener.removed(place.partition, position, first)
            position = first
        takeover = OutboxTakeover(self._partition_count, self._floor, position, state)
        self._assigned[place.partition] = _Assigned(takeover)
        self._listener.assigned(place.partition, takeover.state)
        there: TopicPartition = library().TopicPartition(self._topic, place.partition, position)
        return there

    def _floor(self, source: int) -> int:
        return self._consumer.bounds(self._events_topic, source)[0]

    def _go_on_behind_removed(self, message: Message) -> None:
        """Retention has removed what stood at the place that is read."""
        partition = message.partition()
        assigned = None if partition is None else self._assigned.get(partition)
        if partition is None or assigned is None:
            return
        (first, end), position = self._consumer.bounds(self._topic, partition), assigned.takeover.next_position
        if position > end:
            raise self._consumer.ends_before(self._topic, partition, position)
        if position < first:
            self._listener.removed(partition, position, first)
            assigned.takeover.pass_over(first - 1)  # the same loss is told once
        self._consumer.restart(self._topic, partition, max(position, first))

    def _places(self, partitions: Collection[int]) -> list[TopicPartition]:
        kafka = library()
        return [kafka.TopicPartition(self._topic, each) for each in partitions if each in self._assigned]


def matched_event(matched: Matched, position: int) -> OutboxEvent:
    """An event that counts, with what its record holds; `position` is the offset of the record that decided it."""
    record = matched.record
    stored = decode_event(record)
    return OutboxEvent(
        record.source, record.offset, record.stored_us, record.generation, matched.targets, stored, position
    )
