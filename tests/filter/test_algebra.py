"""What is said of two filters is so for every event: nothing that cel-cpp says differs."""

from __future__ import annotations

import random

import pytest

from headgate.filter.cel.errors import FilterError
from headgate.filter.cel.evaluate import EventView, OutcomeKind, program
from headgate.filter.compile.compiler import compile_cel
from headgate.filter.tools.algebra import Meaning, Relation
from tests.filter.hostile_events import random_event, random_stored_us
from tests.filter.strategies import random_filter, random_hard_filter
from tests.support import times

EQUAL, IMPLIES, IMPLIED, DISJOINT, _, UNKNOWN = Relation


def meaning(text: str) -> Meaning:
    return Meaning(compile_cel(text))


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ('ce.type == "a"', '"a" == ce.type', EQUAL),
        ('ce.type in ["a", "b"]', 'ce.type == "b" || ce.type == "a"', EQUAL),
        ('ce.type == "a" && data.n > 5', 'ce.type == "a"', IMPLIES),
        ('ce.type == "a"', 'ce.type == "a" || data.n > 5', IMPLIES),
        ('ce.type == "order.paid"', 'ce.type.startsWith("order.")', IMPLIES),
        ('ce.type.startsWith("order.pa")', 'ce.type.startsWith("order.")', IMPLIES),
        ('ce.type.endsWith(".paid")', 'ce.type.contains("paid")', IMPLIES),
        ('ce.type == "a"', 'ce.type != "b"', IMPLIES),
        ('ce.tenant.startsWith("x")', 'ce.tenant != "y"', IMPLIES),
        ('ce.tenant == "x"', "has(ce.tenant)", IMPLIES),
        ("data.a.b == 1", "has(data.a)", IMPLIES),
        ("data.n > 5", "data.n >= 5", IMPLIES),
        ("data.n > 5", "data.n > 4.5", IMPLIES),
        ("data.n >= 5 && data.n <= 7", "data.n < 8", IMPLIES),
        ("data.n == 5", "data.n > 4 && data.n < 6", IMPLIES),
        ("data.n > 5", "data.n != 5", IMPLIES),
        ("data.n == 5.0", "data.n == 5", EQUAL),
        ("!(data.n < 5)", "data.n >= 5", EQUAL),
        ('data.s == "Ab"', 'data.s.lowerAscii() == "ab"', IMPLIES),
        ('data.s == "ab"', "size(data.s) == 2", IMPLIES),
        ('data.s.startsWith("a")', "type(data.s) == string", IMPLIES),
        ('ce.type.startsWith("a")', 'ce.type.matches("a.*")', IMPLIES),  # which stands anywhere
        ('ce.type == "a"', 'ce.type == "b"', DISJOINT),
        ('ce.type == "a"', 'ce.type.startsWith("b")', DISJOINT),
        ('ce.type.startsWith("ab")', 'ce.type.startsWith("b")', DISJOINT),
        ('ce.type.endsWith("ab")', 'ce.type.endsWith("b") && ce.type.endsWith("cb")', DISJOINT),
        ("data.n > 5", "data.n < 5", DISJOINT),
        ("data.n > 5", "data.n <= 5.0", DISJOINT),
        ("data.n == 1", 'data.n == "1"', DISJOINT),
        ("data.n > 1", 'data.n.startsWith("1")', DISJOINT),
        ("has(data.a.b)", "!has(data.a)", DISJOINT),
        ('data.s == "A"', 'data.s.lowerAscii() == "b"', DISJOINT),
        # Related, but not for every event, or not in a way that is understood.
        ("data.n > 5", "data.n > 6", IMPLIED),
        ("data.n >= 5", "data.n > 5", IMPLIED),
        ("data.n == 9007199254740993", "data.n == 9007199254740992", UNKNOWN),  # both may equal one double
        ("data.n > 9007199254740993", "data.n > 9007199254740992", UNKNOWN),
        ("data.a == 1", "data.b == 1", UNKNOWN),
        ("data.n != 1", "data.n > 1", IMPLIED),
        ("data.l.exists(x, x == 1)", "data.l.exists(x, x == 2)", UNKNOWN),
        ('ce.type.matches("(ab)+c")', 'ce.type.contains("c")', UNKNOWN),
        # A missing value is an error, and an error is not true.
        ("!has(data.n)", "data.n != 1", DISJOINT),
        ("!(data.n == 1)", "has(data.n)", IMPLIES),
    ],
)
def test_relations(one: str, other: str, expected: Relation) -> None:
    first, second = meaning(one), meaning(other)
    assert first.relation(second) is expected
    mirrored = {IMPLIES: IMPLIED, IMPLIED: IMPLIES}.get(expected, expected)
    assert second.relation(first) is mirrored


