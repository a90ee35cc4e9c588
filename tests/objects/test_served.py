"""Is the copy of the brokers what the store says, whoever wrote it and however much has been written since?"""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from headgate.objects.api.admission import Admission
from headgate.objects.kinds.status import served_broker
from headgate.objects.store import history
from headgate.objects.store.database import StoreUnavailableError
from headgate.objects.store.store import Store
from headgate.objects.views.copies import ServedBrokers
from headgate_api.objects.kinds import Kind, ObjectKey
from tests.objects.support import broker, stored_brokers, trigger


@pytest.fixture
def other(admission: Admission, tmp_path: Path):  # type: ignore[no-untyped-def]
    """The same file as another process has it."""
    with contextlib.closing(Store.open(admission.store._database.path)) as store:
        yield store


def holds_the_stores(brokers: ServedBrokers, store: Store) -> bool:
    served = {one.metadata.path: served_broker(one) for one in stored_brokers(store)}
    return brokers._served == {path: one for path, one in served.items() if one is not None}


def test_what_another_process_writes_is_known_after_a_look(admission: Admission, other: Store) -> None:
    brokers = ServedBrokers(other)
    brokers.refresh()
    assert len(brokers) == 1
    key = ObjectKey(Kind.BROKER, "default", "b")
    first = admission.create(Kind.BROKER, broker("b")).obj.metadata.uid
    admission.create(Kind.TRIGGER, trigger(broker="b"))
    assert brokers.get("default/b") is None
    brokers.refresh()
    assert brokers.get("default/b").identity == f"default/b/{first}"  # type: ignore[union-attr]
    admission.store.delete(key)
    second = admission.create(Kind.BROKER, broker("b")).obj.metadata.uid
    brokers.refresh()
    assert brokers.get("default/b").identity == f"default/b/{second}"  # type: ignore[union-attr]
    other_class = broker("k")
    other_class["metadata"]["annotations"] = {"eventing.knative.dev/broker.class": "Kafka"}
    admission.create(Kind.BROKER, other_class)
    admission.store.delete(key)
    brokers.refresh()
    assert [brokers.get("default/b"), brokers.get("default/k")] == [None, None]
    assert holds_the_stores(brokers, other)


def test_a_brokers_rule_is_not_that_of_the_next_one_of_its_name(admission: Admission, other: Store) -> None:
    brokers, found = ServedBrokers(other), []
    for hours in (1, 2):
        kept = broker("b", log={"retention": f"PT{hours}H"})
        found.append(f"default/b/{admission.apply(kept).obj.metadata.uid}")
        brokers.refresh()
        assert brokers.retention_us(found[-1]) == hours * 3_600_000_000
        if hours == 1:
            admission.store.delete(ObjectKey(Kind.BROKER, "default", "b"))
    assert brokers.retention_us(found[0]) is None


def test_many_writes_are_known_after_one_look(admission: Admission, other: Store) -> None:
    brokers = ServedBrokers(other)
    brokers.refresh()
    for number in range(7):
        admission.create(Kind.BROKER, broker(f"b{number}"))
    admission.store.delete(ObjectKey(Kind.BROKER, "default", "b3"))
    brokers.refresh()
    assert len(brokers) == 7
    assert holds_the_stores(brokers, other)


@pytest.mark.parametrize("rows", [1, 2, 500])
def test_many_changes_are_read_in_pieces(
    admission: Admission, other: Store, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(history, "CHANGES_PER_READ", rows)
    at, found = other.counters.version(), []
    for number in range(7):
        admission.create(Kind.BROKER, broker(f"b{number}"))
    admission.store.delete(ObjectKey(Kind.BROKER, "default", "b3"))
    while (changes := other.changes(Kind.BROKER, at)).items:
        assert len(changes.items) <= rows
        found += [(change.type, change.key.name) for change in changes.items]
        at = changes.version
    assert found == [*(("ADDED", f"b{number}") for number in range(7)), ("DELETED", "b3")]


def test_more_than_the_history_keeps_is_read_as_a_whole(
    admission: Admission, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers = ServedBrokers(other)
    brokers.refresh()
    monkeypatch.setattr(history, "WATCH_EVENTS_MAX", 1)
    monkeypatch.setattr(history, "TRIM_SLACK", 1)
    for number in range(20):
        admission.create(Kind.BROKER, broker(f"b{number}"))
        if number % 2:
            admission.store.delete(ObjectKey(Kind.BROKER, "default", f"b{number}"))
    brokers.refresh()
    assert len(brokers) == 11
    assert holds_the_stores(brokers, other)


def test_what_was_known_stays_where_the_store_cannot_be_read(
    admission: Admission, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers = ServedBrokers(admission.store)
    brokers.refresh()

    def fails(*_: object) -> None:
        raise StoreUnavailableError("no")

    monkeypatch.setattr(admission.store, "refresh", fails)
    with pytest.raises(StoreUnavailableError):
        brokers.refresh()
    assert brokers.get("default/default") is not None


def test_what_could_not_be_taken_is_taken_at_the_next_look(
    admission: Admission, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers = ServedBrokers(admission.store)
    with monkeypatch.context() as patched:
        patched.setattr(ServedBrokers, "_take", None)
        with pytest.raises(TypeError):
            brokers.refresh()
    brokers.refresh()
    assert holds_the_stores(brokers, admission.store)
