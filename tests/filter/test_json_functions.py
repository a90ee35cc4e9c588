"""What lies at a path of JSON: every array on the way is gone through, and no JSON makes it an error."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.filter.cel import Activation, OutcomeKind, compile_expression


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
