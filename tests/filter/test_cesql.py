"""CESQL: readable CEL where the meaning allows it, the specification's meaning always, and clear refusals."""

from __future__ import annotations

import json

import pytest
from conformance.cesql import translate
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headgate.filter.cel.engine import OutcomeKind, compile_expression
from headgate.filter.cel.errors import FilterError
from headgate.filter.cel.evaluate import EventView, program
from headgate.filter.cel.unparse import string_literal
from headgate.filter.compile.compiler import compile_cel, compile_filter
from headgate.filter.compile.plan import CompiledFilter, Verdict
from headgate.filter.dialects.cesql import parser as t
from headgate.filter.dialects.cesql.parser import parse
from headgate.filter.dialects.cesql.to_cel import cesql
from headgate.filter.tools.advice import advice
from headgate_api.event.model import Event
from headgate_api.limits import FILTER_CANONICAL_CHARACTERS_MAX, FILTER_CHARACTERS_MAX
from tests.filter.cesql_oracle import CesqlError, Value, value_of
from tests.filter.reference.rows import row_verdicts
from tests.support import examples


@pytest.mark.parametrize(
    ("text", "cel"),
    [
        ("type = 'x'", 'ce.type == "x"'),
        ("TYPE <> 'x'", 'ce.type != "x"'),
        ("tenant = 'acme'", 'ce.tenant == "acme"'),
        ("tenant != 'acme'", 'ce.tenant != "acme"'),
        ("tenant = '5'", 'ce.tenant in ["5", 5]'),
        ("tenant = '05'", 'ce.tenant == "05"'),
        ("tenant = 'true'", 'ce.tenant in ["true", true]'),
        ("EXISTS tenant", "has(ce.tenant)"),
        ("NOT EXISTS tenant", "!has(ce.tenant)"),
        ("EXISTS id", "true"),
        ("source IN ('a', 'b')", 'ce.source in ["a", "b"]'),
        ("tenant IN ('a', 'b')", 'ce.tenant in ["a", "b"]'),
        ("tenant NOT IN ('a', 'b')", 'ce.tenant >= "" && !(ce.tenant in ["a", "b"])'),
        ("tenant IN (1, 'x')", 'ce.tenant in ["1", "x", 1, true]'),
        ("type LIKE 'a.%'", 'ce.type.startsWith("a.")'),
        ("type LIKE '%.a'", 'ce.type.endsWith(".a")'),
        ("type LIKE '%a%'", 'ce.type.contains("a")'),
        ("type LIKE 'a%b'", 'ce.type.startsWith("a") && ce.type.endsWith("b")'),
        ("type LIKE 'a'", 'ce.type == "a"'),
        ("type LIKE 'a\\%b\\_c\\d'", 'ce.type == "a%b_c\\\\d"'),
        ("type LIKE 'a_c'", 'ce.type.matches("^a(?s:.)c$")'),
        ("type NOT LIKE 'a.%'", '!ce.type.startsWith("a.")'),
        ("tenant LIKE 'a.%'", 'ce.tenant.startsWith("a.")'),
        ("tenant LIKE '5%'", 'string(ce.tenant).startsWith("5")'),
        ("tenant NOT LIKE 'a.%'", '!string(ce.tenant).startsWith("a.")'),
        ("prio > 5", "cesql.int(ce.prio) > 5"),
        ("prio = 5", "cesql.int(ce.prio) == 5"),
        ("INT(hop) < INT(ttl)", "cesql.int(ce.hop) < cesql.int(ce.ttl)"),
        ("flag = TRUE", "cesql.bool(ce.flag)"),
        ("flag", "ce.flag"),
        ("LOWER(type) = 'abc'", 'ce.type.lowerAscii() == "abc"'),
        ("LOWER(tenant) = 'abc'", 'ce.tenant.lowerAscii() == "abc"'),
        ("LOWER(tenant) != 'abc'", 'string(ce.tenant).lowerAscii() != "abc"'),
        ("LOWER(type) = 'kafka'", 'cesql.lower(ce.type) == "kafka"'),
        ("UPPER(type) = 'EU'", 'ce.type.upperAscii() == "EU"'),
        ("UPPER(tenant) IN ('EU', 'UA')", 'ce.tenant.upperAscii() in ["EU", "UA"]'),
        ("UPPER(type) = 'US'", 'cesql.upper(ce.type) == "US"'),
        ("SUBSTRING(subject, 1, 4) = 'item'", 'ce.subject.startsWith("item")'),
        ("SUBSTRING(subject, 1, 4) != 'item'", 'cesql.substring(ce.subject, 1, 4) != "item"'),
        ("EXISTS a XOR EXISTS b", "has(ce.a) ? !has(ce.b) : has(ce.b)"),
        ("LENGTH(subject) > 3", "size(ce.subject) > 3"),
        ("LEFT(type, 3) = 'abc'", 'ce.type.startsWith("abc")'),
        ("RIGHT(tenant, 3) = 'abc'", 'ce.tenant.endsWith("abc")'),
        ("RIGHT(tenant, 3) != 'abc'", '!string(ce.tenant).endsWith("abc")'),
        ("LEFT(tenant, 2) = 'tr'", 'string(ce.tenant).startsWith("tr")'),
        ("LEFT(type, 4) = 'abc'", 'cesql.left(ce.type, 4) == "abc"'),
        ("time = '2026-01-31T12:00:00Z'", 'ce["@time"] == "2026-01-31T12:00:00Z"'),
        ("time LIKE '2026-%'", 'ce["@time"].startsWith("2026-")'),
        ("EXISTS time AND LENGTH(time) = 25", 'has(ce.time) && size(ce["@time"]) == 25'),
        ("type = 'x' OR type = 'y'", 'ce.type == "x" || ce.type == "y"'),
        ("tenant = 'x' OR tenant = 'y'", 'ce.tenant == "x" || ce.tenant == "y"'),
        ("type = 'x' OR tenant = 'y'", 'ce.type == "x" || ce.tenant == "y"'),
        # An error on the left spoils an OR: it must not be `||`.
        ("tenant = 'y' OR type = 'x'", 'ce.tenant == "y" ? true : ce.type == "x"'),
        ("tenant = 'y' AND type = 'x'", 'ce.tenant == "y" && ce.type == "x"'),
        ("NOT (tenant = 'y' AND type = 'x')", 'ce.tenant == "y" ? ce.type != "x" : true'),
        ("NOT (tenant = 'y' OR type = 'x')", 'ce.tenant != "y" && ce.type != "x"'),
        (
            "type = 'x' AND subject LIKE 'a%' AND prio > 5",
            'ce.type == "x" && ce.subject.startsWith("a") && cesql.int(ce.prio) > 5',
        ),
        ("type = 'a' AND id = 'b' OR source = 'c'", 'ce.type == "a" && ce.id == "b" || ce.source == "c"'),
        ("type = 'a' OR id = 'b' AND source = 'c'", '(ce.type == "a" || ce.id == "b") && ce.source == "c"'),
        ("a = b", "cesql.equal(ce.a, ce.b)"),
        ("n + 5 > 10", "cesql.int(cesql.int(ce.n) + 5) > 10"),
        ("4 * (2 + 4) / 2 = 12", "4 * (2 + 4) / 2 == 12"),
        ("4-1 = 3", "4 - 1 == 3"),
        ("type = 'it\\'s' AND id = \"a'b\"", 'ce.type == "it\'s" && ce.id == "a\'b"'),
    ],
)
def test_becomes_cel(text: str, cel: str) -> None:
    assert cesql(text, "filter.cesql") == cel


