"""What a broker's filters say of one another, over the API: its own triggers and subscriptions, as they are now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from headgate.filter.compile.plan import CompiledFilter
from headgate.filter.tools.advice import SeenNames
from headgate.filter.tools.lint import FilterIndex
from headgate.inspect import lint
from headgate.inspect.lint import LintItem, Lints, LintView, NotComparedError, TooManyFiltersError
from headgate.objects.api.admission import Admission
from headgate.objects.store.store import Store
from headgate_api.errors import InvalidInputError
from headgate_api.objects.errors import ObjectNotFoundError
from headgate_api.objects.kinds import Kind, ObjectKey
from tests.objects.support import broker, trigger

ORDERS = ObjectKey(Kind.BROKER, "default", "orders")


@pytest.fixture
def admission(tmp_path: Path) -> Iterator[Admission]:
    with closing(Store.open(tmp_path / "control.db")) as store:
        found = Admission(store)
        found.create(Kind.BROKER, broker("orders"))
        found.create(Kind.BROKER, broker("others"))
        yield found


def made(admission: Admission, name: str, cel: str, of: str = "orders") -> None:
    admission.apply(trigger(name, broker=of, filter={"expression": cel}))


def test_the_filters_of_one_broker_are_compared(admission: Admission) -> None:
    lints = Lints(admission.store)
    assert lints.read(ORDERS) == LintView("default/orders", 0, [])
    made(admission, "all", 'ce.type.startsWith("order.")')
    made(admission, "gold", 'ce.type == "order.paid" && data.tier == "gold"')
    made(admission, "elsewhere", 'ce.type.startsWith("order.")', of="others")
    assert lints.read(ORDERS).items == [LintItem("Trigger", "gold", implied_by=("Trigger/all",))]
    pulled = {"apiVersion": "headgate.dev/v1", "kind": "Subscription", "metadata": {"name": "all"}}
    same = {"expression": "data.x == 1"}
    admission.apply({**pulled, "spec": {"broker": "orders", "filter": same}})
    made(admission, "gold", "data.n > 1 && data.n < 1")
    found = lints.read(ORDERS)
    assert (found.filters, found.items) == (3, [LintItem("Trigger", "gold", never=True)])
    admission.apply({**pulled, "spec": {"broker": "orders", "filter": {"expression": 'ce.type.startsWith("order.")'}}})
    assert lints.read(ORDERS).items == [
        LintItem("Subscription", "all", equal=("Trigger/all",)),
        LintItem("Trigger", "all", equal=("Subscription/all",)),
        LintItem("Trigger", "gold", never=True),
    ]


def test_an_answer_has_an_end(admission: Admission, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lint, "LINT_ITEMS_MAX", 2)
    for number in range(4):
        made(admission, f"t{number}", f"data.n > 1 && data.n < {number - 2}")
    found = Lints(admission.store).read(ORDERS)
    assert ([one.name for one in found.items], found.left_out) == (["t0", "t1"], 2)
    monkeypatch.setattr(lint, "LINT_FILTERS_MAX", 3)
    with pytest.raises(TooManyFiltersError, match="4 filters: at most 3"):
        Lints(admission.store).read(ORDERS)


def test_a_broker_that_is_not_there_is_named(admission: Admission) -> None:
    with pytest.raises(ObjectNotFoundError):
        Lints(admission.store).read(ObjectKey(Kind.BROKER, "default", "none"))


def test_one_of_them_is_asked_for(admission: Admission) -> None:
    lints = Lints(admission.store)
    for name, cel in {"a": "data.n > 1", "b": "data.n > 1", "c": "data.m == 1"}.items():
        made(admission, name, cel)
    made(admission, "elsewhere", "data.n > 1", of="others")
    item = LintItem("Trigger", "a", equal=("Trigger/b",))
    assert lints.read(ORDERS, "Trigger/a") == LintView("default/orders", 3, [item])
    assert lints.read(ORDERS, "Trigger/c") == LintView("default/orders", 3, [])
    made(admission, "b", "data.n > 0")
    assert lints.read(ORDERS, "Trigger/a").items == [LintItem("Trigger", "a", implied_by=("Trigger/b",))]
    for other in ("Trigger/elsewhere", "Subscription/a", "Trigger/d", "Trigger/default/a"):
        with pytest.raises(NotComparedError, match=f"default/orders has no {other}"):
            lints.read(ORDERS, other)
    for wrong in ("a", "Trigger/", "Broker/orders", "Trigger/default/a/b"):
        with pytest.raises(InvalidInputError, match="names no trigger"):
            lints.read(ORDERS, wrong)


def test_names_that_no_event_has_had_are_told_to_who_may_know(admission: Admission) -> None:
    lints, seen = Lints(admission.store), SeenNames(types=frozenset({"order.paid"}))
    made(admission, "typo", 'ce.type == "order.payd"')
    made(admission, "right", 'ce.type == "order.paid"')
    assert lints.read(ORDERS).items == lints.read(ORDERS, "Trigger/typo").items == []
    (item,) = lints.read(ORDERS, "", seen).items
    assert (item.name, [(one.written, one.meant) for one in item.unseen]) == ("typo", [("order.payd", "order.paid")])
    assert lints.read(ORDERS, "Trigger/typo", seen).items == [item]
    assert lints.read(ORDERS, "Trigger/right", seen).items == []
    assert lints.read(ORDERS).items == [], "who may not know is told nothing, whoever asked before"
    assert lints.read(ORDERS, "", SeenNames(types=frozenset({"order.payd"}))).items[0].name == "right"
    made(admission, "typo", 'ce.type == "order.paid"')
    assert [one.unseen for one in lints.read(ORDERS, "", seen).items] == [(), ()]


def test_what_is_kept_has_an_end(admission: Admission, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    class Noted(FilterIndex):
        def update(self, filters: Mapping[str, CompiledFilter]) -> bool:
            read.append(len(filters))
            return super().update(filters)

    monkeypatch.setattr(lint, "FilterIndex", Noted)
    monkeypatch.setattr(lint, "LINT_FILTERS_MAX", 3)
    lints = Lints(admission.store)
    others = ObjectKey(Kind.BROKER, "default", "others")
    for name, of in {"a": "orders", "b": "orders", "c": "others"}.items():
        made(admission, name, "true", of=of)
    for key in (ORDERS, others, ORDERS, others):
        lints.read(key)
    assert read == [2, 1], "both are kept"
    made(admission, "d", "true", of="others")
    for key in (others, others, ORDERS):
        lints.read(key)
    assert read == [2, 1, 2, 2], "of one too many the oldest goes"
