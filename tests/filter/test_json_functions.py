"""What lies at a path of JSON: every array on the way is gone through, and no JSON makes it an error."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.filter.cel.engine import Activation, OutcomeKind, compile_expression, decode
from headgate.filter.cel.evaluate import EventView, program
from headgate.filter.cel.functions import data_at_hand
from headgate.filter.cel.unparse import unparse
from headgate.filter.compile.compiler import compile_filter
from headgate_api.event.model import DataKind, Event
from headgate_api.limits import JSON_VALUES_VISITED_MAX


def is_true(text: str, data: Any) -> bool:
    outcome = compile_expression(text).evaluate(Activation({"ce": {}, "data": data}))
    assert outcome.kind is not OutcomeKind.ERROR, outcome.message
    return outcome.kind is OutcomeKind.TRUE


@pytest.mark.parametrize(
    ("data", "path", "values"),
    [
        ({"a": {"b": "x"}}, '["a", "b"]', '["x"]'),
        ({"a": {"b": ["x", "y"]}}, '["a", "b"]', '["x", "y"]'),
        ({"a": [{"b": 1}, {"b": [2, [3]]}, 4, {"c": 5}]}, '["a", "b"]', "[1, 2, 3]"),
        ([[{"a": 1}], {"a": 2}], '["a"]', "[1, 2]"),
        ({"a": {"b": "x"}}, '["a"]', "[]"),
        ({"a": "x"}, '["a", "b"]', "[]"),
        ({"a": []}, '["a"]', "[]"),
        ({}, '["a"]', "[]"),
        (None, '["a"]', "[]"),
        (None, "[]", "[null]"),
        ("x", "[]", '["x"]'),
        ({"a": [None, True, 1.5, 2**64 - 1, "", {"": 7}]}, '["a"]', '[null, true, 1.5, 18446744073709551615u, ""]'),
        ({"a": {"": 7}}, '["a", ""]', "[7]"),
        ({"a.b": 1, "a": {"b": 2}}, '["a.b"]', "[1]"),
    ],
)
def test_values_at_a_path(data: Any, path: str, values: str) -> None:
    assert is_true(f"json.values(data, {path}) == {values}", data)


@pytest.mark.parametrize(
    ("data", "path", "objects"),
    [
        ({"a": {"b": 1}}, '["a"]', '[{"b": 1}]'),
        ({"a": [[{"b": 1}], "x", {"b": 2}]}, '["a"]', '[{"b": 1}, {"b": 2}]'),
        ({"a": "x"}, '["a"]', "[]"),
        ({}, '["a"]', "[]"),
        ({"b": 1}, "[]", '[{"b": 1}]'),
    ],
)
def test_objects_at_a_path(data: Any, path: str, objects: str) -> None:
    assert is_true(f"json.objects(data, {path}) == {objects}", data)


def test_conditions_of_one_object_hold_together() -> None:
    x, y = ('json.values(o, ["x"]).exists(v, v == 1)', 'json.values(o, ["y"]).exists(v, v == 2)')
    text = f'json.objects(data, ["p"]).exists(o, {x} && {y})'
    assert is_true(text, {"p": [{"x": 1, "y": 2}]})
    assert not is_true(text, {"p": [{"x": 1}, {"y": 2}]})


@pytest.mark.parametrize("function", ["json.values", "json.objects"])
def test_a_path_has_names_only(function: str) -> None:
    outcome = compile_expression(f'size({function}(data, ["a", 1])) == 0').evaluate(Activation({"ce": {}, "data": {}}))
    assert outcome.kind is OutcomeKind.ERROR
    assert "a path is a list of member names, not of int" in outcome.message


def test_no_depth_is_too_much() -> None:
    deep: Any = "x"
    for _ in range(495):
        deep = {"a": [deep]}
    assert is_true('json.values(data, []) == [] && size(json.values(data, ["a", "a"])) == 0', deep)


NAMES = st.sampled_from(["a", "b", "", "a.b"])
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(st.characters(codec="utf-8", exclude_characters="\0")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=12,
)


def counted(value: Any, path: list[str]) -> int:
    """How many scalars lie at a path: the same rule written as a recursion."""
    if isinstance(value, list):
        return sum(counted(item, path) for item in value)
    if not path:
        return int(not isinstance(value, dict))
    return counted(value[path[0]], path[1:]) if isinstance(value, dict) and path[0] in value else 0


@given(JSON, st.lists(NAMES, max_size=3))
def test_never_an_error_and_nothing_missed(data: Any, path: list[str]) -> None:
    names = ", ".join(f'"{name}"' for name in path)
    assert is_true(f"size(json.values(data, [{names}])) == {counted(data, path)}", data)


# --- a program asks the data where it lies, so that nobody converts all of it ----------------------------------------


def test_in_a_program_the_data_is_no_argument() -> None:
    written = decode(
        compile_expression('json.values(data, ["a"]).exists(v, v == 1) && size(json.objects(data, [])) == 1')
        .checked()
        .expr
    )
    assert unparse(data_at_hand(written)) == (
        'json.values_of_data(["a"]).exists(v, v == 1) && size(json.objects_of_data([])) == 1'
    )


def test_another_variable_of_that_name_stays_what_it_is() -> None:
    text = '[{"a": 1}].exists(data, json.values(data, ["a"]) == [1])'
    assert unparse(data_at_hand(compile_expression(text).tree())) == text


@given(JSON, st.lists(NAMES, max_size=3))
def test_a_program_says_what_the_expression_says(data: Any, path: list[str]) -> None:
    names = ", ".join(f'"{name}"' for name in path)
    text = f"size(json.values(data, [{names}])) == {counted(data, path)}"
    event = Event(
        specversion="1.0", id="1", source="/s", type="t", data=json.dumps(data).encode(), data_kind=DataKind.JSON
    )
    if EventView(event).json is None:  # NaN is no JSON
        return
    assert program(text).evaluate(event).kind is OutcomeKind.TRUE


def test_without_json_data_it_is_an_error_also_after_an_event_that_had_some() -> None:
    asked = program('size(json.values(data, ["a"])) == 0')
    event = Event(specversion="1.0", id="1", source="/s", type="t", data=b"{}", data_kind=DataKind.JSON)
    assert asked.evaluate(event).kind is OutcomeKind.TRUE
    assert asked.evaluate(Event(specversion="1.0", id="1", source="/s", type="t")).kind is OutcomeKind.ERROR


def test_a_large_event_is_no_obstacle_to_many_paths() -> None:
    pattern = {"detail": {f"field{number}": ["x"] for number in range(20)}}
    data = json.dumps({f"field{number}": "x" for number in range(20)} | {"text": ["y" * 1000] * 900}).encode()
    event = Event(specversion="1.0", id="1", source="/s", type="t", data=data, data_kind=DataKind.JSON)
    assert program(compile_filter({"eventPattern": pattern}).cel).evaluate(event).kind is OutcomeKind.TRUE


def test_what_is_looked_at_is_bounded() -> None:
    outcome = compile_expression('size(json.values(data, ["a"])) > 0').evaluate(
        Activation({"ce": {}, "data": {"a": list(range(JSON_VALUES_VISITED_MAX))}})
    )
    assert outcome.kind is OutcomeKind.ERROR
    assert "JSON_VALUES_VISITED_MAX" in outcome.message
