"""A member of the dispatchers' consumer group, which reads the partitions of the topic `outbox` that it is given.

Kafka gives each partition to one member (classic protocol, cooperative-sticky: the others keep theirs while one moves).
A commit is the offset to go on at, with the takeover's state as its metadata; who is given a partition restores both.
Between a commit and the loss of a partition nothing is kept: what was handed out and not committed comes again, here or
at another member.

Bounds: the library fetches KAFKA_FETCH_BYTES_MAX ahead, `read` returns at most OUTBOX_READ_RECORDS records and
OUTBOX_READ_BYTES_MAX bytes, and nothing is kept between two calls. An owner that has no room for a partition calls
`pause`, and goes on calling `read`: Kafka takes a member that does not for dead. A pause is for the rare case: the
library throws away what it has fetched of the partition, and the fetch that is under way, of all partitions, must end
before the partition is asked for again (_FETCH_WAIT_MS).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from headgate.backend.config import KafkaConfig
from headgate.backend.kafka.client import BOUNDED_FETCH, Came, TopicConsumer, library, offset_of
from headgate.backend.kafka.events import headers_of
from headgate.backend.kafka.outbox_records import (
    Checkpoint,
    OutboxEvent,
    OutboxListener,
    OutboxPage,
    decode,
    decode_event,
    decode_state,
    encode_state,
)
from headgate.backend.kafka.outbox_takeover import Matched, OutboxTakeover
from headgate.backend.kafka.records import RecordError
from headgate.outbox.link_format import RunActive, RunRejected
from headgate_api.limits import OUTBOX_READ_BYTES_MAX, OUTBOX_READ_RECORDS, OUTBOX_SESSION_S

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

_DOING: Final = "the outbox cannot be read"
_FETCH_WAIT_MS: Final = 100
"""How long a broker keeps a fetch that finds nothing new."""


@dataclass(slots=True)
class _Assigned:
    """A partition that the member has now."""

    takeover: OutboxTakeover
    assignment: int
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
        self._assignments = 0
        self._problem: BaseException | None = None  # of a callback: the library would print it
        self._closed = False
        own = {
            "group.id": config.topic("dispatchers"),
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": round(OUTBOX_SESSION_S * 1_000),
            "heartbeat.interval.ms": round(OUTBOX_SESSION_S * 1_000 / 4),
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": _FETCH_WAIT_MS,
            **BOUNDED_FETCH,
            **({"client.id": name} if name else {}),
        }
        self._consumer = TopicConsumer(config, _DOING, own)
        self._consumer.raw.subscribe(
            [self._topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    @property
    def partitions(self) -> list[int]:
        return sorted(self._assigned)

    def read(self, timeout_s: float) -> list[OutboxPage]:
        """Takes what has come; waits `timeout_s` for the first record.

        Returns a page for each partition of which records were read, but not of one that is revoked meanwhile. Raises
        RecordError when the committed state of a partition cannot be read.
        """
        count = size_bytes = 0
        message = self._poll(timeout_s)
        while message is not None:
            self._take(message)
            count, size_bytes = count + 1, size_bytes + len(message)
            if count == OUTBOX_READ_RECORDS or size_bytes > OUTBOX_READ_BYTES_MAX:
                break
            message = self._poll(0)
        pages = []
        for partition, assigned in sorted(self._assigned.items()):
            if assigned.has_moved:
                pages.append(OutboxPage(assigned.events, assigned.runs, _checkpoint(partition, assigned)))
                assigned.events, assigned.runs, assigned.has_moved = [], [], False
        return pages

    def pause(self, partitions: Collection[int]) -> None:
        """Stops reading these for now; those that the member does not have are passed over."""
        self._consumer.raw.pause(self._places(partitions))

    def resume(self, partitions: Collection[int]) -> None:
        self._consumer.raw.resume(self._places(partitions))

    def commit(self, checkpoints: Collection[Checkpoint]) -> bool:
        """Makes these the places at which the next owner of their partitions goes on; whether they are committed.

        A place of a partition that has gone, or was given anew, is passed over. False where the group is changing: the
        same call succeeds later, or the partitions go.
        """
        kafka = library()
        places = [
            kafka.TopicPartition(self._topic, each.partition, each.offset, encode_state(each.state))
            for each in checkpoints
            if each.partition in self._assigned and self._assigned[each.partition].assignment == each.assignment
        ]
        if not places:
            return True
        try:
            done = self._consumer.raw.commit(offsets=places, asynchronous=False)
        except kafka.KafkaException as error:
            return self._is_later(error.args[0])
        failed = [place.error for place in done if place.error is not None]
        return self._is_later(failed[0]) if failed else True

    def close(self) -> None:
        """Leaves the group: the listener is told of every partition first, and the others have them at once."""
        if not self._closed:
            self._closed = True
            self._consumer.close()
            self._raise_problem()

    # --- inside -------------------------------------------------------------------------------------

    def _poll(self, timeout_s: float) -> Message | None:
        message = self._consumer.raw.poll(timeout_s)
        self._raise_problem()
        what = Came.NOTHING if message is None else self._consumer.came(message)
        if message is None or what is Came.RECORD:
            return message
        if what is Came.REMOVED:
            self._go_on_behind_removed(message)
        return None

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
        try:
            self._listener.taking(sorted(place.partition for place in places))
            committed = self._consumer.commits(places)
            self._consumer.raw.incremental_assign([self._restored(place) for place in committed])
        except BaseException as error:  # noqa: BLE001 - `read` raises it
            self._problem = error

    def _on_revoke(self, _consumer: Consumer, places: list[TopicPartition]) -> None:
        self._forget(places, is_lost=False)

    def _on_lost(self, _consumer: Consumer, places: list[TopicPartition]) -> None:
        self._forget(places, is_lost=True)

    def _forget(self, places: Sequence[TopicPartition], *, is_lost: bool) -> None:
        partitions = sorted(place.partition for place in places if place.partition in self._assigned)
        try:
            if partitions:
                self._listener.revoked(partitions, is_lost=is_lost)
        except BaseException as error:  # noqa: BLE001 - `read` raises it
            self._problem = error
        finally:
            for partition in partitions:
                del self._assigned[partition]

    def _restored(self, place: TopicPartition) -> TopicPartition:
        """The partition is the member's: where it goes on."""
        kafka = library()
        first, _ = self._consumer.bounds(self._topic, place.partition)
        position, state = 0, None
        if place.offset >= 0:
            position, state = place.offset, decode_state(place.metadata or "")
        if position < first:
            self._listener.removed(place.partition, position, first)
            position = first
        self._assignments += 1
        takeover = OutboxTakeover(self._partition_count, self._floor, position, state)
        self._assigned[place.partition] = _Assigned(takeover, self._assignments)
        self._listener.assigned(place.partition, takeover.state)
        there: TopicPartition = kafka.TopicPartition(self._topic, place.partition, position)
        return there

    def _floor(self, source: int) -> int:
        return self._consumer.bounds(self._events_topic, source)[0]

    def _go_on_behind_removed(self, message: Message) -> None:
        """Retention has removed what stood at the place that is read."""
        kafka = library()
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
        there = kafka.TopicPartition(self._topic, partition, max(position, first))
        self._consumer.raw.incremental_unassign([there])  # after this error there is nothing that could be sought in
        self._consumer.raw.incremental_assign([there])

    def _places(self, partitions: Collection[int]) -> list[TopicPartition]:
        kafka = library()
        return [kafka.TopicPartition(self._topic, each) for each in partitions if each in self._assigned]

    def _is_later(self, error: KafkaError) -> bool:
        """False where the group is changing or was left; anything else is raised."""
        kafka = library().KafkaError
        if error.code() in (
            *(kafka.REBALANCE_IN_PROGRESS, kafka.ILLEGAL_GENERATION, kafka.UNKNOWN_MEMBER_ID),
            *(kafka.FENCED_INSTANCE_ID, kafka._ASSIGNMENT_LOST, kafka._STATE),
        ):
            return False
        raise self._consumer.error(error, "the outbox's place cannot be kept")

    def _raise_problem(self) -> None:
        if self._problem is not None:
            problem, self._problem = self._problem, None
            raise problem


def _checkpoint(partition: int, assigned: _Assigned) -> Checkpoint:
    takeover = assigned.takeover
    return Checkpoint(partition, takeover.resume_at, takeover.state, assigned.assignment)


def matched_event(matched: Matched, position: int) -> OutboxEvent:
    """An event that counts, with what its record holds; `position` is the offset of the record that decided it."""
    record = matched.record
    stored = decode_event(record)
    return OutboxEvent(
        record.source, record.offset, record.stored_us, record.generation, matched.targets, stored, position
    )
