"""JMS selectors: the public cases, what the CEL looks like, and what is refused where."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.conformance import selectors
from headgate.conformance.cases import Verdict
from headgate.event.model import Event
from headgate.filter.cel import Activation, OutcomeKind, compile_expression
from headgate.filter.compiler import compile_filter
from headgate.filter.dialects.jms import jms
from headgate.filter.errors import FilterError
from headgate.filter.evaluate import program
from headgate.limits import FILTER_CANONICAL_CHARACTERS_MAX
from tests.support import conformance


def cel(selector: str) -> str:
    return jms(selector, "filter.jms")


def holds(text: str, attributes: dict[str, object]) -> bool:
    """Whether CEL text is true; false and an error are one, as they are for a trigger."""
    expression = compile_expression(text, characters_max=FILTER_CANONICAL_CHARACTERS_MAX)
    return expression.evaluate(Activation({"ce": attributes})).kind is OutcomeKind.TRUE


def truth(selector: str, attributes: dict[str, object]) -> bool | None:
    """A selector's value: it is unknown when neither it nor its negation selects."""
    event = {"id": "1", "source": "/a", "type": "t", "specversion": "1.0"} | attributes
    positive, negative = holds(cel(selector), event), holds(cel(f"NOT ({selector})"), event)
    assert not (positive and negative), selector
    return True if positive else False if negative else None


def test_public_cases() -> None:
    with conformance("selectors.jsonl").open("rb") as lines:
        results = list(selectors.run(lines))
    assert [result for result in results if result.verdict not in {Verdict.PASSED, Verdict.SKIPPED}] == []
    assert sum(result.verdict is Verdict.PASSED for result in results) >= 451


def test_a_wrong_expectation_fails() -> None:
    case = {"source": "s", "name": "n", "selector": "a = 1", "properties": {"a": {"int": "2"}}, "headers": {}}
    expected = {"true": Verdict.FAILED, "false": Verdict.PASSED, "unknown": Verdict.FAILED, "invalid": Verdict.FAILED}
    for expect, verdict in expected.items():
        (result,) = selectors.run([json.dumps({**case, "expect": expect}).encode()])
        assert result.verdict is verdict


@pytest.mark.parametrize(
    ("selector", "text"),
    [
        ("JMSType = 'car' AND color = 'blue'", 'has(ce.color) && ce.type == "car" && ce.color == "blue"'),
        ("'blue' = color", 'has(ce.color) && ce.color == "blue"'),
        ("color = 'red' OR color = 'it''s'", 'has(ce.color) && (ce.color == "red" || ce.color == "it\'s")'),
        ("color = 'red' or n = 1", 'has(ce.color) && ce.color == "red" || has(ce.n) && ce.n == 1'),
        ("color <> 'red'", 'has(ce.color) && type(ce.color) == string && ce.color != "red"'),
        ("JMSType <> 'car'", 'ce.type != "car"'),
        ("NOT color = 'red'", 'has(ce.color) && ce.color != "red"'),
        ("flag <> TRUE", "has(ce.flag) && ce.flag == false"),
        ("NOT n > 3", "has(ce.n) && !(type(ce.n) in [int, double] && ce.n > 3)"),
        ("3 <= n", "has(ce.n) && ce.n >= 3"),
        ("n BETWEEN 1 AND 3", "has(ce.n) && ce.n >= 1 && ce.n <= 3"),
        ("n NOT BETWEEN 1 AND 3", "has(ce.n) && (ce.n < 1 || ce.n > 3)"),
        ("region IN ('eu', 'us', 'eu')", 'has(ce.region) && ce.region in ["eu", "us"]'),
        ("region NOT IN ('eu')", 'has(ce.region) && !(ce.region in ["eu"])'),
        ("region IS NULL", "!has(ce.region)"),
        ("NOT region IS NULL", "has(ce.region)"),
        ("JMSType IS NULL OR active", "has(ce.active) && ce.active"),
        ("name LIKE 'a%'", 'has(ce.name) && ce.name.startsWith("a")'),
        ("name LIKE '%a'", 'has(ce.name) && ce.name.endsWith("a")'),
        ("name NOT LIKE '%a%'", 'has(ce.name) && !ce.name.contains("a")'),
        ("name LIKE 'ab%cd'", 'has(ce.name) && ce.name.startsWith("ab") && ce.name.endsWith("cd")'),
        ("name LIKE 'aba%ba'", 'has(ce.name) && ce.name.matches("^aba(?s:.*)ba$")'),
        ("name LIKE 'a_c.'", 'has(ce.name) && ce.name.matches("^a(?s:.)c\\\\.$")'),
        ("name LIKE '100!%' ESCAPE '!'", 'has(ce.name) && ce.name == "100%"'),
        ("name LIKE '%'", "has(ce.name) && type(ce.name) == string"),
        ("n > 60 * 60 - -1", "has(ce.n) && ce.n > 3601"),
        ("n = 5 / 2", "has(ce.n) && ce.n == 2.5"),
        ("n * 2 > 5", "has(ce.n) && jms.number(ce.n) * 2.0 > 5.0"),
        ("n / m = 2.5", "has(ce.n) && has(ce.m) && jms.divide(jms.number(ce.n), jms.number(ce.m)) == 2.5"),
        ("n - m - 1 = 0", "has(ce.n) && has(ce.m) && jms.number(ce.n) - jms.number(ce.m) - 1.0 == 0.0"),
        ("n < m", "has(ce.n) && has(ce.m) && jms.number(ce.n) < jms.number(ce.m)"),
        ("n = 0x1F OR n = 017 OR n = 7L", "has(ce.n) && (ce.n == 31 || ce.n == 15 || ce.n == 7)"),
        ("n = -9223372036854775808", "has(ce.n) && ce.n == -9223372036854775808"),
        ("n = 7. OR n = .5E1 OR n = 2d", "has(ce.n) && (ce.n == 7.0 || ce.n == 5.0 || ce.n == 2.0)"),
        ("TRUE", "true"),
        ("TRUE = 1", "false"),
        ("1 < 2 AND 'a' <> 'b'", "true"),
        ("JMSTimestamp >= 1700000000123", 'has(ce.time) && ce.time >= timestamp("2023-11-14T22:13:20.123Z")'),
        ("JMSDeliveryMode = 'PERSISTENT' AND JMSPriority > 4", "has(ce.priority) && ce.priority > 4"),
        ("JMSMessageID = '7' OR JMSPriority = 9", 'ce.id == "7" || has(ce.priority) && ce.priority == 9'),
        ("cloudEvents_source = '/a' AND application_properties.x = 1", 'has(ce.x) && ce.source == "/a" && ce.x == 1'),
        ("properties.subject = 's' AND h.durable", 'has(ce.subject) && ce.subject == "s"'),
        ("a$b IS NOT NULL", '"a$b" in ce'),
        ("loop", 'has(ce.`loop`) && ce["loop"]'),
    ],
)  # fmt: skip
def test_becomes_cel(selector: str, text: str) -> None:
    assert cel(selector) == text
    assert compile_filter({"jms": selector})


