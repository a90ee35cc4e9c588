"""The extension deliverytime is a timestamp of the next seven days, or the event is refused: nobody would get it."""

from __future__ import annotations

import time

import pytest

from headgate_api.event import rfc3339
from headgate_api.event.http import BATCH_JSON
from headgate_api.limits import PENDING_SECONDS_MAX
from tests.ingress.support import FakeLog, call, ingress, run
from tests.ingress.test_expirytime import ATTRIBUTES


def in_(seconds: float) -> str:
    return rfc3339.text(time.time_ns() // 1_000 + int(seconds * 1e6))


def refusal(*times: tuple[str, str]) -> tuple[int, str, str]:
    """Status of an event with these times, the attribute that is refused, and why; nothing is stored then."""
    log = FakeLog()
    answer, _ = run(call(ingress(log), headers=[*ATTRIBUTES, *times], pieces=(b"",)))
    if answer.status == 202:
        assert log.events[0].extensions == {name.removeprefix("ce-"): text for name, text in times}
        return 202, "", ""
    assert log.submits == []
    assert answer.problem["hint"]
    return answer.status, answer.problem["attribute"], answer.problem["detail"]


@pytest.mark.parametrize("seconds", [-1e9, -1.0, 3_600.0, PENDING_SECONDS_MAX - 60.0])
def test_a_time_that_has_passed_or_is_near_is_taken(seconds: float) -> None:
    assert refusal(("ce-deliverytime", in_(seconds)))[0] == 202


@pytest.mark.parametrize("text", ["tomorrow", "1700000000", "", "9999-12-31T00:00:00Z"])
def test_anything_else_is_refused_with_its_place_and_a_hint(text: str) -> None:
    assert refusal(("ce-deliverytime", text))[:2] == (400, "deliverytime")


def test_a_time_beyond_seven_days_is_refused() -> None:
    status, attribute, why = refusal(("ce-deliverytime", in_(PENDING_SECONDS_MAX + 60)))
    assert (status, attribute) == (400, "deliverytime")
    assert "7 days" in why


def test_an_event_that_expires_before_is_refused() -> None:
    status, attribute, why = refusal(("ce-deliverytime", in_(60)), ("ce-expirytime", in_(30)))
    assert (status, attribute) == (400, "deliverytime")
    assert "expirytime" in why
    assert refusal(("ce-deliverytime", in_(30)), ("ce-expirytime", in_(60)))[0] == 202


def test_of_a_batch_nothing_is_stored() -> None:
    log = FakeLog()
    good = b'{"specversion":"1.0","id":"1","source":"/s","type":"t"}'
    body = b"[%b,%b]" % (good, good[:-1] + b',"deliverytime":5}')
    answer, _ = run(call(ingress(log), headers=[("content-type", BATCH_JSON)], pieces=(body,)))
    assert (answer.status, answer.problem["attribute"], log.submits) == (400, "deliverytime", [])
    assert "event 1" in answer.problem["detail"]