@pytest.mark.parametrize(
    "text",
    [
        "type = 'x'",
        "tenant = 'x' AND source LIKE '/a%'",
        "tenant IN ('a', 'b') AND EXISTS subject",
        "type = 'x' OR type = 'y' OR tenant = 'z'",
        "tenant = 'y' OR type = 'x'",
        "type = 'x' AND tenant NOT IN ('a', 'b')",
        "LOWER(tenant) = 'acme'",
        "tenant LIKE '5%'",
        "prio = 5",
        "type = 'x' AND prio > 5 AND prio + 1 <= 9",
        "flag = TRUE AND type = 'x'",
        "NOT flag AND type = 'x'",
        "type LIKE 'order.v_'",
        "type LIKE 'order.%__' AND subject LIKE '_%'",
        "type = 'a' AND (EXISTS region XOR EXISTS zone)",
        "LEFT(type, 6) = 'order.' AND tenant IN ('a', 'b', '5')",
        "firstname = 'F' AND lastname = 'G' OR subject = 'F G'",
        "(id = 'a' AND type LIKE '%.success') OR (id = 'b' AND source LIKE 'http://%' AND type LIKE '%.warning')",
    ],
)
def test_common_filters_are_decided_by_an_index(text: str) -> None:
    compiled = compile_filter({"cesql": text})
    assert compiled.notes == ()
    assert all(row.signature.key for row in compiled.rows)