@pytest.mark.parametrize(
    ("selector", "attributes", "expected"),
    [
        ("x = '5'", {"x": 5}, False),
        ("x <> '5'", {"x": 5}, False),
        ("x <> '5'", {"x": "6"}, True),
        ("x <> 5", {"x": "6"}, False),
        ("x > 3", {"x": "5"}, False),
        ("x BETWEEN 1 AND 9", {"x": "5"}, False),
        ("x NOT BETWEEN 1 AND 9", {"x": "50"}, False),
        ("x < y", {"x": "a", "y": "b"}, False),
        ("x < y", {"x": 1, "y": 2.5}, True),
        ("x <> y", {"x": 1, "y": 1.0}, False),
        ("x <> y", {"x": 1, "y": "1"}, False),
        ("x + 1 > 3", {"x": "5"}, None),
        ("x / 0 = 1", {"x": 5}, None),
        ("x", {"x": "true"}, None),
        ("x LIKE '5%'", {"x": 55}, None),
        ("x LIKE '5'", {"x": 5}, None),
        ("x LIKE '%'", {"x": "\n"}, True),
        ("x LIKE 'a_c'", {"x": "a\nc"}, True),
        ("x LIKE 'ab%bc'", {"x": "abc"}, False),
        ("x LIKE 'ab%bc'", {"x": "abbc"}, True),
        ("x NOT IN ('a')", {"x": 5}, True),
        ("x IS NULL OR x = 1", {}, True),
        ("x = 1 OR y = 1", {"y": 1}, True),
        ("x = 1 AND y = 1", {"y": 2}, False),
        ("x = 1 AND y = 1", {"y": 1}, None),
        ("x NOT BETWEEN 1 AND y", {"x": 0}, True),
        ("x BETWEEN 1 AND y", {"x": 0}, False),
    ],
)
def test_three_values(selector: str, attributes: dict[str, object], expected: bool | None) -> None:
    assert truth(selector, attributes) is expected


def test_a_missing_property_is_no_filter_error() -> None:
    event = Event(specversion="1.0", id="1", source="/a", type="t")
    for selector in ("price > 100", "NOT price > 100", "price + 1 = 2", "name LIKE 'a%'", "active", "price <> 1"):
        assert program(compile_filter({"jms": selector}).cel).evaluate(event).kind is OutcomeKind.FALSE


