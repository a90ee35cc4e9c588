"""What is known of a trigger's subscriber, shared by all that send to it: its circuit breaker, its rate, its health."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakValueDictionary

import structlog

from headgate.delivery.lifecycle import Delivery
from headgate.delivery.retry import CREDENTIALS, HANDSHAKE, UNSENT, Clocks, Fate, Outcome, judge
from headgate.objects.kinds.routing import Target
from headgate.objects.store.writes import kube_time
from headgate_api import limits

_NOBODY: Final = frozenset({502, 503, 504})
_BURST_S: Final = 0.1


@dataclass(slots=True)
class Circuit:
    """The breaker of one target.

        closed --CIRCUIT_FAILURES_MAX failures in a row--> open --pause--> half-open --one attempt--> closed | open

    A failure is an attempt that met nobody: no connection, no answer in time, nothing that is HTTP, or a gateway that
    met nobody. Whoever answers anything else is there, however bad the answer: the event may be at fault.

    An open circuit pauses the target: what is due waits in its queue and keeps its retries. Only the attempt of a
    half-open one counts as one of its event's, so a target that stays away gives up its events slowly.
    """

    failures: int = 0  # in a row
    opened: bool = False  # whether it is open, or half-open
    _pause_s: float = 0.0
    _until: float = 0.0

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
    """At most `per_s` (above 0) attempts a second, evenly; bursts of what `burst_s` brings where that is over one."""

    __slots__ = ("_burst_s", "_due", "per_s")

    def __init__(self, per_s: float, burst_s: float = _BURST_S) -> None:
        self.per_s = per_s
        self._burst_s = burst_s if per_s * burst_s > 1 else 0.0
        self._due = 0.0

    @classmethod
    def of(cls, per_s: float, before: Rate | None) -> Rate:
        """The one before for as long as it is the same."""
        return before if before is not None and before.per_s == per_s else cls(per_s)

    def wait_s(self, now: float) -> float:
        return max(0.0, self._due - self._burst_s - now)

    def take(self, now: float) -> None:
        self._due = max(self._due, now) + 1 / self.per_s


NEVER: Final = float("-inf")


@dataclass(slots=True, weakref_slot=True, eq=False)
class Subscriber:
    """The subscriber of one trigger. Times are monotonic seconds."""

    target: Target  # the trigger, as routing has it now
    circuit: Circuit = field(default_factory=Circuit)
    in_flight: int = 0
    answered_at: float = NEVER  # when it last answered in good time
    taken_at: float = NEVER  # when it last took an event
    failing_since: float | None = None  # start of attempts since then that are tried again; None: none
    refused: int = 0  # attempts since then that were refused for good
    refused_since: float = 0.0  # start of the first of them
    failures_untold: int = 0  # events given up since the last log line about it
    told_at: float = NEVER  # of the last log line on events given up
    warned_at: float = NEVER  # of the last log line on no answer
    trouble: str = ""  # what was last told to be wrong with it
    allowed_per_s: float | None = None  # attempts a second that it allows by a handshake; None for no bound
    _rate: Rate | None = None

    @property
    def per_s(self) -> float | None:
        """Attempts a second at most, by its rules and by what it allows itself; None for no bound."""
        own, allowed = self.target.delivery.rate_per_s, self.allowed_per_s
        return own if allowed is None else allowed if own is None else min(own, allowed)

    @property
    def rate(self) -> Rate | None:
        if (per_s := self.per_s) is None:
            return None
        self._rate = Rate.of(per_s, self._rate)
        return self._rate

    def wait_s(self, now: float) -> float:
        """Seconds until circuit and rate let the next attempt start; infinite while one in flight decides."""
        rate = self.rate
        paced_s = rate.wait_s(now) if rate is not None else 0.0
        return max(self.circuit.wait_s(now, self.in_flight), paced_s)

    def begin(self, now: float) -> None:
        self.in_flight += 1
        if (rate := self.rate) is not None:
            rate.take(now)

    def end(self) -> None:
        self.in_flight -= 1


class Subscribers:
    """One `Subscriber` a trigger, for as long as somebody sends to it."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[int, Subscriber] = WeakValueDictionary()

    def of(self, target: Target) -> Subscriber:
        known = self._known.get(target.id)
        if known is None:
            known = self._known[target.id] = Subscriber(target)
        known.target = target
        return known


_TELL_S: Final = 1.0
_WARN_S: Final = 60.0

_log = structlog.get_logger(__name__)


