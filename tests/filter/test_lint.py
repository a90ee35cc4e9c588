"""Many filters at once: what the index finds is what every pair says, and it does not look at every pair."""

from __future__ import annotations

import random

import pytest

from headgate.filter.compile.compiler import compile_cel
from headgate.filter.tools.algebra import Meaning, Relation
from headgate.filter.tools.lint import FilterIndex, Related
from headgate_api.limits import LINT_CANDIDATES_MAX
from tests.support import times


def index(*texts: str) -> FilterIndex:
    return FilterIndex({f"f{number}": compile_cel(text) for number, text in enumerate(texts)})


def test_what_is_said_of_each() -> None:
    found = index(
        'ce.type in ["a", "b"]',
        'ce.type == "b" || ce.type == "a"',
        'ce.type == "a" && data.n > 5',
        'ce.type == "a" && ce.type == "b"',
        "true",
        'ce.source.startsWith("/shop/") || ce.source == "/shop/berlin"',
        "data.n > 7",
    )
    assert [found.of(f"f{number}") for number in range(7)] == [
        Related(equal=("f1",), implied_by=("f4",)),
        Related(equal=("f0",), implied_by=("f4",)),
        Related(implied_by=("f0", "f1", "f4")),
        Related(never=True),
        Related(always=True),
        Related(implied_by=("f4",), redundant=1),
        Related(implied_by=("f4",)),
    ]
    assert not Related()


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [
        ('ce.type == "order.paid"', 'ce.type.startsWith("order.")'),
        ('ce.type.startsWith("order.paid")', 'ce.type.startsWith("order.")'),
        ('ce.tenant == "x" && data.n == 1', "data.n == 1"),
        ("data.n > 6", "data.n > 5"),
        ("data.n in [1, 2]", "data.n > 0"),
        ("data.a.b == 1", "has(data.a)"),
        ('data.s == "Ab"', 'data.s.lowerAscii() == "ab"'),
        ('ce.type.contains("ab")', 'ce.type.contains("a")'),
        ('ce.type == "a"', 'ce.type != "b"'),
    ],
)
def test_a_wider_filter_is_found_by_whatever_it_compares(narrow: str, wide: str) -> None:
    assert index(narrow, wide).of("f0").implied_by == ("f1",)


def test_the_index_finds_what_pairs_say() -> None:
    rng = random.Random(71)

    def part() -> str:
        return rng.choice(
            [
                f'ce.type == "t{rng.randrange(3)}"',
                f'ce.type.startsWith("t{rng.choice(["", "0", "1"])}")',
                f'data.tenant in ["a", "{rng.choice("bcd")}"]',
                f"data.n {rng.choice(['>', '>=', '<', '=='])} {rng.randrange(4)}",
                "has(data.n)",
            ]
        )

    texts = {" && ".join(part() for _ in range(rng.choice([1, 1, 2, 3]))) for _ in range(times(60, 300))}
    filters = {text: compile_cel(text) for text in texts}
    meanings = {text: Meaning(one) for text, one in filters.items()}
    found = FilterIndex(filters)
    compared = related = 0
    for text, one in meanings.items():
        if one.is_never:
            continue
        said = found.of(text)
        for other, another in meanings.items():
            if other == text or another.is_never:
                continue
            match one.relation(another):
                case Relation.EQUAL:
                    assert other in said.equal
                case Relation.IMPLIES:
                    compared += 1
                    related += other in said.implied_by
                case _:
                    assert other not in (*said.equal, *said.implied_by)
    assert related > compared // 2 > 0
    assert related == compared or len(texts) > LINT_CANDIDATES_MAX
