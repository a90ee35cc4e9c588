"""Filter expressions: one meaning as JSON, protobuf and Python, held against a reference in plain Python."""

from __future__ import annotations

import fnmatch
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.event.model import Event
from headgate.event.rfc3339 import micros
from headgate.expr import Condition, event_time, property
from headgate.filter.compiler import compile_filter
from headgate.filter.dialects import pulsar_pb2 as wire
from headgate.filter.dialects.pulsar import from_json, pulsar, to_json
from headgate.filter.dialects.pulsar_proto import decode, encode
from headgate.filter.dialects.pulsar_tree import (
    OF_STRINGS,
    AllOf,
    AnyOf,
    EventTime,
    Expr,
    Negation,
    Operator,
    Predicate,
    Property,
    Type,
)
from headgate.filter.errors import FilterError
from headgate.filter.evaluate import EventView, OutcomeKind, program
from headgate.filter.rows import row_verdicts
from tests.filter.test_exactness import ALLOWED
from tests.support import REPOSITORY

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def event(time: str | None = None, **extensions: object) -> Event:
    return Event(specversion="1.0", id="1", source="/a", type="order", time=time, extensions=extensions)  # type: ignore[arg-type]


def holds(condition: Condition, of: Event) -> bool:
    return program(compile_filter({"pulsar": condition.json()}).cel).evaluate(of).kind is OutcomeKind.TRUE


# --- the reference ---


def _read(subject: object, of: Event) -> Any:
    """A predicate's left side; None is unknown."""
    if isinstance(subject, EventTime):
        return None if of.time is None else micros(of.time)
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
    if isinstance(expr.subject, EventTime):
        values = [micros(value) if isinstance(value, str) else value * 1000 for value in values]
    first = values[0]
    match expr.operator:
        case Operator.EQUALS | Operator.IN:
            return left in values
        case Operator.NOT_EQUALS | Operator.NOT_IN:
            return left not in values
        case Operator.GREATER_THAN:
            return left > first
        case Operator.GREATER_THAN_OR_EQUAL:
            return left >= first
        case Operator.LESS_THAN:
            return left < first
        case Operator.LESS_THAN_OR_EQUAL:
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
    kind = draw(st.sampled_from(["string", "string", "long", "double", "time"]))
    if operator in OF_STRINGS:
        kind = "string"
    source: list[Any] = {
        "string": PATTERNS if operator is Operator.LIKE else TEXTS,
        "long": INTEGERS,
        "double": [5.0, -5.0, 5.5, 0.0, 15],
        "time": TIMES + MILLISECONDS,
    }[kind]
    values = [draw(st.sampled_from(source)) for _ in range(count)]
    subject = {"eventTime": {}} if kind == "time" else {"property": draw(st.sampled_from(NAMES)), "type": kind}
    return {**subject, "operator": operator.value, "values": values}


def _is_list(operator: Operator) -> bool:
    return fnmatch.fnmatch(operator, "*IN") or fnmatch.fnmatch(operator, "CONTAINS_*")


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


@settings(max_examples=400)
@given(expressions, attributes, st.none() | st.sampled_from(TIMES))
def test_cel_says_what_the_reference_says(
    value: dict[str, object], carried: dict[str, object], time: str | None
) -> None:
    expr, of = from_json(value, "f"), event(time, **carried)
    expected = reference(expr, of)
    assert holds(Condition(expr), of) is (expected is True)
    assert holds(Condition(Negation(expr)), of) is (expected is False)


@settings(max_examples=300)
@given(expressions, attributes, st.none() | st.sampled_from(TIMES))
def test_rows_say_no_more_than_cel_cpp(value: Any, carried: dict[str, object], time: str | None) -> None:
    compiled, view = compile_filter({"pulsar": value}), EventView(event(time, **carried))
    assert (program(compiled.cel).evaluate_view(view).kind, row_verdicts(compiled, view)) in ALLOWED


@settings(max_examples=200)
@given(expressions)
def test_json_and_protobuf_say_the_same(value: dict[str, object]) -> None:
    expr = from_json(value, "f")
    assert from_json(to_json(expr), "f") == expr
    assert decode(encode(expr)) == expr


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
def test_builder(condition: Condition, text: str) -> None:
    assert str(condition) == condition.cel() == pulsar(condition.json(), "f") == text
    assert compile_filter({"pulsar": condition.json()})
    assert Condition.from_json(condition.json()) == condition
    assert Condition.from_protobuf(condition.protobuf()) == condition


