"""The pages of a backtest, added up."""

from __future__ import annotations

from collections import Counter
from typing import Final

import msgspec

from headgate.inspect.backtest_margin import CONFIDENCE, Interval, SampleSums
from headgate.inspect.backtest_messages import BacktestPage
from headgate.limits import BACKTEST_HOURS_MAX

_FILTER: Final = "filter"
_AGAINST: Final = "against"


class HourResult(msgspec.Struct, frozen=True):
    """What was stored within an hour and taken, by the filter and by the second one."""

    hour: str
    taken: int
    against: int


class TriggerResult(msgspec.Struct, frozen=True):
    """What of the events taken a trigger takes too.

    Attributes:
        name: The trigger.
        both: Events that both take.
        share: Of the events that the filter takes; 0 where it takes none.
    """

    name: str
    both: int
    share: float


class BacktestSummary(msgspec.Struct, frozen=True, rename="camel"):
    """What a backtest has found. Where `sampled`, counts are estimates for all events.

    Attributes:
        stored: Stored events, of all brokers, from the beginning to the end.
        scanned: Those looked at, or ruled out by the headers of their chunks, for the filter.
        complete: Whether it came to the end.
        sampled: Whether only a sample was looked at.
        taken: The broker's events that the filter takes.
        errors: Those for which it is an error.
        against: Events that the second filter takes.
        against_errors: Those for which that one is an error.
        both: Events that both take.
        hours: By the hour in which they were stored.
        hours_left_out: Hours beyond BACKTEST_HOURS_MAX.
        intervals: Where `sampled` and `complete`: for `taken`, `errors`, `against`, `againstErrors` and `both` between
            which counts the true one lies (`backtest_margin.py`). Empty where too few windows were looked at.
        confidence: For which share of all samples it does.
        triggers: Those that take most of the events first.
        triggers_left_out: Triggers that were not compared.
        triggers_estimated: Whether fewer events were compared with the triggers than taken.
        chunks_read: Whose bodies were read.
        chunks_skipped: Passed over by their headers.
    """

    stored: int
    scanned: int
    complete: bool
    sampled: bool
    taken: int
    errors: int
    against: int | None
    against_errors: int | None
    both: int | None
    hours: list[HourResult]
    hours_left_out: int
    triggers: list[TriggerResult]
    triggers_left_out: int
    triggers_estimated: bool
    chunks_read: int
    chunks_skipped: int
    intervals: dict[str, Interval] = {}
    confidence: float = CONFIDENCE


class BacktestResult:
    """Adds up pages.

    Args:
        share: That was asked for.
        has_second: Whether there is a second filter.
    """

    def __init__(self, share: float, *, has_second: bool) -> None:
        self._share = share
        self._has_second = has_second
        self._sums: dict[str, Counter[str]] = {_FILTER: Counter(), _AGAINST: Counter()}
        self._hours: dict[str, dict[str, int]] = {_FILTER: {}, _AGAINST: {}}
        self._samples = {_FILTER: SampleSums(), _AGAINST: SampleSums()}
        self._both_of: dict[str, float] = {}
        self._hours_left_out = self._triggers_left_out = 0
        self._last: BacktestPage | None = None

    @property
    def done(self) -> float:
        """How much of the work is done, 0 to 1."""
        if self._last is None:
            return 0.0
        phase = self._last.passed / self._last.stored if self._last.stored else 1.0
        return (phase + (self._last.of != _FILTER)) / 2 if self._has_second else phase

    def add(self, page: BacktestPage) -> None:
        """Add the next page."""
        self._last = page
        self._triggers_left_out = max(self._triggers_left_out, page.triggers_left_out)
        for name in ("scanned", "taken", "errors", "both", "compared", "chunks_read", "chunks_skipped"):
            self._sums[page.of][name] += getattr(page, name)
        for window in page.windows:
            self._samples[page.of].add(window)
        hours = self._hours[page.of]
        for one in page.hours:
            if one.hour in hours or len(hours) < BACKTEST_HOURS_MAX:
                hours[one.hour] = hours.get(one.hour, 0) + one.taken
            else:
                self._hours_left_out += 1
        for trigger in page.triggers:
            self._both_of[trigger.name] = self._both_of.get(trigger.name, 0.0) + trigger.both

    def summary(self) -> BacktestSummary:
        """What they say together.

        Raises:
            ValueError: There was no page.
        """
        last = self._last
        if last is None:
            raise ValueError("a backtest without a page")
        first, second = self._sums[_FILTER], self._sums[_AGAINST]
        by, against_by = self._factor(first["scanned"], last), self._factor(second["scanned"], last)
        hours = sorted({*self._hours[_FILTER], *self._hours[_AGAINST]})
        taken = first["taken"]
        return BacktestSummary(
            stored=last.stored,
            scanned=first["scanned"],
            complete=not last.next,
            sampled=self._share < 1,
            taken=round(taken * by),
            errors=round(first["errors"] * by),
            against=round(second["taken"] * against_by) if self._has_second else None,
            against_errors=round(second["errors"] * against_by) if self._has_second else None,
            both=round(first["both"] * by) if self._has_second else None,
            hours=[
                HourResult(
                    hour,
                    round(self._hours[_FILTER].get(hour, 0) * by),
                    round(self._hours[_AGAINST].get(hour, 0) * against_by),
                )
                for hour in hours
            ],
            hours_left_out=self._hours_left_out,
            triggers=[
                TriggerResult(name, round(both * by), both / taken if taken else 0.0)
                for name, both in sorted(self._both_of.items(), key=lambda item: (-item[1], item[0]))
            ],
            triggers_left_out=self._triggers_left_out,
            triggers_estimated=bool(self._both_of) and first["compared"] < taken,
            chunks_read=first["chunks_read"] + second["chunks_read"],
            chunks_skipped=first["chunks_skipped"] + second["chunks_skipped"],
            intervals={} if last.next else self._intervals(last.stored),
        )

    def _intervals(self, stored: int) -> dict[str, Interval]:
        """Of a sample that came to the end."""
        counts = [("taken", _FILTER, "taken"), ("errors", _FILTER, "errors")]
        if self._has_second:
            counts += [("against", _AGAINST, "taken"), ("againstErrors", _AGAINST, "errors"), ("both", _FILTER, "both")]
        found = ((name, self._samples[of].interval(count, stored)) for name, of, count in counts)
        return {name: interval for name, interval in found if interval is not None}

    def _factor(self, scanned: int, last: BacktestPage) -> float:
        """From what was counted to all events; 1 where all were looked at, or where it did not come to the end."""
        return last.stored / scanned if self._share < 1 and scanned and not last.next else 1.0
