"""The hop count on its way in: from the header only, within its limit."""

from __future__ import annotations

import pytest

from headgate.event.hops import hops_of
from headgate.event.http import BATCH_JSON, STRUCTURED_JSON
from headgate.limits import HOPS_MAX
from tests.ingress.support import FakeLog, call, ingress, run

ATTRIBUTES = [("ce-specversion", "1.0"), ("ce-id", "1"), ("ce-source", "/s"), ("ce-type", "t"), ("ce-x", "y")]


def test_the_header_becomes_part_of_the_stored_event():
    log = FakeLog()
    answer, _ = run(call(ingress(log), headers=[*ATTRIBUTES, ("headgate-hops", str(HOPS_MAX))], pieces=(b"data",)))
    assert answer.status == 202
    assert log.events[0].extensions == {"x": "y", "headgatehops": HOPS_MAX}
    body = b'[{"specversion":"1.0","id":"1","source":"/s","type":"t"}]'
    answer, _ = run(call(ingress(log), headers=[("content-type", BATCH_JSON), ("headgate-hops", "2")], pieces=(body,)))
    assert (answer.status, hops_of(log.events[1])) == (202, 2)
    answer, _ = run(call(ingress(log), headers=ATTRIBUTES, pieces=(b"",)))
    assert log.events[2].extensions == {"x": "y"}


@pytest.mark.parametrize(
    ("value", "code"),
    [(str(HOPS_MAX + 1), "too-many-hops"), ("-1", "invalid"), ("one", "invalid"), ("1" * 10, "invalid")],
)
def test_too_many_hops_and_no_number_are_refused_for_good(value: str, code: str):
    log = FakeLog()
    answer, _ = run(call(ingress(log), headers=[*ATTRIBUTES, ("headgate-hops", value)], pieces=(b"",)))
    assert (answer.status, answer.problem["code"], log.submits) == (400, code, [])
    assert "retry-after" not in answer.headers


def test_nobody_says_the_count_as_an_attribute():
    log = FakeLog()
    answer, _ = run(call(ingress(log), headers=[*ATTRIBUTES, ("ce-headgatehops", "0")], pieces=(b"",)))
    assert (answer.status, answer.problem["attribute"]) == (400, "headgatehops")
    body = b'{"specversion":"1.0","id":"1","source":"/s","type":"t","headgatehops":0}'
    headers = [("content-type", STRUCTURED_JSON), ("headgate-hops", "3")]
    answer, _ = run(call(ingress(log), headers=headers, pieces=(body,)))
    assert (answer.status, log.submits) == (400, [])
