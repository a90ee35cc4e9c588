"""The margin of error of a sampled backtest: the interval that holds the true count for 95 of 100 samples. Pure.

A sample is made of windows of neighbouring events, which resemble each other, so its error is that of a sample of
clusters and not of single events. The share of events taken is the ratio of two sums over windows; its variance is that
of a ratio estimate over clusters of unequal sizes (Cochran, Sampling Techniques, 3rd edition 1977, chapters 6 and 9A).
Over the variance of as many single events, that is the design effect (Kish, Survey Sampling, 1965), here never below 1.
Events divided by it are the effective size of the sample, with which Wilson's score interval is made (Journal of the
American Statistical Association 22, 1927), as Korn and Graubard do for small shares (Survey Methodology 24, 1998): it
never leaves the possible counts, and has a width also where nothing was taken. Few windows are allowed for by the
quantile of Student's distribution instead of the normal one.

Windows are spread evenly; the variance is that of windows drawn at random, which is more where counts change slowly. Of
events that come in few bursts a sample that met none of these knows nothing, and nor does its interval.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Final

import msgspec

from headgate.scan.window_count import WindowCount

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
        """The next window, or a further part of the last one."""
        last = self._open
        if last is not None and (last.partition, last.number) == (window.partition, window.number):
            sums = (getattr(last, name) + getattr(window, name) for name in ("scanned", *COUNTS))
            self._open = WindowCount(last.partition, last.number, *sums)
            return
        self._close()
        self._open = window

    def interval(self, name: str, stored: int) -> Interval | None:
        """Of a count for all events.

        Args:
            name: One of COUNTS.
            stored: Of how many events the windows are a sample.

        Returns:
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
        """Adds the window that has been open."""
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
