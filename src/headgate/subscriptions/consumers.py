"""Which consumers a subscription has, which events each of them holds, and what they acknowledge. Pure.

An id is `EPOCH:POSITION`, the position that of the outbox row. With another epoch, after a seek, acknowledgements of
what was handed out before are reported as stale.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from headgate.objects.kinds.routing import PullRules
from headgate.subscriptions.messages import (
    AckIdError,
    AckResult,
    ConsumerBusyError,
    ConsumerLease,
    ConsumerList,
    ConsumerView,
)
from headgate.subscriptions.store import HISTORY, SavedCursor, UnackedEvent
from headgate_api.event import rfc3339
from headgate_api.limits import CONSUMERS_SHOWN_MAX, KEY_CONSUMERS_MAX, SUBSCRIPTION_UNACKED_MAX

_US: Final = 1_000_000
_ID_CHARS_MAX: Final = 40
_NOWHERE: Final = HISTORY - 1
_ALONE: Final = ("exclusive", "failover")
"""Types of which one consumer has all events."""
_WORD: Final = (1 << 64) - 1


def key_hash(text: str) -> int:
    """A partition key, or a consumer's name, as a number above 0; 0 for an empty one."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest()) + 1 if text else 0


class Leases:
    """The events of a subscription that were read and have not ended.

    An event is due at once when it is added, unless it is put off until its time:

        due -> with a consumer -> acknowledged
         ^               |
         +-- nack, ack timeout, the consumer's lease is over

    Epoch, consumer's lease and counters are kept in `saved`. Who shares the events by key is known while it asks: each
    key is of the consumer that holds events of it, else of the one that the hash of both chooses among all.
    """

    def __init__(self, saved: SavedCursor) -> None:
        self._saved = saved
        self._events = {event.position: event for event in saved.unacked}
        self._turn = max((event.turn for event in saved.unacked), default=0)
        self._sharers: dict[str, _Sharer] = {}
        """By name, the consumers that share by key."""
        self._owners: dict[int, str] = {}
        """By key, whose it is among them; what was asked for."""

    def __iter__(self) -> Iterator[UnackedEvent]:
        """In order of position."""
        return iter(self._events.values())

    def __len__(self) -> int:
        return len(self._events)

    def __contains__(self, event: UnackedEvent) -> bool:
        """Whether it has not ended."""
        return self._events.get(event.position) is event

    def id_of(self, event: UnackedEvent) -> str:
        """The id by which a consumer acknowledges it: `EPOCH:POSITION`."""
        position = f"h{event.position - HISTORY}" if event.position < 0 else str(event.position)
        return f"{self._saved.epoch}:{position}"

    # --- consumers ------------------------------------------------------------------------------------

    @property
    def consumer(self) -> str | None:
        """Who has the consumer's lease, or had it last; None once that one has left."""
        return self._saved.consumer

    def admit(self, consumer: str, rules: PullRules, now_us: int) -> bool:
        """Whether a consumer may take events now; it has the lease then. ConsumerBusyError: it is another one's."""
        saved = self._saved
        if rules.type == "shared":
            return True
        if rules.shares_keys:
            self._share(consumer, now_us, now_us + int(rules.ack_timeout_s * _US))
            return True
        if saved.consumer is not None and saved.consumer != consumer and now_us < saved.lease_us:
            if rules.type == "failover":
                return False
            raise ConsumerBusyError(
                f"the subscription is exclusive, and {saved.consumer!r} has it",
                hint="wait, let it leave, or make the subscription failover or shared",
            )
        if saved.consumer != consumer:
            for event in self:
                event.due_us = min(event.due_us, now_us)
        saved.consumer = consumer
        saved.lease_us = now_us + int(rules.ack_timeout_s * _US)
        return True

    def _share(self, consumer: str, now_us: int, until_us: int) -> None:
        """A consumer shares the keys until a time, and may say so again."""
        there = {name: one for name, one in self._sharers.items() if one.until_us > now_us}
        if consumer not in there and len(there) >= KEY_CONSUMERS_MAX:
            problem = f"{KEY_CONSUMERS_MAX} consumers share the subscription already"
            raise ConsumerBusyError(problem, hint="let one leave; a consumer keeps its name from pull to pull")
        there[consumer] = _Sharer(key_hash(consumer), until_us)
        self._set_sharers(there)

    def _set_sharers(self, there: dict[str, _Sharer]) -> None:
        if there.keys() != self._sharers.keys():
            self._owners.clear()
        self._sharers = there

    def owner_of(self, key: int) -> str:
        """Who of those that share has a key of which nobody holds an event."""
        owner = self._owners.get(key)
        if owner is None:
            if len(self._owners) >= SUBSCRIPTION_UNACKED_MAX:
                self._owners.clear()
            sharers = self._sharers
            owner = max(sharers, key=lambda name: _weight(key, sharers[name].seed), default="")
            self._owners[key] = owner
        return owner

    def leave(self, consumer: str, now_us: int) -> int:
        """A consumer goes: what it has is due at once, its lease is over; returns how many events those are."""
        self._set_sharers({name: one for name, one in self._sharers.items() if name != consumer})
        if self._saved.consumer == consumer:
            self._saved.consumer, self._saved.lease_us = None, now_us
        count = 0
        for event in self:
            if event.consumer == consumer and event.due_us > now_us:
                event.due_us = now_us
                count += 1
        return count

    def consumers(self, rules: PullRules, now_us: int) -> ConsumerList:
        """Who has what at a time, microseconds since 1970 UTC."""
        held: dict[str, list[UnackedEvent]] = {}
        for event in self:
            if event.deliveries and event.due_us > now_us:
                held.setdefault(event.consumer, []).append(event)
        waiting = len(self) - sum(map(len, held.values()))
        lease, saved = None, self._saved
        if rules.type in _ALONE and saved.consumer is not None and saved.lease_us > now_us:
            lease = ConsumerLease(saved.consumer, rfc3339.text(saved.lease_us, "milliseconds"))
        items = [_view(name, events) for name, events in sorted(held.items())[:CONSUMERS_SHOWN_MAX]]
        return ConsumerList(rules.type, items, waiting, len(held) > CONSUMERS_SHOWN_MAX, lease)

    # --- events ---------------------------------------------------------------------------------------

    def add(self, event: UnackedEvent) -> None:
        """An event was read and is for consumers: due at once."""
        self._saved.counters.accepted += 1
        self._events[event.position] = event

    def put_off(self, event: UnackedEvent, due_us: int) -> None:
        """It is too early: nobody gets it before a time."""
        event.due_us = due_us

    def turn_of(self, consumer: str, now_us: int, rules: PullRules) -> Turn:
        """What a consumer may be handed now: the events that are due, and of those to come the ones that it `takes`."""
        if rules.shares_keys:
            return KeyTurn(self, consumer, now_us, rules)
        return Turn([event for event in self if event.due_us <= now_us and not _is_exhausted(event, rules)])

    def next_due_us(self, consumer: str, now_us: int, rules: PullRules) -> int | None:
        """When the next event is due for a consumer; None when none will be, as far as is known."""
        later = (event.due_us for event in self if event.due_us > now_us and not _is_exhausted(event, rules))
        return min((*later, *(event.due_us for event in self.turn_of(consumer, now_us, rules).due)), default=None)

    def exhausted(self, now_us: int, rules: PullRules) -> list[UnackedEvent]:
        """What was handed out as often as the rules let it, and came back each time."""
        return [event for event in self if event.due_us <= now_us and _is_exhausted(event, rules)]

    def hand_out(self, event: UnackedEvent, consumer: str, now_us: int, rules: PullRules) -> None:
        """A consumer gets it, until the ack timeout is over."""
        self._saved.counters.redelivered += event.deliveries > 0
        event.deliveries += 1
        event.consumer = consumer
        self._turn += 1
        event.turn = self._turn
        event.due_us = now_us + int(rules.ack_timeout_s * _US)

    def give_up(self, event: UnackedEvent) -> None:
        """It is not handed out again."""
        self._saved.counters.expired += 1
        del self._events[event.position]

    def lose(self, event: UnackedEvent) -> None:
        """The log does not have it any more."""
        self._saved.counters.lost += 1
        del self._events[event.position]

    def refuse(self, event: UnackedEvent) -> None:
        """Its transform makes no event of it."""
        self._saved.counters.errors += 1
        del self._events[event.position]

    def remove(self, which: Callable[[UnackedEvent], bool]) -> int:
        gone = [event.position for event in self if which(event)]
        for position in gone:
            del self._events[position]
        return len(gone)

    # --- acknowledgements -----------------------------------------------------------------------------

    def ack(self, ids: Iterable[str]) -> AckResult:
        """These events have been dealt with. After an AckIdError nothing has been acknowledged."""
        positions = self._positions(ids)
        stale = [id_ for id_, position in positions if self._events.pop(position, None) is None]
        count = len(positions) - len(stale)
        self._saved.counters.acknowledged += count
        return AckResult(count, tuple(stale))

    def ack_up_to(self, id_: str, consumer: str) -> AckResult:
        """This event and all that this consumer was handed before it, and still has, have been dealt with.

        Stale when the consumer does not have it any more: what came before it is not known then.
        """
        ((_, position),) = self._positions([id_])
        last = self._events.get(position)
        if last is None or last.consumer != consumer:
            return AckResult(0, (id_,))
        count = self.remove(lambda event: event.consumer == consumer and event.turn <= last.turn)
        self._saved.counters.acknowledged += count
        return AckResult(count)

    def nack(self, ids: Iterable[str], due_us: int) -> AckResult:
        """These events are due again at a time; `acknowledged` counts them. After an AckIdError nothing has changed."""
        positions = self._positions(ids)
        stale = []
        for id_, position in positions:
            event = self._events.get(position)
            if event is None:
                stale.append(id_)
            else:
                event.due_us, event.consumer = due_us, ""
        return AckResult(len(positions) - len(stale), tuple(stale))

    def _positions(self, ids: Iterable[str]) -> list[tuple[str, int]]:
        """Each id and its position; one of an earlier epoch has a position that no event has."""
        parsed = [(id_, *self._parse(id_)) for id_ in ids]
        return [(id_, position if epoch == self._saved.epoch else _NOWHERE) for id_, epoch, position in parsed]

    def _parse(self, id_: str) -> tuple[int, int]:
        epoch, colon, position = id_.partition(":")
        of_history, position = position[:1] == "h", position.removeprefix("h")
        numbers = epoch.isascii() and epoch.isdecimal() and position.isascii() and position.isdecimal()
        if not colon or not numbers or len(id_) > _ID_CHARS_MAX or int(epoch) > self._saved.epoch:
            raise AckIdError(
                f"{id_[:_ID_CHARS_MAX]!r} is no ackId of this subscription", hint="give back what pull gave"
            )
        return int(epoch), int(position) + (HISTORY if of_history else 0)


