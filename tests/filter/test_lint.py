"""Many filters at once: what the index finds is what every pair says, and it does not look at every pair."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from headgate.filter.compile.compiler import compile_cel
from headgate.filter.compile.plan import SCAN_CANDIDATE, CompiledFilter, PlanRow
from headgate.filter.tools import lint
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


def test_an_index_that_has_changed_says_what_a_new_one_says() -> None:
    rng = random.Random(72)
    parts = [
        *(f'ce.type == "t{number}"' for number in range(3)),
        *(f'ce.type.startsWith("{text}")' for text in ("t", "t1", "")),
        *(f"data.n {op} {number}" for op in (">", "<", "==") for number in range(3)),
        *("has(data.n)", 'data.s.lowerAscii() == "a"', 'data.s == "A"', "size(data.s) == 1", "true"),
    ]
    filters: dict[str, CompiledFilter] = {}
    changing = FilterIndex(filters)
    for _ in range(times(40, 400)):
        for _ in range(rng.choice([1, 1, 1, 5])):
            name = f"f{rng.randrange(30)}"
            filters.pop(name, None)
            if rng.random() < 0.8:
                text = rng.choice([" && ", " || "]).join(rng.sample(parts, rng.choice([1, 2, 2, 3])))
                filters[name] = compile_cel(text)
        changing.update(filters)
        for name in rng.sample(list(filters), len(filters) // 2):
            changing.of(name)
        new = FilterIndex(filters)
        assert {name: changing.of(name) for name in filters} == {name: new.of(name) for name in filters}


def test_what_stays_is_not_read_again() -> None:
    made = {f"f{number}": compile_cel(f"data.n > {number}") for number in range(3)}
    found = FilterIndex(made)
    assert not found.update(made)
    assert not found.update({**made, "f1": compile_cel("data.n > 1")})
    assert found.update({**made, "f1": compile_cel("data.n > 2")})
    assert found.of("f1") == Related(equal=("f2",), implied_by=("f0",))
    assert found.update({**made, "f1": replace(made["f1"], rows=(PlanRow(SCAN_CANDIDATE, (), ()),))})
    assert (found.of("f2"), found.of("f1")) == (Related(implied_by=("f0",)), Related())


def test_one_comparison_finds_so_many_and_others_in_their_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lint, "LINT_CANDIDATES_MAX", 2)
    made = {f"f{number}": compile_cel(f"data.n > {number}") for number in range(5)}
    narrow = {"narrow": compile_cel('ce.type == "a" && data.n == 7'), "wide": compile_cel('ce.type.startsWith("a")')}
    found = FilterIndex({**made, **narrow})
    assert found.of("narrow").implied_by == ("f0", "f1"), "of three that are known"
    found.update({**{name: made[name] for name in ("f0", "f3", "f4")}, **narrow})
    assert found.of("narrow").implied_by == ("f0", "f3")
    found.update({"f4": made["f4"], **narrow})
    assert found.of("narrow").implied_by == ("f4", "wide")
    found.update({f"same{number}": made["f1"] for number in range(5)})
    assert found.of("same4").equal == ("same0", "same1")
