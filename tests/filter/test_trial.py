"""Trials of filters, as requests bring them."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from headgate.filter.cel.errors import FilterError
from headgate.filter.dialects import CUSTOM, DIALECTS
from headgate.filter.dialects.subscriptions import NAMES
from headgate.filter.tools import trial
from headgate.filter.tools.trial import (
    EXAMPLES,
    ExplainRequest,
    FilterRequest,
    TrialRequest,
    convert_filter,
    dialect_list,
    explain_filter,
    try_filter,
)
from headgate_api import limits
from headgate_api.errors import InvalidInputError

CEL = 'ce.type == "order" && data.amount > 100'


def event(id_: str, type_: str = "order", **data: object) -> dict[str, object]:
    return {"specversion": "1.0", "id": id_, "source": "/s", "type": type_, "data": data}


def tried(**request: object) -> dict[str, Any]:
    """The answer to a request, both as JSON has them."""
    wanted = msgspec.json.decode(json.dumps(request), type=TrialRequest)
    found: dict[str, Any] = json.loads(msgspec.json.encode(try_filter(wanted)))
    return found


def converted(**request: object) -> Any:
    return convert_filter(msgspec.convert(request, FilterRequest))


def test_every_dialect_has_an_example_that_compiles() -> None:
    ours = {one.name for one in dialect_list().dialects if one.package == "headgate"}
    assert ours == set(EXAMPLES) == {*DIALECTS, *NAMES} - {name for name in CUSTOM if not CUSTOM[name].taken}
    for name, example in EXAMPLES.items():
        as_value = converted(dialect=name, text=example)
        assert as_value.canonical not in ("true", "false"), name
        if not isinstance(example, str):
            assert converted(dialect=name, text=json.dumps(example)) == as_value


def test_the_same_filter_in_every_way_to_write_it() -> None:
    wanted = converted(filter='ce.type == "a"').canonical
    for request in (
        {"filter": {"exact": {"type": "a"}}} if "exact" in DIALECTS else {"filters": [{"exact": {"type": "a"}}]},
        {"filter": {"cesql": "type = 'a'"}},
        {"filter": json.dumps({"attributes": {"type": "a"}})},
        {"filters": [{"cesql": "type = 'a'"}]},
        {"dialect": "cesql", "text": "type = 'a'"},
        {"dialect": "attributes", "text": '{"type": "a"}'},
        {"dialect": "filter", "text": '{"attributes": {"type": "a"}}'},
        {"dialect": "filters", "text": '[{"exact": {"type": "a"}}]'},
    ):
        assert converted(**request).canonical == wanted, request


def test_text_that_begins_like_json_is_cel_where_the_dialect_is() -> None:
    assert converted(dialect="cel", text='["a", "b"].exists(x, x == ce.type)').cel.startswith("[")


def test_what_a_transform_makes_of_each_match() -> None:
    transform = '{"type": "big", "data": {"sum": data.amount + data.tax}}'
    events = [event("1", amount=500, tax=5), event("2", amount=500), event("3", amount=5)]
    found = tried(filter=CEL, transform=transform, events=events, trace=False)["results"]
    assert found[0]["sent"] == event("1", "big", sum=505) | {"datacontenttype": "application/json"}
    assert "tax" in found[1]["transformError"]
    assert found[2] == {"index": 2, "outcome": "false", "id": "3"}
    with pytest.raises(FilterError, match="transform: type: must be a string"):
        tried(filter=CEL, transform='{"type": 5}', events=events)


def test_outcomes_with_the_part_that_decided() -> None:
    found = tried(
        filter=CEL,
        events=[event("1", amount=500), event("2", amount=5), event("3"), {"id": "4"}, event("5", "other")],
        explain=True,
    )
    assert [one["outcome"] for one in found["results"]] == ["true", "false", "error", "invalid", "false"]
    assert found["counts"] == {"true": 1, "false": 2, "error": 1, "invalid": 1}
    second, third, fourth, fifth = found["results"][1:]
    assert second["decided"] == {"part": "data.amount > 100", "value": "false"}
    assert "amount" in third["error"]
    assert fourth["index"] == 3
    assert fourth["error"]
    assert fifth["decided"]["part"] == 'ce.type == "order"'
    whole = second["trace"]["parts"][0]
    assert (found["text"][whole["start"] : whole["end"]], whole["value"], whole["depth"]) == (CEL, "false", 0)
    decided = [one for one in second["trace"]["parts"] if one["decided"]]
    assert [found["text"][one["start"] : one["end"]] for one in decided] == ["data.amount > 100"]
    assert second["trace"]["caret"].splitlines()[1].strip("^ ") == ""
    assert found["explanation"]["decidedBy"] == "matcher"
    assert found["explanation"]["cost"] == {"lookups": 1, "scans": 0, "steps": found["explanation"]["cost"]["steps"]}
    assert found["explanation"]["skips"]["values"] == ["order"]


def test_when_events_were_stored() -> None:
    text = 'publish_time > timestamp("2026-01-01T00:00:00Z")'
    for stored, outcome in (("2026-02-01T00:00:00Z", "true"), ("2025-02-01T00:00:00Z", "false")):
        found = tried(filter=text, events=[event("1")], storedAt=stored)
        assert found["results"][0]["outcome"] == outcome
    with pytest.raises(InvalidInputError, match="storedAt"):
        tried(filter=text, events=[], storedAt="yesterday")


def test_an_explanation_has_advice_and_bounded_rows() -> None:
    many = " || ".join(f'(ce.type == "t{i}" && ce.source == "s{i % 7}")' for i in range(30))
    wide = f"ce.type in [{', '.join(repr(f'a{i}') for i in range(400))}]"
    for text in (many, wide):
        found = explain_filter(ExplainRequest(filter=text))
        assert len(found.rows) <= limits.FILTER_TRIAL_ROWS_MAX
    assert found.rows_left_out == 200
    advised = explain_filter(ExplainRequest(filter={"sourceAndType": {"type": "a"}}))
    assert [one.reason for one in advised.advice] == ["DialectDeprecated"]
    with pytest.raises(FilterError, match="filterValue"):
        explain_filter(ExplainRequest(filter="true", filter_value="ce.("))


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        ({}, "no filter"),
        ({"filter": "true", "dialect": "cel", "text": "true"}, "two filters"),
        ({"dialect": "nosuch", "text": ""}, "unknown dialect"),
        ({"dialect": "attributes", "text": "{"}, "no JSON"),
        ({"dialect": "filters", "text": "{}"}, "a list"),
        ({"dialect": "filter", "text": "[]"}, "an object"),
        ({"dialect": "attributes", "text": "[" * 100_000}, "no JSON"),
        ({"filter": "ce.type == "}, "filter"),
        ({"filter": {"a": 1, "b": 2}}, "unknown field"),
    ],
)
def test_refused_filters(request_: dict[str, object], problem: str) -> None:
    with pytest.raises(InvalidInputError, match=problem):
        converted(**request_)


def test_a_fault_has_its_place() -> None:
    with pytest.raises(FilterError) as caught:
        converted(filter='ce.type == "a" && data.x >> 1')
    assert caught.value.position is not None
    assert caught.value.caret.splitlines()[0].startswith("ce.type")


def test_more_events_than_may_be_are_refused() -> None:
    events = [event(str(i)) for i in range(limits.FILTER_TRIAL_EVENTS_MAX + 1)]
    with pytest.raises(InvalidInputError, match="FILTER_TRIAL_EVENTS_MAX"):
        tried(filter="true", events=events)


def test_traces_end_where_they_would_take_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    events = [event(str(i), amount=i) for i in range(10)]
    whole = tried(filter=CEL, events=events)
    assert all("trace" in one for one in whole["results"])
    monkeypatch.setattr(trial, "FILTER_TRACES_BYTES_MAX", 1)
    short = tried(filter=CEL, events=events)
    assert [("trace" in one, one["outcome"]) for one in short["results"][:2]] == [(True, "false"), (False, "false")]
    assert short["tracesLeftOut"] == 9
    assert short["counts"] == whole["counts"]
    monkeypatch.setattr(trial, "FILTER_TRACES_S_MAX", -1.0)
    assert tried(filter=CEL, events=events)["tracesLeftOut"] == 10
    assert "tracesLeftOut" not in tried(filter=CEL, events=events, trace=False)
