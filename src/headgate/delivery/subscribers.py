"""What is known of a trigger's subscriber, shared by all that send to it: deliveries and replays."""

from __future__ import annotations

from weakref import WeakValueDictionary

from headgate.control.routing import Target
from headgate.delivery.circuit import Circuit, Rate

NEVER = float("-inf")


class Subscriber:
    """The subscriber of one trigger.

    Attributes:
        target: The trigger, as routing has it now.
        circuit: Its breaker.
        in_flight: Attempts now.
        answered_at: When it last answered in good time, monotonic seconds.
        taken_at: When it last took an event, monotonic seconds.
        failing_since: Start of the attempts since then that are tried again; None without one.
        refused: Attempts since then that were refused for good.
        refused_since: Start of the first of them, monotonic seconds.
        failures_untold: Events given up since the last log line about it.
        told_at: When that was, monotonic seconds.
        allowed_per_s: Attempts a second that it allows by a handshake; None for no bound.
        trouble: What was last told to be wrong with it.
        warned_at: When the log last had an attempt that got no answer, monotonic seconds.
    """

    __slots__ = (
        "__weakref__",
        "_rate",
        "allowed_per_s",
        "answered_at",
        "circuit",
        "failing_since",
        "failures_untold",
        "in_flight",
        "refused",
        "refused_since",
        "taken_at",
        "target",
        "told_at",
        "trouble",
        "warned_at",
    )

    def __init__(self, target: Target) -> None:
        self.target = target
        self.circuit = Circuit()
        self.in_flight = 0
        self.answered_at = NEVER
        self.taken_at = NEVER
        self.failing_since: float | None = None
        self.refused = 0
        self.refused_since = 0.0
        self.failures_untold = 0
        self.told_at = self.warned_at = NEVER
        self.trouble = ""
        self.allowed_per_s: float | None = None
        self._rate: Rate | None = None

    @property
    def per_s(self) -> float | None:
        """Attempts a second at most, by its rules and by what it allows itself; None for no bound."""
        own, allowed = self.target.delivery.rate_per_s, self.allowed_per_s
        return own if allowed is None else allowed if own is None else min(own, allowed)

    @property
    def rate(self) -> Rate | None:
        """Its rate limit, as routing has it now."""
        per_s = self.per_s
        if per_s is None:
            return None
        if self._rate is None or self._rate.per_s != per_s:
            self._rate = Rate(per_s)
        return self._rate

    def wait_s(self, now: float) -> float:
        """Seconds until circuit and rate let the next attempt start; infinite while one in flight decides."""
        rate = self.rate
        paced_s = rate.wait_s(now) if rate is not None else 0.0
        return max(self.circuit.wait_s(now, self.in_flight), paced_s)

    def begin(self, now: float) -> None:
        """An attempt begins: it counts for the rate."""
        self.in_flight += 1
        if self.per_s is not None and (rate := self.rate) is not None:
            rate.take(now)

    def end(self) -> None:
        """An attempt is over."""
        self.in_flight -= 1


class Subscribers:
    """One `Subscriber` a trigger, for as long as somebody sends to it."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[int, Subscriber] = WeakValueDictionary()

    def of(self, target: Target) -> Subscriber:
        """The subscriber of a trigger that routing has now."""
        known = self._known.get(target.id)
        if known is None:
            known = self._known[target.id] = Subscriber(target)
        known.target = target
        return known
