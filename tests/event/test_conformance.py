"""The public cases of the HTTP binding, in this process."""

from __future__ import annotations

import base64
import json

import pytest

from conformance import http
from headgate_api.errors import EventError
from headgate_api.event.http import decode_request
from headgate_conformance.broker import CaseStatus
from tests.support import conformance


def cases():
    with conformance("cloudevents_http.jsonl").open() as file:
        return [json.loads(line) for line in file]


def test_all_cases_hold_and_the_choices_made_otherwise_are_named():
    with conformance("cloudevents_http.jsonl").open("rb") as file:
        results = list(http.run(file))
    assert len(results) >= 98
    assert [result for result in results if result.verdict is CaseStatus.FAILED] == []
    assert {result.id for result in results if result.verdict is CaseStatus.KNOWN} == http.KNOWN.keys()
    assert {case["level"] for case in cases() if case["name"] in http.KNOWN} == {"CHOICE"}


def test_an_event_that_is_decoded_otherwise_is_a_failure():
    (case,) = [case for case in cases() if case["name"] == "binary-json"]
    case["expect"]["events"][0]["data"] = {"a": True}  # which equals {"a": 1} in Python
    (result,) = http.run([json.dumps(case).encode()])
    assert result.verdict is CaseStatus.FAILED
    assert "instead of" in result.detail


@pytest.mark.parametrize("name", http.KNOWN)
def test_a_choice_made_otherwise_says_why(name):
    (case,) = [case for case in cases() if case["name"] == name]
    headers = [(name.encode(), value.encode()) for name, value in case["headers"]]
    with pytest.raises(EventError) as caught:
        decode_request(headers, base64.b64decode(case["body_b64"]))
    assert "U+0000" in caught.value.rule
