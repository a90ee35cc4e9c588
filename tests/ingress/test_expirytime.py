"""The extension expirytime is a timestamp, or the event is refused: one that cannot be read would never count."""

from __future__ import annotations

import pytest

from headgate_api.event.http import BATCH_JSON
from tests.ingress.support import FakeLog, call, ingress, run

ATTRIBUTES = [("ce-specversion", "1.0"), ("ce-id", "1"), ("ce-source", "/s"), ("ce-type", "t")]


@pytest.mark.parametrize("text", ["2030-01-01T00:00:00Z", "2000-02-29T23:59:60.123456789+01:00"])
def test_a_timestamp_is_stored_as_it_came(text: str) -> None:
    log = FakeLog()
    answer, _ = run(call(ingress(log), headers=[*ATTRIBUTES, ("ce-expirytime", text)], pieces=(b"",)))
    assert (answer.status, log.events[0].extensions) == (202, {"expirytime": text})


@pytest.mark.parametrize("text", ["", "tomorrow", "2030-01-01", "1893456000", "2030-13-01T00:00:00Z"])
def test_anything_else_is_refused_with_its_place(text: str) -> None:
    log = FakeLog()
    answer, _ = run(call(ingress(log), headers=[*ATTRIBUTES, ("ce-expirytime", text)], pieces=(b"",)))
    assert (answer.status, answer.problem["attribute"], log.submits) == (400, "expirytime", [])
    assert "2026-03-04T05:06:07Z" in answer.problem["hint"]


@pytest.mark.parametrize("value", [b"1893456000", b"true", b'"soon"'])
def test_of_a_batch_nothing_is_stored(value: bytes) -> None:
    log = FakeLog()
    good = b'{"specversion":"1.0","id":"1","source":"/s","type":"t"}'
    body = b"[%b,%b]" % (good, good[:-1] + b',"expirytime":%b}' % value)
    answer, _ = run(call(ingress(log), headers=[("content-type", BATCH_JSON)], pieces=(body,)))
    assert (answer.status, answer.problem["attribute"], log.submits) == (400, "expirytime", [])
    assert "event 1" in answer.problem["detail"]
