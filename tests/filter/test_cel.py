"""The engine's traps stay inside the wrapper, and a fault in an expression is told with its place."""

from __future__ import annotations

import gc

import pytest

from headgate.filter.cel.engine import Activation, OutcomeKind, compile_expression, is_regular_expression, timestamp
from headgate.filter.cel.errors import FilterError
from headgate.filter.compile.compiler import compile_cel
from headgate_api.limits import FILTER_CHARACTERS_MAX


def evaluate(text: str, data: object = None, **ce: object) -> tuple[OutcomeKind, str]:
    outcome = compile_expression(text).evaluate(Activation({"ce": ce, "data": data}))
    return outcome.kind, outcome.message


def test_a_null_result_is_an_error_and_breaks_nothing() -> None:
    expression = compile_expression("data.x")
    view = Activation({"ce": {}, "data": {"x": None}})
    for _ in range(10_000):
        assert expression.evaluate(view).kind is OutcomeKind.ERROR
    gc.collect()
    assert repr(None) == "None"


@pytest.mark.parametrize(
    ("value", "kind"), [("a", "string"), (1, "int"), (2**63, "uint"), (1.5, "double"), ([1], "list"), ({"a": 1}, "map")]
)
def test_what_is_no_boolean_is_an_error(value: object, kind: str) -> None:
    outcome, message = evaluate("data", value)
    assert outcome is OutcomeKind.ERROR
    assert kind in message


def test_an_exception_of_the_engine_is_an_error() -> None:
    outcome, message = evaluate("data.exists(x, x < 0)", list(range(20_000)))
    assert outcome is OutcomeKind.ERROR
    assert "budget" in message
    assert evaluate("data == 1", object())[0] is OutcomeKind.ERROR
    assert evaluate("data == 1", "\ud800")[0] is OutcomeKind.ERROR


def test_errors_are_absorbed_as_cel_says() -> None:
    assert evaluate("data.x == 1 || true", {})[0] is OutcomeKind.TRUE
    assert evaluate("true || data.x == 1", {})[0] is OutcomeKind.TRUE
    assert evaluate("data.x == 1 && false", {})[0] is OutcomeKind.FALSE
    assert evaluate("data.x == 1 && true", {})[0] is OutcomeKind.ERROR


def test_a_timestamp_lives_in_a_map() -> None:
    assert (
        evaluate("ce.time == timestamp('1970-01-01T00:00:01.000000005Z')", time=timestamp(1, 5))[0] is OutcomeKind.TRUE
    )
    assert evaluate("ce.time == '1970-01-01T00:00:01Z'", time=timestamp(1, 0))[0] is OutcomeKind.FALSE
    assert evaluate("ce.time < '2000'", time=timestamp(1, 0))[0] is OutcomeKind.ERROR


@pytest.mark.parametrize(
    ("left", "operator", "right", "expected"),
    [
        # As soon as one side is a double, both are compared as doubles; integers of any kind are compared exactly.
        (2**53 + 1, "==", 2.0**53, True),
        (2**53 + 1, ">", 2.0**53, False),
        (2**53 + 2, ">", 2.0**53, True),
        (2**63 - 1, "==", 2.0**63, True),
        (2**63, "==", 2**63 - 1, False),
        (2**63, ">", -1, True),
        (2**64 - 1, "==", 2.0**64, True),
        (1, "==", 1.0, True),
        (0.0, "==", -0.0, True),
        (1, "==", "1", False),
        (1, "==", True, False),
        (None, "==", False, False),
    ],
)
def test_numbers_compare_across_types(left: object, operator: str, right: object, expected: bool) -> None:
    outcome, _ = evaluate(f"data.l {operator} data.r", {"l": left, "r": right})
    assert outcome is (OutcomeKind.TRUE if expected else OutcomeKind.FALSE)


@pytest.mark.parametrize(
    ("text", "position", "hint"),
    [
        ("ce.type = 'a'", 8, "=="),
        ("ce.type and true", 8, "&&"),
        ("ce.x or ce.y", 5, "||"),
        ("ce.x & ce.y", 5, "&&"),
        ("type == 'a'", 5, "ce.type"),
        ("amount > 1", 0, "data.<path>"),
        ("data.null == 1", 5, 'data["null"]'),
        ("1 == 'a'", 2, "dyn"),
        ("has(ce)", 4, "has("),
        ("true &&\n  data.x == = 1", 20, "=="),
        ("data.x == 99999999999999999999", 10, "64 bits"),
        ("é😀 == 1", 0, ""),
    ],
)
def test_a_fault_is_told_with_its_place(text: str, position: int, hint: str) -> None:
    with pytest.raises(FilterError) as refused:
        compile_expression(text)
    error = refused.value
    assert error.position == position
    assert hint in error.hint
    line, caret = error.caret.split("\n")
    assert line[len(caret) - 1 :].split("\n")[0] == text[position:].split("\n")[0]
    assert "<input>" not in error.message
    assert "INVALID_ARGUMENT" not in error.message


