"""Filter expressions: one meaning as JSON, protobuf and Python, held against a reference in plain Python."""

from __future__ import annotations

import base64
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.expr import FilterExpression, event_time, property, publish_time
from headgate.filter.cel.errors import FilterError
from headgate.filter.cel.evaluate import EventView, OutcomeKind, program
from headgate.filter.cel.unparse import unparse
from headgate.filter.compile.compiler import compile_filter
from headgate.filter.dialects.pulsar.protobuf import decode, encode
from headgate.filter.dialects.pulsar.to_cel import pulsar, translate
from headgate.filter.dialects.pulsar.tree import (
    LISTS,
    OF_STRINGS,
    AllOf,
    AnyOf,
    Expr,
    Negation,
    Operator,
    Predicate,
    Property,
    Time,
    Type,
    from_json,
    to_json,
)
from headgate_api.event.model import Event
from headgate_api.event.rfc3339 import micros
from headgate_api.rpc import pulsar_pb2 as wire
from tests.filter.reference.rows import row_verdicts
from tests.filter.test_exactness import ALLOWED
from tests.support import REPOSITORY, examples

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
STORED_US = 1_769_860_800_001_999
"""A millisecond behind noon, and some microseconds."""


def event(time: str | None = None, **extensions: object) -> Event:
    return Event(specversion="1.0", id="1", source="/a", type="order", time=time, extensions=extensions)  # type: ignore[arg-type]


def holds(condition: FilterExpression, of: Event) -> bool:
    return program(compile_filter({"pulsar": condition.json()}).cel).evaluate(of, STORED_US).kind is OutcomeKind.TRUE


# --- the reference ---


def _read(subject: object, of: Event) -> Any:
    """A predicate's left side; None is unknown."""
    if subject is Time.EVENT:
        return None if of.time is None else micros(of.time)
    if subject is Time.PUBLISH:
        return STORED_US // 1_000 * 1_000
    assert isinstance(subject, Property)
    value = of.type if subject.name == "type" else of.extensions.get(subject.name)
    if value is None:
        return None
    if subject.type is Type.STRING:
        return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)
    try:
        if subject.type is Type.LONG:
            return int(value)
        return None if isinstance(value, bool) else float(value)
    except ValueError:
        return None


def _like(text: str, pattern: str) -> bool:
    written = "".join(
        {"%": "(?s:.*)", "_": "(?s:.)"}.get(part) or re.escape(part[-1]) for part in re.findall(r"\\.|[^\\]", pattern)
    )
    return re.fullmatch(written, text) is not None


def reference(expr: Expr, of: Event) -> bool | None:
    match expr:
        case Negation(operand):
            inner = reference(operand, of)
            return None if inner is None else not inner
        case AllOf(operands):
            parts = [reference(operand, of) for operand in operands]
            return False if False in parts else None if None in parts else True
        case AnyOf(operands):
            parts = [reference(operand, of) for operand in operands]
            return True if True in parts else None if None in parts else False
    assert isinstance(expr, Predicate)
    left = _read(expr.subject, of)
    if left is None:
        return None
    values: list[Any] = list(expr.values)
    if isinstance(expr.subject, Time):
        values = [micros(value) if isinstance(value, str) else value * 1000 for value in values]
    first = values[0]
    match expr.operator:
        case Operator.EQUALS | Operator.IN:
            return left in values
        case Operator.NOT_EQUALS | Operator.NOT_IN:
            return left not in values
        case Operator.GREATER_THAN:
            return left > first
        case Operator.GREATER_THAN_EQUALS:
            return left >= first
        case Operator.LESS_THAN:
            return left < first
        case Operator.LESS_THAN_EQUALS:
            return left <= first
        case Operator.BETWEEN:
            return first <= left <= values[1]
        case Operator.LIKE:
            return _like(left, first)
        case Operator.STARTS_WITH:
            return left.startswith(first)
        case Operator.STARTS_WITH_IGNORE_CASE:
            return left.lower().startswith(first.lower())
        case Operator.CONTAINS | Operator.CONTAINS_ALL:
            return all(value in left for value in values)
        case Operator.CONTAINS_IGNORE_CASE:
            return first.lower() in left.lower()
        case Operator.DOES_NOT_CONTAIN:
            return first not in left
        case Operator.DOES_NOT_CONTAIN_IGNORE_CASE:
            return first.lower() not in left.lower()
        case Operator.CONTAINS_ANY:
            return any(value in left for value in values)
        case Operator.CONTAINS_NONE:
            return not any(value in left for value in values)
    raise AssertionError(expr.operator)


