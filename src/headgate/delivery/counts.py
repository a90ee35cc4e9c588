"""What became of one target's deliveries since its process began, and its rate of the last minute. Pure."""

from __future__ import annotations

from typing import Final

from headgate.limits import RATE_WINDOW_S

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
        """The rate."""
        passed = now / RATE_WINDOW_S - self._window
        if passed < 1:
            return (self._count + self._before * (1 - passed)) / RATE_WINDOW_S
        return self._count * max(0.0, 2 - passed) / RATE_WINDOW_S


class TargetCounts:
    """The counters of one target.

    Attributes:
        delivered: Deliveries that the subscriber took.
        failed: Given up: dead letters, and what was dropped.
        filtered: Pairs that the filter refused after all.
        filter_errors: Pairs for which the filter was an error.
        attempts_failed: Attempts.
        rate: Of what was delivered.
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
