"""Which events of a subscription are with whom? Its cursor, the events handed out, the consumer's lease. Pure.

A row of the outbox that names the subscription is below `next` or not yet read. Below it, it has ended (acknowledged,
filtered out, gone) or it is held:

    row -> held, due -> with a consumer -> acknowledged
             ^               |
             +-- nack, ack timeout, the consumer's lease is over

`next` grows; only a seek puts it back, and then the epoch is another one: acknowledgements of what was handed out
before the seek are told to be stale. An id is `EPOCH:POSITION`, the position that of the outbox row.

A filter may count from an earlier place of the log on. Then the subscription has a *history*: of each partition the
events of a span, which end where the filter was in force. They come from the log itself, partition by partition and in
order, before any row of the outbox; rows of events in the span do not count, so every event comes once. Their positions
are below 0, made of partition and offset.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from headgate.control.routing import PullRules
from headgate.errors import ConflictError, InvalidInputError

_US: Final = 1_000_000
_ID_CHARS_MAX: Final = 40
HISTORY: Final = -(1 << 62)
"""Positions of the events of histories are counted from here on, below those of all rows."""
_PARTITION_BITS: Final = 48


def history_position(partition: int, offset: int) -> int:
    """What stands for the position of an event that has no row: in the order of partition and offset."""
    return HISTORY + (partition << _PARTITION_BITS) + offset


class ConsumerBusyError(ConflictError):
    """Another consumer has the exclusive subscription."""

    code = "consumer-busy"


class AckIdError(InvalidInputError):
    """An acknowledgement names something that pull cannot have given."""

    code = "ack-id"


class Held(msgspec.Struct, array_like=True, gc=False):
    """One event that was read and has not ended.

    Attributes:
        position: Of its outbox row.
        partition: Of the event in the log.
        offset: Of the event in the log.
        stored_us: When the event was stored, microseconds since 1970 UTC.
        deliveries: How often it was handed out.
        due_us: When it may be handed out (again).
        consumer: Who has it; empty when nobody does.
        turn: The number of its last handing out.
    """

    position: int
    partition: int
    offset: int
    stored_us: int
    deliveries: int = 0
    due_us: int = 0
    consumer: str = ""
    turn: int = 0


class Counters(msgspec.Struct, gc=False):
    """In events, since the subscription was made.

    Attributes:
        processed: Rows of the outbox that were looked at.
        accepted: Of them, those for consumers.
        rejected: Of them, those that cel-cpp says are not wanted.
        errors: Of them, those for which the filter is an error.
        lost: Of them, those that retention had removed from the log.
        acknowledged: Accepted and acknowledged.
        redelivered: How often an event was handed out that had been handed out before.
        expired: Given up: nobody took them for too long, or they were handed out too often.
    """

    processed: int = 0
    accepted: int = 0
    rejected: int = 0
    errors: int = 0
    lost: int = 0
    acknowledged: int = 0
    redelivered: int = 0
    expired: int = 0


class Saved(msgspec.Struct):
    """What a restart must know.

    Attributes:
        epoch: Grows with every seek.
        next: Outbox position of the next row.
        held: In order of position.
        counters: See `Counters`.
        floor: Offsets below these, by partition, were not asked for by the last seek.
        consumer: Who has the lease.
        lease_us: Until when.
        filter_id: Of the filter whose history has begun, or that has none.
        span: Of the history: first offset, and offset behind the last one, by partition.
        history: Where it goes on, by partition.
        history_us: When it began.
    """

    epoch: int = 1
    next: int = 0
    held: list[Held] = []
    counters: Counters = msgspec.field(default_factory=Counters)
    floor: dict[int, int] = {}
    consumer: str | None = None
    lease_us: int = 0
    filter_id: str = ""
    span: dict[int, tuple[int, int]] = {}
    history: dict[int, int] = {}
    history_us: int = 0


@dataclass(frozen=True, slots=True)
class Acked:
    """What an acknowledgement did.

    Attributes:
        acknowledged: Events that have ended by it.
        stale: Ids of before a seek, of events that had ended, or of events that a restart will hand out again.
    """

    acknowledged: int
    stale: tuple[str, ...] = ()


class Cursor:
    """The state of one subscription.

    Args:
        saved: Where an earlier process stopped; this object owns it.
    """

    def __init__(self, saved: Saved) -> None:
        self._saved = saved
        self._held = {held.position: held for held in saved.held}
        self._turn = max((held.turn for held in saved.held), default=0)

    def saved(self) -> Saved:
        """A copy for the disk."""
        held = [Held(*msgspec.structs.astuple(one)) for one in self._held.values()]
        counters = Counters(*msgspec.structs.astuple(self.counters))
        return msgspec.structs.replace(
            self._saved, held=held, counters=counters, floor=dict(self._saved.floor), history=dict(self._saved.history)
        )

    @property
    def counters(self) -> Counters:
        """To be added to."""
        return self._saved.counters

    @property
    def epoch(self) -> int:
        """See `Saved`."""
        return self._saved.epoch

    @property
    def next(self) -> int:
        """See `Saved`."""
        return self._saved.next

    @property
    def stands(self) -> tuple[int, int, int]:
        """Differs when the cursor has moved: epoch, next row, what is left of the history."""
        return self.epoch, self.next, self.history_left

    @property
    def held_count(self) -> int:
        """Events that were read and have not ended."""
        return len(self._held)

    @property
    def consumer(self) -> str | None:
        """Who has the lease, or had it last; None once that one has left."""
        return self._saved.consumer

    def held(self) -> Iterator[Held]:
        """Everything held, in order of position."""
        return iter(self._held.values())

    def id_of(self, held: Held) -> str:
        """What a consumer acknowledges it by."""
        position = f"h{held.position - HISTORY}" if held.position < 0 else str(held.position)
        return f"{self.epoch}:{position}"

    # --- consumers ------------------------------------------------------------------------------------

    def admit(self, consumer: str, rules: PullRules, now_us: int) -> bool:
        """Whether a consumer may take events now; it has the lease then.

        Raises:
            ConsumerBusyError: Another one has an exclusive subscription.
        """
        saved = self._saved
        if rules.type == "shared":
            return True
        if saved.consumer is not None and saved.consumer != consumer and now_us < saved.lease_us:
            if rules.type == "failover":
                return False
            raise ConsumerBusyError(
                f"the subscription is exclusive, and {saved.consumer!r} has it",
                hint="wait, let it leave, or make the subscription failover or shared",
            )
        if saved.consumer != consumer:
            for held in self._held.values():
                held.due_us = min(held.due_us, now_us)
        saved.consumer = consumer
        saved.lease_us = now_us + int(rules.ack_timeout_s * _US)
        return True

    def leave(self, consumer: str, now_us: int) -> int:
        """A consumer goes: what it has is due at once, its lease is over; returns how many events those are."""
        if self._saved.consumer == consumer:
            self._saved.consumer, self._saved.lease_us = None, now_us
        count = 0
        for held in self._held.values():
            if held.consumer == consumer and held.due_us > now_us:
                held.due_us = now_us
                count += 1
        return count

    # --- events ---------------------------------------------------------------------------------------

    def due(self, now_us: int, rules: PullRules) -> list[Held]:
        """What may be handed out (again), in order of position."""
        return [held for held in self._held.values() if held.due_us <= now_us and not _is_exhausted(held, rules)]

    def next_due_us(self, rules: PullRules) -> int | None:
        """When something held is due; None when nothing will be."""
        return min((held.due_us for held in self._held.values() if not _is_exhausted(held, rules)), default=None)

    def exhausted(self, now_us: int, rules: PullRules) -> list[Held]:
        """What was handed out as often as the rules let it, and came back each time."""
        return [held for held in self._held.values() if held.due_us <= now_us and _is_exhausted(held, rules)]

    def give_up(self, held: Held) -> None:
        """It is not handed out again."""
        self.counters.expired += 1
        del self._held[held.position]

    def wants(self, partition: int, offset: int) -> bool:
        """Whether the event of a row counts: the last seek asked for it, and it is not of the history."""
        first, end = self._saved.span.get(partition, (0, 0))
        return offset >= self._saved.floor.get(partition, 0) and not first <= offset < end

    def take(self, held: Held) -> None:
        """A row was read and is for consumers: due at once."""
        self.counters.accepted += 1
        self._held[held.position] = held

    def is_held(self, held: Held) -> bool:
        """Whether it has not ended."""
        return self._held.get(held.position) is held

    def read_to(self, position: int) -> None:
        """Every row below has ended or is held."""
        self._saved.next = max(self._saved.next, position)

    def hand(self, held: Held, consumer: str, now_us: int, rules: PullRules) -> None:
        """A consumer gets it."""
        self.counters.redelivered += held.deliveries > 0
        held.deliveries += 1
        held.consumer = consumer
        self._turn += 1
        held.turn = self._turn
        held.due_us = now_us + int(rules.ack_timeout_s * _US)

    def lose(self, held: Held) -> None:
        """The log does not have it any more."""
        self.counters.lost += 1
        del self._held[held.position]

    def expire(self, position: int) -> int:
        """Give up what is held of rows below a position; returns how many."""
        gone = [at for at in self._held if 0 <= at < position]
        for at in gone:
            del self._held[at]
        self.counters.expired += len(gone)
        return len(gone)

    # --- acknowledgements -----------------------------------------------------------------------------

    def ack(self, ids: Iterable[str]) -> Acked:
        """These events have been dealt with.

        Raises:
            AckIdError: No id of this subscription; nothing has been acknowledged.
        """
        places = [(id_, self._place(id_)) for id_ in ids]
        stale = []
        count = 0
        for id_, (epoch, position) in places:
            if epoch != self.epoch or self._held.pop(position, None) is None:
                stale.append(id_)
            else:
                count += 1
        self.counters.acknowledged += count
        return Acked(count, tuple(stale))

    def ack_up_to(self, id_: str, consumer: str) -> Acked:
        """This event and all that this consumer was handed before it, and still has, have been dealt with.

        Stale when the consumer does not have it any more: nobody knows then what came before it.

        Raises:
            AckIdError: No id of this subscription.
        """
        epoch, position = self._place(id_)
        last = self._held.get(position) if epoch == self.epoch else None
        if last is None or last.consumer != consumer:
            return Acked(0, (id_,))
        done = [at for at, held in self._held.items() if held.consumer == consumer and held.turn <= last.turn]
        for at in done:
            del self._held[at]
        self.counters.acknowledged += len(done)
        return Acked(len(done))

    def nack(self, ids: Iterable[str], due_us: int) -> Acked:
        """These events are to be handed out again at a time; `acknowledged` says how many.

        Raises:
            AckIdError: No id of this subscription; nothing has changed.
        """
        places = [(id_, self._place(id_)) for id_ in ids]
        stale = []
        for id_, (epoch, position) in places:
            held = self._held.get(position) if epoch == self.epoch else None
            if held is None:
                stale.append(id_)
            else:
                held.due_us, held.consumer = due_us, ""
        return Acked(len(places) - len(stale), tuple(stale))

    def _place(self, id_: str) -> tuple[int, int]:
        epoch, colon, position = id_.partition(":")
        of_history, position = position[:1] == "h", position.removeprefix("h")
        numbers = epoch.isascii() and epoch.isdecimal() and position.isascii() and position.isdecimal()
        if not colon or not numbers or len(id_) > _ID_CHARS_MAX or int(epoch) > self.epoch:
            raise AckIdError(
                f"{id_[:_ID_CHARS_MAX]!r} is no ackId of this subscription", hint="give back what pull gave"
            )
        return int(epoch), int(position) + (HISTORY if of_history else 0)

    # --- seek -----------------------------------------------------------------------------------------

    def seek(self, position: int, floor: dict[int, int], *, behind: bool = False, now_us: int = 0) -> None:
        """Go on at an outbox position; whatever was held is read again if it lies behind it.

        Args:
            position: Of the next row.
            floor: Events below these offsets, by partition, are not wanted.
            behind: The history is over.
            now_us: Microseconds since 1970 UTC.
        """
        self._held.clear()
        saved = self._saved
        saved.epoch += 1
        saved.next = position
        saved.floor = floor
        saved.history_us = now_us
        for partition, (first, end) in saved.span.items():
            saved.history[partition] = end if behind else min(max(first, floor.get(partition, 0)), end)

    # --- history --------------------------------------------------------------------------------------

    @property
    def filter_id(self) -> str:
        """Of the filter that counts."""
        return self._saved.filter_id

    def without_history(self, filter_id: str) -> None:
        """This filter counts from when it is in force."""
        self._saved.filter_id = filter_id

    def begin_history(self, filter_id: str, span: dict[int, tuple[int, int]], now_us: int) -> None:
        """This filter counts from the span on: what is held of it, or was acknowledged, is judged anew."""
        saved = self._saved
        saved.filter_id, saved.span, saved.history_us = filter_id, span, now_us
        saved.history = {partition: first for partition, (first, _) in span.items()}
        saved.epoch += 1
        for at, held in list(self._held.items()):
            first, end = span.get(held.partition, (0, 0))
            if at < 0 or first <= held.offset < end:
                del self._held[at]

    def next_history(self) -> tuple[int, int, int] | None:
        """Partition, offset to go on at, and the end there; None when the history is over."""
        saved = self._saved
        for partition, (_, end) in sorted(saved.span.items()):
            if saved.history[partition] < end:
                return partition, saved.history[partition], end
        return None

    @property
    def history_left(self) -> int:
        """Events of the log that the history has still to look at."""
        saved = self._saved
        return sum(end - saved.history[partition] for partition, (_, end) in saved.span.items())

    def history_to(self, partition: int, offset: int) -> None:
        """Everything below has ended or is held."""
        self._saved.history[partition] = offset

    def is_history_older(self, before_us: int) -> bool:
        """Whether there is something of a history that nobody took since a time."""
        return self._saved.history_us < before_us and (self.history_left > 0 or any(at < 0 for at in self._held))

    def expire_history(self, before_us: int) -> int:
        """Give up a history that nobody took since a time; returns how many events that still were to be looked at."""
        if not self.is_history_older(before_us):
            return 0
        held = [at for at in self._held if at < 0]
        for at in held:
            del self._held[at]
        left = self.history_left
        self._saved.history = {partition: end for partition, (_, end) in self._saved.span.items()}
        self.counters.expired += len(held)
        return left + len(held)


def _is_exhausted(held: Held, rules: PullRules) -> bool:
    return rules.max_deliveries is not None and held.deliveries >= rules.max_deliveries