class SubscriberHealth:
    """The health of all targets' subscribers, on one event loop.

    `report` gets a target's id and what is wrong with its subscriber now, as "Reason: message"; empty for nothing.

    A subscriber is in trouble when its URL is refused, when what requests to it authenticate by is missing, when its
    circuit is open, or when it was asked for UNHEALTHY_AFTER_S and took nothing. An event that is refused for good may
    be at fault itself: REFUSED_UNHEALTHY of them, and none taken between, are the subscriber's fault. Of one that has
    never taken anything the first attempt without an answer tells so: a wrong address is seen at once.
    """

    def __init__(self, report: Callable[[int, str], None], clocks: Clocks) -> None:
        self._report = report
        self._clocks = clocks

    def heard(self, subscriber: Subscriber, delivery: Delivery, outcome: Outcome) -> None:
        """An attempt has ended: what it says of the subscriber, whatever becomes of the event."""
        now = self._clocks.now()
        if outcome.reason in UNSENT:
            is_refused = outcome.reason not in (CREDENTIALS, HANDSHAKE)
            self._tell(subscriber, f"UrlRefused: {outcome.detail}" if is_refused else outcome.detail)
            return
        told = subscriber.circuit.heard(outcome, now)
        fate = judge(outcome)
        if fate is Fate.DELIVERED:
            subscriber.taken_at, subscriber.failing_since, subscriber.refused = now, None, 0
        elif fate is Fate.FAILED:
            if not subscriber.refused:
                subscriber.refused_since = delivery.started_at
            subscriber.refused += 1
        elif subscriber.failing_since is None:
            # An event that failed before something else was taken says nothing of the time until now.
            begun = delivery.begun()
            subscriber.failing_since = begun if begun > subscriber.taken_at else delivery.started_at
        if not subscriber.circuit.opened:
            if fate is Fate.DELIVERED and not subscriber.trouble:
                return  # as nearly always
            self._tell(subscriber, self._failing(subscriber, outcome, now))
        elif told:
            self._tell(subscriber, subscriber.circuit.describe(outcome))
        if not (outcome.status or subscriber.trouble) and now - subscriber.warned_at >= _WARN_S:
            subscriber.warned_at = now
            _log.warning("an attempt got no answer", trigger=subscriber.target.name, why=outcome.why)

    def _failing(self, subscriber: Subscriber, outcome: Outcome, now: float) -> str:
        """What is wrong with a subscriber whose circuit is closed; the same words as long as it is the same."""
        if subscriber.failing_since is None:
            if subscriber.refused < limits.REFUSED_UNHEALTHY:
                return ""
            since = self._time_text(now - subscriber.refused_since)
            return f"EventsRefused: no event was taken since {since}, each was refused for good; last: {outcome.why}"
        was_never_met = subscriber.taken_at == NEVER and not outcome.status
        if now - subscriber.failing_since < limits.UNHEALTHY_AFTER_S and not (was_never_met or subscriber.trouble):
            return ""
        words = f"AttemptsFail: nothing was taken since {self._time_text(now - subscriber.failing_since)}; last: "
        if outcome.reason and subscriber.trouble.startswith(words + outcome.reason):
            return subscriber.trouble  # details may differ from attempt to attempt, and each change is written
        return words + outcome.why

    def _time_text(self, ago_s: float) -> str:
        return kube_time(round(self._clocks.now_us() / 1e6 - ago_s))

    def _tell(self, subscriber: Subscriber, trouble: str) -> None:
        if trouble == subscriber.trouble:
            return
        if not trouble or not subscriber.trouble:
            tell, what = (_log.warning, "subscriber in trouble") if trouble else (_log.info, "subscriber is well")
            tell(what, trigger=subscriber.target.name, why=trouble)
        subscriber.trouble = trouble
        self._report(subscriber.target.id, trouble)

    def given_up(self, subscriber: Subscriber, delivery: Delivery, outcome: Outcome) -> None:
        """Tell the operator that an event is given up, once a second per target."""
        subscriber.failures_untold += 1
        now = self._clocks.now()
        if now - subscriber.told_at < _TELL_S:
            return
        _log.warning(
            "events given up",
            trigger=subscriber.target.name,
            count=subscriber.failures_untold,
            last_partition=delivery.partition,
            last_offset=delivery.offset,
            attempts=delivery.failures,
            status=outcome.status,
            reason=outcome.reason,
            detail=outcome.detail,
        )
        subscriber.failures_untold, subscriber.told_at = 0, now
