"""What is asked of a backtest, page by page, what the pages say together, and between which counts the true one lies.

The interval of a sampled count holds the true one for 95 of 100 samples. A sample is made of windows of neighbouring
events, which resemble each other, so its error is that of a sample of clusters and not of single events. The share of
events taken is the ratio of two sums over windows; its variance is that of a ratio estimate over clusters of unequal
sizes (Cochran, Sampling Techniques, 3rd edition 1977, chapters 6 and 9A). Over the variance of as many single events,
that is the design effect (Kish, Survey Sampling, 1965), here never below 1. Events divided by it are the effective size
of the sample, with which Wilson's score interval is made (Journal of the American Statistical Association 22, 1927), as
Korn and Graubard do for small shares (Survey Methodology 24, 1998): it never leaves the possible counts, and has a
width also where nothing was taken. Few windows are allowed for by the quantile of Student's distribution instead of the
normal one.

Windows are spread evenly; the variance is that of windows drawn at random, which is more where counts change slowly. Of
events that come in few bursts a sample that met none of these knows nothing, and nor does its interval.
"""

from __future__ import annotations

import math
from collections import Counter
from statistics import NormalDist
from typing import Final

import msgspec

from headgate_api.limits import BACKTEST_EXAMPLES_MAX, BACKTEST_HOURS_MAX
from headgate_api.objects.kinds import OWN_API_VERSION


class WindowCount(msgspec.Struct, frozen=True):
    """What a window of a sample, or a part of it, counted; by the same names as `counting.CountPage`."""

    partition: int
    number: int  # of the partition's windows, from 0 on
    scanned: int
    taken: int
    errors: int
    both: int


class BacktestRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """What a person asks for."""

    filter: str | dict[str, object] | list[object] = ""  # CEL, or as a trigger's spec.filter or spec.filters
    against: str | dict[str, object] | list[object] = ""  # a second filter; empty for none
    from_: str = msgspec.field(name="from", default="earliest")  # or a time, or a position
    to: str = "next"  # where it ends, exclusive: now, a time, or a position
    share: float = 1.0  # of the stored events that are looked at, BACKTEST_SHARE_MIN to 1
    triggers: bool = True  # whether to compare with the broker's triggers
    next: str = ""  # of the last answer; empty to begin


class HourCount(msgspec.Struct, frozen=True):
    """Events that were stored within an hour and taken."""

    hour: str
    taken: int


class TriggerOverlap(msgspec.Struct, frozen=True):
    """Events taken that a trigger takes too; an estimate where fewer were compared than taken."""

    name: str
    both: float


class SeenEvent(msgspec.Struct, frozen=True):
    """A stored event."""

    id: str
    source: str
    type: str
    stored: str  # when, RFC 3339
    position: str  # partition and offset, as readers write them


class BacktestPage(msgspec.Struct, frozen=True, rename="camel"):
    """One answer."""

    of: str  # which filter this page counted: `filter` or `against`
    stored: int  # events, of all brokers, from the beginning to the end
    passed: int  # how many of them have been passed for `of`
    scanned: int  # in this page: those looked at, or ruled out by the headers of their chunks
    taken: int  # of these, the broker's events of which the filter is true
    errors: int  # those for which it is an error
    hours: list[HourCount]  # events taken by the hour in which they were stored
    both: int  # events taken that `against` takes too, in pages of `filter`
    compared: int  # events taken that were compared with the triggers
    triggers: list[TriggerOverlap]  # for each trigger, in pages of `filter`
    chunks_read: int  # whose bodies were read
    chunks_skipped: int  # passed over by their headers
    api_version: str = msgspec.field(default=OWN_API_VERSION)
    kind: str = "FilterBacktest"
    triggers_left_out: int = 0  # those beyond BACKTEST_TRIGGERS_MAX, which are not compared
    windows: list[WindowCount] = []  # of a sample, for the margin of error; the first and the last may be parts
    examples: list[SeenEvent] = []  # with `against`: some of the events taken that the other filter does not take
    next: str = ""  # where to go on; empty at the end


CONFIDENCE: Final = 0.95
COUNTS: Final = ("taken", "errors", "both")
"""Counts of a window that have an interval."""
_Z: Final = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)


class Interval(msgspec.Struct, frozen=True):
    """A count of all events lies between these, both included, for CONFIDENCE of all samples."""

    low: int
    high: int


