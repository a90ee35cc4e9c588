"""The last check before delivery, and what is to be reported of targets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import structlog

from headgate.delivery.events import SharedEvent
from headgate.delivery.lifecycle import Delivery
from headgate.filter.cel.errors import EvaluationError, FilterError
from headgate.filter.cel.evaluate import FilterOutcome, OutcomeKind, program
from headgate.filter.cel.transform import apply_transform
from headgate.filter.compile.plan import CompiledFilter, Verdict
from headgate.objects.kinds.routing import Target, TargetReport
from headgate.observe import metrics
from headgate_api.event.attributes import DELIVERY_TIME, EXPIRY_TIME, delivery_us, expiry_us
from headgate_api.event.names import path_of

_FILTERED: Final = {
    "matched": metrics.FILTERED.labels("matched"),
    "filtered": metrics.FILTERED.labels("not"),
    "foreign": metrics.FILTERED.labels("not"),
    "expired": metrics.FILTERED.labels("matched"),
    "error": metrics.FILTERED.labels("error"),
}
_CHARACTER_BYTES_MAX: Final = 4
_log = structlog.get_logger(__name__)


def sent_from_us(target: Target, event: SharedEvent) -> int:
    """When an event is to be sent at the earliest, by its `deliverytime` and the target's `delay`; 0 for at once."""
    delay_us = target.delivery.delay_us
    at_us = event.append_time_us + delay_us if delay_us else 0
    if DELIVERY_TIME in event.event.extensions:
        at_us = max(at_us, delivery_us(event.event) or 0)
    return at_us


Judge = Callable[[str, SharedEvent], FilterOutcome]
"""Evaluates canonical CEL text on an event; never raises."""


def evaluate(cel: str, event: SharedEvent) -> FilterOutcome:
    """cel-cpp's answer; the event is decoded once for all filters that ask."""
    try:
        return program(cel).evaluate_view(event.view)
    except FilterError as error:  # the store holds a text that this version no longer takes: closed, and told
        return FilterOutcome(OutcomeKind.ERROR, error.message)


def gives(ceiling: str, event: SharedEvent) -> bool:
    """Whether a right below a ceiling (empty: none) gives an event; not where the ceiling is an error."""
    return not ceiling or evaluate(ceiling, event).kind is OutcomeKind.TRUE


def transformed(target: Target, event: SharedEvent) -> SharedEvent:
    """The event as a target gets it; EvaluationError, with the reason, where its transform makes none of it."""
    if not target.transform:
        return event
    try:
        made = apply_transform(target.transform, event.view)
    except EvaluationError as error:
        raise EvaluationError(f"transform: {error.message}") from None
    return SharedEvent(event.broker, made, event.append_time_us, event.root, event.original)


class FilterErrors:
    """What is to be reported of each target: filter errors, one in words, as these cost; trouble of subscribers."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()  # of filter errors: there may be one a row
        self._reports: dict[int, TargetReport] = {}

    def __bool__(self) -> bool:
        return bool(self._counts or self._reports)

    def trouble(self, target: int, text: str) -> None:
        """Say what is wrong with a target's subscriber now; empty for nothing."""
        self._reports[target] = replace(self._of(target), trouble=text)

    def backlog(self, target: int, text: str) -> None:
        self._reports[target] = replace(self._of(target), backlog=text)

    def dropped(self, target: int, text: str, count: int = 1) -> None:
        """Events of a target are given up and kept nowhere; which the last one is, and why."""
        report = self._of(target)
        self._reports[target] = replace(report, dropped=report.dropped + count, last_dropped=text)

    def untold(self, reports: list[TargetReport]) -> None:
        """These reports did not arrive: what is wrong must still be said, unless there is newer word."""
        for report in reports:
            newer = self._of(report.target)
            if report.trouble is not None and newer.trouble is None:
                self.trouble(report.target, report.trouble)
            if report.backlog is not None and newer.backlog is None:
                self.backlog(report.target, report.backlog)
            if report.dropped:
                self.dropped(report.target, report.last_dropped, report.dropped)

    def add(self, target: int) -> bool:
        """Count one error; True when the caller should `describe` it, as the first since the last report."""
        self._counts[target] += 1
        return self._counts[target] == 1

    def tell(self, target: int, message: str, event: SharedEvent) -> None:
        """Count one error, and describe it where that is due."""
        if self.add(target):
            self.describe(target, message, event)

    def describe(self, target: int, message: str, event: SharedEvent) -> None:
        words = f"{event.event.source} {event.event.id}"
        self._reports[target] = replace(self._of(target), last_error=message, last_error_event=words)

    def take(self) -> list[TargetReport]:
        """Everything since the last call."""
        for target, count in self._counts.items():
            self._reports[target] = replace(self._of(target), filter_errors=count)
        self._counts.clear()
        reports, self._reports = self._reports, {}
        return list(reports.values())

    def _of(self, target: int) -> TargetReport:
        return self._reports.get(target) or TargetReport(target, 0, "", "")


