"""An event that is shown for filters makes all of them true; where they exclude each other there is none."""

from __future__ import annotations

import random

import pytest

from headgate.filter.cel.evaluate import OutcomeKind, program
from headgate.filter.compile.compiler import compile_cel
from headgate.filter.tools.algebra import Meaning, Relation
from headgate.filter.tools.witness import witness
from headgate_api.event.model import Event
from tests.filter.strategies import random_filter
from tests.filter.test_algebra import compiles
from tests.support import times


def shown(*texts: str) -> Event | None:
    found = witness(*(Meaning(compile_cel(text)) for text in texts))
    for text in texts if found is not None else ():
        assert program(text).evaluate(found).kind is OutcomeKind.TRUE, text
    return found


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('ce.type == "a"', "data.n > 5"),
        ('ce.type.startsWith("order.")', 'ce.type.endsWith(".paid")'),
        ('ce.type.startsWith("order.") && data.n < 7', "data.n >= 6.5"),
        ('ce.tenant in ["a", "b"]', 'ce.tenant != "a"'),
        ("has(data.a)", 'data.a.b == "x"'),
        ('data.s.lowerAscii() == "ab"', "size(data.s) == 2"),
        ("!has(ce.subject)", 'ce.source.contains("shop")'),
        ('data.tags.exists(t, t == "x")', 'data.tags.exists(t, t == "y")'),
        ("type(data.a) == string", "has(data.b) && data.b"),
        ("data.n != 1", "data.n >= 1"),
    ],
)
def test_filters_that_overlap(one: str, other: str) -> None:
    assert shown(one, other) is not None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('ce.type == "a"', 'ce.type == "b"'),
        ("data.n > 5", "data.n < 5"),
        ("has(data.a)", "!has(data.a)"),
        ("data.n > 1 && data.n < 1", "true"),
        ('ce.type.matches("^a.*")', 'ce.type.matches("^b.*")'),  # not understood, and no event is found
    ],
)
def test_filters_that_exclude_each_other(one: str, other: str) -> None:
    assert shown(one, other) is None


def test_by_chance() -> None:
    rng = random.Random(32)
    texts: list[str] = []
    while len(texts) < times(60, 300):
        text = random_filter(rng, rng.choice([0, 1, 1, 2]))
        texts += [text] if compiles(text) else []
    meanings = {text: Meaning(compile_cel(text)) for text in texts}
    found = 0
    for _ in range(times(300, 3_000)):
        one, other = rng.sample(texts, 2)
        event = shown(one, other)
        found += event is not None
        if event is not None:
            assert meanings[one].relation(meanings[other]) is not Relation.DISJOINT
    assert found > times(60, 600)