@pytest.mark.parametrize(
    ("text", "position", "reason", "hint"),
    [
        ("", 0, "is empty", "leave the filter out"),
        ("type == 'x'", 6, "a name, a value", "one ="),
        ("type = 'x", 7, "unexpected", "closing quote"),
        ("type = 'a''b'", 10, "should end here", "\\'"),
        ("type = 'x' && id = 'y'", 11, "unexpected", "AND"),
        ("data.amount > 5", 4, "unexpected", "`expression`"),
        ("data = 'x'", 0, "does not see the data", "`expression`"),
        ("type LIKE 5", 10, "a string should follow LIKE", "literal"),
        ("type LIKE id", 10, "a string should follow LIKE", "literal"),
        ("type IN ()", 8, "the list is empty", "at least one"),
        ("type IN 'x'", 8, "a list in parentheses", ""),
        ("type NOT 'x'", 9, "LIKE or IN should follow NOT", ""),
        ("ABC(", 4, "ends too early", ""),
        ("NOSUCH(type) = 'x'", 0, "there is no function NOSUCH", "one of: LENGTH"),
        ("LEFT(type) = 'x'", 0, "LEFT takes 2 arguments, not 1", ""),
        ("CONCAT_WS() = 'x'", 0, "CONCAT_WS takes 1 or more arguments, not 0", ""),
        ("SUBSTRING(type) = 'x'", 0, "SUBSTRING takes 2 arguments or 3 arguments", ""),
        ("prio > 2147483648", 7, "32 bits", ""),
        ("prio > -2147483649", 7, "32 bits", ""),
        ("(type = 'x'", 11, "ends too early", ""),
        ("type = 'x')", 10, "should end here", ""),
        ("my_ext = 'x'", 0, "no name of an attribute", ""),
        ("EXISTS (type)", 7, "the name of an attribute", ""),
        ("NOT type = 'x'", 0, "NOT binds tighter", "NOT (type"),
        ("NOT subject LIKE 'x%'", 0, "NOT binds tighter", "NOT (subject"),
        ("NOT tenant IN ('a', 'b')", 0, "NOT binds tighter", "NOT (tenant"),
        ("type", None, "this expression is of type String", "compare"),
        ("LENGTH(type) + 1", None, "this expression is of type Integer", "compare"),
        ("type = 'a\0b'", 9, "NUL", ""),
        ("type = '\ud800'", 8, "surrogate", ""),
        ("type = ‘x’", 7, "unexpected", ""),
    ],
)
def test_refuses_with_place_and_hint(text: str, position: int | None, reason: str, hint: str) -> None:
    with pytest.raises(FilterError) as refused:
        cesql(text, "filters[1].cesql")
    error = refused.value
    assert (error.field, error.position) == ("filters[1].cesql", position)
    assert reason in error.reason
    assert hint in error.hint
    if position is not None:
        assert error.caret.splitlines()[-1] == " " * position + "^"


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("(" * 8_000 + "TRUE" + ")" * 8_000, "FILTER_DEPTH_MAX"),
        ("NOT " * 4_000 + "TRUE", "FILTER_DEPTH_MAX"),
        ("-" * 16_000 + "1 = 1", "FILTER_DEPTH_MAX"),
        ("1" + " + 1" * 4_000 + " = 1", "FILTER_DEPTH_MAX"),
        ("TRUE" + " AND TRUE OR TRUE" * 900, "FILTER_DEPTH_MAX"),
        ("ABS(" * 4_000, "FILTER_DEPTH_MAX"),
        ("type IN (" + ",".join(["1"] * 1_001) + ")", "FILTER_LIST_ITEMS_MAX"),
        ("CONCAT(" + ",".join(["1"] * 1_001) + ") = 'x'", "FILTER_LIST_ITEMS_MAX"),
        ("type = '" + "x" * FILTER_CHARACTERS_MAX + "'", "FILTER_CHARACTERS_MAX"),
        ("a = 'x' OR b = 'y' OR " * 40 + "c = 'z'", "FILTER_DEPTH_MAX"),
        (" OR ".join(f"a{n} = 't'" for n in range(500)), "FILTER_DEPTH_MAX"),
        (" OR ".join(f"a{n} = 't'" for n in range(1_000)), "FILTER_TOKENS_MAX"),
        ("(" * 12 + "x" + " IN (y, z, w, v))" * 12, "FILTER_NODES_MAX"),
        ("x IN (" + ",".join(["y"] * 900) + ")", "FILTER_DEPTH_MAX"),
        ("type LIKE '" + "%_a" * 5_000 + "'", "FILTER_CHARACTERS_MAX"),
        ("type LIKE '" + "%a" * 450 + "'", "FILTER_REGEX_CHARACTERS_MAX"),
    ],
)
def test_limits_are_named(text: str, limit: str) -> None:
    with pytest.raises(FilterError) as refused:
        compile_filter({"cesql": text})
    assert refused.value.limit == limit
    assert refused.value.field == "filter.cesql"


