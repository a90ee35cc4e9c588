"""The quick look at plans refuses no filter that takes an event, whatever both are, and most of the others."""

from __future__ import annotations

import json
import random

import pytest

from headgate.filter.cel.evaluate import EventView, OutcomeKind, program
from headgate.filter.compile.compiler import compile_cel
from headgate.filter.tools.candidates import EventKeys
from headgate_api.event.model import DataKind, Event
from tests.filter.hostile_events import random_view
from tests.filter.strategies import random_filter, random_hard_filter, random_shaped_filter
from tests.support import times


@pytest.mark.parametrize("generate", [random_filter, random_shaped_filter, random_hard_filter])
def test_what_passes_is_never_refused(generate) -> None:
    rng = random.Random(7)
    views = [random_view(rng) for _ in range(200)]
    passed = refused = 0
    for _ in range(times(60, 150)):
        text = generate(rng, rng.randrange(4))
        compiled = compile_cel(text)
        for view in rng.sample(views, 40):
            is_true = program(text).evaluate_view(view).kind is OutcomeKind.TRUE
            may = EventKeys(view.event).may_pass(compiled)
            assert may or not is_true, (text, view.event)
            passed, refused = passed + is_true, refused + (not may)
    assert passed > 100
    assert refused > 100, "it is of use"


@pytest.mark.parametrize(
    ("cel", "may"),
    [
        ('ce.type == "order" && data.amount > 10', True),
        ('ce.type == "order" && data.amount > 1000', False),
        ("data.amount >= 20 && data.amount <= 20", True),
        ("data.amount > 20", False),
        ("data.amount < 20", False),
        ('ce.type == "order" && !(data.amount > 10)', False),
        ('ce.type == "order" && !(data.amount > 1000)', True),
        ('ce.type == "other" && data.amount > 10', False),
        ('ce.type.startsWith("ord") && data.customer == "c1"', True),
        ('ce.type.startsWith("odd") && data.customer == "c1"', True),  # not of the key: cel-cpp's
        ('ce.type.startsWith("odd")', False),
        ('ce.source.endsWith("/shop")', True),
        ('data.customer == "c2"', False),
        ('data.nosuch == "c2"', False),
        ("data.amount == 20.0", True),
        ("data.amount == 21", False),
        ("data.paid == true", True),
        ("true", True),
        ("false", False),
        ('ce.type == "other" || data.customer == "c1"', True),
    ],
)
def test_by_example(cel: str, may: bool) -> None:
    data = {"amount": 20, "customer": "c1", "paid": True}
    event = Event("1.0", "1", "/eu/shop", "order", data_kind=DataKind.JSON, data=json.dumps(data).encode())
    assert EventKeys(event).may_pass(compile_cel(cel)) is may
    if not may:
        assert program(cel).evaluate_view(EventView(event, 0)).kind is not OutcomeKind.TRUE
