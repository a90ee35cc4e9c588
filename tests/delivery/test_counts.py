"""Counters and rates of a target."""

from __future__ import annotations

import pytest

from headgate.delivery.targets import Rate60, TargetCounts
from headgate.observe.metrics import DELIVERIES
from headgate_api.limits import RATE_WINDOW_S


def test_an_even_stream_has_its_rate_at_every_moment() -> None:
    rate = Rate60()
    for number in range(1_000):
        now = 5_000.0 + number * 0.5
        rate.add(now)
        if number >= 2 * RATE_WINDOW_S * 2:
            assert rate.per_s(now) == pytest.approx(2.0, rel=0.05)


def test_what_is_long_past_counts_no_more() -> None:
    rate = Rate60()
    for _ in range(60):
        rate.add(1.0)
    assert rate.per_s(1.0) == pytest.approx(1.0)
    assert 0 < rate.per_s(1.5 * RATE_WINDOW_S) < 1.0
    assert rate.per_s(2 * RATE_WINDOW_S) == 0.0
    assert rate.per_s(100 * RATE_WINDOW_S) == 0.0
    rate.add(100 * RATE_WINDOW_S)
    assert rate.per_s(100 * RATE_WINDOW_S) == pytest.approx(1 / RATE_WINDOW_S)


def test_every_result_is_counted_once_or_is_nobodys() -> None:
    counts = TargetCounts()
    for result in DELIVERIES.values:
        counts.end(result, 1.0)
    found = (counts.delivered, counts.failed, counts.filtered, counts.filter_errors)
    # failed, lost, dead_lettered, expired are given up; foreign, gone, pending and cancelled say nothing of it.
    assert found == (1, 4, 1, 1)
    assert len(DELIVERIES.values) == sum(found) + 4
