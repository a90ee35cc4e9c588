"""The interval of a sampled backtest holds the true count as often as it says."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable

import pytest

from headgate.scan import counting
from headgate.scan.counting import windows
from headgate_api.backtest import CONFIDENCE, Interval, SampleSums, WindowCount

STORED = 60_000
SHARE = 0.05
SAMPLES = 400
"""Layouts of windows: a partition's number decides it."""

Log = Callable[[random.Random], list[bool]]
"""Whether the filter takes each event."""


def independent(rng: random.Random) -> list[bool]:
    return [rng.random() < 0.2 for _ in range(STORED)]


def rare(rng: random.Random) -> list[bool]:
    """A dozen in a sample."""
    return [rng.random() < 0.004 for _ in range(STORED)]


def slow(rng: random.Random) -> list[bool]:
    """The share rises and falls."""
    return [rng.random() < 0.3 + 0.25 * math.sin(number / 2_000) for number in range(STORED)]


def bursts(rng: random.Random) -> list[bool]:
    """Neighbours resemble each other: a sample of 3,000 events tells as much as one of a few dozen."""
    taken: list[bool] = []
    while len(taken) < STORED:
        share = 0.9 if rng.random() < 0.2 else 0.05
        taken += [rng.random() < share for _ in range(rng.randint(100, 300))]
    return taken[:STORED]


def drawn(total: list[int], sample: int, share: float = SHARE) -> list[WindowCount]:
    """A sample of a log, of which the sums up to each event are given."""
    found = enumerate(windows(0, 0, STORED, share, sample))
    return [
        WindowCount(0, number, behind - begin, taken := total[behind] - total[begin], 0, taken)
        for number, (begin, behind) in found
    ]


def interval(found: list[WindowCount], stored: int = STORED, name: str = "taken") -> Interval | None:
    sums = SampleSums()
    for window in found:
        sums.add(window)
    return sums.interval(name, stored)


@pytest.fixture(autouse=True)
def _small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "BACKTEST_WINDOW_EVENTS", 64)


@pytest.mark.parametrize(("log", "width_max"), [(independent, 0.2), (rare, 1.6), (slow, 0.4), (bursts, 0.9)])
def test_the_interval_holds_the_true_count_of_95_of_100_samples(log: Log, width_max: float) -> None:
    total = list(itertools.accumulate(log(random.Random(5)), initial=0))
    true = total[-1]
    held, width = 0, 0.0
    for sample in range(SAMPLES):
        found = interval(drawn(total, sample))
        assert found is not None
        held += found.low <= true <= found.high
        width += (found.high - found.low) / true
    assert held / SAMPLES > CONFIDENCE - 0.025  # two standard deviations of 400 samples
    assert width / SAMPLES < width_max


def test_an_interval_of_single_events_would_be_too_narrow() -> None:
    """Where neighbours resemble each other; so the test above can fail."""
    total = list(itertools.accumulate(bursts(random.Random(5)), initial=0))
    held = 0
    for sample in range(SAMPLES):
        found = drawn(total, sample)
        scanned, taken = sum(one.scanned for one in found), sum(one.taken for one in found)
        share = taken / scanned
        held += abs(share - total[-1] / STORED) < 1.96 * math.sqrt(share * (1 - share) / scanned)
    assert held / SAMPLES < 0.7


def test_three_windows_tell_less_than_their_events() -> None:
    """By the normal distribution the interval would hold the true count of three samples in four."""
    total = list(itertools.accumulate(slow(random.Random(5)), initial=0))
    found = [interval(drawn(total, sample, 0.003)) for sample in range(SAMPLES)]
    held = sum(one is not None and one.low <= total[-1] <= one.high for one in found)
    assert held / SAMPLES > CONFIDENCE - 0.025


def test_nothing_taken_may_still_be_something() -> None:
    none = interval([WindowCount(0, number, 1_000, 0, 0, 0) for number in range(20)], 2_000_000)
    assert none is not None
    assert none.low == 0
    assert 300 < none.high < 500  # some 3.8 of 20,000 events
    everything = interval([WindowCount(0, number, 1_000, 1_000, 0, 0) for number in range(20)], 2_000_000)
    assert everything is not None
    assert everything.high == 2_000_000
    assert 2_000_000 - 500 < everything.low < 2_000_000 - 300


def test_what_was_seen_is_certain() -> None:
    found = interval([WindowCount(0, 0, 1_000, 0, 0, 0), WindowCount(0, 1, 1_000, 30, 0, 0)], 2_100)
    assert found is not None
    assert 30 == found.low < found.high <= 130
    assert interval([WindowCount(0, 0, 50, 1, 0, 0), WindowCount(1, 0, 50, 2, 0, 0)], 100) == Interval(3, 3)


def test_parts_of_a_window_are_one_window() -> None:
    whole = [WindowCount(0, number, 100, number, 3, 1) for number in range(8)]
    parts = [
        WindowCount(one.partition, one.number, *counts)
        for one in whole
        for counts in ((40, one.taken // 2, 1, 0), (60, one.taken - one.taken // 2, 2, 1))
    ]
    for name in ("taken", "errors", "both"):
        assert interval(parts, 8_000, name) == interval(whole, 8_000, name) is not None


def test_one_window_says_nothing_of_how_much_windows_differ() -> None:
    assert interval([WindowCount(0, 0, 100, 5, 0, 0)]) is None
    assert interval([]) is None