class SampleSums:
    """Adds up the windows of a sample, in their order."""

    def __init__(self) -> None:
        self._open: WindowCount | None = None
        self._windows = self._scanned = self._scanned_squares = 0
        self._sums = dict.fromkeys(COUNTS, 0)
        self._squares = dict.fromkeys(COUNTS, 0)
        self._products = dict.fromkeys(COUNTS, 0)
        """Of the count and the events scanned, a window each."""

    def add(self, window: WindowCount) -> None:
        last = self._open
        if last is not None and (last.partition, last.number) == (window.partition, window.number):
            sums = (getattr(last, name) + getattr(window, name) for name in ("scanned", *COUNTS))
            self._open = WindowCount(last.partition, last.number, *sums)
            return
        self._close()
        self._open = window

    def interval(self, name: str, stored: int) -> Interval | None:
        """Of a count for all events, one of COUNTS; the windows are a sample of `stored` events.

        None where fewer than two windows were looked at: how much they differ is not known.
        """
        self._close()
        count, scanned, windows = self._sums[name], self._scanned, self._windows
        if windows < 2 or not scanned:
            return None
        left = max(0.0, 1 - scanned / stored)
        if not left:
            return Interval(count, count)
        share = count / scanned
        # Of single events the variance is share * (1 - share) / scanned.
        single = share * (1 - share) / scanned
        effect = max(1.0, self._variance(name, share) / single) if single else 1.0
        size = scanned / effect / left * (_Z / _student(windows - 1)) ** 2
        middle = (share + _Z**2 / (2 * size)) / (1 + _Z**2 / size)
        half = _Z / (1 + _Z**2 / size) * math.sqrt(share * (1 - share) / size + (_Z / (2 * size)) ** 2)
        # What was seen is certain.
        low, high = max(count, math.floor((middle - half) * stored)), math.ceil((middle + half) * stored)
        return Interval(low, max(low, min(high, stored - (scanned - count))))

    def _variance(self, name: str, share: float) -> float:
        """Of the share, between samples of so many windows of an endless log."""
        squares = self._squares[name] - 2 * share * self._products[name] + share**2 * self._scanned_squares
        windows, mean = self._windows, self._scanned / self._windows
        return max(0.0, squares) / (windows - 1) / windows / mean**2

    def _close(self) -> None:
        window, self._open = self._open, None
        if window is None:
            return
        self._windows += 1
        self._scanned += window.scanned
        self._scanned_squares += window.scanned**2
        for name in COUNTS:
            count = getattr(window, name)
            self._sums[name] += count
            self._squares[name] += count**2
            self._products[name] += count * window.scanned


def _student(freedom: int) -> float:
    """The quantile of Student's distribution by that of the normal one (Abramowitz and Stegun, 26.7.5)."""
    z, n = _Z, freedom
    if n == 1:
        return math.tan(math.pi * CONFIDENCE / 2)  # the series is too short for one; this is exact
    if n == 2:
        return CONFIDENCE * math.sqrt(2 / (1 - CONFIDENCE**2))  # likewise
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / n + second / n**2 + third / n**3


_FILTER: Final = "filter"
_AGAINST: Final = "against"


class HourResult(msgspec.Struct, frozen=True):
    """What was stored within an hour and taken, by the filter and by the second one."""

    hour: str
    taken: int
    against: int


class TriggerResult(msgspec.Struct, frozen=True):
    """What of the events taken a trigger takes too; `share` is of those the filter takes, 0 where it takes none."""

    name: str
    both: int
    share: float


class BacktestSummary(msgspec.Struct, frozen=True, rename="camel"):
    """What a backtest has found. Where `sampled`, counts are estimates for all events.

    Where it is `complete`, too, `intervals` says for `taken`, `errors`, `against`, `againstErrors` and `both` between
    which counts the true one lies; it is empty where too few windows were looked at.
    """

    stored: int  # events, of all brokers, from the beginning to the end
    scanned: int  # those looked at, or ruled out by the headers of their chunks, for the filter
    complete: bool  # whether it came to the end
    sampled: bool
    taken: int  # the broker's events that the filter takes
    errors: int  # those for which it is an error
    against: int | None  # events that the second filter takes
    against_errors: int | None  # those for which that one is an error
    both: int | None  # events that both take
    hours: list[HourResult]
    hours_left_out: int  # those beyond BACKTEST_HOURS_MAX
    triggers: list[TriggerResult]  # those that take most of the events first
    triggers_left_out: int  # those that were not compared
    triggers_estimated: bool  # whether fewer events were compared with the triggers than taken
    chunks_read: int
    chunks_skipped: int
    only_filter: list[SeenEvent] = []  # some of those that the second filter does not take, BACKTEST_EXAMPLES_MAX
    only_against: list[SeenEvent] = []  # some of those that the second filter alone takes
    intervals: dict[str, Interval] = {}
    confidence: float = CONFIDENCE


class BacktestResult:
    """Adds up pages."""

    def __init__(self, share: float, *, has_second: bool) -> None:
        self._share = share
        self._has_second = has_second
        self._sums: dict[str, Counter[str]] = {_FILTER: Counter(), _AGAINST: Counter()}
        self._hours: dict[str, dict[str, int]] = {_FILTER: {}, _AGAINST: {}}
        self._samples = {_FILTER: SampleSums(), _AGAINST: SampleSums()}
        self._both_of: dict[str, float] = {}
        self._examples: dict[str, list[SeenEvent]] = {_FILTER: [], _AGAINST: []}
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
        self._examples[page.of] += page.examples
        for trigger in page.triggers:
            self._both_of[trigger.name] = self._both_of.get(trigger.name, 0.0) + trigger.both

    def summary(self) -> BacktestSummary:
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
            only_filter=self._examples[_FILTER][:BACKTEST_EXAMPLES_MAX],
            only_against=self._examples[_AGAINST][:BACKTEST_EXAMPLES_MAX],
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
