"""A trace tells what cel-cpp says: of the whole, of each part, and which part it was."""

from __future__ import annotations

import json
import random
import sys

import pytest

from headgate.filter.cel.engine import OutcomeKind, compile_expression
from headgate.filter.cel.evaluate import EventView, program
from headgate.filter.tools.trace import Trace, trace
from headgate_api.event.model import DataKind, Event
from headgate_api.limits import TRACE_PARTS_MAX
from tests.filter.hostile_events import random_view
from tests.filter.strategies import random_filter, random_hard_filter

DATA = {
    "amount": "x",
    "items": [{"sku": "A", "count": 1}, {"sku": "B", "count": 20}],
    "n": None,
    "m": {"k": 1},
    "flag": "yes",
}


def view(data: object = DATA) -> EventView:
    text = json.dumps(data).encode()
    return EventView(
        Event(specversion="1.0", id="1", source="/a", type="order.created", data_kind=DataKind.JSON, data=text)
    )


def decided(found: Trace) -> tuple[str, str, str]:
    part = found.decided
    return found.text[part.start : part.end], part.value, part.element


@pytest.mark.parametrize(
    ("cel", "text", "value", "element"),
    [
        ('ce.type == "x" && data.n == 1', 'ce.type == "x"', "false", ""),
        ('ce.type == "x" || data.n == null', "data.n == null", "true", ""),
        ('ce.type == "x" || data.n == 1', 'ce.type == "x" || data.n == 1', "false", ""),
        ('ce.type != "x" && data.n == null', 'ce.type != "x" && data.n == null', "true", ""),
        ("!(data.m.k == 1)", "data.m.k == 1", "true", ""),
        ("data.n == null ? data.m.k == 2 : true", "data.m.k == 2", "false", ""),
        ("data.no.such == 1", "data.no", 'Key not found in map : "no"', ""),
        ("data.amount > 1 && data.m.k == 1", "data.amount > 1", "No matching overloads found : _>_(string, int64)", ""),
        ("data.m.k == 1 && data.flag", "data.flag", '"yes"', ""),
        ("data.items.exists(i, i.count > 10)", "i.count > 10", "true", 'i = {"count": 20, "sku": "B"}'),
        ("data.items.all(i, i.count > 10)", "i.count > 10", "false", 'i = {"count": 1, "sku": "A"}'),
        ("data.items.exists(i, i.count > 30)", "data.items.exists(i, i.count > 30)", "false", ""),
        ("data.items.exists(i, i.x)", "i.x", 'Key not found in map : "x"', 'i = {"count": 1, "sku": "A"}'),
        ("data.no.exists(i, i.x)", "data.no", 'Key not found in map : "no"', ""),
        ('data.m.exists(k, k == "k")', 'k == "k"', "true", 'k = "k"'),
        ("data.items[5].sku == 'A'", "data.items[5]", "Index error: index=5 size=2", ""),
        ("true", "true", "true", ""),
    ],
)
def test_the_part_that_decided(cel: str, text: str, value: str, element: str) -> None:
    found = trace(cel, view())
    got = decided(found)
    # Members of an object have no order.
    assert (got[0], got[1], sorted(got[2])) == (text, value, sorted(element))
    below = found.caret.splitlines()[1]
    assert found.text[below.index("^") : below.rindex("^") + 1] == text


def test_the_caret_of_a_long_filter_is_in_the_window() -> None:
    texts = [f'ce.subject == "{n:0>30}"' for n in range(40)]
    found = trace(" || ".join([*texts, "data.m.k == 1"]), view())
    shown, below = found.caret.splitlines()
    assert len(shown) <= 100
    assert shown[below.index("^") : below.rindex("^") + 1] == "data.m.k == 1"


def test_parts_are_bounded() -> None:
    found = trace(" || ".join(f"data.n == {n}" for n in range(300)), view())
    assert found.left_out
    assert len(found.parts) <= TRACE_PARTS_MAX + 1
    deep = trace("data.items.exists(a, " * 6 + "data.items.exists(b, b.sku == 'B')" + ")" * 6, view())
    assert deep.decided


def test_agrees_with_cel_on_the_whole() -> None:
    rng = random.Random(51)
    for _ in range(150):
        cel = rng.choice([random_filter, random_hard_filter])(rng, rng.randrange(3))
        event = random_view(rng)
        found, outcome = trace(cel, event), program(cel).evaluate_view(event)
        assert found.outcome == outcome, cel
        if outcome.kind is not OutcomeKind.ERROR:
            assert found.parts[0].value == outcome.kind.name.lower(), cel
        assert sum(part.decided for part in found.parts) == 1, cel
        for part in found.parts:
            assert part.element or compile_expression(found.text[part.start : part.end]), cel


def test_nulls_in_values_do_not_wear_out_the_interpreter() -> None:
    found = view({"l": [None] * 50, "m": {"k": None}})
    before = sys.getrefcount(None)
    for _ in range(100):
        assert trace("data.l == data.m", found).parts
    assert abs(sys.getrefcount(None) - before) < 2_000