# --- generators ---

TEXTS = ["eu", "eu-west", "EU", "us", "5", "-5", "15", "5.5", "true", "tru", "e", "", "a\nb", "a%b", "x_y", "\\"]
PATTERNS = [
    "eu%",
    "%eu",
    "%u%",
    "e%t",
    "5%",
    "%5",
    "_",
    "__",
    "%",
    "",
    "e_-%",
    "t%e",
    "a%b",
    "a\\%b",
    "x\\_y",
    "\\\\",
    "tru_",
]
INTEGERS = [5, -5, 0, 15, 2**31 - 1, -(2**31)]
TIMES = [
    "2026-01-31T12:00:00Z",
    "2026-01-31T13:00:00.5+01:00",
    "2026-01-31T12:00:00.001Z",
    "1969-12-31T23:59:59.999999Z",
]
MILLISECONDS = [1769860800000, 1769860800001, 0, -1]
NAMES = ["region", "n", "type"]


@st.composite
def predicates(draw: st.DrawFn) -> dict[str, object]:
    operator = draw(st.sampled_from(list(Operator)))
    count = 2 if operator is Operator.BETWEEN else draw(st.integers(1, 3)) if _is_list(operator) else 1
    kind = draw(st.sampled_from(["string", "string", "long", "double", "eventTime", "publishTime"]))
    if operator in OF_STRINGS:
        kind = "string"
    source: list[Any] = {
        "string": PATTERNS if operator is Operator.LIKE else TEXTS,
        "long": INTEGERS,
        "double": [5.0, -5.0, 5.5, 0.0, 15],
        "eventTime": TIMES + MILLISECONDS,
        "publishTime": TIMES + MILLISECONDS,
    }[kind]
    values = [draw(st.sampled_from(source)) for _ in range(count)]
    subject = {kind: {}} if kind.endswith("Time") else {"property": draw(st.sampled_from(NAMES)), "type": kind}
    return {**subject, "operator": operator.value, "values": values}


def _is_list(operator: Operator) -> bool:
    return operator in LISTS


expressions = st.recursive(
    predicates(),
    lambda inner: st.one_of(
        inner.map(lambda one: {"not": one}),
        st.lists(inner, min_size=1, max_size=3).map(lambda some: {"and": some}),
        st.lists(inner, min_size=1, max_size=3).map(lambda some: {"or": some}),
    ),
    max_leaves=6,
)
attributes = st.dictionaries(st.sampled_from(["region", "n"]), st.sampled_from([*TEXTS[:-4], *INTEGERS, True, False]))


@settings(max_examples=examples(400))
@given(expressions, attributes, st.none() | st.sampled_from(TIMES))
def test_cel_says_what_the_reference_says(
    value: dict[str, object], carried: dict[str, object], time: str | None
) -> None:
    expr, of = from_json(value, "f"), event(time, **carried)
    expected = reference(expr, of)
    assert holds(FilterExpression(expr), of) is (expected is True)
    assert holds(FilterExpression(Negation(expr)), of) is (expected is False)


@settings(max_examples=examples(300))
@given(expressions, attributes, st.none() | st.sampled_from(TIMES))
def test_rows_say_no_more_than_cel_cpp(value: Any, carried: dict[str, object], time: str | None) -> None:
    compiled, view = compile_filter({"pulsar": value}), EventView(event(time, **carried), STORED_US)
    assert (program(compiled.cel).evaluate_view(view).kind, row_verdicts(compiled, view)) in ALLOWED