@pytest.mark.parametrize(
    ("selector", "position", "hint"),
    [
        ("", 0, "leave the filter out"),
        ("a == 1", 3, "one ="),
        ("a != 1", 2, "<>"),
        ("a = 1 && b = 2", 6, "AND"),
        ("a = 1 || b = 2", 6, "OR"),
        ('a = "x"', 4, "single quotes"),
        ("a = 'x", 4, "closing quote"),
        ("a % 2 = 1", 2, "remainder"),
        ("[a] = 1", 0, "brackets"),
        ("a = 1 b", 6, ""),
        ("a = 1 AND", 9, ""),
        ("(a = 1", 6, ""),
        ("a = 1)", 5, ""),
        ("1a = 1", 0, "begins with a letter"),
        ("a = 08", 4, ""),
        ("a = 9223372036854775808", 4, "dot"),
        ("a = " + "9" * 5000, 4, "dot"),
        ("a = 1e999", 4, ""),
        ("a = 1 = 2", 6, "AND"),
        ("(a = 1) = TRUE", 3, "AND, OR and NOT"),
        ("a + 1", 2, "compare"),
        ("'x'", 0, "compare"),
        ("'x' LIKE 'x'", 0, ""),
        ("1 IN ('a')", 0, ""),
        ("a IN ()", 6, ""),
        ("a IN (1)", 6, ""),
        ("a IN ('b'", 9, ""),
        ("a IS 1", 5, ""),
        ("a NOT = 1", 6, ""),
        ("a LIKE b", 7, ""),
        ("a LIKE '%' ESCAPE '!!'", 18, "ESCAPE"),
        ("a LIKE '%' ESCAPE '%'", 18, "ESCAPE"),
        ("a LIKE '!x' ESCAPE '!'", 7, ""),
        ("a LIKE 'x!' ESCAPE '!'", 7, ""),
        ("a > 'b'", 2, "= and <>"),
        ("a < TRUE", 2, "= and <>"),
        ("a + 'b' = 'c'", 2, ""),
        ("JMSType", 0, "compare"),
        ("JMSType + 1 = 2", 8, ""),
        ("JMSTimestamp > '2026'", 13, "JMSTimestamp"),
        ("JMSTimestamp > 1e30", 13, ""),
        ("JMSTimestamp LIKE '2%'", 0, ""),
        ("JMSDestination = 'q'", 0, "3.8.1.1"),
        ("a = 1 AND JMSXGroupID = 'g'", 10, "JMSPriority"),
        ("properties.to = 'q'", 0, "message_id"),
        ("header.ttl > 1", 0, "priority"),
        ("upper(a) = 'A'", 5, "functions"),
        ("a = 'x\0'", 6, ""),
        ("a = 1 AND\n  b == 2", 15, "one ="),
        ("NOT " * 33 + "a", 128, ""),
        ("(" * 40 + "a" + ")" * 40, 32, ""),
        ("1" + "+1" * 40 + " = a", 65, ""),
    ],
)
def test_a_refusal_has_a_place_and_a_hint(selector: str, position: int, hint: str) -> None:
    with pytest.raises(FilterError) as refused:
        cel(selector)
    error = refused.value
    assert error.field == "filter.jms"
    assert error.position == position
    line, mark = error.caret.split("\n")
    assert mark.strip() == "^"
    if len(selector) < 50:
        assert line == selector.replace("\0", " ").split("\n")[-1]
    assert hint in error.hint
    assert error.hint or not hint


@pytest.mark.parametrize(
    ("selector", "limit"),
    [
        ("a = '" + "x" * 20_000 + "'", "FILTER_CHARACTERS_MAX"),
        ("a IN (" + ",".join("'x'" for _ in range(1001)) + ")", "FILTER_LIST_ITEMS_MAX"),
        ("NOT " * 100 + "a", "FILTER_DEPTH_MAX"),
        ("-" * 5000 + "a = 1", "FILTER_DEPTH_MAX"),
        ("a" + "*a" * 5000 + " = 1", "FILTER_DEPTH_MAX"),
        ("a LIKE '" + "_" * 2000 + "'", "FILTER_REGEX_CHARACTERS_MAX"),
        (" OR ".join(f"a{i:020} = {i}" for i in range(500)), "FILTER_CHARACTERS_MAX"),
        (" OR ".join(f"a{i} = {i}" for i in range(900)), "FILTER_WORDS_MAX"),
    ],
)
def test_limits(selector: str, limit: str) -> None:
    with pytest.raises(FilterError) as refused:
        compile_filter({"jms": selector})
    assert refused.value.limit == limit
    assert refused.value.field == "filter.jms"


WORDS = ["a", "b", "JMSType", "JMSTimestamp", "1", "2.5", "'x'", "'x%'", "TRUE", "NULL", "NOT", "AND", "OR", "IN", "IS"]
WORDS += ["LIKE", "ESCAPE", "BETWEEN", "(", ")", ",", "=", "<>", "<", ">=", "+", "-", "*", "/", "0", "'!'", "@", "'"]


@settings(max_examples=500, deadline=None)
@given(st.one_of(st.text(max_size=40), st.lists(st.sampled_from(WORDS), max_size=14).map(" ".join)))
def test_any_text_is_a_filter_or_refused(selector: str) -> None:
    try:
        compiled = compile_filter({"jms": selector})
    except FilterError:
        return
    assert program(compiled.cel)
