"""The states of a delivery: one table, and the one class that moves deliveries through it. Pure.

    arrives --> QUEUED --START--> IN_FLIGHT --END--> ENDED
                 ^ ^ ^               | |
                 | | +----RETURN-----+ |      its batch was refused as a whole, or grew too large
                 | |                   |
                 | +--DUE-- BACKING_OFF <-FAIL  (from QUEUED by NOT_DUE: an earlier process has tried it)
                 |
                 +--KEY_FREE-- WAITING_FOR_KEY <-KEY_TAKEN-- QUEUED, READING_KEY
                 +--KEY_READ-- READING_KEY     <-READ_KEY--- QUEUED

A delivery can END in any state but ENDED: its target may be deleted, its event may be gone. EXPIRING ones have been
taken out of the queue because they are too old; how they end is being decided. PUT_OFF ones are too early; they end
once the store of pending events has them. What counts deliveries and attempts is counted here, where they move, and
nowhere else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, Generic, TypeVar

from headgate.delivery.cursors import Tried

T = TypeVar("T")


class KeyQueues(Generic[T]):
    """The partition keys of an ordered target, which has one delivery of each under way; other keys go on.

    A key is taken from its first delivery's start until that one has ended, with all its retries. What comes meanwhile
    waits behind it, in the order in which it came. Events without a key share the empty one.
    """

    __slots__ = ("_taken",)

    def __init__(self) -> None:
        self._taken: dict[str, deque[T]] = {}

    def enter(self, key: str, one: T) -> bool:
        """Take the key; when it is taken, wait until `leave` returns this one."""
        waiting = self._taken.get(key)
        if waiting is None:
            self._taken[key] = deque()
            return True
        waiting.append(one)
        return False

    def leave(self, key: str) -> T | None:
        """Who has the key has ended: the next one, who has it now; None leaves the key free."""
        waiting = self._taken[key]
        if waiting:
            return waiting.popleft()
        del self._taken[key]
        return None

    def withdraw(self, key: str, one: T) -> None:
        self._taken[key].remove(one)


class DeliveryState(IntEnum):
    """Where a delivery stands."""

    QUEUED = 0
    READING_KEY = 1
    WAITING_FOR_KEY = 2
    IN_FLIGHT = 3
    BACKING_OFF = 4
    EXPIRING = 5
    PUT_OFF = 6
    ENDED = 7


class DeliveryEvent(IntEnum):
    """What happens to a delivery."""

    READ_KEY = 0
    KEY_READ = 1
    KEY_TAKEN = 2
    KEY_FREE = 3
    START = 4
    RETURN = 5
    FAIL = 6
    NOT_DUE = 7
    DUE = 8
    EXPIRE = 9
    PUT_OFF = 10
    END = 11


# Members of an enum are looked up by a descriptor; names of the module are not.
QUEUED, READING_KEY, WAITING_FOR_KEY, IN_FLIGHT, BACKING_OFF, EXPIRING, PUT_OFF, ENDED = DeliveryState
_READ_KEY, _KEY_READ, _KEY_TAKEN, _KEY_FREE, _START, _RETURN, _FAIL, _NOT_DUE, _DUE, _EXPIRE, _PUT_OFF, _END = (
    DeliveryEvent
)

TRANSITIONS: Final[dict[tuple[DeliveryState, DeliveryEvent], DeliveryState]] = {
    (QUEUED, _START): IN_FLIGHT,
    (QUEUED, _NOT_DUE): BACKING_OFF,
    (QUEUED, _READ_KEY): READING_KEY,
    (QUEUED, _KEY_TAKEN): WAITING_FOR_KEY,
    (QUEUED, _EXPIRE): EXPIRING,
    (QUEUED, _PUT_OFF): PUT_OFF,
    (QUEUED, _END): ENDED,
    (READING_KEY, _KEY_READ): QUEUED,
    (READING_KEY, _KEY_TAKEN): WAITING_FOR_KEY,
    (READING_KEY, _END): ENDED,
    (WAITING_FOR_KEY, _KEY_FREE): QUEUED,
    (WAITING_FOR_KEY, _END): ENDED,
    (IN_FLIGHT, _RETURN): QUEUED,
    (IN_FLIGHT, _FAIL): BACKING_OFF,
    (IN_FLIGHT, _PUT_OFF): PUT_OFF,
    (IN_FLIGHT, _END): ENDED,
    (BACKING_OFF, _DUE): QUEUED,
    (BACKING_OFF, _END): ENDED,
    (EXPIRING, _END): ENDED,
    (PUT_OFF, _END): ENDED,
}

_NEXT: Final = tuple(tuple(TRANSITIONS.get((state, event)) for state in DeliveryState) for event in DeliveryEvent)
"""The same by two indexes: an event moves every delivery several times, and hashing costs more than indexing."""


class TransitionError(AssertionError):
    """A transition that is not in the table: a bug."""


@dataclass(slots=True, eq=False)
class Delivery:
    """One event on its way to one target."""

    position: int  # the identity: of its outbox row; of one that was pending its id, below 0
    partition: int
    offset: int
    verdict: int
    state: DeliveryState = QUEUED  # changed by `TargetDeliveries` alone
    failures: int = 0
    due_us: int = 0  # when the next one may start, microseconds since 1970 UTC; 0 at once
    since: float | None = None  # see `begun`; None before the first attempt of this process has ended
    tried_us: int = 0  # microseconds from there to the last failure
    key: str | None = None  # the partition key that it has, or waits for, at an ordered target
    alone: bool = False  # it goes out in a batch of its own: another one with it was refused
    started_at: float = 0.0  # start of the last attempt, monotonic seconds
    pending: int = 0  # the id of the pending event that it delivers; 0 for a row of the outbox

    def fail(self, now: float) -> None:
        self.failures += 1
        self.tried_us = int((now - self.begun()) * 1e6)

    def begun(self) -> float:
        """When the first attempt began; earlier by as much as earlier processes tried. Monotonic seconds."""
        if self.since is None:
            self.since = self.started_at - self.tried_us / 1e6
        return self.since

    def resume(self, tried: Tried) -> None:
        """An earlier process has tried it."""
        self.failures, self.due_us, self.tried_us = tried.failures, tried.due_us, tried.tried_us

    def tried(self) -> Tried:
        """What `resume` needs."""
        return Tried(self.position, self.failures, self.due_us, self.tried_us)


@dataclass(slots=True, eq=False)
class Attempt:
    """Deliveries that go out in one request, and hold one permit from `open` to `close`: one, or those of a batch."""

    started_at: float  # monotonic seconds
    deliveries: list[Delivery] = field(default_factory=list)  # at least one when it begins
    size_bytes: int = 0  # of the events that it carries, as soon as they are read


@dataclass(slots=True, eq=False)
class TargetDeliveries:
    """The deliveries of one target that are in memory."""

    live: dict[int, Delivery] = field(default_factory=dict)  # by position, in the order in which they arrived
    queue: deque[Delivery] = field(default_factory=deque)  # those that may start, in order
    attempts: dict[Attempt, None] = field(default_factory=dict)  # those that have begun and not ended, in order
    tried: dict[int, Delivery] = field(default_factory=dict)  # those of `live` that have failed
    pending: int = 0  # how many of `live` were pending
    _counts: list[int] = field(default_factory=lambda: [0] * len(DeliveryState))
    _keys: KeyQueues[Delivery] = field(default_factory=KeyQueues)

    def count(self, state: DeliveryState) -> int:
        """How many are in a state; ENDED: since the beginning."""
        return self._counts[state]

    def _move(self, delivery: Delivery, event: DeliveryEvent) -> None:
        before = delivery.state
        after = _NEXT[event][before]
        if after is None:
            raise TransitionError(f"{event.name} of a delivery that is {before.name}")
        delivery.state = after
        counts = self._counts
        counts[before] -= 1
        counts[after] += 1

    def _requeue(self, delivery: Delivery, event: DeliveryEvent) -> None:
        """First in the queue: its turn came before all that is there."""
        self._move(delivery, event)
        self.queue.appendleft(delivery)

    def arrive(self, delivery: Delivery) -> None:
        self.live[delivery.position] = delivery
        self.pending += delivery.pending > 0
        if delivery.failures:
            self.tried[delivery.position] = delivery
        self.queue.append(delivery)
        self._counts[QUEUED] += 1

    def end(self, delivery: Delivery) -> None:
        """It has ended, wherever it stood; the next one of its key is the first of the queue."""
        before = delivery.state
        self._move(delivery, _END)
        del self.live[delivery.position]
        self.pending -= delivery.pending > 0
        if delivery.failures:
            self.tried.pop(delivery.position, None)
        if before is QUEUED:
            self.queue.remove(delivery)
        if (key := delivery.key) is None:
            return
        if before is WAITING_FOR_KEY:
            self._keys.withdraw(key, delivery)
        elif (behind := self._keys.leave(key)) is not None:
            self._requeue(behind, _KEY_FREE)

    # --- attempts -------------------------------------------------------------------------------------

    def open(self, attempt: Attempt) -> None:
        self.attempts[attempt] = None

    def start(self, attempt: Attempt) -> None:
        """The first of the queue goes out with the attempt."""
        delivery = self.queue.popleft()
        self._move(delivery, _START)
        delivery.started_at = attempt.started_at
        attempt.deliveries.append(delivery)

    def close(self, attempt: Attempt) -> None:
        del self.attempts[attempt]

    def give_back(self, deliveries: Iterable[Delivery]) -> None:
        """Deliveries of an attempt, in order, come to the front of the queue."""
        for delivery in reversed([*deliveries]):
            self._requeue(delivery, _RETURN)

    def put_off(self, delivery: Delivery) -> None:
        """It is too early: the first of the queue, or one of an attempt."""
        if delivery.state is QUEUED:
            self.queue.popleft()
        self._move(delivery, _PUT_OFF)

    # --- pauses ---------------------------------------------------------------------------------------

    def failed(self, delivery: Delivery) -> None:
        """Its attempt has failed, whatever follows."""
        self.tried[delivery.position] = delivery

    def back_off(self, delivery: Delivery) -> None:
        """Its attempt has failed and another one follows."""
        self._move(delivery, _FAIL)

    def not_due(self) -> Delivery:
        """The first of the queue backs off: an earlier process has tried it a moment ago."""
        delivery = self.queue.popleft()
        self._move(delivery, _NOT_DUE)
        return delivery

    def due(self, delivery: Delivery) -> None:
        delivery.due_us = 0
        self._requeue(delivery, _DUE)

    # --- keys of an ordered target --------------------------------------------------------------------

    def take_key(self, key: str) -> bool:
        """The first of the queue has this key: whether it may start; else it waits for the one that has the key."""
        delivery = self.queue[0]
        delivery.key = key
        if self._keys.enter(key, delivery):
            return True
        self._move(self.queue.popleft(), _KEY_TAKEN)
        return False

    def read_key(self) -> Delivery:
        """The first of the queue leaves it until its key has been read."""
        delivery = self.queue.popleft()
        self._move(delivery, _READ_KEY)
        return delivery

    def key_read(self, delivery: Delivery, key: str) -> None:
        """Its key is known: it is the first of the queue again, or waits for the one that has the key."""
        delivery.key = key
        if self._keys.enter(key, delivery):
            self._requeue(delivery, _KEY_READ)
        else:
            self._move(delivery, _KEY_TAKEN)

    # --- ends without an attempt ----------------------------------------------------------------------

    def rebase(self) -> None:
        """The time since the last attempts does not count: nothing could be tried."""
        for delivery in self.live.values():
            delivery.since = None

    def unstarted(self) -> list[Delivery]:
        return [one for one in self.live.values() if one.state is QUEUED or one.state is WAITING_FOR_KEY]

    def expire(self, position: int) -> list[Delivery]:
        """Take those below an outbox position out of the queue; the caller decides how they end."""
        expired = [delivery for delivery in self.queue if 0 <= delivery.position < position]
        if expired:
            self.queue = deque(one for one in self.queue if not 0 <= one.position < position)
        for delivery in expired:
            self._move(delivery, _EXPIRE)
        return expired
