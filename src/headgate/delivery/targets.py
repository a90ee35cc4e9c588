"""One target: its deliveries in memory, its counters, and what it still has to read of the outbox."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

from headgate.delivery.attempt_service import Recipient
from headgate.delivery.circuit import Subscriber
from headgate.delivery.cursors import TargetCursor, Tried
from headgate.delivery.lifecycle import BACKING_OFF, READING_KEY, Delivery, TargetDeliveries
from headgate.delivery.recent import Recent
from headgate.objects.kinds.routing import Target
from headgate.observe import metrics
from headgate_api.limits import RATE_WINDOW_S

GIVEN_UP: Final = frozenset({"failed", "dead_lettered", "expired", "lost"})
"""Results of deliveries that were given up."""


@dataclass(slots=True)
class Rate60:
    """Things a second over the last RATE_WINDOW_S: those of this window, and a share of the one before."""

    _window: int = 0
    _count: int = 0
    _before: int = 0

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


@dataclass(slots=True)
class TargetCounts:
    """The counters of one target."""

    delivered: int = 0
    failed: int = 0  # given up: dead letters, and what was dropped
    filtered: int = 0  # pairs that the filter refused after all
    filter_errors: int = 0  # pairs for which the filter was an error
    attempts_failed: int = 0
    rate: Rate60 = field(default_factory=Rate60)

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


@dataclass(slots=True, eq=False)
class TargetState:
    """A target and its deliveries. What `route` sets has no default."""

    subscriber: Subscriber
    deliveries: TargetDeliveries = field(default_factory=TargetDeliveries)
    counts: TargetCounts = field(default_factory=TargetCounts)
    recent: Recent | None = None  # None until the first attempt
    gathering: asyncio.TimerHandle | None = None  # the timer of a batch that waits for events
    ripe: bool = False  # whether the batch has waited for long enough
    lag: Lag | None = None  # what it has not read; None when it reads along
    refilling: bool = False
    slow: bool = False  # whether it counts as one that does not answer
    waiting_for_permit: bool = False
    stored: bool = False  # whether dispatch.db has a row of it
    target: Target = field(init=False)
    recipient: Recipient = field(init=False)
    gone: bool = field(init=False)
    seconds: metrics.Histogram = field(init=False)
    given_up: metrics.Counter = field(init=False)

    def __post_init__(self) -> None:
        self.route(self.subscriber.target)

    def route(self, target: Target) -> None:
        """Routing has this target, perhaps with other rules, perhaps again."""
        self.target = self.subscriber.target = target
        self.recipient = Recipient.subscriber_of(self.subscriber)
        self.gone = False
        self.seconds = metrics.NAMESPACE_DELIVERY_SECONDS.labels(target.namespace)
        self.given_up = metrics.NAMESPACE_GIVEN_UP.labels(target.namespace)

    @property
    def oldest(self) -> Delivery | None:
        """The oldest row of the outbox; what was pending is old by intention."""
        return next((one for one in self.deliveries.live.values() if not one.pending), None)

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
        """What a restart must know; None when everything has ended. What was pending is in its own store."""
        lag, live = self.lag, self.deliveries.live
        if self.deliveries.pending:
            live = {position: one for position, one in live.items() if not one.pending}
        if lag is None and not live:
            return None
        tried = sorted(self.deliveries.tried.items())
        retries = tuple(delivery.tried() for _, delivery in tried if not delivery.pending)
        if lag is None:
            return TargetCursor(self.target.id, None, tuple(sorted(live)), retries)
        pending = tuple(sorted(live.keys() | lag.unread))
        return TargetCursor(self.target.id, max(lag.next, lag.floor), pending, retries + tuple(lag.tried.values()))