def _is_sure(compiled: CompiledFilter, event: SharedEvent) -> bool:
    """Whether cel-cpp evaluates the filter on an event of this size: a MATCH is its word only then."""
    if event.size_bytes * _CHARACTER_BYTES_MAX <= compiled.sure_bytes:
        return True
    size = event.view.rough_size
    return size.attributes_bytes + size.data_bytes <= compiled.sure_bytes


class FinalCheck:
    """The last check before delivery: broker, cel-cpp's answer to what the matcher left open, lateness, a transform.

    `judge_filter` decides whatever is not a MATCH, and a MATCH of an event that may be too large for its filter.
    `clock_us` gives microseconds since 1970 UTC.
    """

    def __init__(self, judge_filter: Judge, errors: FilterErrors, clock_us: Callable[[], int]) -> None:
        self.judge_filter = judge_filter
        self.errors = errors
        self._clock_us = clock_us

    def __call__(self, target: Target, delivery: Delivery, event: SharedEvent) -> SharedEvent | str:
        """The event as it goes out; or how its delivery ends: `foreign`, `filtered`, `error`, `expired`."""
        found: SharedEvent | str = self._refused(target, delivery, event) or event
        if found is event and self.lateness(target, event):
            found = "expired"
        if target.transform and found is event:
            found = self.outgoing(target, event) or "error"
        if not delivery.failures:
            _FILTERED[found if isinstance(found, str) else "matched"].inc()
        return found

    def _refused(self, target: Target, delivery: Delivery, event: SharedEvent) -> str:
        if event.broker != target.broker:
            # Keys are hashes, two brokers may share one: a hash is never the last word on who may see an event. Nor is
            # a row of the time before the trigger's broker was made anew.
            if path_of(event.broker) != path_of(target.broker):
                _log.error("a match of another broker was dropped", trigger=target.name, broker=event.broker)
            return "foreign"
        if not self.is_below_ceiling(target, event):
            return "foreign"  # in no counter of the target: who sees them may not know of the event
        if delivery.verdict != Verdict.MATCH or not _is_sure(target.filter, event):
            decision = self.judge_filter(target.filter.cel, event)
            if decision.kind is OutcomeKind.FALSE:
                return "filtered"
            if decision.kind is OutcomeKind.ERROR:
                self.errors.tell(target.id, decision.message, event)
                return "error"
        return ""

    def is_below_ceiling(self, target: Target, event: SharedEvent) -> bool:
        """Whether the right by which a target gets events gives this one, now.

        Its row may be older than the ceiling. Where the ceiling is an error nobody hears of it: of an event that is
        not his the writer learns nothing.
        """
        return gives(target.filter.ceiling, event)

    def is_time(self, due_us: int) -> bool:
        return due_us <= self._clock_us()

    def may_wait(self, target: Target, delivery: Delivery, event: SharedEvent) -> bool:
        """Whether an event that is too early is the target's, so that it is kept for it."""
        if event.broker != target.broker:
            return False
        is_wanted = delivery.verdict == Verdict.MATCH or self._takes(target, event)
        return is_wanted and self.is_below_ceiling(target, event)

    def _takes(self, target: Target, event: SharedEvent) -> bool:
        return self.judge_filter(target.filter.cel, event).kind is OutcomeKind.TRUE

    def lateness(self, target: Target, event: SharedEvent) -> str:
        """Why it is too late to hand an event out, by its `expirytime` or the target's `ttl`; empty while it is not."""
        ttl_us, expires_us = target.delivery.ttl_us, expiry_us(event.event)
        if ttl_us is None and expires_us is None:
            return ""
        now_us = self._clock_us()
        if ttl_us is not None and max(event.append_time_us, sent_from_us(target, event)) + ttl_us <= now_us:
            return f"not delivered within {ttl_us / 1e6:g} s (delivery.ttl)"
        if expires_us is not None and expires_us <= now_us:
            return f"not delivered before its expirytime, {event.event.extensions[EXPIRY_TIME]}"
        return ""

    def outgoing(self, target: Target, event: SharedEvent) -> SharedEvent | None:
        """The event as a target gets it; None, and the error is reported, where its transform makes none of it."""
        try:
            return transformed(target, event)
        except EvaluationError as error:
            self.errors.tell(target.id, error.message, event)
            return None

    def message(self, target: Target, event: SharedEvent) -> str:
        """Why the result is `error` or `expired`."""
        if said := self.judge_filter(target.filter.cel, event).message:
            return said
        try:
            transformed(target, event)
        except EvaluationError as error:
            return error.message
        return self.lateness(target, event)
