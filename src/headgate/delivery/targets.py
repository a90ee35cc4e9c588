"""Where does one target stand? Its queue, what is under way, what it still has to read."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headgate.delivery.circuit import Circuit, Rate
from headgate.delivery.cursors import TargetCursor, Tried
from headgate.delivery.key_queues import KeyQueues

if TYPE_CHECKING:
    from headgate.control.routing import Target


class Delivery:
    """One (event, target) on its way.

    Attributes:
        position: Of its outbox row: the identity.
        partition: Of the event.
        offset: Of the event.
        verdict: The matcher's.
        failures: Attempts that failed so far.
        due_us: When the next one may start, microseconds since 1970 UTC; 0 at once.
        since: See `begun`; None before the first attempt of this process has ended.
        tried_us: Microseconds from there to the last failure.
        key: Its lane, once it has one.
        alone: It goes out in a batch of its own: another one with it was refused.
        started_at: Start of the running attempt, monotonic seconds.
        size_bytes: Of the event of the running attempt.
    """

    __slots__ = (
        "alone",
        "due_us",
        "failures",
        "key",
        "offset",
        "partition",
        "position",
        "since",
        "size_bytes",
        "started_at",
        "tried_us",
        "verdict",
    )

    def __init__(self, position: int, partition: int, offset: int, verdict: int) -> None:
        self.position = position
        self.partition = partition
        self.offset = offset
        self.verdict = verdict
        self.failures = 0
        self.due_us = 0
        self.since: float | None = None
        self.tried_us = 0
        self.key: str | None = None
        self.alone = False
        self.started_at = 0.0
        self.size_bytes = 0

    def fail(self, now: float) -> None:
        """The running attempt has failed."""
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


@dataclass(slots=True)
class Lag:
    """What a target has not read.

    Attributes:
        next: Outbox position to go on reading at.
        floor: From it on every row counts; below it only those in `unread`.
        unread: Positions below `floor` that an earlier process had handed out and not ended.
    """

    next: int
    floor: int
    unread: set[int] = field(default_factory=set)

    def wants(self, position: int) -> bool:
        """Whether the row at this position has still to be delivered."""
        return position >= self.floor or position in self.unread


class TargetState:
    """A target and its deliveries.

    Attributes:
        target: As routing has it now.
        live: All its deliveries in memory by position: queued, under way, waiting for a retry.
        queue: Those that may start, in order.
        in_flight: Positions under way, the oldest first.
        backing_off: How many wait for a retry.
        key_queues: Where an ordered target's deliveries wait for those of the same key.
        resolving: Whether the key of its next delivery is being read.
        gathering: The timer of a batch that waits for events.
        ripe: Whether the batch has waited for long enough.
        retries: What an earlier process had tried and is not read again yet, by position.
        lag: What it has not read; None when it reads along.
        tail: Rows that came while the last piece of the lag is being read; None when they are not collected.
        refilling: Whether a piece is being read.
        slow: Whether it counts as one that does not answer.
        waiting_for_permit: Whether it waits for a place.
        gone: Whether the target was deleted.
        stored: Whether dispatch.db has a row of it.
        answered_at: When it last answered in good time, monotonic seconds.
        taken_at: When an attempt last ended otherwise than to be tried again, monotonic seconds.
        failing_since: Start of the attempts since then; None without one.
        failures_untold: Deliveries given up since the last log line about it.
        told_at: When that was, monotonic seconds.
        circuit: Its breaker.
        trouble: What was last told to be wrong with the subscriber.
    """

    __slots__ = (
        "_rate",
        "answered_at",
        "backing_off",
        "circuit",
        "failing_since",
        "failures_untold",
        "gathering",
        "gone",
        "in_flight",
        "key_queues",
        "lag",
        "live",
        "queue",
        "refilling",
        "resolving",
        "retries",
        "ripe",
        "slow",
        "stored",
        "tail",
        "taken_at",
        "target",
        "told_at",
        "trouble",
        "waiting_for_permit",
    )

    def __init__(self, target: Target) -> None:
        self.target = target
        self.live: dict[int, Delivery] = {}
        self.queue: deque[Delivery] = deque()
        self.in_flight: dict[int, Delivery] = {}
        self.backing_off = 0
        self.key_queues = KeyQueues()
        self.resolving = False
        self.gathering: asyncio.TimerHandle | None = None
        self.ripe = False
        self.retries: dict[int, Tried] = {}
        self.lag: Lag | None = None
        self.tail: list[Delivery] | None = None
        self.refilling = False
        self.slow = False
        self.waiting_for_permit = False
        self.gone = False
        self.stored = False
        self.answered_at = float("-inf")
        self.taken_at = float("-inf")
        self.failing_since: float | None = None
        self.failures_untold = 0
        self.told_at = float("-inf")
        self.circuit = Circuit()
        self.trouble = ""
        self._rate: Rate | None = None

    @property
    def rate(self) -> Rate | None:
        """Its rate limit, as routing has it now."""
        per_s = self.target.delivery.rate_per_s
        if per_s is None:
            return None
        if self._rate is None or self._rate.per_s != per_s:
            self._rate = Rate(per_s)
        return self._rate

    def wait_s(self, now: float) -> float:
        """Seconds until circuit and rate let the next attempt start; infinite while one under way decides."""
        rate = self.rate
        paced_s = rate.wait_s(now) if rate is not None else 0.0
        return max(self.circuit.wait_s(now, len(self.in_flight)), paced_s)

    @property
    def oldest(self) -> Delivery | None:
        """Its first delivery in memory that has not ended."""
        return next(iter(self.live.values()), None)

    @property
    def startable(self) -> bool:
        """Whether its next delivery may start, places aside."""
        if not self.queue:
            return False
        rules = self.target.delivery
        if rules.ordered:
            if rules.format == "batch":
                # One batch at a time, and nothing overtakes a retry.
                return not self.in_flight and not self.backing_off
            return not self.resolving and len(self.in_flight) < rules.parallelism
        return len(self.in_flight) < rules.parallelism

    def cursor(self) -> TargetCursor | None:
        """What a restart must know; None when everything has ended."""
        lag, live = self.lag, self.live
        if lag is None and not live:
            return None
        retries = tuple(
            Tried(at, delivery.failures, delivery.due_us, delivery.tried_us)
            for at, delivery in live.items()
            if delivery.failures
        )
        if lag is None:
            return TargetCursor(self.target.id, None, tuple(sorted(live)), retries)
        pending = tuple(sorted(live.keys() | lag.unread))
        return TargetCursor(self.target.id, max(lag.next, lag.floor), pending, retries + tuple(self.retries.values()))
