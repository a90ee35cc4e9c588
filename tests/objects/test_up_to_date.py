"""What is brought up to date by changes alone is what a look at everything finds."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from headgate.auth.event_policies import DefaultMode
from headgate.objects.api.admission import Admission
from headgate.objects.kinds.status import ServerUrls
from headgate.objects.store.reconciler import Reconciler
from headgate.objects.store.rows import KnownObjects
from headgate.objects.store.store import Store
from headgate_api.objects.errors import ObjectNotFoundError
from headgate_api.objects.kinds import API_VERSION, Broker, Kind, ObjectKey, WithStatus
from tests.objects.support import broker, stored_brokers, trigger
from tests.support import times

URLS = ServerUrls(("http://127.0.0.1:8080",), default_mode=DefaultMode.ALLOW_SAME_NAMESPACE)
NAMESPACES = ("red", "blue")
BROKERS = ("a", "b", "c")
TRIGGERS = ("t1", "t2", "t3")
STEPS = 60


class Writers:
    """Random writes of brokers, triggers and policies that refer to one another.

    Args:
        admission: Where they go.
        draw: Draws them.
    """

    def __init__(self, admission: Admission, draw: random.Random) -> None:
        self._admission = admission
        self._draw = draw

    def write(self) -> None:
        """An object is deleted where it is there; in most cases a new one of its name follows."""
        kinds: list[tuple[Kind, tuple[str, ...], Callable[[str], dict[str, Any]]]] = [
            (Kind.BROKER, BROKERS, self._broker),
            (Kind.TRIGGER, TRIGGERS, self._trigger),
            (Kind.EVENT_POLICY, ("p1", "p2"), self._policy),
        ]
        kind, names, document = self._draw.choice(kinds)
        key = ObjectKey(kind, self._draw.choice(NAMESPACES), self._draw.choice(names))
        with contextlib.suppress(ObjectNotFoundError):
            self._admission.store.delete(key)
        if self._draw.random() < 0.7:
            self._admission.create(kind, document(key.name), namespace=key.namespace)

    def change(self) -> None:
        """Another spec or other labels for what is there."""
        for item in self._admission.store.page(Kind.BROKER).items:
            if self._draw.random() < 0.2:
                change = self._broker(item.key.name)
                self._admission.merge(item.key, {"spec": change["spec"], "metadata": change["metadata"]})
        for item in self._admission.store.page(Kind.TRIGGER).items:
            if self._draw.random() < 0.2:
                change = {"subscriber": {"uri": None, "ref": None} | self._subscriber()}
                self._admission.merge(item.key, {"spec": change})

    def _broker(self, name: str) -> dict[str, Any]:
        made = broker(name)
        made["metadata"]["labels"] = {"colour": self._draw.choice(NAMESPACES)}
        made["spec"]["delivery"] = self._draw.choice(
            [None, {"retry": self._draw.randrange(3)}, {"deadLetterSink": {"ref": self._reference()}}]
        )
        return made

    def _trigger(self, name: str) -> dict[str, Any]:
        return trigger(name, broker=self._draw.choice(BROKERS), subscriber=self._subscriber())

    def _subscriber(self) -> dict[str, Any]:
        """The last one has an address only in Kubernetes."""
        elsewhere = {"apiVersion": "v1", "kind": "Service", "name": "s"}
        return self._draw.choice([{"uri": "http://127.0.0.1:9/"}, {"ref": self._reference()}, {"ref": elsewhere}])

    def _policy(self, name: str) -> dict[str, Any]:
        api = {"apiVersion": API_VERSION}
        applies = [
            {"ref": api | {"kind": "Broker", "name": self._draw.choice(BROKERS)}},
            {"selector": api | {"kind": "Broker", "matchLabels": {"colour": self._draw.choice(NAMESPACES)}}},
        ]
        sender = {"ref": api | {"kind": "Trigger", "name": self._draw.choice(TRIGGERS)}}
        spec = {"to": [self._draw.choice(applies)], "from": [sender]}
        return {"apiVersion": f"{API_VERSION}alpha1", "kind": "EventPolicy", "metadata": {"name": name}, "spec": spec}

    def _reference(self) -> dict[str, str]:
        name, namespace = self._draw.choice(BROKERS), self._draw.choice(NAMESPACES)
        return {"apiVersion": API_VERSION, "kind": "Broker", "name": name, "namespace": namespace}


@pytest.mark.parametrize("seed", range(times(2, 8)))
def test_what_is_brought_up_to_date_is_what_is_read_anew(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    store = Store.open(tmp_path / "control.db")
    writers, reconciler = Writers(Admission(store), draw), Reconciler(store, server=URLS)
    known: KnownObjects[Broker] = KnownObjects(Kind.BROKER)
    before: dict[str, Broker] = {}
    for _ in range(STEPS):
        for _ in range(draw.randrange(1, 4)):
            draw.choice([writers.write, writers.write, writers.change])()
        if draw.random() < 0.3:
            store.counters.activate(store.desired_generation())
        while reconciler.step():
            pass
        assert Reconciler(store, server=URLS).step() == 0, "a look at everything finds a status that is not true"
        fresh = Store.open(tmp_path / "control.db")
        assert store.snapshot() == fresh.snapshot()
        now = {one.metadata.path: one for one in stored_brokers(fresh)}
        changed = store.refresh(known)
        assert known.by_path == now
        assert changed >= {path for path in before.keys() | now.keys() if before.get(path) != now.get(path)}
        before = now
        fresh.close()
    store.close()


@pytest.mark.parametrize("seed", range(times(2, 4)))
def test_reconcilers_that_come_between_each_other_leave_no_status_that_is_not_true(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(seed)
    store, others = (Store.open(tmp_path / "control.db") for _ in range(2))
    writers = Writers(Admission(others), draw)
    one, other = Reconciler(store, server=URLS), Reconciler(others, server=URLS)
    write_statuses = store.write_statuses

    def late(changed: Iterable[WithStatus]) -> tuple[int, ...]:
        """What is written was read a while ago."""
        stale = list(changed)
        for _ in range(draw.randrange(3)):
            draw.choice([writers.write, writers.change])()
            if draw.random() < 0.5:
                others.counters.activate(others.desired_generation())
            other.step()
        return write_statuses(stale)

    for _ in range(STEPS):
        writers.write()
        with monkeypatch.context() as patched:
            patched.setattr(store, "write_statuses", late)
            one.step()
        while one.step() + other.step():
            pass
        assert Reconciler(store, server=URLS).step() == 0, "a look at everything finds a status that is not true"
    others.close()
    store.close()


def test_a_read_without_changes_decodes_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    admission = Admission(store)
    for name in BROKERS:
        admission.create(Kind.BROKER, broker(name))
    known: KnownObjects[Broker] = KnownObjects(Kind.BROKER)
    assert store.refresh(known) >= {f"default/{name}" for name in BROKERS}
    admission.create(Kind.TRIGGER, trigger())
    monkeypatch.setattr("headgate.objects.store.rows.decode_stored", None)
    assert store.refresh(known) == set()


def test_what_a_failed_read_had_found_the_next_one_returns(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    Admission(store).create(Kind.BROKER, broker("a"))
    known: KnownObjects[Broker] = KnownObjects(Kind.BROKER)
    with monkeypatch.context() as patched:
        patched.setattr("headgate.objects.store.rows.decode_stored", None)
        with pytest.raises(TypeError):
            store.refresh(known)
    assert "default/a" in store.refresh(known)


def test_another_store_with_fewer_writes_is_read_as_a_whole(store: Store, tmp_path: Path) -> None:
    for name in ("a", "b"):
        Admission(store).create(Kind.BROKER, broker(name))
    known: KnownObjects[Broker] = KnownObjects(Kind.BROKER)
    store.refresh(known)
    with contextlib.closing(Store.open(tmp_path / "another.db")) as another:
        assert store.counters.version() > another.counters.version()
        assert another.refresh(known) == {"default/default", "default/a", "default/b"}
        uid = another.get(ObjectKey(Kind.BROKER, "default", "default")).metadata.uid
        assert {path: one.metadata.uid for path, one in known.by_path.items()} == {"default/default": uid}
