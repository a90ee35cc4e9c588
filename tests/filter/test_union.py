"""A source that applies the union loses nothing: wherever a filter is true, so is it; also when it was widened."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.filter.cel.ast import Node
from headgate.filter.cel.budget import ROUNDS_MAX
from headgate.filter.cel.evaluate import EventView, OutcomeKind, program
from headgate.filter.compile.compiler import compile_cel
from headgate.filter.tools import union as union_module
from headgate.filter.tools.union import union
from headgate_api.event.model import DataKind, Event
from headgate_api.limits import FILTER_LIST_ITEMS_MAX, UNION_CHARACTERS_MAX, UNION_FILTERS_MAX, UNION_KEYS_MAX
from tests.filter.hostile_events import random_view, views
from tests.filter.strategies import filters, random_filter, random_hard_filter
from tests.support import examples, times

SIZES = [UNION_CHARACTERS_MAX, 300, 120, 60, 25, 4]


def true_on(cel: str, view: EventView) -> bool:
    return program(cel).evaluate_view(view).kind is OutcomeKind.TRUE


def joined(texts: list[str], characters_max: int = UNION_CHARACTERS_MAX) -> tuple[str, bool]:
    found = union([compile_cel(text) for text in texts], characters_max=characters_max)
    return found.cel, found.exact


@settings(max_examples=examples(150))
@given(
    texts=st.lists(st.one_of(filters(), filters(hard=True)), min_size=1, max_size=8),
    of=st.lists(views(), min_size=1, max_size=5),
    size=st.sampled_from(SIZES),
)
def test_nothing_is_lost(texts: list[str], of: list[EventView], size: int) -> None:
    cel, exact = joined(texts, size)
    assert len(cel) <= max(size, 5)
    for view in of:
        wanted = any(true_on(text, view) for text in texts)
        found = true_on(cel, EventView(view.event))  # where it comes from, nobody knows when it will be stored
        assert found or not wanted, (texts, cel)
        assert found == wanted or not exact, (texts, cel)


def test_nothing_is_lost_of_many_and_widening_still_filters() -> None:
    rng = random.Random(61)
    views = [random_view(rng) for _ in range(150)]
    kept = dict.fromkeys(SIZES, 0)
    rounds = times(3, 40)
    for _ in range(rounds):
        types = rng.sample(["a", "b", "order", "order.created", "order.cancelled", "éa"], 2)
        texts = [
            f'ce.type == "{rng.choice(types)}" && ({rng.choice([random_filter, random_hard_filter])(rng, 2)})'
            for _ in range(12)
        ]
        wanted = [any(true_on(text, view) for text in texts) for view in views]
        for size in SIZES:
            cel, _ = joined(texts, size)
            found = [true_on(cel, EventView(view.event)) for view in views]
            assert all(f or not w for f, w in zip(found, wanted, strict=True)), (size, texts, cel)
            kept[size] += sum(found)
    everything = rounds * len(views)
    # Widening that always gives up would be right, and worth nothing.
    assert 0 < kept[SIZES[0]] <= kept[300] <= kept[60] < everything / 2
    assert kept[4] == everything


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("publish_time > timestamp(5)", "true"),
        ("!(publish_time > timestamp(5)) && ce.type == 'a'", 'ce.type == "a"'),
        ("ce.type == 'a' && (ce.tenant == 'b' || publish_time < timestamp(5))", 'ce.type == "a"'),
        ("ce.type == 'a' && (publish_time < timestamp(5) ? ce.x == '1' : ce.x == '2')", 'ce.type == "a"'),
        ("ce.type == 'a' && data.l.exists(i, timestamp(i) < publish_time)", 'ce.type == "a"'),
    ],
)
def test_what_depends_on_publish_time_is_taken_as_true(text: str, expected: str) -> None:
    assert joined([text]) == (expected, False)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([], "false"),
        (["false", "ce.type == 'a' && false"], "false"),
        (["ce.type == 'a'", "true"], "true"),
        (["ce.type == 'a'", "ce.type == 'a'"], 'ce.type == "a"'),
        (["ce.type == 'b'", "ce.type in ['a', 'c']", "ce.type == 'a'"], 'ce.type in ["a", "b", "c"]'),
        (["ce.type == 'a'", "ce.type == 'a' && data.x > 1"], 'ce.type == "a"'),
        (["ce.type in ['a', 'b']", "data.x > 1 && ce.type == 'a'"], 'ce.type in ["a", "b"]'),
        (["ce.type == 'a' && data.x == 1", "ce.type == 'a' && data.x == 2"], 'ce.type == "a" && data.x in [1, 2]'),
        (["ce.type == 'a' && data.x > 1", "ce.type == 'b' && data.x > 1"], 'ce.type in ["a", "b"] && data.x > 1'),
        (["ce.type.startsWith('a.')", "ce.type == 'a.b'", "ce.type.startsWith('a.b') && data.x"], None),
        (["ce.type == 'a' || data.x > 1", "data.x > 1"], 'ce.type == "a" || data.x > 1'),
        (["data.x ? data.y : data.z", "ce.id == '1'"], '(data.x ? data.y : data.z) || ce.id == "1"'),
    ],
)
def test_says_it_in_few_words(texts: list[str], expected: str | None) -> None:
    cel, exact = joined(texts)
    assert exact
    assert cel == (expected or 'ce.type.startsWith("a.")')


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (200, 'ce.subject == "s" && data.x > 1 && ce.type == "shop.order.created" || ce.type == "shop.order.paid"'),
        (90, 'ce.subject == "s" && ce.type == "shop.order.created" || ce.type == "shop.order.paid"'),
        (60, 'ce.type in ["shop.order.created", "shop.order.paid"]'),
        (40, 'ce.type.startsWith("shop.ord")'),
        (25, 'ce.type.startsWith("sho")'),
        (4, "true"),
    ],
)
def test_widens_step_by_step(size: int, expected: str) -> None:
    texts = ["ce.type == 'shop.order.created' && ce.subject == 's' && data.x > 1", "ce.type == 'shop.order.paid'"]
    cel, exact = joined(texts, size)
    if size == 200:
        assert exact
    else:
        assert not exact
        assert len(cel) <= size
    view = EventView(Event("1.0", "1", "/a", "shop.order.paid"))
    assert true_on(cel, view)
    if size > 4:
        assert not true_on(cel, EventView(Event("1.0", "1", "/a", "other")))
        assert sorted(cel.replace(" || ", " && ").split(" && ")) == sorted(
            expected.replace(" || ", " && ").split(" && ")
        )


LONG = ROUNDS_MAX * 6 // 10


@pytest.mark.parametrize(
    ("texts", "data", "expected"),
    [
        # Together they take more rounds than one evaluation has, and each may look at its share.
        (
            ["data.l.exists(i, i.a == -1)", f"data.l.exists(i, i.a == {LONG - 1})"],
            {"l": [{"a": n} for n in range(LONG)]},
            f"size(data.l) > {(ROUNDS_MAX - 1) // 2}",
        ),
        (
            ["data.l.exists(i, i == -1)", f"ce.type == 't' && data.m.exists(i, i == {LONG - 1})"],
            {"l": list(range(LONG)), "m": list(range(LONG))},
            f"size(data.m) > {(ROUNDS_MAX - 1) // 2}",
        ),
        # What runs out of rounds by itself comes behind what needs none, and stays as it is.
        (["data.l.exists(i, i == -1)", "data.k == 'v'"], {"l": [0] * (ROUNDS_MAX + 1), "k": "v"}, 'data.k == "v" || '),
        (
            ["data.l.exists(i, i.exists(j, j == -1))", "data.k == 'v'"],
            {"l": [[0] * 200] * 200, "k": "v"},
            'data.k == "v" || data.l.exists',
        ),
        # How many rounds these take no size tells: keys alone.
        (
            ["ce.type == 't' && data.l.exists(i, i.exists(j, j == 1))", "data.k.exists(k, k == 'v')"],
            {"l": [[0] * 70] * 140 + [[1]], "k": ["u"] * 200},
            'ce.type == "t" || data.k.exists',
        ),
    ],
)
def test_filters_that_are_true_one_by_one_do_not_run_out_of_rounds_together(
    texts: list[str], data: object, expected: str
) -> None:
    event = Event("1.0", "1", "/a", "t", data_kind=DataKind.JSON, data=json.dumps(data).encode())
    assert any(true_on(text, EventView(event)) for text in texts)
    cel, exact = joined(texts)
    assert true_on(cel, EventView(event)), cel
    assert expected in cel
    assert exact == cel.startswith('data.k == "v"')
    nothing = EventView(Event("1.0", "1", "/a", "u", data_kind=DataKind.JSON, data=b"{}"))
    assert not true_on(cel, nothing)


def test_very_many_filters_are_joined_by_their_keys() -> None:
    texts = [f"ce.type == 'order.{n % 50}' && data.n == {n}" for n in range(UNION_FILTERS_MAX + 1)]
    cel, exact = joined(texts)
    assert not exact
    assert program(cel)
    assert cel.startswith('ce.type in ["order.0", "order.1"')


def test_keys_beyond_a_limit_are_widened_before_they_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    joins: list[int] = []
    real = union_module._joined

    def counted(alternatives: Iterable[frozenset[Node]]) -> list[frozenset[Node]]:
        given = list(alternatives)
        joins.append(len(given))
        return real(given)

    monkeypatch.setattr(union_module, "_joined", counted)
    # Each list is a thousand rows; all but the type of each is told apart by the data alone.
    lists = [json.dumps([f"t{n}.{item}" for item in range(FILTER_LIST_ITEMS_MAX)]) for n in range(5)]
    texts = [f"ce.type in {types} && data.n == {m}" for types in lists for m in range(2)]
    cel, exact = joined(texts)
    assert not exact
    assert joins
    assert max(joins) <= UNION_KEYS_MAX
    assert true_on(cel, EventView(Event("1.0", "1", "/a", "t4.999")))
    assert not true_on(cel, EventView(Event("1.0", "1", "/a", "t5.1")))


def test_what_no_key_finds_widens_to_everything() -> None:
    assert joined(["data.x > 1" + " " * 10, "data.y > 123456789"], 20) == ("true", False)
