"""A ceiling in a filter's plan: how both are joined, how they stand to each other, and what is looked up."""

from __future__ import annotations

import json

import pytest

from headgate.filter.cel.errors import FilterError
from headgate.filter.cel.evaluate import OutcomeKind, program
from headgate.filter.compile.compiler import compile_cel, compile_filter
from headgate.filter.compile.plan import KeyKind
from headgate.filter.tools.ceiling import Within, is_inside, joined, within
from headgate_api.event.model import DataKind, Event

CEILING = 'data.tenant == "blue"'


def event(**data: object) -> Event:
    return Event("1.0", "1", "/s", "order.paid", data_kind=DataKind.JSON, data=json.dumps(data).encode())


def takes(cel: str, one: Event) -> bool:
    return program(cel).evaluate(one).kind is OutcomeKind.TRUE


@pytest.mark.parametrize(
    "cel", ["true", 'data.n > 1 || ce.type == "order.paid"', "!(data.n > 1)", "data.a ? true : true", "1 == 1 || true"]
)
def test_no_filter_widens_its_ceiling(cel: str) -> None:
    both = joined(cel, CEILING)
    for one in (event(tenant="red", n=5, a=True), event(n=5), event(tenant=1), event(tenant=["blue"])):
        assert not takes(both, one)
    assert takes(both, event(tenant="blue", n=0, a=True)) == takes(cel, event(tenant="blue", n=0, a=True))


def test_text_of_the_one_does_not_end_in_the_other() -> None:
    for cel in ("true) || (true", "true ||", "true /*", "(true"):
        with pytest.raises(FilterError):
            joined(cel, CEILING)
    assert not takes(joined("true // ", CEILING), event(tenant="red"))
    assert not takes(joined("true", f"{CEILING} // "), event(tenant="red"))
    assert joined("", CEILING) == CEILING
    assert joined("true", "") == "true"


@pytest.mark.parametrize(
    ("cel", "found"),
    [
        (f'{CEILING} && ce.type == "a"', Within.INSIDE),
        ('data.tenant in ["blue"]', Within.INSIDE),
        ("false", Within.INSIDE),
        ("true", Within.CUT),
        ('ce.type == "a"', Within.CUT),
        ('data.tenant == "red"', Within.CUT),
        ('data.tenant.startsWith("b")', Within.CUT),
        ("data.items.exists(i, i.n * 2 > data.m)", Within.UNKNOWN),
    ],
)
def test_how_a_filter_stands_to_a_ceiling(cel: str, found: Within) -> None:
    assert within(compile_cel(cel), CEILING) is found


def test_one_ceiling_may_lie_inside_another() -> None:
    assert is_inside('data.n > 5 && data.tenant == "blue"', "data.n > 3")
    assert not is_inside("data.n > 3", "data.n > 5")
    assert not is_inside("data.n > 3", "data.m > 3")


@pytest.mark.parametrize(
    ("cel", "ceiling", "keys"),
    [
        ('ce.type == "a"', CEILING, {"type", "tenant"}),  # both are looked up at once
        ('ce.source.endsWith("/x")', CEILING, {"source"}),  # the ceiling alone would let all filters be compared
        ('ce.source.endsWith("/x")', 'ce.type.startsWith("com.")', {"source"}),
        ("data.n > 1", CEILING, {"tenant"}),  # nothing else is there
        ("true", CEILING, {"tenant"}),
        ('ce.type == "a"', "data.n > 1", {"type"}),
    ],
)
def test_what_many_filters_share_is_looked_up_beside_what_they_do_not(cel: str, ceiling: str, keys: set[str]) -> None:
    plan = compile_filter({"cel": cel}, (), ceiling)
    assert {part.operand.path[-1] for row in plan.rows for part in row.signature.key} == keys
    assert all(row.signature.exact for row in plan.rows)
    if "endsWith" in cel:
        assert {part.kind for row in plan.rows for part in row.signature.key} == {KeyKind.SUFFIX}
    assert plan.cel == joined(cel, ceiling)
