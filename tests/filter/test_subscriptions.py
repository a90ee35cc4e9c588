"""`spec.filters`: the dialects of the CloudEvents Subscriptions API, nested, and everything that they refuse."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.filter.cel.errors import FilterError
from headgate.filter.cel.evaluate import OutcomeKind, program
from headgate.filter.compile.compiler import compile_filter
from headgate.filter.dialects import DIALECTS, to_cel
from headgate_api.event.model import Event
from headgate_api.limits import FILTER_CHARACTERS_MAX, FILTERS_DEPTH_MAX, FILTERS_MAX

EVENT = Event(
    specversion="1.0",
    id="1",
    source="/a/b",
    type="order.paid",
    subject="s",
    time="2026-01-31T13:00:00+01:00",
    extensions={"tenant": "acme", "n": 1},
)
YES: dict[str, object] = {"exact": {"type": "order.paid"}}
NO: dict[str, object] = {"exact": {"type": "order"}}


def outcome(filters: list[object], event: Event = EVENT) -> OutcomeKind:
    return program(compile_filter(None, filters).cel).evaluate(event).kind


@pytest.mark.parametrize(
    ("filters", "cel"),
    [
        ([{"exact": {"type": "a"}}], 'ce.type == "a"'),
        ([{"exact": {"type": "a", "source": "/b"}}], 'ce.type == "a" && ce.source == "/b"'),
        ([{"exact": {"tenant": "x"}}], 'has(ce.tenant) && ce.tenant == "x"'),
        ([{"prefix": {"type": "a."}}], 'ce.type.startsWith("a.")'),
        ([{"suffix": {"type": ".b", "id": "c"}}], 'ce.type.endsWith(".b") && ce.id.endsWith("c")'),
        ([{"prefix": {"subject": "a"}}], 'has(ce.subject) && ce.subject.startsWith("a")'),
        ([{"prefix": {"time": "2026-"}}], 'has(ce.time) && string(ce.time).startsWith("2026-")'),
        ([YES, NO], 'ce.type == "order.paid" && ce.type == "order"'),
        ([{"all": [YES, NO]}], 'ce.type == "order.paid" && ce.type == "order"'),
        ([{"all": [YES]}, NO], 'ce.type == "order.paid" && ce.type == "order"'),
        ([{"any": [YES, NO]}], 'ce.type == "order.paid" || ce.type == "order"'),
        ([{"any": [YES]}], 'ce.type == "order.paid"'),
        ([{"any": [YES, NO]}, YES], '(ce.type == "order.paid" || ce.type == "order") && ce.type == "order.paid"'),
        ([{"not": YES}], '!(ce.type == "order.paid")'),
        ([{"not": {"any": [YES, NO]}}], '!(ce.type == "order.paid" || ce.type == "order")'),
        ([{"cel": "data.a || data.b"}, {"expression": "data.c"}], "(data.a || data.b) && data.c"),
        ([{"cel": "data.a // why"}, YES], 'data.a && ce.type == "order.paid"'),
        ([{"attributes": {"type": "a", "tenant": ""}}], 'ce.type == "a" && has(ce.tenant)'),
        ([{"not": {"sourceAndType": {"type": "a"}}}], '!(ce.type == "a")'),
    ],
)
def test_becomes_cel(filters: list[object], cel: str) -> None:
    assert to_cel(None, filters) == cel


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([{"exact": {"tenant": "acme"}}], OutcomeKind.TRUE),
        ([{"exact": {"tenant": "Acme"}}], OutcomeKind.FALSE),
        # An absent attribute is no error: `not` of it holds.
        ([{"exact": {"nosuch": "x"}}], OutcomeKind.FALSE),
        ([{"not": {"exact": {"nosuch": "x"}}}], OutcomeKind.TRUE),
        ([{"not": {"prefix": {"nosuch": "x"}}}], OutcomeKind.TRUE),
        ([{"not": {"attributes": {"nosuch": "x"}}}], OutcomeKind.TRUE),
        ([{"not": {"not": {"suffix": {"nosuch": "x"}}}}], OutcomeKind.FALSE),
        ([{"exact": {"time": "2026-01-31T12:00:00Z"}}], OutcomeKind.TRUE),
        ([{"suffix": {"time": "T12:00:00Z"}}], OutcomeKind.TRUE),
        # A number is no string: never equal, and without a beginning.
        ([{"exact": {"n": "1"}}], OutcomeKind.FALSE),
        ([{"prefix": {"n": "1"}}], OutcomeKind.ERROR),
        ([{"not": {"prefix": {"n": "1"}}}], OutcomeKind.ERROR),
        ([{"prefix": {"type": "order.", "source": "/a"}}], OutcomeKind.TRUE),
        ([{"prefix": {"type": "order.", "source": "/b"}}], OutcomeKind.FALSE),
        ([{"suffix": {"type": ".paid"}}, {"any": [NO, {"cel": "ce.n == 1"}]}], OutcomeKind.TRUE),
    ],
)
def test_what_it_says_of_an_event(filters: list[object], expected: OutcomeKind) -> None:
    assert outcome(filters) is expected


@pytest.mark.parametrize(
    ("filters", "field"),
    [
        ({}, "filters"),
        ("ce.type", "filters"),
        ([{}], "filters[0]"),
        ([None], "filters[0]"),
        (["a"], "filters[0]"),
        ([YES, {"exakt": {"type": "a"}}], "filters[1].exakt"),
        ([{"exact": {"type": "a"}, "prefix": {"type": "a"}}], "filters[0]"),
        ([{"exact": {}}], "filters[0].exact"),
        ([{"exact": []}], "filters[0].exact"),
        ([{"exact": {"type": ""}}], "filters[0].exact.type"),
        ([{"exact": {"type": 1}}], "filters[0].exact.type"),
        ([{"exact": {"type": None}}], "filters[0].exact.type"),
        ([{"exact": {"": "a"}}], "filters[0].exact"),
        ([{"exact": {"Type": "a"}}], "filters[0].exact.Type"),
        ([{"exact": {"data": "a"}}], "filters[0].exact.data"),
        ([{"exact": {"time": "yesterday"}}], "filters[0].exact.time"),
        ([YES, {"any": [YES, {"prefix": {"type": ""}}]}], "filters[1].any[1].prefix.type"),
        ([{"any": [YES, {"prefix": {}}]}], "filters[0].any[1].prefix"),
        ([{"all": []}], "filters[0].all"),
        ([{"all": {}}], "filters[0].all"),
        ([{"any": YES}], "filters[0].any"),
        ([{"any": [{}]}], "filters[0].any[0]"),
        ([{"not": {}}], "filters[0].not"),
        ([{"not": [YES]}], "filters[0].not"),
        ([{"not": {"not": {"suffix": {"type": 1}}}}], "filters[0].not.not.suffix.type"),
        ([{"attributes": {}}], "filters[0].attributes"),
        ([{"sourceAndType": {"type": ""}}], "filters[0].sourceAndType"),
        ([YES, {"cel": ""}], "filters[1].cel"),
        ([YES, {"cel": "true) || (true"}], "filters[1].cel"),
        ([YES, {"cel": "1 + 1"}], "filters[1].cel"),
        ([{"not": {"cel": "ce.type ="}}], "filters[0].not.cel"),
    ],
)
def test_refuses_what_it_does_not_understand(filters: Any, field: str) -> None:
    with pytest.raises(FilterError) as refused:
        compile_filter(None, filters)
    assert refused.value.field == field


def test_a_fault_in_an_element_has_its_place() -> None:
    with pytest.raises(FilterError) as refused:
        compile_filter(None, [YES, {"any": [{"cel": "ce.type = 'a'"}]}])
    assert refused.value.field == "filters[1].any[0].cel"
    assert refused.value.caret == "ce.type = 'a'\n        ^"
    assert refused.value.hint


def nested(depth: int) -> dict[str, object]:
    inner = YES
    for level in range(depth - 1):
        inner = {"not": inner} if level % 2 else {"any": [inner, NO]}
    return inner


@pytest.mark.parametrize(
    ("filters", "limit"),
    [
        ([YES] * (FILTERS_MAX + 1), "FILTERS_MAX"),
        ([{"any": [YES] * FILTERS_MAX}], "FILTERS_MAX"),
        ([nested(FILTERS_DEPTH_MAX + 1)], "FILTERS_DEPTH_MAX"),
        ([nested(900)], "FILTERS_DEPTH_MAX"),
        ([{"cel": "x" * 1000}] * 17, "FILTER_CHARACTERS_MAX"),
        ([{"exact": {"type": "a" * FILTER_CHARACTERS_MAX}}], "FILTER_CHARACTERS_MAX"),
        ([{"any": [{"exact": {f"a{i}": "x" for i in range(1_001)}}]}], "FILTERS_MAX"),
    ],
)
def test_limits_are_named_and_found_at_once(filters: list[object], limit: str) -> None:
    with pytest.raises(FilterError) as refused:
        compile_filter(None, filters)
    assert refused.value.limit == limit
    assert refused.value.field.startswith("filters")


def test_what_the_limits_allow_compiles() -> None:
    assert compile_filter(None, [nested(FILTERS_DEPTH_MAX)])
    assert compile_filter(None, [{"exact": {"id": f"{i}"}} for i in range(FILTERS_MAX)])


def test_filters_override_filter_and_an_empty_list_does_not() -> None:
    assert to_cel({"cel": "data.a"}, []) == "data.a"
    assert to_cel({"cel": "data.a"}, [YES]) == 'ce.type == "order.paid"'
    assert to_cel(None, []) == "true"
    for wrong in ({"cel": "1 +"}, {"cell": "true"}, {"cel": ""}):
        with pytest.raises(FilterError) as refused:
            compile_filter(wrong, [YES])
        assert refused.value.field.startswith("filter.")


def test_every_dialect_may_be_an_element() -> None:
    for name in DIALECTS:
        for wrong in (None, 1, True, []):
            with pytest.raises(FilterError) as refused:
                to_cel(None, [{"not": {name: wrong}}])
            assert refused.value.field.startswith(f"filters[0].not.{name}")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["exact", "prefix", "all", "any", "not", "cel", "attributes", "type", "tenant", "x"]),
            inner,
            max_size=2,
        )
    ),
    max_leaves=12,
)


@given(json_values)
def test_nothing_but_a_refusal_comes_of_anything(value: Any) -> None:
    field = "filters"
    try:
        text = to_cel(None, value)
    except FilterError as refused:
        field, text = refused.field, ""
    assert field.startswith("filters")
    assert text != "true" or not value or "true" in json.dumps(value)