def test_builder_prints_json() -> None:
    condition = property("region").in_("eu", "us") & (event_time() >= NOON) & ~(property("n") > 5)
    assert condition.json() == {
        "and": [
            {"property": "region", "type": "string", "operator": "IN", "values": ["eu", "us"]},
            {"eventTime": {}, "operator": "GREATER_THAN_OR_EQUAL", "value": "2026-01-31T12:00:00+00:00"},
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
        ({**PREDICATE, "type": "long"}, ".values[0]"),
        ({**PREDICATE, "type": "string", "value": 1}, ".values[0]"),
        ({**PREDICATE, "type": "long", "value": 1.5}, ".values[0]"),
        ({**PREDICATE, "value": 2**63}, ".values[0]"),
        ({**PREDICATE, "type": "double", "value": 10**400}, ".values[0]"),
        ({**PREDICATE, "value": float("nan")}, ".values[0]"),
        ({**PREDICATE, "value": "x\0"}, ".values[0]"),
        ({**PREDICATE, "value": "\ud800"}, ".values[0]"),
        ({**PREDICATE, "operator": "LIKE", "value": 5}, ".operator"),
        ({**PREDICATE, "operator": "LIKE", "value": "x\\"}, ".values[0]"),
        ({**PREDICATE, "operator": "LIKE", "value": "\\x"}, ".values[0]"),
        ({"publishTime": {}, "operator": "GREATER_THAN", "value": 1}, ".publishTime"),
        ({"eventTime": True, "operator": "GREATER_THAN", "value": 1}, ".eventTime"),
        ({"eventTime": {}, "type": "long", "operator": "GREATER_THAN", "value": 1}, ".type"),
        ({"eventTime": {}, "operator": "LIKE", "value": "2026%"}, ".operator"),
        ({"eventTime": {}, "operator": "GREATER_THAN", "value": "yesterday"}, ".values[0]"),
        ({"eventTime": {}, "operator": "GREATER_THAN", "value": "2026-01-31"}, ".values[0]"),
        ({"eventTime": {}, "operator": "GREATER_THAN", "value": "0000-01-01T00:00:00Z"}, ".values[0]"),
        ({"eventTime": {}, "operator": "GREATER_THAN", "value": "2026-01-31T00:00:00.0000001Z"}, ".values[0]"),
        ({"eventTime": {}, "operator": "GREATER_THAN", "value": 10**18}, ".values[0]"),
        ({"eventTime": {}, "operator": "GREATER_THAN", "value": 1.5}, ".values[0]"),
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


@settings(max_examples=500)
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
            st.sampled_from(["and", "or", "not", "property", "eventTime", "operator", "value", "values", "type"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=300)
@given(json_values)
def test_any_json_is_a_filter_or_refused(value: object) -> None:
    try:
        compiled = compile_filter({"pulsar": value})
    except FilterError:
        return
    assert program(compiled.cel)


def test_hostile_messages() -> None:
    nested = wire.Expr(predicate=wire.Predicate(property="a", operator=wire.Predicate.EQUALS))
    for _ in range(60):
        nested = wire.Expr(**{"not": nested})
    huge = wire.Predicate(property="a", operator=wire.Predicate.IN, values=[wire.Value(string_value="x")] * 3_000)
    missing = [
        wire.Expr(),
        wire.Expr(**{"and": wire.Exprs()}),
        wire.Expr(predicate=wire.Predicate(operator=wire.Predicate.EQUALS, values=[wire.Value(long_value=1)])),
        wire.Expr(predicate=wire.Predicate(property="a", values=[wire.Value(long_value=1)])),
        wire.Expr(predicate=wire.Predicate(property="a", operator=99, values=[wire.Value(long_value=1)])),
        wire.Expr(predicate=wire.Predicate(property="a", type=9, operator=1, values=[wire.Value(long_value=1)])),
        wire.Expr(predicate=wire.Predicate(property="a", operator=1, values=[wire.Value()])),
        wire.Expr(predicate=wire.Predicate(publish_time={}, operator=1, values=[wire.Value(long_value=1)])),
    ]
    for message in (*missing, nested, wire.Expr(predicate=huge)):
        with pytest.raises(FilterError):
            decode(message.SerializeToString())
    for raw in (b"\xff", b"\x22" * 200, b"\0" * 20_000):
        with pytest.raises(FilterError):
            decode(raw)


def test_the_generated_code_is_that_of_the_proto_file(tmp_path: Path) -> None:
    source = "headgate/filter/dialects/pulsar.proto"
    where = [f"-I{REPOSITORY / 'src'}", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *where, source], check=True, cwd=REPOSITORY / "src")
    for made in ("pulsar_pb2.py", "pulsar_pb2.pyi"):
        folder = "headgate/filter/dialects"
        assert (tmp_path / folder / made).read_text() == (REPOSITORY / "src" / folder / made).read_text(), "make proto"