def test_what_the_limits_allow_compiles() -> None:
    assert compile_filter({"cesql": " OR ".join(f"tenant = 't{n}'" for n in range(240))})
    assert compile_filter({"cesql": " AND ".join(f"type != 't{n}'" for n in range(240))})
    assert compile_filter({"cesql": "type IN (" + ",".join(f"'t{n}'" for n in range(1_000)) + ")"})


# --- the meaning, against the specification read literally -----------------------------------------

TEXTS = ["", "a", "abc", "5", "05", "-3", "+3", "0", "true", "TRUE", "False", "2147483648", " 5", "1_0", "a%b", "\\"]
OTHERS = ["ak\u212a", "\u0130", "ss\u00df", "\u0661", "-2147483648", "x\n"]
values = st.sampled_from([*TEXTS, *OTHERS, 0, 1, 5, -1, 2**31 - 1, -(2**31), True, False])
constants = st.sampled_from([*TEXTS, 0, 1, 5, -1, 2**31 - 1, -(2**31), True, False])
names = st.sampled_from(["type", "subject", "a", "b"])
patterns = st.lists(st.sampled_from(["%", "_", "a", "5", "true", "\\%", "\\_", "\\", "b"]), max_size=4).map("".join)


def nodes(inner: st.SearchStrategy[t.Tree]) -> st.SearchStrategy[t.Tree]:
    at = st.just(0)
    lists = st.lists(inner, min_size=1, max_size=3).map(tuple)
    return st.one_of(
        st.builds(t.Not, inner, at),
        st.builds(t.Minus, inner, at),
        st.builds(t.Arithmetic, st.sampled_from(list("+-*/%")), inner, inner, at),
        st.builds(t.Comparison, st.sampled_from(["=", "!=", "<", "<=", ">", ">="]), inner, inner, at),
        usual,
        usual,
        st.builds(
            t.Logic, st.sampled_from(["AND", "OR", "XOR"]), st.lists(inner, min_size=2, max_size=3).map(tuple), at
        ),
        st.builds(t.Like, inner, patterns, at),
        st.builds(t.OneOf, inner, lists, at),
        st.builds(
            lambda name, one: t.Invocation(name, (one,), 0),
            st.sampled_from(["LENGTH", "LOWER", "UPPER", "ABS", "INT", "BOOL", "STRING", "IS_INT", "IS_BOOL"]),
            inner,
        ),
        st.builds(lambda name, x, y: t.Invocation(name, (x, y), 0), st.sampled_from(["LEFT", "RIGHT"]), inner, inner),
        st.builds(lambda x, y, z: t.Invocation("SUBSTRING", (x, y, z), 0), inner, inner, inner),
        st.builds(lambda x: t.Invocation("CONCAT", x, 0), lists),
        st.builds(lambda x: t.Invocation("CONCAT_WS", x, 0), lists),
    )


