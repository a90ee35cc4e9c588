"""What a broker's filters say of one another, over the API: its own triggers and subscriptions, as they are now."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from headgate.inspect import lint
from headgate.inspect.lint import LintItem, Lints, LintView, TooManyFiltersError
from headgate.objects.api.admission import Admission
from headgate.objects.store.store import Store
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