@pytest.mark.parametrize(
    ("text", "never", "always"),
    [
        ("true", False, True),
        ("false", True, False),
        ("has(ce.type)", False, True),
        ('ce.type == "a" && ce.type == "b"', True, False),
        ("data.n > 5 && data.n < 5", True, False),
        ('data.n > 5 && data.n == "5"', True, False),
        ('ce.type.startsWith("a") && ce.type == "b"', True, False),
        ("has(data.a) && !has(data.a)", True, False),
        ("data.n == 1 || data.n != 1", False, False),  # an event without n is neither
        ('type(data.n) == int && data.n == "a"', True, False),
    ],
)
def test_of_one_filter(text: str, *, never: bool, always: bool) -> None:
    found = meaning(text)
    assert (found.is_never, found.is_always) == (never, always)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('ce.type == "a" || ce.type == "b"', 0),
        ('ce.type == "a" || (ce.type == "a" && data.n > 1)', 1),
        ('ce.type.startsWith("a") || ce.type in ["ab", "ac", "b"]', 2),
        ("data.n > 1 || data.n > 2 || data.n == 7", 2),
        ("data.n > 5 && data.s == 'a' || data.n > 5 && data.n > 4 && data.s == 'a'", 1),  # each contains the other
    ],
)
def test_alternatives_without_effect(text: str, count: int) -> None:
    assert len(meaning(text).redundant) == count


def test_by_chance_nothing_is_said_that_cel_cpp_does_not_say() -> None:
    rng = random.Random(31)
    views = [EventView(random_event(rng), random_stored_us(rng)) for _ in range(times(150, 400))]
    simple: list[str] = []
    while len(simple) < times(60, 300):
        text = rng.choice([random_filter, random_filter, random_hard_filter])(rng, rng.choice([0, 1, 1, 2]))
        simple += [text] if compiles(text) else []
    joined = [f"({a}) {rng.choice(['&&', '||'])} ({b})" for a, b in (rng.sample(simple, 2) for _ in simple)]
    texts = [*simple, *filter(compiles, joined)]
    meanings = {text: meaning(text) for text in texts}
    true = {
        text: {n for n, view in enumerate(views) if program(one.cel).evaluate_view(view).kind is OutcomeKind.TRUE}
        for text, one in meanings.items()
    }
    for text, one in meanings.items():
        assert not (one.is_never and true[text]), text
        assert not one.is_always or len(true[text]) == len(views), text
    found = dict.fromkeys(Relation, 0)
    for _ in range(times(2_000, 10_000)):
        one = rng.choice(texts)
        other = rng.choice([text for text in texts if rng.random() < 0.3 or one in text or text in one])
        said = meanings[one].relation(meanings[other])
        found[said] += one != other
        holds = {
            EQUAL: true[one] == true[other],
            IMPLIES: true[one] <= true[other],
            IMPLIED: true[one] >= true[other],
            DISJOINT: true[one].isdisjoint(true[other]),
            UNKNOWN: True,
        }
        assert holds[said], (said, one, other)
    assert min(found[IMPLIES], found[IMPLIED]) > times(50, 250)
    assert found[DISJOINT] > 3


def compiles(text: str) -> bool:
    try:
        compile_cel(text)
    except FilterError:
        return False
    return True
