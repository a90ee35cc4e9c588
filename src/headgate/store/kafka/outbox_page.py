"""What a reader of the topic `outbox` gives, and whom it tells. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from headgate.event.arrow import StoredEvent
from headgate.outbox.takeover import RunActive, RunRejected
from headgate.store.kafka.outbox_state import OutboxState
from headgate.store.kafka.records import RecordError

_PAGE_BYTES: Final = 16_000
_EVENT_BYTES: Final = 2_000
_TARGET_BYTES: Final = 100
"""What a page takes in memory with its checkpoint, an event beside its data, and each of its targets."""


@dataclass(frozen=True, slots=True)
class OutboxEvent:
    """An event that is to be delivered.

    Attributes:
        source: Its partition of the topic `events`.
        offset: In that partition.
        stored_us: When it was stored, in microseconds since 1970 UTC.
        generation: Of the filters that it was matched by.
        targets: Target and verdict, by target, ascending.
        stored: The event, with its broker's identity.
        position: Offset in the outbox partition of its record, the last one where it has several.
    """

    source: int
    offset: int
    stored_us: int
    generation: int
    targets: tuple[tuple[int, int], ...]
    stored: StoredEvent
    position: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A place in an outbox partition to go on at.

    Attributes:
        partition: Of the topic `outbox`.
        offset: Of the first record to read again.
        state: Of the takeover.
        assignment: Counts the times that the reader was given a partition: a place of an earlier time is not committed.
    """

    partition: int
    offset: int
    state: OutboxState
    assignment: int


@dataclass(frozen=True, slots=True)
class OutboxPage:
    """What some records of one outbox partition brought.

    Attributes:
        events: Those that count, in the order in which they count; of a source partition by offset. May be empty.
        runs: What became of runs.
        checkpoint: To be committed once these events and all before them need not come again.
    """

    events: list[OutboxEvent]
    runs: list[RunActive | RunRejected]
    checkpoint: Checkpoint

    @property
    def size_bytes(self) -> int:
        """What the page takes in memory, about; never 0, as pages without events wait, too."""
        data = sum(len(event.stored.event.data or b"") for event in self.events)
        targets = sum(len(event.targets) for event in self.events)
        return _PAGE_BYTES + _EVENT_BYTES * len(self.events) + data + _TARGET_BYTES * targets


class OutboxListener(Protocol):
    """Who owns the deliveries; called within `OutboxMember.read` and `close`, in their thread."""

    def taking(self, partitions: Sequence[int]) -> None:
        """The member is given partitions, whose commits it reads next.

        Who commits by other means than the reader's `commit` makes sure here that no former owner does so any more.
        """

    def assigned(self, partition: int, state: OutboxState) -> None:
        """The member is given a partition; it goes on with this state."""

    def revoked(self, partitions: Sequence[int], *, is_lost: bool) -> None:
        """The partitions go now: what was handed out of them and is not committed comes again elsewhere.

        Unless they are lost, the reader's `commit` may still be called here, the last time for them. Deliveries under
        way must end or be given up before this returns.
        """

    def passed_over(self, partition: int, offset: int, error: RecordError) -> None:
        """A record is none of Headgate's; reading goes on behind it."""

    def removed(self, partition: int, first: int, end: int) -> None:
        """Retention has removed records before they were read: those from `first` up to below `end`."""
