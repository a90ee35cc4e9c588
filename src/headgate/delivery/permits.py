"""Permits: the right to have an attempt in flight, which all targets share, and the line of those who wait for one.

The permits of a target that turns out not to answer are counted on the other side, ATTEMPTS_SLOW_MAX at most: at once
the healthy ones can go on. When that side is full ("crowded"), a target that has not answered lately gets one permit to
prove itself before it gets more, so that hundreds of hanging targets do not fill ATTEMPTS_MAX either.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from headgate.delivery.lifecycle import Attempt
from headgate.delivery.targets import TargetState
from headgate_api import limits

_SWEEP_S: Final = 0.25


class PermitCounts:
    """How many permits are taken on either side (slow or not), and the bytes of their attempts. Pure.

    The process's permits are divided into `sharers` parts, one of which this is. Each side has half of the bytes: large
    events that hang must not take the memory of those that do not.
    """

    def __init__(self, sharers: int = 1) -> None:
        self.taken = {False: 0, True: 0}  # attempts in flight to targets that answer, and to those that do not
        self._max = {False: _part(limits.ATTEMPTS_HEALTHY_MAX, sharers), True: _part(limits.ATTEMPTS_SLOW_MAX, sharers)}
        self._all_max = _part(limits.ATTEMPTS_MAX, sharers)
        self._bytes_max = limits.ATTEMPT_BYTES_MAX // sharers
        self._bytes = {False: 0, True: 0}

    @property
    def crowded(self) -> bool:
        """Whether those who do not answer have all the permits that they may have."""
        return self.taken[True] >= self._max[True]

    def available(self, slow: bool) -> bool:
        taken = self.taken
        return (
            taken[slow] < self._max[slow]
            and taken[False] + taken[True] < self._all_max
            and self._bytes[slow] < self._bytes_max // 2
        )

    def acquire(self, slow: bool) -> None:
        self.taken[slow] += 1

    def charge(self, slow: bool, size_bytes: int) -> None:
        self._bytes[slow] += size_bytes

    def release(self, slow: bool, size_bytes: int) -> None:
        self.taken[slow] -= 1
        self._bytes[slow] -= size_bytes

    def move(self, count: int, size_bytes: int, to_slow: bool) -> None:
        """A target changed sides with so many attempts in flight, which carry so much."""
        self.taken[to_slow] += count
        self.taken[not to_slow] -= count
        self._bytes[to_slow] += size_bytes
        self._bytes[not to_slow] -= size_bytes


def _part(permits: int, sharers: int) -> int:
    return max(permits // sharers, min(permits, limits.ATTEMPTS_PART_MIN))


class Permits:
    """The permits of all targets, and the line before either side's, on one event loop. The clock is monotonic."""

    def __init__(
        self,
        pump: Callable[[TargetState], None],
        clock: Callable[[], float],
        loop: asyncio.AbstractEventLoop,
        counts: PermitCounts,
    ) -> None:
        self._pump = pump
        self._clock = clock
        self._loop = loop
        self.counts = counts
        self._busy: set[TargetState] = set()
        self._lines: dict[bool, deque[TargetState]] = {False: deque(), True: deque()}
        self._sweeper: asyncio.TimerHandle | None = None
        self._closed = False

    def cautious(self, state: TargetState) -> bool:
        """Whether a target has to prove itself with one attempt before it gets more permits."""
        return self.counts.crowded and self._clock() - state.subscriber.answered_at > limits.SLOW_AFTER_S

    def available(self, state: TargetState) -> bool:
        """Whether an attempt of this target may start; else the target waits for a permit now."""
        if self.counts.available(state.slow):
            return True
        self._wait(state)
        return False

    def acquire(self, state: TargetState) -> Attempt:
        """An attempt begins: it has a permit, and counts for the rate of its subscriber."""
        attempt = Attempt(self._clock())
        self.counts.acquire(state.slow)
        state.deliveries.open(attempt)
        state.subscriber.begin(attempt.started_at)
        self._busy.add(state)
        return attempt

    def charge(self, state: TargetState, attempt: Attempt, size_bytes: int) -> None:
        attempt.size_bytes = size_bytes
        self.counts.charge(state.slow, size_bytes)

    def release(self, state: TargetState, attempt: Attempt) -> None:
        state.deliveries.close(attempt)
        state.subscriber.end()
        if not state.deliveries.attempts:
            self._busy.discard(state)
        self.counts.release(state.slow, attempt.size_bytes)

    def go_on(self, state: TargetState) -> None:
        """After an attempt: who waits for a permit comes before the target that has just had its turn."""
        if self._lines[state.slow] and state.startable:
            self._wait(state)
        self._serve()
        if not state.waiting_for_permit:
            self._pump(state)

    def set_slow(self, state: TargetState, slow: bool) -> None:
        """The target turned out to answer, or not to; its attempts in flight change sides with it."""
        if slow != state.slow:
            state.slow = slow
            attempts = state.deliveries.attempts
            self.counts.move(len(attempts), sum(attempt.size_bytes for attempt in attempts), slow)

    def watch(self) -> None:
        """Look for attempts that hang, for as long as there are any; nothing else would tell before their timeout."""
        if self._sweeper is None and self._busy and not self._closed:
            self._sweeper = self._loop.call_later(_SWEEP_S, self._sweep)

    def close(self) -> None:
        """Nobody who waits has a turn any more."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()

    def _wait(self, state: TargetState) -> None:
        if not state.waiting_for_permit:
            state.waiting_for_permit = True
            self._lines[state.slow].append(state)

    def _serve(self) -> None:
        for slow, line in self._lines.items():
            while line and self.counts.available(slow) and not self._closed:
                first = line.popleft()
                first.waiting_for_permit = False
                self._pump(first)

    def _sweep(self) -> None:
        self._sweeper = None
        limit = self._clock() - limits.SLOW_AFTER_S
        for state in self._busy:
            if not state.slow and next(iter(state.deliveries.attempts)).started_at < limit:
                self.set_slow(state, True)
        self._serve()
        self.watch()
