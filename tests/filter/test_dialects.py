"""Every way to write a filter, and what it refuses: a filter that is not understood never matches."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.filter.cel.errors import FilterError
from headgate.filter.cel.evaluate import OutcomeKind, program
from headgate.filter.compile.compiler import compile_filter
from headgate.filter.dialects import DIALECTS, to_cel
from headgate_api.event.model import Event

EVENT = Event(
    specversion="1.0",
    id="1",
    source="/a",
    type="order",
    subject="s",
    time="2026-01-31T12:00:00Z",
    extensions={"tenant": "acme", "n": 1},
)


def outcome(filter_object: dict[str, object] | None, event: Event = EVENT) -> OutcomeKind:
    return program(compile_filter(filter_object).cel).evaluate(event).kind


@pytest.mark.parametrize(
    ("filter_object", "cel"),
    [
        (None, "true"),
        ({}, "true"),
        ({"attributes": {}}, "true"),
        ({"attributes": {"type": "order"}}, 'ce.type == "order"'),
        ({"attributes": {"type": "a", "source": "/b"}}, 'ce.type == "a" && ce.source == "/b"'),
        ({"attributes": {"subject": ""}}, "has(ce.subject)"),
        ({"attributes": {"in": "x"}}, 'has(ce.`in`) && ce["in"] == "x"'),
        (
            {"attributes": {"time": "2026-01-31T12:00:00Z"}},
            'has(ce.time) && ce.time == timestamp("2026-01-31T12:00:00Z")',
        ),
        ({"attributes": {"in": ""}}, "has(ce.`in`)"),
        ({"attributes": {"1a": 'q"\\\n'}}, 'has(ce.`1a`) && ce["1a"] == "q\\"\\\\\\n"'),
        ({"sourceAndType": {}}, "true"),
        ({"sourceAndType": {"type": "a", "source": ""}}, 'ce.type == "a"'),
        ({"sourceAndType": {"type": "a", "source": "/b"}}, 'ce.type == "a" && ce.source == "/b"'),
        ({"expression": "ce.type == 'a'"}, "ce.type == 'a'"),
        ({"cel": "data.n > 1"}, "data.n > 1"),
    ],
)
def test_becomes_cel(filter_object: dict[str, object] | None, cel: str) -> None:
    assert to_cel(filter_object) == cel


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"type": "order"}, OutcomeKind.TRUE),
        ({"type": "Order"}, OutcomeKind.FALSE),
        ({"type": "order", "tenant": "acme"}, OutcomeKind.TRUE),
        ({"tenant": ""}, OutcomeKind.TRUE),
        ({"nosuch": ""}, OutcomeKind.FALSE),
        ({"nosuch": "x"}, OutcomeKind.FALSE),
        ({"time": "2026-01-31T13:00:00+01:00"}, OutcomeKind.TRUE),
        ({"time": "2026-01-31T12:00:01Z"}, OutcomeKind.FALSE),
        ({"n": "1"}, OutcomeKind.FALSE),
    ],
)
def test_attributes_are_present_and_exact(attributes: dict[str, str], expected: OutcomeKind) -> None:
    assert outcome({"attributes": attributes}) is expected


@pytest.mark.parametrize(
    ("filter_object", "field"),
    [
        ([], "filter"),
        ("ce.type == 'a'", "filter"),
        ({"attribute": {}}, "filter.attribute"),
        ({"Attributes": {}}, "filter.Attributes"),
        ({"": {}}, "filter."),
        ({"attributes": {}, "cel": "true"}, "filter"),
        ({"expression": "true", "cel": "true"}, "filter"),
        ({"attributes": None}, "filter.attributes"),
        ({"attributes": []}, "filter.attributes"),
        ({"attributes": {"type": 1}}, "filter.attributes.type"),
        ({"attributes": {"type": None}}, "filter.attributes.type"),
        ({"attributes": {"Type": "a"}}, "filter.attributes.Type"),
        ({"attributes": {"": "a"}}, "filter.attributes"),
        ({"attributes": {"a..b": "a"}}, "filter.attributes.a..b"),
        ({"attributes": {"A.b": "a"}}, "filter.attributes.A.b"),
        ({"attributes": {"a.b\\": "a"}}, "filter.attributes.a.b\\"),
        ({"attributes": {"a.": "a"}}, "filter.attributes.a."),
        ({"attributes": {"type\n": "a"}}, "filter.attributes.type\n"),
        ({"attributes": {"data": "a"}}, "filter.attributes.data"),
        ({"attributes": {"time": "today"}}, "filter.attributes.time"),
        ({"attributes": {1: "a"}}, "filter.attributes.1"),
        ({"attributes": {f"a{i}": "" for i in range(1001)}}, "filter.attributes"),
        ({"sourceAndType": {"subject": "a"}}, "filter.sourceAndType.subject"),
        ({"sourceAndType": {"type": True}}, "filter.sourceAndType.type"),
        ({"sourceAndType": "a"}, "filter.sourceAndType"),
        ({"expression": ""}, "filter.expression"),
        ({"expression": " \n"}, "filter.expression"),
        ({"expression": None}, "filter.expression"),
        ({"cel": 1}, "filter.cel"),
        ({"cel": "1 +"}, "filter.cel"),
        ({"attributes": {"type": "a\0b\ud800"}}, "filter.attributes"),
    ],
)
def test_refuses_what_it_does_not_understand(filter_object: Any, field: str) -> None:
    with pytest.raises(FilterError) as refused:
        compile_filter(filter_object)
    assert refused.value.field == field
    assert refused.value.message.startswith(field)


def test_every_dialect_refuses_every_wrong_type() -> None:
    for name in DIALECTS:
        for wrong in (None, 1, 1.5, True, [], ["a"]):
            with pytest.raises(FilterError):
                to_cel({name: wrong})
