"""The health of subscribers: whether they take what they are sent, and what is given up.

A subscriber is in trouble when its URL is refused, when what requests to it authenticate by is missing, when its
circuit is open, or when it was asked again and again for UNHEALTHY_AFTER_S and took nothing. A single event that fails
tells so as well as a thousand. An event that is refused for good may be at fault itself: REFUSED_UNHEALTHY of them, and
none taken between, are the subscriber's fault. Of a subscriber that has never taken anything the first attempt without
an answer tells so: nobody waits for the end of a restart there, and a wrong address is seen at once.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import structlog

from headgate import limits
from headgate.delivery.clock import Clocks
from headgate.delivery.lifecycle import Delivery
from headgate.delivery.retry import CREDENTIALS, HANDSHAKE, UNSENT, Fate, Outcome, judge
from headgate.delivery.subscribers import NEVER, Subscriber

_TELL_S: Final = 1.0
_WARN_S: Final = 60.0

_log = structlog.get_logger(__name__)


class SubscriberHealth:
    """The health of all targets' subscribers. Lives on one event loop.

    Args:
        report: Called with a target's id and what is wrong with its subscriber now, as "Reason: message"; empty for
            nothing.
        clocks: Time.
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
        return datetime.fromtimestamp(round(self._clocks.now_us() / 1e6 - ago_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def _tell(self, subscriber: Subscriber, trouble: str) -> None:
        if trouble == subscriber.trouble:
            return
        if not trouble or not subscriber.trouble:
            level = _log.warning if trouble else _log.info
            level(
                "subscriber in trouble" if trouble else "subscriber is well",
                trigger=subscriber.target.name,
                why=trouble,
            )
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
