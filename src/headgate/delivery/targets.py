"""One target: its deliveries in memory, its counters, and what it still has to read of the outbox."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

from headgate.control.routing import Target
from headgate.delivery.attempt_service import Recipient
from headgate.delivery.cursors import TargetCursor, Tried
from headgate.delivery.lifecycle import BACKING_OFF, READING_KEY, Delivery, TargetDeliveries
from headgate.delivery.subscribers import Subscriber
from headgate.limits import RATE_WINDOW_S
from headgate.observe import metrics

GIVEN_UP: Final = frozenset({"failed", "dead_lettered", "expired", "lost"})
"""Results of deliveries that were given up."""


class Rate60:
    """Things a second over the last RATE_WINDOW_S: those of this window, and a share of the one before."""

    __slots__ = ("_before", "_count", "_window")

    def __init__(self) -> None:
        self._window = 0
        self._count = 0
        self._before = 0

    def add(self, now: float) -> None:
        """One more, at monotonic seconds."""
        window = int(now / RATE_WINDOW_S)
        if window != self._window:
            self._before = self._count if window == self._window + 1 else 0
            self._window, self._count = window, 0
        self._count += 1

    def per_s(self, now: float) -> float:
        passed = now / RATE_WINDOW_S - self._window
        if passed < 1:
            return (self._count + self._before * (1 - passed)) / RATE_WINDOW_S
        return self._count * max(0.0, 2 - passed) / RATE_WINDOW_S


class TargetCounts:
    """The counters of one target.

    Attributes:
        failed: Given up: dead letters, and what was dropped.
        filtered: Pairs that the filter refused after all.
        filter_errors: Pairs for which the filter was an error.
    """

    __slots__ = ("attempts_failed", "delivered", "failed", "filter_errors", "filtered", "rate")

    def __init__(self) -> None:
        self.delivered = 0
        self.failed = 0
        self.filtered = 0
        self.filter_errors = 0
        self.attempts_failed = 0
        self.rate = Rate60()

    def end(self, result: str, now: float) -> None:
        """A delivery has ended: see `scheduler.end`."""
        if result == "delivered":
            self.delivered += 1
            self.rate.add(now)
        elif result in GIVEN_UP:
            self.failed += 1
        elif result == "filtered":
            self.filtered += 1
        elif result == "error":
            self.filter_errors += 1


@dataclass(slots=True)
class Lag:
    """What a target has not read.

    Attributes:
        next: Outbox position to go on reading at.
        floor: From it on every row counts; below it only those in `unread`.
        unread: Positions below `floor` that an earlier process had handed out and not ended.
        tried: What an earlier process had tried and is not read again yet, by position.
        tail: Rows that came while the last piece is being read; None when they are not collected.
    """

    next: int
    floor: int
    unread: set[int] = field(default_factory=set)
    tried: dict[int, Tried] = field(default_factory=dict)
    tail: list[Delivery] | None = None

    def wants(self, position: int) -> bool:
        """Whether the row at this position has still to be delivered."""
        return position >= self.floor or position in self.unread

    def read_to(self, position: int) -> None:
        """Everything below a position has been read."""
        self.next = position
        self.unread = {one for one in self.unread if one >= position}


class TargetState:
    """A target and its deliveries.

    Attributes:
        target: As routing has it now.
        gathering: The timer of a batch that waits for events.
        ripe: Whether the batch has waited for long enough.
        lag: What it has not read; None when it reads along.
        slow: Whether it counts as one that does not answer.
        waiting_for_permit: Whether it stands in line for a permit.
        seconds: The metric of its namespace: end to end.
        given_up: The metric of its namespace: deliveries that were given up.
        stored: Whether dispatch.db has a row of it.
    """

    __slots__ = (
        "counts",
        "deliveries",
        "gathering",
        "given_up",
        "gone",
        "lag",
        "recipient",
        "refilling",
        "ripe",
        "seconds",
        "slow",
        "stored",
        "subscriber",
        "target",
        "waiting_for_permit",
    )

    def __init__(self, subscriber: Subscriber) -> None:
        self.subscriber = subscriber
        self.deliveries = TargetDeliveries()
        self.counts = TargetCounts()
        self.gathering: asyncio.TimerHandle | None = None
        self.ripe = False
        self.lag: Lag | None = None
        self.refilling = False
        self.slow = False
        self.waiting_for_permit = False
        self.stored = False
        self.route(subscriber.target)

    def route(self, target: Target) -> None:
        """Routing has this target, perhaps with other rules, perhaps again."""
        self.target = self.subscriber.target = target
        self.recipient = Recipient.subscriber_of(self.subscriber)
        self.gone = False
        self.seconds = metrics.NAMESPACE_DELIVERY_SECONDS.labels(target.namespace)
        self.given_up = metrics.NAMESPACE_GIVEN_UP.labels(target.namespace)

    @property
    def oldest(self) -> Delivery | None:
        """Its first delivery in memory that has not ended."""
        return next(iter(self.deliveries.live.values()), None)

    @property
    def startable(self) -> bool:
        """Whether its next delivery may start, permits aside; none of a paused one may."""
        deliveries = self.deliveries
        if not deliveries.queue or self.target.paused:
            return False
        rules = self.target.delivery
        if rules.ordered:
            if rules.format == "batch":
                # One batch at a time, and nothing overtakes a retry.
                return not deliveries.attempts and not deliveries.count(BACKING_OFF)
            return not deliveries.count(READING_KEY) and len(deliveries.attempts) < rules.parallelism
        return len(deliveries.attempts) < rules.parallelism

    def cursor(self) -> TargetCursor | None:
        """What a restart must know; None when everything has ended."""
        lag, live = self.lag, self.deliveries.live
        if lag is None and not live:
            return None
        retries = tuple(
            Tried(at, delivery.failures, delivery.due_us, delivery.tried_us)
            for at, delivery in sorted(self.deliveries.tried.items())
        )
        if lag is None:
            return TargetCursor(self.target.id, None, tuple(sorted(live)), retries)
        pending = tuple(sorted(live.keys() | lag.unread))
        return TargetCursor(self.target.id, max(lag.next, lag.floor), pending, retries + tuple(lag.tried.values()))
