"""Which events of a subscription are with whom? Its cursor, the events handed out, the consumer's lease. Pure.

A row of the outbox that names the subscription is below `next` or not yet read. Below it, it has ended (acknowledged,
filtered out, gone) or it is held:

    row -> held, due -> with a consumer -> acknowledged
             ^               |
             +-- nack, ack timeout, the consumer's lease is over

`next` grows; only a seek puts it back, and then the epoch is another one: acknowledgements of what was handed out
before the seek are told to be stale. An id is `EPOCH:POSITION`, the position that of the outbox row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from headgate.control.routing import PullSpec
from headgate.errors import ConflictError, InvalidInputError

_US: Final = 1_000_000
_ID_CHARS_MAX: Final = 40


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
        consumer: Who has it.
    """

    position: int
    partition: int
    offset: int
    stored_us: int
    deliveries: int = 0
    due_us: int = 0
    consumer: str = ""


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
        expired: Given up because nobody took them for too long.
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
    """

    epoch: int = 1
    next: int = 0
    held: list[Held] = []
    counters: Counters = msgspec.field(default_factory=Counters)
    floor: dict[int, int] = {}
    consumer: str | None = None
    lease_us: int = 0


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

    def saved(self) -> Saved:
        """A copy for the disk."""
        held = [Held(*msgspec.structs.astuple(one)) for one in self._held.values()]
        counters = Counters(*msgspec.structs.astuple(self.counters))
        return msgspec.structs.replace(self._saved, held=held, counters=counters, floor=dict(self._saved.floor))

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
    def held_count(self) -> int:
        """Events that were read and have not ended."""
        return len(self._held)

    @property
    def consumer(self) -> str | None:
        """Who last had the lease."""
        return self._saved.consumer

    def held(self) -> Iterator[Held]:
        """Everything held, in order of position."""
        return iter(self._held.values())

    def id_of(self, held: Held) -> str:
        """What a consumer acknowledges it by."""
        return f"{self.epoch}:{held.position}"

    # --- consumers ------------------------------------------------------------------------------------

    def admit(self, consumer: str, rules: PullSpec, now_us: int) -> bool:
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
            self._saved.lease_us = now_us
        count = 0
        for held in self._held.values():
            if held.consumer == consumer and held.due_us > now_us:
                held.due_us = now_us
                count += 1
        return count

    # --- events ---------------------------------------------------------------------------------------

    def due(self, now_us: int) -> list[Held]:
        """What may be handed out (again), in order of position."""
        return [held for held in self._held.values() if held.due_us <= now_us]

    def next_due_us(self) -> int | None:
        """When something held is due; None when nothing is held."""
        return min((held.due_us for held in self._held.values()), default=None)

    def wants(self, partition: int, offset: int) -> bool:
        """Whether the last seek asked for an event."""
        return offset >= self._saved.floor.get(partition, 0)

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

    def hand(self, held: Held, consumer: str, now_us: int, rules: PullSpec) -> None:
        """A consumer gets it."""
        self.counters.redelivered += held.deliveries > 0
        held.deliveries += 1
        held.consumer = consumer
        held.due_us = now_us + int(rules.ack_timeout_s * _US)

    def lose(self, held: Held) -> None:
        """The log does not have it any more."""
        self.counters.lost += 1
        del self._held[held.position]

    def expire(self, position: int) -> int:
        """Give up what is held of rows below a position; returns how many."""
        gone = [at for at in self._held if at < position]
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

    def ack_up_to(self, id_: str) -> Acked:
        """This event and all before it have been dealt with.

        Raises:
            AckIdError: No id of this subscription.
        """
        epoch, last = self._place(id_)
        if epoch != self.epoch:
            return Acked(0, (id_,))
        done = [at for at, held in self._held.items() if at <= last and held.deliveries]
        for at in done:
            del self._held[at]
        self.counters.acknowledged += len(done)
        return Acked(len(done), () if done else (id_,))

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
                held.due_us = due_us
        return Acked(len(places) - len(stale), tuple(stale))

    def _place(self, id_: str) -> tuple[int, int]:
        epoch, colon, position = id_.partition(":")
        numbers = epoch.isascii() and epoch.isdecimal() and position.isascii() and position.isdecimal()
        if not colon or not numbers or len(id_) > _ID_CHARS_MAX or int(epoch) > self.epoch:
            raise AckIdError(
                f"{id_[:_ID_CHARS_MAX]!r} is no ackId of this subscription", hint="give back what pull gave"
            )
        return int(epoch), int(position)

    # --- seek -----------------------------------------------------------------------------------------

    def seek(self, position: int, floor: dict[int, int]) -> None:
        """Go on at an outbox position; whatever was held is read again if it lies behind it.

        Args:
            position: Of the next row.
            floor: Events below these offsets, by partition, are not wanted.
        """
        self._held.clear()
        saved = self._saved
        saved.epoch += 1
        saved.next = position
        saved.floor = floor