literals: st.SearchStrategy[t.Tree] = st.builds(t.Constant, constants, st.just(0))
leaves: st.SearchStrategy[t.Tree] = st.one_of(
    literals, st.builds(t.Attribute, names, st.just(0)), st.builds(t.Exists, names, st.just(0))
)
extensions: st.SearchStrategy[t.Tree] = st.builds(t.Attribute, st.sampled_from(["a", "b"]), st.just(0))
usual: st.SearchStrategy[t.Tree] = st.one_of(
    st.builds(t.Comparison, st.sampled_from(["=", "!=", "<"]), extensions, literals, st.just(0)),
    st.builds(t.Like, extensions, patterns, st.just(0)),
    st.builds(t.OneOf, extensions, st.lists(literals, min_size=1, max_size=3).map(tuple), st.just(0)),
)
trees = st.recursive(st.one_of(leaves, usual), nodes, max_leaves=8)
events = st.fixed_dictionaries(
    {"type": st.sampled_from([*TEXTS[1:], *OTHERS])},
    optional={"subject": st.sampled_from(TEXTS[1:]), "a": values, "b": values},
)


def written(tree: t.Tree) -> str:
    """The tree as text, with all parentheses."""
    match tree:
        case t.Constant(str(value)):
            return "'" + value.replace("'", "\\'") + "'" if not value.endswith("\\") else "CONCAT('\\\\')"
        case t.Constant(value):
            return str(value)
        case t.Attribute(name):
            return name
        case t.Exists(name):
            return f"(EXISTS {name})"
        case t.Not(operand):
            return f"(NOT ({written(operand)}))"
        case t.Minus(operand):
            return f"(-({written(operand)}))"
        case t.Arithmetic(operator, left, right) | t.Comparison(operator, left, right):
            return f"(({written(left)}) {operator} ({written(right)}))"
        case t.Logic(operator, operands):
            return "(" + f" {operator} ".join(f"({written(one)})" for one in operands) + ")"
        case t.Like(operand, pattern):
            return f"(({written(operand)}) LIKE '{pattern}')"
        case t.OneOf(operand, items):
            return f"(({written(operand)}) IN ({', '.join(map(written, items))}))"
        case t.Invocation(name, arguments):
            return f"{name}({', '.join(map(written, arguments))})"


