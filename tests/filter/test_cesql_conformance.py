"""The public cases of CESQL 1.0: value and error, both computed by cel-cpp from the translation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

from headgate.event.model import Event
from headgate.filter.cel import OutcomeKind, compile_expression
from headgate.filter.compiler import compile_cel
from headgate.filter.dialects.cesql import Translation, translate
from headgate.filter.dialects.cesql_values import Type
from headgate.filter.errors import FilterError
from headgate.filter.evaluate import EventView, program
from headgate.filter.unparse import string_literal
from tests.support import REPOSITORY, conformance

FULL: Mapping[str, Any] = {
    "specversion": "1.0",
    "id": "full-event",
    "source": "http://example.com/source",
    "type": "com.example.FullEvent",
    "subject": "topic",
    "time": "2020-03-21T12:34:56.78Z",
    "dataschema": "http://example.com/schema",
    "datacontenttype": "text/json",
    "exbool": True,
    "exint": 42,
    "exstring": "exstring",
}
CONTEXT = {"specversion", "id", "source", "type", "subject", "time", "dataschema", "datacontenttype"}


@cache
def cases() -> tuple[dict[str, Any], ...]:
    return tuple(json.loads(line) for line in conformance("cesql.jsonl").read_text().splitlines())


def number() -> int:
    path = REPOSITORY.parent / "shared" / "conformance" / "cesql.jsonl"
    return len(path.read_text().splitlines()) if path.is_file() else 1


def event_of(case: Mapping[str, Any]) -> Event:
    attributes = dict(case.get("event") or FULL) | case.get("eventOverrides", {})
    context = {name: value for name, value in attributes.items() if name in CONTEXT}
    return Event(**context, extensions={name: value for name, value in attributes.items() if name not in CONTEXT})


def written(value: str | int | bool) -> str:
    return string_literal(value) if isinstance(value, str) else json.dumps(value)


def is_value(cel: str, value: str | int | bool, view: EventView) -> OutcomeKind:
    """Whether cel-cpp says that the CEL text has this value, type included."""
    asked = f"[dyn({cel})].exists(v, type(v) == type({written(value)}) && v == {written(value)})"
    return compile_expression(asked).evaluate(view.activation).kind


@pytest.mark.parametrize("index", range(number()))
def test_value_and_error(index: int) -> None:
    case = cases()[index]
    name, wanted, fails = f"{case['suite']}: {case['name']}", case["result"], "error" in case
    view = EventView(event_of(case))
    try:
        found = translate(str(case["expression"]))
    except FilterError:
        assert case.get("error") in {"parse", "missingFunction"}, name
        assert wanted is False
        return
    outcome = is_value(found.exact, wanted, view)
    assert (outcome is OutcomeKind.ERROR) == fails, name
    if fails:
        said = (is_value(cel, wanted, view) for cel in found.otherwise)
        outcome = next(one for one in said if one is not OutcomeKind.ERROR)
    assert outcome is OutcomeKind.TRUE, name
    if found.type is Type.BOOLEAN:
        agrees(found, view, wanted=wanted is True and not fails)


def agrees(found: Translation, view: EventView, *, wanted: bool) -> None:
    """The filter is wanted exactly when the value is true and there was no error, before and after it is rewritten."""
    for cel in (found.cel, compile_cel(found.cel).cel):
        assert (program(cel).evaluate_view(view).kind is OutcomeKind.TRUE) == wanted, cel


def test_there_are_cases() -> None:
    assert len(cases()) >= 188
