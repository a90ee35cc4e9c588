r"""`match(pattern)` of CEL means what a shell's pattern means, whole and across `/`, and the matcher decides it."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headgate.filter.cel.errors import FilterError
from headgate.filter.cel.evaluate import EventView, OutcomeKind, program
from headgate.filter.cel.unparse import string_literal
from headgate.filter.compile.compiler import compile_cel, compile_filter
from headgate.filter.compile.plan import Verdict
from headgate.filter.skipping.prune import pruning
from headgate_api.event.model import DataKind, Event
from tests.filter.reference.rows import row_verdicts

TEXTS = st.text(alphabet="ab/\n.\\*?é😀", max_size=8)
PIECES = ["*", "?", "\\*", "\\?", "\\\\", "\\a", "a", "b", "/", ".", "é", "\n"]
PATTERNS = st.lists(st.sampled_from(PIECES)).map("".join)


def matches(pattern: str, text: str) -> bool:
    """The oracle: one piece of the pattern after the other."""
    if not pattern:
        return not text
    head, rest = pattern[0], pattern[1:]
    if head == "*":
        return any(matches(rest, text[start:]) for start in range(len(text) + 1))
    if head == "\\":
        head, rest = rest[0], rest[1:]
        return text[:1] == head and matches(rest, text[1:])
    return bool(text) and head in ("?", text[0]) and matches(rest, text[1:])


def of_data(value: object) -> Event:
    return Event("1.0", "1", "/s", "t", data_kind=DataKind.JSON, data=json.dumps({"x": value}).encode())


@given(pattern=PATTERNS, text=TEXTS)
@example(pattern="a*a", text="a")
@example(pattern="*a*", text="/\na\n")
@example(pattern="?", text="😀")
@example(pattern="\\*", text="a")
def test_says_what_the_oracle_says(pattern: str, text: str) -> None:
    wanted = OutcomeKind.TRUE if matches(pattern, text) else OutcomeKind.FALSE
    filters = f"data.x.match({string_literal(pattern)})", f"!data.x.match({string_literal(pattern)})"
    view = EventView(of_data(text))
    for written, expected in zip(filters, (wanted, OutcomeKind(1 - wanted)), strict=True):
        compiled = compile_cel(written)
        assert program(written).evaluate_view(view).kind is expected
        assert program(compiled.cel).evaluate_view(view).kind is expected
        said = row_verdicts(compiled, view)
        assert said in ((Verdict.MATCH, Verdict.CANDIDATE) if expected else (None, Verdict.CANDIDATE))


@pytest.mark.parametrize(
    ("pattern", "cel"),
    [
        ("https://github.com*", 'ce.source.startsWith("https://github.com")'),
        ("*.git", 'ce.source.endsWith(".git")'),
        ("*github*", 'ce.source.contains("github")'),
        ("**github**", 'ce.source.contains("github")'),
        ("https://*.git", 'ce.source.startsWith("https://") && ce.source.endsWith(".git")'),
        ("/shop/?", 'ce.source.matches("^/shop/(?s:.)$")'),
        ("/shop", 'ce.source.matches("^/shop$")'),
        (r"/a\*b\\", r'ce.source.matches("^/a\\*b\\\\$")'),
        ("[ab]", r'ce.source.matches("^\\[ab\\]$")'),
    ],
)
def test_the_matcher_decides_it_exactly(pattern: str, cel: str) -> None:
    compiled = compile_cel(f"ce.source.match({string_literal(pattern)})")
    assert compiled.cel == cel
    assert all(row.signature.exact for row in compiled.rows)


def test_a_pattern_without_wildcards_lets_reading_skip() -> None:
    assert pruning('ce.type.match("order.paid")') == pruning('ce.type == "order.paid"')


@pytest.mark.parametrize("call", ['match("5")', 'match("*")', 'match("a*b")'])
@pytest.mark.parametrize("sign", ["", "!"])
def test_what_is_no_string_is_an_error(call: str, sign: str) -> None:
    text = f"{sign}data.x.{call}"
    view = EventView(of_data(5))
    assert program(text).evaluate_view(view).kind is OutcomeKind.ERROR
    assert row_verdicts(compile_cel(text), view) in (None, Verdict.CANDIDATE, Verdict.ERROR)


def test_works_wherever_a_string_stands() -> None:
    for text in (
        'data.l.exists(i, i.match("a?c"))',
        '(data.x + "c").match("ab*")',
        'data.x == "ab" ? ce.source.match("/*") : false',
    ):
        event = Event("1.0", "1", "/s", "t", data_kind=DataKind.JSON, data=b'{"l": ["abc"], "x": "ab"}')
        assert program(compile_cel(text).cel).evaluate(event).kind is OutcomeKind.TRUE, text


@pytest.mark.parametrize(
    ("text", "reason", "position"),
    [
        ('data.n == 1 && ce.source.match("a\\\\")', "the pattern of match() ends with a lone backslash", 30),
        ("ce.source.match(ce.subject)", "match() needs a constant pattern", 15),
        ("ce.source.match(5)", "the function match does not take a value and an int", 15),
    ],
)
def test_a_pattern_that_says_nothing_is_refused(text: str, reason: str, position: int) -> None:
    with pytest.raises(FilterError) as refused:
        compile_filter({"cel": text})
    assert refused.value.reason == reason
    assert refused.value.position == position
    assert refused.value.caret.splitlines()[1].index("^") == position
    assert refused.value.hint


def test_a_nest_of_patterns_stays_small() -> None:
    text = "ce.source"
    for _ in range(9):
        text = f'({text}.match("a*b") ? "a" : "b")'
    assert len(compile_cel(f'{text} == "a"').cel) < 4 * len(text)