@settings(max_examples=examples(200))
@given(expressions)
def test_json_and_protobuf_say_the_same(value: dict[str, object]) -> None:
    expr = from_json(value, "f")
    assert from_json(to_json(expr), "f") == expr
    back = decode(encode(expr))
    assert translate(back) == translate(expr)
    assert encode(decode(encode(back))) == encode(back)
    assert pulsar(base64.b64encode(encode(expr)).decode(), "f") == unparse(translate(expr))


@pytest.mark.parametrize(
    ("condition", "text"),
    [
        (property("region").in_("eu", "us", "eu"), 'has(ce.region) && ce.region in ["eu", "us"]'),
        (property("region").in_("eu"), 'has(ce.region) && ce.region == "eu"'),
        (property("region") == "eu", 'has(ce.region) && ce.region == "eu"'),
        (property("region") != "eu", 'has(ce.region) && ce.region != "eu"'),
        (property("region") == "5", 'has(ce.region) && ce.region in ["5", 5]'),
        (property("region").not_in("eu", "true"), 'has(ce.region) && !(ce.region in ["eu", "true", true])'),
        (property("type") == "5", 'ce.type == "5"'),
        (property("region") > "eu", 'has(ce.region) && string(ce.region) > "eu"'),
        (property("type").between("a", "b"), 'ce.type >= "a" && ce.type <= "b"'),
        (property("n") > 5, "has(ce.n) && int(ce.n) > 5"),
        (property("n").between(1, 9), "has(ce.n) && int(ce.n) >= 1 && int(ce.n) <= 9"),
        (property("n").in_(1, 2), "has(ce.n) && int(ce.n) in [1, 2]"),
        (property("n").double() <= 5, "has(ce.n) && double(ce.n) <= 5.0"),
        (property("n") < 5.5, "has(ce.n) && double(ce.n) < 5.5"),
        (~(property("n") > 5), "has(ce.n) && !(int(ce.n) > 5)"),
        (property("region").like("eu-%"), 'has(ce.region) && ce.region.startsWith("eu-")'),
        (property("region").like("eu"), 'has(ce.region) && ce.region == "eu"'),
        (property("region").like("5%"), 'has(ce.region) && string(ce.region).startsWith("5")'),
        (property("region").like("e_%\\%"), 'has(ce.region) && ce.region.matches("^e(?s:.)(?s:.*)%$")'),
        (property("region").starts_with("eu"), 'has(ce.region) && ce.region.startsWith("eu")'),
        (property("region").starts_with("t"), 'has(ce.region) && string(ce.region).startsWith("t")'),
        (~property("region").starts_with("eu"), 'has(ce.region) && !string(ce.region).startsWith("eu")'),
        (
            property("region").starts_with_ignore_case("EU-Ä"),
            'has(ce.region) && ce.region.lowerAscii().startsWith("eu-Ä")',
        ),
        (property("region").contains("-"), 'has(ce.region) && string(ce.region).contains("-")'),
        (
            property("region").contains_all("eu", "west"),
            'has(ce.region) && ce.region.contains("eu") && ce.region.contains("west")',
        ),
        (
            property("region").contains_any("eu", "us"),
            'has(ce.region) && (ce.region.contains("eu") || ce.region.contains("us"))',
        ),
        (
            property("type").contains_none("eu", "us"),
            '!ce.type.contains("eu") && !ce.type.contains("us")',
        ),
        (property("type").contains_ignore_case("EU-"), 'ce.type.lowerAscii().contains("eu-")'),
        (property("region").contains_ignore_case("EU"), 'has(ce.region) && ce.region.lowerAscii().contains("eu")'),
        (property("a").contains_ignore_case("E"), 'has(ce.a) && string(ce.a).lowerAscii().contains("e")'),
        (
            property("region").does_not_contain_ignore_case("EU"),
            'has(ce.region) && (type(ce.region) in [int, bool] || !ce.region.lowerAscii().contains("eu"))',
        ),
        (property("region").does_not_contain("eu"), 'has(ce.region) && !string(ce.region).contains("eu")'),
        (property("type").does_not_contain_ignore_case("EU"), '!ce.type.lowerAscii().contains("eu")'),
        (publish_time() >= NOON, 'publish_time >= timestamp("2026-01-31T12:00:00Z")'),
        (~(publish_time() == 5), 'publish_time != timestamp("1970-01-01T00:00:00.005Z")'),
        (
            publish_time().in_(0, 1),
            'publish_time == timestamp("1970-01-01T00:00:00Z") || '
            'publish_time == timestamp("1970-01-01T00:00:00.001Z")',
        ),
        (event_time() >= NOON, 'has(ce.time) && ce.time >= timestamp("2026-01-31T12:00:00Z")'),
        (event_time() < 1769860800001, 'has(ce.time) && ce.time < timestamp("2026-01-31T12:00:00.001Z")'),
        (
            event_time().between("2026-01-31T12:00:00+02:00", NOON),
            'has(ce.time) && ce.time >= timestamp("2026-01-31T10:00:00Z") && '
            'ce.time <= timestamp("2026-01-31T12:00:00Z")',
        ),
        (
            event_time().not_in(0, NOON.astimezone(timezone(timedelta(hours=5)))),
            'has(ce.time) && ce.time != timestamp("1970-01-01T00:00:00Z") && '
            'ce.time != timestamp("2026-01-31T12:00:00Z")',
        ),
        (
            (property("a") == "x") & (property("b") == "y") & ((property("c") == "z") | (event_time() > 0)),
            'has(ce.a) && has(ce.b) && ce.a == "x" && ce.b == "y" && '
            '(has(ce.c) && ce.c == "z" || has(ce.time) && ce.time > timestamp("1970-01-01T00:00:00Z"))',
        ),
        (
            ~((property("a") == "x") | (property("b") == "y")),
            'has(ce.a) && has(ce.b) && ce.a != "x" && ce.b != "y"',
        ),
    ],
)  # fmt: skip
def test_builder(condition: FilterExpression, text: str) -> None:
    assert str(condition) == condition.cel() == pulsar(condition.json(), "f") == text
    assert compile_filter({"pulsar": condition.json()})
    assert FilterExpression.from_json(condition.json()) == condition
    assert FilterExpression.from_protobuf(condition.protobuf()).cel() == text


