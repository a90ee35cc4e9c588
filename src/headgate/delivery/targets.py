"""One target: its deliveries in memory, its counters, and what it still has to read of the outbox."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

from headgate.delivery.attempt_service import Recipient
from headgate.delivery.cursors import TargetCursor, Tried
from headgate.delivery.lifecycle import BACKING_OFF, READING_KEY, Delivery, TargetDeliveries
from headgate.delivery.subscribers import Subscriber
from headgate.objects.kinds.routing import Target
from headgate.observe import metrics
from headgate_api.limits import RATE_WINDOW_S

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
    """The counters of one target."""

    __slots__ = ("attempts_failed", "delivered", "failed", "filter_errors", "filtered", "rate")

    def __init__(self) -> None:
        self.delivered = 0
        self.failed = 0  # given up: dead letters, and what was dropped
        self.filtered = 0  # pairs that the filter refused after all
        self.filter_errors = 0  # pairs for which the filter was an error
        self.attempts_failed = 0
        self.rate = Rate60()

    def end(self, result: str, now: float) -> None:
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
    """What a target has not read."""

    next: int  # outbox position to go on reading at
    floor: int  # from it on every row counts; below it only those in `unread`
    unread: set[int] = field(default_factory=set)  # below `floor`: what an earlier process handed out and did not end
    tried: dict[int, Tried] = field(default_factory=dict)  # by position: what an earlier process tried, not yet reread
    tail: list[Delivery] | None = None  # rows that came while the last piece is being read; None: not collected

    def wants(self, position: int) -> bool:
        """Whether the row at this position has still to be delivered."""
        return position >= self.floor or position in self.unread

    def read_to(self, position: int) -> None:
        """Everything below a position has been read."""
        self.next = position
        self.unread = {one for one in self.unread if one >= position}


class TargetState:
    """A target and its deliveries."""

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
        self.gathering: asyncio.TimerHandle | None = None  # the timer of a batch that waits for events
        self.ripe = False  # whether the batch has waited for long enough
        self.lag: Lag | None = None  # what it has not read; None when it reads along
        self.refilling = False
        self.slow = False  # whether it counts as one that does not answer
        self.waiting_for_permit = False
        self.stored = False  # whether dispatch.db has a row of it
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