def event_of(attributes: dict[str, Value]) -> Event:
    extensions = {name: value for name, value in attributes.items() if name in {"a", "b"}}
    subject = attributes.get("subject")
    assert subject is None or isinstance(subject, str)
    return Event("1.0", id="1", source="/", type=str(attributes["type"]), subject=subject, extensions=extensions)


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("time = '2018-04-26T14:48:09+02:00'", OutcomeKind.TRUE),
        ("time = '2018-04-26T12:48:09Z'", OutcomeKind.FALSE),
        ("time LIKE '%+02:00' AND LENGTH(time) = 25 AND EXISTS time", OutcomeKind.TRUE),
        ("UPPER(time) = '2018-04-26T14:48:09+02:00' AND time IN ('x', '2018-04-26T14:48:09+02:00')", OutcomeKind.TRUE),
    ],
)
def test_a_time_keeps_its_text(text: str, outcome: OutcomeKind) -> None:
    sent = Event("1.0", "1", "/", "t", time="2018-04-26T14:48:09+02:00")
    compiled = compile_filter({"cesql": text})
    assert program(compiled.cel).evaluate(sent).kind is outcome
    assert row_verdicts(compiled, EventView(sent)) in ((Verdict.MATCH, Verdict.CANDIDATE) if outcome else (None,))
    assert program(compiled.cel).evaluate(Event("1.0", "1", "/", "t")).kind is not OutcomeKind.TRUE


@settings(max_examples=examples(500))
@given(trees, events)
@example(parse("NOT (a = 'x' AND FALSE)"), {"type": "a"})
@example(parse("a = 'x' OR TRUE"), {"type": "a"})
@example(parse("NOT (a IN ('x') AND type = 'y')"), {"type": "a", "a": 5})
@example(parse("LOWER(type) LIKE 'ak%'"), {"type": "ak\u212a"})
@example(parse("NOT (a LIKE 'x%')"), {"type": "a", "a": 5})
def test_means_what_the_specification_says(tree: t.Tree, attributes: dict[str, Value]) -> None:
    text = written(tree)
    if text.endswith("\\'") or "\\')" in text:
        return  # a pattern that ends in a backslash cannot be written
    found = translate(text)
    view = EventView(event_of(attributes))
    value: Value | None
    try:
        value = value_of(parse(text), attributes)
        literal = string_literal(value) if isinstance(value, str) else json.dumps(value)
        asked = f"[dyn({found.exact})].all(v, type(v) == type({literal}) && v == {literal})"
        wanted = OutcomeKind.TRUE
    except CesqlError:
        value, asked, wanted = None, f"[dyn({found.exact})] == []", OutcomeKind.ERROR
    said = compile_expression(asked, characters_max=FILTER_CANONICAL_CHARACTERS_MAX).evaluate(view.activation)
    assert said.kind is wanted, (text, found.exact, value)
    if found.type in {"Boolean", "Any"}:
        outcome = program(found.cel).evaluate_view(view).kind
        assert (outcome is OutcomeKind.TRUE) == (value is True), (text, found.cel, value)
        compiled = compile_cel(found.cel)
        assert program(compiled.cel).evaluate_view(view).kind is outcome
        holds(compiled, view, outcome)


def holds(compiled: CompiledFilter, view: EventView, outcome: OutcomeKind) -> None:
    """The rows say no more than cel-cpp, and find whatever it wants."""
    verdict = row_verdicts(compiled, view)
    assert verdict is not Verdict.MATCH or outcome is OutcomeKind.TRUE, compiled
    assert verdict is not Verdict.ERROR or outcome is OutcomeKind.ERROR, compiled
    assert outcome is not OutcomeKind.TRUE or verdict in {Verdict.MATCH, Verdict.CANDIDATE}, compiled


@pytest.mark.parametrize(
    "pattern", ["a_", "_a", "a_a", "a__%", "%_", "_", "aba%ba", "ab%ba", "a%_%a", "a.%_b\\%", "_%_"]
)
def test_wildcards_count_characters(pattern: str) -> None:
    texts = [
        "",
        "a",
        "b",
        "aa",
        "aba",
        "abba",
        "ababa",
        "a\na",
        "a\U0001d4b3",
        "a\u0301",
        "\n",
        "a.b%",
        "a.xb%",
        "a.xyb",
    ]
    for text in (f"a LIKE '{pattern}'", f"a NOT LIKE '{pattern}'"):
        compiled = compile_filter({"cesql": text})
        for value in [*texts, 5, 42, True]:
            view = EventView(event_of({"type": "x", "a": value}))
            outcome = program(compiled.cel).evaluate_view(view).kind
            assert (outcome is OutcomeKind.TRUE) == value_of(parse(text), {"type": "x", "a": value}), (text, value)
            holds(compiled, view, outcome)