def test_builder_prints_json() -> None:
    condition = property("region").in_("eu", "us") & (event_time() >= NOON) & ~(property("n") > 5)
    assert condition.json() == {
        "and": [
            {"property": "region", "type": "string", "operator": "IN", "values": ["eu", "us"]},
            {"eventTime": {}, "operator": "GREATER_THAN_EQUALS", "value": "2026-01-31T12:00:00+00:00"},
            {"not": {"property": "n", "type": "long", "operator": "GREATER_THAN", "value": 5}},
        ]
    }


def test_pythons_own_operators_are_refused() -> None:
    one, two = property("a") == "x", property("b") == "y"
    with pytest.raises(TypeError, match="joined by"):
        _ = one and two
    with pytest.raises(TypeError, match="joined by"):
        _ = not one
    with pytest.raises(TypeError, match="joined by"):
        _ = 1 < property("n") < 5
    with pytest.raises(TypeError):
        hash(property("a"))


PREDICATE = {"property": "a", "operator": "EQUALS", "value": "x"}


def deep(levels: int) -> object:
    value: object = PREDICATE
    for _ in range(levels):
        value = {"not": value}
    return value


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ("a == 1", ""),
        ({}, ""),
        ({"and": []}, ".and"),
        ({"or": PREDICATE}, ".or"),
        ({"and": [PREDICATE], "or": [PREDICATE]}, ""),
        ({"not": PREDICATE, **PREDICATE}, ""),
        ({"not": [PREDICATE]}, ".not"),
        ({"and": [PREDICATE, {"not": 1}]}, ".and[1].not"),
        ({**PREDICATE, "field": "x"}, ".field"),
        ({**PREDICATE, "property": 1}, ".property"),
        ({**PREDICATE, "property": "Region"}, ".property"),
        ({**PREDICATE, "property": "a..b"}, ".property"),
        ({**PREDICATE, "property": "data"}, ".property"),
        ({**PREDICATE, "property": "time"}, ".property"),
        ({**PREDICATE, "eventTime": {}}, ""),
        ({"operator": "EQUALS", "value": "x"}, ""),
        ({**PREDICATE, "operator": "=="}, ".operator"),
        ({**PREDICATE, "operator": "equals"}, ".operator"),
        ({**PREDICATE, "operator": None}, ".operator"),
        ({"property": "a", "value": "x"}, ".operator"),
        ({"property": "a", "operator": "EQUALS"}, ""),
        ({**PREDICATE, "values": ["x"]}, ""),
        ({**PREDICATE, "value": None}, ".value"),
        ({**PREDICATE, "value": True}, ".value"),
        ({**PREDICATE, "value": ["x"]}, ".value"),
        ({"property": "a", "operator": "IN", "values": "x"}, ".values"),
        ({"property": "a", "operator": "IN", "values": []}, ".values"),
        ({"property": "a", "operator": "IN", "values": ["x", 1]}, ".values"),
        ({"property": "a", "operator": "IN", "values": ["x", {}]}, ".values[1]"),
        ({"property": "a", "operator": "BETWEEN", "values": [1]}, ".values"),
        ({"property": "a", "operator": "EQUALS", "values": ["x", "y"]}, ".values"),
        ({**PREDICATE, "type": "text"}, ".type"),
        ({**PREDICATE, "type": "long"}, ".value"),
        ({**PREDICATE, "type": "string", "value": 1}, ".value"),
        ({**PREDICATE, "type": "long", "value": 1.5}, ".value"),
        ({**PREDICATE, "value": 2**63}, ".value"),
        ({**PREDICATE, "type": "double", "value": 10**400}, ".value"),
        ({**PREDICATE, "value": float("nan")}, ".value"),
        ({**PREDICATE, "value": "x\0"}, ".value"),
        ({**PREDICATE, "value": "\ud800"}, ".value"),
        ({**PREDICATE, "operator": "LIKE", "value": 5}, ".operator"),
        ({**PREDICATE, "operator": "LIKE", "value": "x\\"}, ".value"),
        ({**PREDICATE, "operator": "LIKE", "value": "\\x"}, ".value"),
        ({"publishTime": True, "operator": "GREATER_THAN", "value": 1}, ".publishTime"),
        ({"publishTime": {}, "type": "long", "operator": "GREATER_THAN", "value": 1}, ".type"),
        ({"publishTime": {}, "operator": "CONTAINS", "value": "2026"}, ".operator"),
        ({"publishTime": {}, "eventTime": {}, "operator": "GREATER_THAN", "value": 1}, ""),
        ({**PREDICATE, "operator": "GREATER_THAN_OR_EQUAL"}, ".operator"),
        ({**PREDICATE, "operator": "LESS_THAN_OR_EQUAL"}, ".operator"),
        ("no Base64", ""),
        ({"eventTime": True, "operator": "GREATER_THAN", "value": 1}, ".eventTime"),
        ({"eventTime": {}, "type": "long", "operator": "GREATER_THAN", "value": 1}, ".type"),
        ({"eventTime": {}, "operator": "LIKE", "value": "2026%"}, ".operator"),
        ({"eventTime": {}, "operator": "GREATER_THAN", "value": "yesterday"}, ".value"),
        ({"eventTime": {}, "operator": "GREATER_THAN", "value": "2026-01-31"}, ".value"),
        ({"eventTime": {}, "operator": "GREATER_THAN", "value": "0000-01-01T00:00:00Z"}, ".value"),
        ({"eventTime": {}, "operator": "GREATER_THAN", "value": "2026-01-31T00:00:00.0000001Z"}, ".value"),
        ({"eventTime": {}, "operator": "GREATER_THAN", "value": 10**18}, ".value"),
        ({"eventTime": {}, "operator": "GREATER_THAN", "value": 1.5}, ".value"),
        ({**PREDICATE, "operator": "IN", "value": "x", 5: 6}, ".5"),
        ({"property": "a", "operator": "IN", "values": ["x"] * 1001}, ".values"),
        ({"or": [{"not": PREDICATE}] * 600}, ""),
        ({"or": [{"or": [{"property": "a", "operator": "IN", "values": ["x"] * 1000}] * 1000}] * 1000}, ""),
        ({**PREDICATE, "value": "x" * 1_000_000}, ""),
        (deep(32), ".not" * 32),
        (deep(5_000), ""),
    ],
)
def test_refusals(value: object, field: str) -> None:
    with pytest.raises(FilterError) as refused:
        compile_filter({"pulsar": value})
    assert refused.value.field == f"filter.pulsar{field}"


