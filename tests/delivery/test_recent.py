"""What is remembered of a target's last attempts, and the course of its numbers."""

from __future__ import annotations

import pytest

from headgate.delivery.recent import Recent
from headgate.delivery.retry import Outcome
from headgate_api.event import rfc3339
from headgate_api.event.model import Event
from headgate_api.limits import HISTORY_POINT_S, HISTORY_POINTS_MAX, RECENT_ANSWER_BYTES_MAX, RECENT_ATTEMPTS_MAX

POINT_US = int(HISTORY_POINT_S * 1_000_000)
NOW_US = 1_700_000_000 * 1_000_000 // POINT_US * POINT_US


def event(number: int) -> Event:
    return Event("1.0", f"e-{number}", "/shop", "order.paid")


def test_the_last_attempts_are_there_with_what_the_subscriber_said() -> None:
    recent = Recent()
    for number in range(RECENT_ATTEMPTS_MAX + 5):
        recent.attempt(NOW_US + number, event(number), 1, 0.25, Outcome(202))
    refused = Outcome(503, body=b"closed: \xff" + b"x" * 1000)
    recent.attempt(NOW_US + 99, event(99), 3, 1.5, refused)
    found = recent.attempts()
    assert len(found) == RECENT_ATTEMPTS_MAX
    assert [one.id for one in found[:2]] == ["e-99", f"e-{RECENT_ATTEMPTS_MAX + 4}"]
    assert (found[0].status, found[0].attempt, found[0].seconds) == (503, 3, 1.5)
    assert found[0].answer.startswith("closed: \ufffd")
    assert len(found[0].answer) == RECENT_ANSWER_BYTES_MAX
    assert found[1].answer == ""


def test_the_course_has_a_point_every_ten_seconds_and_forgets_what_is_older() -> None:
    recent = Recent()
    recent.delivered(NOW_US, 0.5)
    recent.delivered(NOW_US + 1, 1.5)
    recent.failed(NOW_US + 3 * POINT_US)
    course = recent.course(NOW_US + 4 * POINT_US)
    assert rfc3339.micros(course.from_) == NOW_US + (4 - HISTORY_POINTS_MAX + 1) * POINT_US
    assert course.delivered[-5:] == [2, 0, 0, 0, 0]
    assert course.failed[-5:] == [0, 0, 0, 1, 0]
    assert course.latency[-5] == pytest.approx(1.0)
    assert course.latency[-1] is None
    assert sum(course.delivered) == 2
    later = recent.course(NOW_US + (HISTORY_POINTS_MAX + 1) * POINT_US)
    assert (sum(later.delivered), sum(later.failed)) == (0, 1)
    assert sum(recent.course(NOW_US + 10**6 * POINT_US).failed) == 0


def test_a_clock_that_is_set_back_loses_nothing() -> None:
    recent = Recent()
    recent.delivered(NOW_US, 0.5)
    recent.delivered(NOW_US - 5 * POINT_US, 0.5)
    assert recent.course(NOW_US).delivered[-1] == 2