def test_the_caret_of_a_long_line_stays_short() -> None:
    text = "data.x == 1 && " * 200 + "data.x = 1"
    with pytest.raises(FilterError) as refused:
        compile_expression(text)
    assert refused.value.position == len(text) - 3
    line, caret = refused.value.caret.split("\n")
    assert len(line) <= 100
    assert line[len(caret) - 1] == "="


@pytest.mark.parametrize("text", ["", " ", "true\0", "data.x == 'a\ud800'", "\0"])
def test_refuses_text_that_the_engine_would_misread(text: str) -> None:
    with pytest.raises(FilterError):
        compile_expression(text)


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("(" * 40 + "data.x", "FILTER_DEPTH_MAX"),
        ("(1 + " * 40 + "data.x" + ")" * 40, "FILTER_DEPTH_MAX"),
        ("data" + ".a" * 100 + " == 1", "FILTER_DEPTH_MAX"),
        ("[" * 1_000, "FILTER_DEPTH_MAX"),
        ("data.x" + " " * FILTER_CHARACTERS_MAX, "FILTER_CHARACTERS_MAX"),
    ],
)
def test_refuses_what_is_over_a_limit(text: str, limit: str) -> None:
    with pytest.raises(FilterError) as refused:
        compile_expression(text)
    assert refused.value.limit == limit
    assert limit in refused.value.message


@pytest.mark.parametrize("depth", [2, 32, 1_000])
@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("ce.type == 'a' && {}", "ce.type == 'a' && data.x"),
        ("has(data.x) && !{} || data.y", "has(data.x) && !data.x || data.y"),
        ("data.l.exists({}, x == 1)".replace("{}", "x") + " && {}", "data.l.exists(x, x == 1) && data.x"),
        ("size({}) == 1", "size(data.x) == 1"),
        ("'((' == {} // ))", "'((' == data.x"),
    ],
)
def test_parentheses_in_parentheses_say_nothing(text: str, same: str, depth: int) -> None:
    for opening, closing in (("(", ")"), ("( ", "\n)")):
        written = text.replace("{}", opening * depth + "data.x" + closing * depth)
        assert compile_expression(written).tree() == compile_expression(same).tree()


def test_parentheses_keep_what_they_group_and_where_it_stands() -> None:
    text = "((data.a || data.b)) && (((data.c) || (data.d)))"
    flat = "(data.a || data.b) && (data.c || data.d)"
    assert compile_expression(text).tree() == compile_expression(flat).tree()
    for wrong in ("((data.a)", "(data.a))", "((data.a) && 5))", "((data.a) =  5)", "'((' + ((5))"):
        with pytest.raises(FilterError) as refused:
            compile_expression(wrong)
        assert refused.value.caret.splitlines()[0] == wrong


def test_knows_regular_expressions() -> None:
    assert is_regular_expression("^a.*b$")
    assert not is_regular_expression("(")
    assert not is_regular_expression("a(?=b)")
    assert not is_regular_expression("((a{100}){100}){100}")


@pytest.mark.parametrize(
    ("text", "reason", "hint"),
    [
        ("ce.type = 'a'", "unexpected '='", "=="),
        ("ce.type == 'a' andd", "unexpected 'andd'", ""),
        ("ce.type ==", "ends too early", ""),
        ("(ce.type == 'a'", "')' is missing at the end", ""),
        ("ce.type == 'a", "no closing quote", ""),
        ("ce.type in ('a', 'b')", "')' should stand here", ""),
        ("data.items[*].x == 1", "unexpected '*'", ""),
        ("ce.type.lower() == 'a'", "no function lower", "lowerAscii"),
        ("ce.type.startswith('a')", "no function startswith", "startsWith"),
        ("size(ce.type, 1) > 1", "size does not take", "number"),
        ("typ == 'a'", "no name typ", "did you mean ce.type?"),
    ],
)
def test_refusals_are_in_plain_words(text: str, reason: str, hint: str) -> None:
    with pytest.raises(FilterError) as refused:
        compile_expression(text)
    assert reason in refused.value.message
    assert hint in refused.value.hint
    for word in ("recognition", "EOF", "expecting", "container", "IDENTIFIER", "input"):
        assert word not in refused.value.message


@pytest.mark.parametrize(
    "text",
    ['ce.time > timestamp("2026")', 'duration("5") > duration("1s")', 'data.n == int("x")', 'double("x") < data.n'],
)
def test_a_constant_that_can_only_fail_is_refused(text: str) -> None:
    with pytest.raises(FilterError, match="is an error on every event"):
        compile_cel(text)


def test_constants_that_have_a_value_are_taken() -> None:
    compile_cel('ce.time > timestamp("2026-01-01T00:00:00Z") - duration("1h") && data.n == int("5")')