def test_the_builder_refuses_at_once() -> None:
    for make in (
        lambda: property("Region") == "x",
        lambda: property("n").long() == 1.5,
        lambda: property("n") == True,  # noqa: E712
        lambda: property("n").in_(),
        lambda: property("n").in_("a", 1),
        lambda: event_time() > datetime(2026, 1, 31),
        lambda: event_time().like("2026%"),
        lambda: property("n").like("\\n"),
    ):
        with pytest.raises(FilterError):
            make()


def test_a_missing_property_is_no_filter_error() -> None:
    for condition in (property("n") > 5, ~(property("n") > 5), property("n") != "x", property("n").contains_none("x")):
        assert program(condition.cel()).evaluate(event()).kind is OutcomeKind.FALSE
        assert program((~condition).cel()).evaluate(event()).kind is OutcomeKind.FALSE


@settings(max_examples=examples(500))
@given(st.binary(max_size=200))
def test_any_bytes_are_an_expression_or_refused(message: bytes) -> None:
    try:
        expr = decode(message)
    except FilterError:
        return
    assert pulsar(to_json(expr), "f")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from([*TEXTS, *Operator, "property", "a"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["and", "or", "not", "property", "eventTime", "publishTime", "operator", "value", "values", "type"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=examples(300))
@given(json_values)
def test_any_json_is_a_filter_or_refused(value: object) -> None:
    try:
        compiled = compile_filter({"pulsar": value})
    except FilterError:
        return
    assert program(compiled.cel)


# --- the draft's messages ---

NUMBERS = {
    "EQUALS": 0, "NOT_EQUALS": 1, "IN": 2, "NOT_IN": 3, "GREATER_THAN": 4, "GREATER_THAN_EQUALS": 5, "LESS_THAN": 6,
    "LESS_THAN_EQUALS": 7, "STARTS_WITH": 8, "STARTS_WITH_IGNORE_CASE": 9, "CONTAINS": 10, "CONTAINS_IGNORE_CASE": 11,
    "DOES_NOT_CONTAIN": 12, "DOES_NOT_CONTAIN_IGNORE_CASE": 13, "CONTAINS_ANY": 14, "CONTAINS_NONE": 15,
    "BETWEEN": 16, "LIKE": 17, "CONTAINS_ALL": 18,
}  # fmt: skip
"""The draft's operators by number, and behind them those that it does not have."""


def test_the_numbers_are_those_of_the_draft() -> None:
    assert dict(wire.Predicate.Operator.items()) == NUMBERS
    assert list(NUMBERS) == list(Operator)
    assert dict(wire.Predicate.MessageRef.items()) == {"PROPERTY": 0, "EVENT_TIME": 1, "PUBLISH_TIME": 2}
    assert dict(wire.Predicate.ValueType.items()) == {"STRING": 0, "LONG": 1, "DOUBLE": 2}
    assert dict(wire.Expr.ExprType.items()) == {"PREDICATE": 0, "AND": 1, "OR": 2, "NOT": 3}
    fields = {field.name: field.number for field in wire.Predicate.DESCRIPTOR.fields}
    assert fields == {"ref": 1, "name": 2, "op": 3, "values": 4, "ty": 5}
    assert {field.name: field.number for field in wire.Expr.DESCRIPTOR.fields} == {
        "tp": 1, "predicate": 2, "op1": 3, "op2": 4,
    }  # fmt: skip


def test_bytes_that_another_implementation_writes_are_read() -> None:
    """proto2's order and numbers, by hand: `not (n IN ["5", "6"] as LONG)`."""
    inside = b"\x08\x00" + b"\x12\x01n" + b"\x18\x02" + b"\x22\x015" + b"\x22\x016" + b"\x28\x01"
    predicate = b"\x08\x00" + b"\x12" + bytes([len(inside)]) + inside
    message = b"\x08\x03" + b"\x1a" + bytes([len(predicate)]) + predicate
    condition = FilterExpression.from_protobuf(message)
    assert condition == ~property("n").in_(5, 6)
    assert condition.protobuf() == message


def asked(**fields: object) -> wire.Expr:
    """A message that says `a == "x"`, with other fields."""
    said: dict[str, object] = {"ref": 0, "name": "a", "op": 0, "values": ["x"], **fields}
    kept = {name: value for name, value in said.items() if value is not None}
    return wire.Expr(tp=wire.Expr.PREDICATE, predicate=wire.Predicate(**kept))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("message", "cel"),
    [
        (asked(), 'has(ce.a) && ce.a == "x"'),
        (asked(values=["5"], ty=1), "has(ce.a) && int(ce.a) == 5"),
        (asked(values=["-5"], ty=1, op=5), "has(ce.a) && int(ce.a) >= -5"),
        (asked(values=["5e-1"], ty=2, op=6), "has(ce.a) && double(ce.a) < 0.5"),
        (asked(ref=1, name=None, values=["0"], ty=1), 'has(ce.time) && ce.time == timestamp("1970-01-01T00:00:00Z")'),
        (asked(ref=2, name=None, values=["5"], op=4), 'publish_time > timestamp("1970-01-01T00:00:00.005Z")'),
        (
            asked(ref=2, name=None, values=["2026-01-31T12:00:00Z"], ty=0, op=7),
            'publish_time <= timestamp("2026-01-31T12:00:00Z")',
        ),
        (wire.Expr(tp=1, op1=asked(), op2=asked(name="b")), 'has(ce.a) && has(ce.b) && ce.a == "x" && ce.b == "x"'),
    ],
)  # fmt: skip
def test_messages(message: wire.Expr, cel: str) -> None:
    assert FilterExpression.from_protobuf(message.SerializeToString()).cel() == cel


@pytest.mark.parametrize(
    ("message", "field", "reason"),
    [
        (wire.Expr(), ".tp", "missing"),
        (wire.Expr(predicate=asked().predicate), ".tp", "missing"),
        (wire.Expr(tp=4, op1=asked()), ".tp", "4 is no type"),  # type: ignore[arg-type]
        (wire.Expr(tp=0), ".predicate", "missing"),
        (wire.Expr(tp=0, predicate=asked().predicate, op1=asked()), ".op1", "takes none"),
        (wire.Expr(tp=1, op1=asked()), ".op2", "missing"),
        (wire.Expr(tp=2, op2=asked()), ".op1", "missing"),
        (wire.Expr(tp=3), ".op1", "missing"),
        (wire.Expr(tp=3, op1=asked(), op2=asked()), ".op2", "takes none"),
        (wire.Expr(tp=1, op1=asked(), op2=wire.Expr(tp=3, op1=asked(op=19))), ".op2.op1.predicate.op", "19 is no"),
        (asked(ref=None), ".predicate.ref", "missing"),
        (asked(ref=3), ".predicate.ref", "3 is nothing"),
        (asked(name=None), ".predicate.name", "missing"),
        (asked(name="Region"), ".predicate.name", "no attribute"),
        (asked(name="time"), ".predicate.name", "no text"),
        (asked(ref=1), ".predicate.name", "no name"),
        (asked(op=None), ".predicate.op", "missing"),
        (asked(op=-1), ".predicate.op", "-1 is no operator"),
        (asked(op=10, values=["5"], ty=1), ".predicate.op", "for strings"),
        (asked(ty=3), ".predicate.ty", "3 is no type"),
        (asked(ref=2, name=None, ty=2, values=["5"]), ".predicate.ty", "no DOUBLE"),
        (asked(values=[]), ".predicate.values", "takes 1 value, not 0"),
        (asked(values=["x", "y"]), ".predicate.values", "takes 1 value, not 2"),
        (asked(op=12, values=["x", "y"]), ".predicate.values", "takes 1 value, not 2"),
        (asked(op=16, values=["x"]), ".predicate.values", "takes 2 values"),
        (asked(op=2, values=["5", "5.5"], ty=1), ".predicate.values[1]", "no LONG"),
        (asked(values=[""], ty=1), ".predicate.values[0]", "no LONG"),
        (asked(values=["0x5"], ty=1), ".predicate.values[0]", "no LONG"),
        (asked(values=["1_0"], ty=1), ".predicate.values[0]", "no LONG"),
        (asked(values=[str(2**63)], ty=1), ".predicate.values[0]", "64 bits"),
        (asked(values=["five"], ty=2), ".predicate.values[0]", "no DOUBLE"),
        (asked(values=["NaN"], ty=2), ".predicate.values[0]", "no DOUBLE"),
        (asked(values=["1e999"], ty=2), ".predicate.values[0]", "finite"),
        (asked(ref=1, name=None, values=["yesterday"]), ".predicate.values[0]", "no time"),
        (asked(ref=1, name=None, values=["2026-01-31T12:00:00Z"], ty=1), ".predicate.values[0]", "no LONG"),
    ],
)  # fmt: skip
def test_refused_messages(message: wire.Expr, field: str, reason: str) -> None:
    encoded = base64.b64encode(message.SerializeToString()).decode()
    with pytest.raises(FilterError, match=reason) as refused:
        compile_filter({"pulsar": encoded})
    assert refused.value.field == f"filter.pulsar{field}"


def test_unknown_fields_are_refused_where_they_stand() -> None:
    unknown = b"\x48\x01"  # number 9
    inside = asked().predicate.SerializeToString() + unknown
    predicate = b"\x08\x00\x12" + bytes([len(inside)]) + inside
    for message, field in ((asked().SerializeToString() + unknown, ""), (predicate, ".predicate")):
        with pytest.raises(FilterError, match="unknown field number 9") as refused:
            decode(message)
        assert refused.value.field == f"filter.pulsar{field}"


def test_hostile_messages() -> None:
    nested = chain = asked()
    for _ in range(60):
        nested = wire.Expr(tp=wire.Expr.NOT, op1=nested)
        chain = wire.Expr(tp=wire.Expr.OR, op1=chain, op2=asked(name="b"))
    assert len(decode(chain.SerializeToString()).operands) == 61  # type: ignore[union-attr]  # a chain is no depth
    huge = asked(op=2, values=["x"] * 3_000)
    for message in (nested, huge):
        with pytest.raises(FilterError):
            decode(message.SerializeToString())
    for raw in (b"\xff", b"\x22" * 200, b"\0" * 20_000):
        with pytest.raises(FilterError):
            decode(raw)
    with pytest.raises(FilterError, match="FILTER_CHARACTERS_MAX"):
        compile_filter({"pulsar": "A" * 40_000})


def test_the_generated_code_is_that_of_the_proto_file(tmp_path: Path) -> None:
    source = "headgate_api/rpc/pulsar.proto"
    where = [f"-I{REPOSITORY / 'src'}", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *where, source], check=True, cwd=REPOSITORY / "src")
    for made in ("pulsar_pb2.py", "pulsar_pb2.pyi"):
        folder = "headgate_api/rpc"
        assert (tmp_path / folder / made).read_text() == (REPOSITORY / "src" / folder / made).read_text(), "make proto"
