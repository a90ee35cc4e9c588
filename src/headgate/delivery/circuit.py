"""A circuit breaker and a rate limit, for each subscriber its own. Pure.

    closed --CIRCUIT_FAILURES_MAX failures in a row--> open --pause--> half-open --one attempt--> closed | open

A failure here is an attempt that met nobody: no connection, no answer in time, nothing that is HTTP, or a gateway that
met nobody (502, 503, 504). Whoever answers anything else is there, however bad the answer: the event may be at fault,
and retries and dead letters deal with events.

An open circuit pauses the target and nothing else: what is due waits in its queue and keeps its retries. Only the
attempt of a half-open circuit counts as one of its event's, so a target that stays away gives up its events slowly,
the oldest first, instead of all at once.
"""

from __future__ import annotations

from typing import Final

from headgate import limits
from headgate.delivery.retry import Outcome

_NOBODY: Final = frozenset({502, 503, 504})
_BURST_S: Final = 0.1


class Circuit:
    """The breaker of one target.

    Attributes:
        failures: In a row.
        opened: Whether it is open, or half-open.
    """

    __slots__ = ("_pause_s", "_until", "failures", "opened")

    def __init__(self) -> None:
        self.failures = 0
        self.opened = False
        self._pause_s = 0.0
        self._until = 0.0

    def wait_s(self, now: float, in_flight: int) -> float:
        """Seconds until the next attempt may start; infinite while one in flight decides."""
        if not self.opened:
            return 0.0
        if now < self._until:
            return self._until - now
        return float("inf") if in_flight else 0.0

    def heard(self, outcome: Outcome, now: float) -> bool:
        """An attempt has ended; True when the circuit has opened, stayed open or closed by it: worth telling."""
        if outcome.status and outcome.status not in _NOBODY:
            self.failures = 0
            closed, self.opened, self._pause_s = self.opened, False, 0.0
            return closed
        self.failures += 1
        if self.failures < limits.CIRCUIT_FAILURES_MAX or now < self._until:
            return False
        self.opened = True
        self._pause_s = min(max(2 * self._pause_s, limits.CIRCUIT_PAUSE_S_MIN), limits.CIRCUIT_PAUSE_S_MAX)
        self._until = now + self._pause_s
        return True

    def describe(self, outcome: Outcome) -> str:
        """The state as a reason and a message for the trigger's conditions; empty when it is closed."""
        if not self.opened:
            return ""
        return (
            f"CircuitOpen: {self.failures} attempts in a row met nobody, the next one follows {self._pause_s:.0f} s"
            f" after the last; last: {outcome.why}"
        )


class Rate:
    """At most so many attempts a second, evenly, with bursts of a tenth of a second's worth.

    Args:
        per_s: Above 0.
    """

    __slots__ = ("_due", "per_s")

    def __init__(self, per_s: float) -> None:
        self.per_s = per_s
        self._due = 0.0

    def wait_s(self, now: float) -> float:
        """Seconds until the next attempt may start."""
        return max(0.0, self._due - _BURST_S - now) if self.per_s * _BURST_S > 1 else max(0.0, self._due - now)

    def take(self, now: float) -> None:
        """One starts."""
        self._due = max(self._due, now) + 1 / self.per_s