class _Sharer(NamedTuple):
    """A consumer of several that share by key."""

    seed: int
    until_us: int


class Turn:
    """What a consumer may be handed at one moment: what is `due`, in order of position, and all that is read then."""

    def __init__(self, due: list[UnackedEvent]) -> None:
        self.due = due

    def takes(self, event: UnackedEvent) -> bool:
        """Whether an event that was just read, behind all others, is for the consumer."""
        return True


class KeyTurn(Turn):
    """The same where consumers share by key: an event waits for all before it of its key, and for whoever holds one."""

    def __init__(self, leases: Leases, consumer: str, now_us: int, rules: PullRules) -> None:
        self._leases = leases
        self._consumer = consumer
        held = [event for event in leases if event.key and event.consumer and event.due_us > now_us]
        self._blocked = {event.key for event in held if event.consumer != consumer}
        self._own = {event.key for event in held} - self._blocked
        due = []
        for event in leases:
            if event.due_us > now_us:
                if event.key and not event.consumer and event.deliveries:
                    self._blocked.add(event.key)  # it was given back, and waits
            elif _is_exhausted(event, rules):
                self._blocked.add(event.key)
            elif self.takes(event):
                due.append(event)
        super().__init__(due)

    def takes(self, event: UnackedEvent) -> bool:
        key = event.key
        if not key:
            return True
        if key in self._blocked:
            return False
        if key in self._own:
            return True
        is_own = self._leases.owner_of(key) == self._consumer
        (self._own if is_own else self._blocked).add(key)
        return is_own


def _weight(key: int, seed: int) -> int:
    """How much a consumer wants a key, by rendezvous hashing: one that comes or goes moves no keys but its own."""
    mixed = (key ^ seed) * 0x9E3779B97F4A7C15 & _WORD
    mixed = (mixed ^ mixed >> 29) * 0xBF58476D1CE4E5B9 & _WORD
    return mixed ^ mixed >> 32


def _is_exhausted(event: UnackedEvent, rules: PullRules) -> bool:
    return rules.max_deliveries is not None and event.deliveries >= rules.max_deliveries


def _view(name: str, events: Sequence[UnackedEvent]) -> ConsumerView:
    return ConsumerView(
        name,
        len(events),
        rfc3339.text(min(one.stored_us for one in events), "milliseconds"),
        rfc3339.text(min(one.due_us for one in events), "milliseconds"),
        sum(one.deliveries > 1 for one in events),
    )
