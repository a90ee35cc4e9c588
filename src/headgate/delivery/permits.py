"""Who has a place for an attempt, and who stands in line for one? All targets share them.

Targets that answer share ATTEMPTS_HEALTHY_MAX places. The places of a target that turns out not to answer are moved
to the other side's account: at once the healthy ones can go on, while no slow target starts another attempt above
ATTEMPTS_SLOW_MAX. When that account is full ("crowded"), a target that has not answered lately gets one place to prove
itself before it gets more, so that hundreds of hanging targets do not fill ATTEMPTS_MAX either. Each account has half
of ATTEMPT_BYTES_MAX: large events that hang must not take the memory of those that do not.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from headgate import limits
from headgate.delivery.targets import Delivery, TargetState

_SWEEP_S: Final = 0.25


class Accounts:
    """How many attempts are under way on either side, and what they carry. Sides: slow or not."""

    def __init__(self) -> None:
        self._taken = {False: 0, True: 0}
        self._max = {False: limits.ATTEMPTS_HEALTHY_MAX, True: limits.ATTEMPTS_SLOW_MAX}
        self._bytes = {False: 0, True: 0}

    @property
    def by_side(self) -> dict[bool, int]:
        """Attempts under way to targets that answer (False) and to those that do not (True)."""
        return dict(self._taken)

    @property
    def crowded(self) -> bool:
        """Whether those who do not answer have all the places they may have."""
        return self._taken[True] >= self._max[True]

    def free(self, slow: bool) -> bool:
        """Whether one more may start."""
        taken = self._taken
        return (
            taken[slow] < self._max[slow]
            and taken[False] + taken[True] < limits.ATTEMPTS_MAX
            and self._bytes[slow] < limits.ATTEMPT_BYTES_MAX // 2
        )

    def take(self, slow: bool) -> None:
        """One starts."""
        self._taken[slow] += 1

    def charge(self, slow: bool, size_bytes: int) -> None:
        """It carries an event of this size."""
        self._bytes[slow] += size_bytes

    def release(self, slow: bool, size_bytes: int) -> None:
        """It ended."""
        self._taken[slow] -= 1
        self._bytes[slow] -= size_bytes

    def move(self, count: int, size_bytes: int, to_slow: bool) -> None:
        """A target changed sides with so many attempts under way, which carry so much."""
        self._taken[to_slow] += count
        self._taken[not to_slow] -= count
        self._bytes[to_slow] += size_bytes
        self._bytes[not to_slow] -= size_bytes


class Permits:
    """The places of all targets, and the line before either side's. Lives on one event loop.

    Args:
        pump: Starts what may start of a target: its turn has come.
        clock: Monotonic seconds.
    """

    def __init__(self, pump: Callable[[TargetState], None], clock: Callable[[], float]) -> None:
        self._pump = pump
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._accounts = Accounts()
        self._busy: set[TargetState] = set()
        self._lines: dict[bool, deque[TargetState]] = {False: deque(), True: deque()}
        self._sweeper: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def taken(self) -> dict[bool, int]:
        """Attempts under way, by whether their targets are slow."""
        return self._accounts.by_side

    def cautious(self, state: TargetState) -> bool:
        """Whether a target has to prove itself with one attempt before it gets more places."""
        return self._accounts.crowded and self._clock() - state.answered_at > limits.SLOW_AFTER_S

    def free(self, state: TargetState) -> bool:
        """Whether an attempt of this target may start; else the target stands in line now."""
        if self._accounts.free(state.slow):
            return True
        self._stand(state)
        return False

    def take(self, state: TargetState, delivery: Delivery) -> None:
        """An attempt begins: it has a place."""
        self._accounts.take(state.slow)
        delivery.started_at = self._clock()
        delivery.size_bytes = 0
        state.in_flight[delivery.position] = delivery
        self._busy.add(state)

    def charge(self, state: TargetState, delivery: Delivery, size_bytes: int) -> None:
        """It carries so many bytes."""
        delivery.size_bytes = size_bytes
        self._accounts.charge(state.slow, size_bytes)

    def release(self, state: TargetState, delivery: Delivery) -> None:
        """An attempt is over: its place is free."""
        del state.in_flight[delivery.position]
        if not state.in_flight:
            self._busy.discard(state)
        self._accounts.release(state.slow, delivery.size_bytes)

    def go_on(self, state: TargetState) -> None:
        """After an attempt: who stands in line comes before the target that has just had its turn."""
        if state.startable and self._lines[state.slow]:
            self._stand(state)
        self._serve()
        if not state.waiting_for_permit:
            self._pump(state)

    def set_slow(self, state: TargetState, slow: bool) -> None:
        """The target turned out to answer, or not to; what it has under way changes sides with it."""
        if slow != state.slow:
            state.slow = slow
            size_bytes = sum(delivery.size_bytes for delivery in state.in_flight.values())
            self._accounts.move(len(state.in_flight), size_bytes, slow)

    def watch(self) -> None:
        """Look for attempts that hang, for as long as there are any; nothing else would tell before their timeout."""
        if self._sweeper is None and self._busy and not self._closed:
            self._sweeper = self._loop.call_later(_SWEEP_S, self._sweep)

    def close(self) -> None:
        """Nobody in line has a turn any more."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()

    def _stand(self, state: TargetState) -> None:
        if not state.waiting_for_permit:
            state.waiting_for_permit = True
            self._lines[state.slow].append(state)

    def _serve(self) -> None:
        for slow, line in self._lines.items():
            while line and self._accounts.free(slow) and not self._closed:
                first = line.popleft()
                first.waiting_for_permit = False
                self._pump(first)

    def _sweep(self) -> None:
        self._sweeper = None
        limit = self._clock() - limits.SLOW_AFTER_S
        for state in self._busy:
            if not state.slow and next(iter(state.in_flight.values())).started_at < limit:
                self.set_slow(state, True)
        self._serve()
        self.watch()
