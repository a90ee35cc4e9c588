"""JMS selectors: the public cases, what the CEL looks like, and what is refused where."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance import dialects
from headgate.filter.cel.engine import Activation, OutcomeKind, compile_expression
from headgate.filter.cel.errors import FilterError
from headgate.filter.cel.evaluate import EventView, program
from headgate.filter.compile.compiler import compile_filter
from headgate.filter.dialects.jms.to_cel import jms
from headgate.filter.tools.advice import advice
from headgate_api.event.model import Event
from headgate_api.limits import FILTER_CANONICAL_CHARACTERS_MAX
from headgate_conformance.broker import CaseStatus
from tests.filter.reference.rows import row_verdicts
from tests.filter.test_exactness import ALLOWED
from tests.support import conformance, examples


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
        results = list(dialects.selectors(lines))
    assert [result for result in results if result.verdict not in {CaseStatus.PASSED, CaseStatus.SKIPPED}] == []
    assert sum(result.verdict is CaseStatus.PASSED for result in results) >= 451


def test_a_wrong_expectation_fails() -> None:
    case = {"source": "s", "name": "n", "selector": "a = 1", "properties": {"a": {"int": "2"}}, "headers": {}}
    expected = {
        "true": CaseStatus.FAILED,
        "false": CaseStatus.PASSED,
        "unknown": CaseStatus.FAILED,
        "invalid": CaseStatus.FAILED,
    }
    for expect, verdict in expected.items():
        (result,) = dialects.selectors([json.dumps({**case, "expect": expect}).encode()])
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
        ("x + 1 <> x", {"x": "5"}, None),
        ("x + 1 < y", {"x": "5", "y": "6"}, None),
        ("x + 1 < y", {"x": 5, "y": "6"}, False),
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
        ("a lıke 'b'", 2, ""),
        ("a ıs null", 2, ""),
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
        (" OR ".join(f"a{i} = {i}" for i in range(900)), "FILTER_TOKENS_MAX"),
    ],
)
def test_limits(selector: str, limit: str) -> None:
    with pytest.raises(FilterError) as refused:
        compile_filter({"jms": selector})
    assert refused.value.limit == limit
    assert refused.value.field == "filter.jms"


def test_names_that_no_event_has_are_told() -> None:
    selector = "orderId = 5 AND JMSType = 'a' OR colour IS NULL AND order_no > 1"
    (said,) = advice({"jms": selector})
    assert said.reason == "NameImpossible"
    assert said.message.startswith("spec.filter.jms reads orderId, order_no: ")
    (said,) = advice(None, [{"not": {"all": [{"jms": selector}]}}])
    assert said.message.startswith("spec.filters[0].not.all[0].jms reads orderId")
    assert advice({"jms": "orderid = 5 AND properties.subject = 'x' AND JMSTimestamp > 0"}) == ()


# --- a reference in plain Python: SQL's three values, and JMS' rule that unlike values compare false ---

Truth = bool | None


def _not(value: Truth) -> Truth:
    return None if value is None else not value


def _and(*values: Truth) -> Truth:
    return False if False in values else None if None in values else True


def _or(*values: Truth) -> Truth:
    return _not(_and(*map(_not, values)))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _compare(sign: str, left: Any, right: Any) -> Truth:
    if left is None or right is None:
        return None
    if _is_number(left) != _is_number(right) or (not _is_number(left) and type(left) is not type(right)):
        return False
    if sign not in {"=", "<>"} and not _is_number(left):
        return False
    computed = {"=": left == right, "<>": left != right}
    if sign in computed:
        return computed[sign]
    return {"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}[sign]


Condition = tuple[str, Callable[[dict[str, Any]], Truth]]
Value = tuple[str, Callable[[dict[str, Any]], Any]]
PROPERTIES: list[Any] = ["a", "ab", "b%", "5", 5, -5, 2, 0, True, False]
names = st.sampled_from(["x", "y", "z"])


def _read(name: str) -> Value:
    return name, lambda event: event.get(name)


def _arithmetic(left: Value, sign: str, right: Value) -> Value:
    def value(event: dict[str, Any]) -> Any:
        one, two = left[1](event), right[1](event)
        if not _is_number(one) or not _is_number(two) or (sign == "/" and two == 0):
            return None
        return {"+": lambda: one + two, "-": lambda: one - two, "*": lambda: one * two, "/": lambda: one / two}[sign]()

    return f"({left[0]} {sign} {right[0]})", value


numbers: st.SearchStrategy[Value] = st.sampled_from([5, -5, 2, 0, 2.5]).map(lambda n: (str(n), lambda _: n))
arithmetic = st.builds(
    _arithmetic,
    st.one_of(names.map(_read), numbers),
    st.sampled_from("+-*/"),
    st.one_of(names.map(_read), numbers),
)
texts: st.SearchStrategy[Value] = st.sampled_from(["a", "ab", "5"]).map(lambda text: (f"'{text}'", lambda _: text))
flags: st.SearchStrategy[Value] = st.booleans().map(lambda flag: (str(flag), lambda _: flag))


def _comparison(left: Value, sign: str, right: Value) -> Condition:
    return f"{left[0]} {sign} {right[0]}", lambda event: _compare(sign, left[1](event), right[1](event))


def _between(value: Value, low: Value, high: Value, negated: bool) -> Condition:
    def truth(event: dict[str, Any]) -> Truth:
        one, two, three = value[1](event), low[1](event), high[1](event)
        if negated:
            return _or(_compare("<", one, two), _compare(">", one, three))
        return _and(_compare(">=", one, two), _compare("<=", one, three))

    return f"{value[0]}{' NOT' * negated} BETWEEN {low[0]} AND {high[0]}", truth


def _one_of(name: str, items: list[str], negated: bool) -> Condition:
    def truth(event: dict[str, Any]) -> Truth:
        found = _or(*(_compare("=", event.get(name), item) for item in items))
        return _not(found) if negated else found

    return f"{name}{' NOT' * negated} IN ({', '.join(map(repr, items))})", truth


def _like(name: str, pattern: str, negated: bool) -> Condition:
    def truth(event: dict[str, Any]) -> Truth:
        value = event.get(name)
        if not isinstance(value, str):
            return None
        written = "".join(
            {"%": ".*", "_": "."}.get(part) or re.escape(part[-1]) for part in re.findall("!.|.", pattern)
        )
        return (re.fullmatch(written, value, re.DOTALL) is not None) is not negated

    return f"{name}{' NOT' * negated} LIKE '{pattern}' ESCAPE '!'", truth


plain = st.one_of(names.map(_read), numbers)
leaves: st.SearchStrategy[Condition] = st.one_of(
    st.builds(
        _comparison,
        st.one_of(names.map(_read), arithmetic, numbers),
        st.sampled_from(["=", "<>", "<", "<=", ">", ">="]),
        st.one_of(plain, arithmetic),
    ),
    st.builds(_comparison, names.map(_read), st.sampled_from(["=", "<>"]), st.one_of(texts, flags)),
    st.builds(_comparison, st.one_of(texts, flags), st.sampled_from(["=", "<>"]), st.one_of(texts, names.map(_read))),
    st.builds(_between, names.map(_read), plain, plain, st.booleans()),
    st.builds(_one_of, names, st.lists(st.sampled_from(["a", "ab", "5"]), min_size=1, max_size=3), st.booleans()),
    st.builds(
        _like, names, st.sampled_from(["a", "a%", "%b", "%", "_", "a_", "a%b", "b!%", "%a%b%", ""]), st.booleans()
    ),
    st.builds(
        lambda name, negated: (
            f"{name} IS{' NOT' * negated} NULL",
            lambda event: (event.get(name) is None) is not negated,
        ),
        names,
        st.booleans(),
    ),
    names.map(lambda name: (name, lambda event: event.get(name) if isinstance(event.get(name), bool) else None)),
)
selectors_and_meanings = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.tuples(inner).map(lambda one: (f"NOT ({one[0][0]})", lambda event: _not(one[0][1](event)))),
        st.tuples(inner, inner).map(
            lambda two: (f"({two[0][0]} AND {two[1][0]})", lambda event: _and(two[0][1](event), two[1][1](event)))
        ),
        st.tuples(inner, inner).map(
            lambda two: (f"({two[0][0]} OR {two[1][0]})", lambda event: _or(two[0][1](event), two[1][1](event)))
        ),
    ),
    max_leaves=5,
)


@settings(max_examples=examples(600))
@given(selectors_and_meanings, st.dictionaries(st.sampled_from(["x", "y", "z"]), st.sampled_from(PROPERTIES)))
def test_cel_says_what_the_reference_says(selector: Condition, event: dict[str, object]) -> None:
    assert truth(selector[0], event) is selector[1](event)


@settings(max_examples=examples(400))
@given(selectors_and_meanings, st.dictionaries(st.sampled_from(["x", "y", "z"]), st.sampled_from(PROPERTIES)))
def test_rows_say_no_more_than_cel_cpp(selector: Condition, carried: dict[str, str | int | bool]) -> None:
    compiled = compile_filter({"jms": selector[0]})
    view = EventView(Event(specversion="1.0", id="1", source="/a", type="t", extensions=carried))
    assert (program(compiled.cel).evaluate_view(view).kind, row_verdicts(compiled, view)) in ALLOWED


WORDS = ["a", "b", "JMSType", "JMSTimestamp", "1", "2.5", "'x'", "'x%'", "TRUE", "NULL", "NOT", "AND", "OR", "IN", "IS"]
WORDS += ["LIKE", "ESCAPE", "BETWEEN", "(", ")", ",", "=", "<>", "<", ">=", "+", "-", "*", "/", "0", "'!'", "@", "'"]


@settings(max_examples=examples(500))
@given(st.one_of(st.text(max_size=40), st.lists(st.sampled_from(WORDS), max_size=14).map(" ".join)))
def test_any_text_is_a_filter_or_refused(selector: str) -> None:
    try:
        compiled = compile_filter({"jms": selector})
    except FilterError:
        return
    assert program(compiled.cel)