def test_what_becomes_ascii_in_another_case() -> None:
    others = [chr(code) for code in range(128, 0x110000) if not 0xD800 <= code < 0xE000]
    lower = {low for one in others if (low := one.lower())[0].isascii()}
    assert lower == {"k", "i\u0307"}
    upper = {up for one in others if (up := one.upper()).isascii()}
    assert all(set(up) & {"F", "I", "S"} for up in upper)


@pytest.mark.parametrize("operator", ["=", "!=", "<", "<=", ">", ">="])
@pytest.mark.parametrize("limit", [-(2**31), -1, 0, 5, 2**31 - 1])
def test_casts_of_an_extension_are_seen_through_exactly(operator: str, limit: int) -> None:
    texts = [f"a {operator} {limit}", f"NOT (a {operator} {limit})", f"a + 5 {operator} {limit}"]
    texts += [f"type = 'x' AND 3 - a {operator} {limit}", f"NOT (a - 5 {operator} {limit})"]
    for text in [*texts, "a = TRUE", "a = FALSE", "a XOR FALSE", "NOT a", "NOT (NOT a)", "NOT (a AND type = 'x')"]:
        compiled = compile_filter({"cesql": text})
        for value in [*TEXTS, *OTHERS, "2147483647", "2147483643", "-0", "00005", "truE", 0, 1, 5, -1, 2**31 - 1, True]:
            view = EventView(event_of({"type": "x", "a": value}))
            holds(compiled, view, program(compiled.cel).evaluate_view(view).kind)
        view = EventView(event_of({"type": "x"}))
        holds(compiled, view, program(compiled.cel).evaluate_view(view).kind)


words = st.sampled_from(
    [
        *("type", "a", "'x'", '"y"', "5", "-", "+", "(", ")", ",", "=", "<>", "!=", "<", "*", "/", "%", "NOT", "AND"),
        *("OR", "XOR", "LIKE", "IN", "EXISTS", "TRUE", "LOWER", "LEFT", "INT", "(", ")", "'", "data", "\0", "é", "_"),
    ]
)


@given(st.one_of(st.text(max_size=60), st.lists(words, max_size=25).map(" ".join)))
def test_any_text_is_a_filter_or_refused(text: str) -> None:
    try:
        cel = cesql(text, "filter.cesql")
    except FilterError as refused:
        error = refused
    else:
        assert compile_expression(cel, characters_max=FILTER_CANONICAL_CHARACTERS_MAX)
        return
    assert error.field == "filter.cesql"
    assert error.position is None or 0 <= error.position <= len(text)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("type = 'a' OR type = 'b' AND source = 'c'", True),
        ("TRUE AND TRUE XOR TRUE", True),
        ("NOT (type = 'a' or type = 'b' and TRUE)", True),
        ("INT(ABS(1)) = 1 AND (type = 'a' OR type = 'b')", False),
        ("type = 'a' AND type IN ('AND', 'OR') AND subject LIKE 'x OR y'", False),
        ("(type = 'a' OR TRUE) AND (type = 'b' XOR TRUE)", False),
    ],
)
def test_advice_names_the_engines_that_group_mixed_operators_from_the_right(text: str, named: bool) -> None:
    for filters in ([{"cesql": text}], [{"all": [{"not": {"cesql": text}}]}]):
        found = [one for one in advice(None, filters) if one.reason == "EnginesDiffer"]
        assert bool(found) is named
        assert all("Go and Java" in one.message and ".cesql: " in one.message for one in found)
