"""What a source may admit: by the policies of its broker's namespace, and by its publish quota."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.auth.event_policies import DefaultMode, EventForbiddenError
from headgate.backend.config import SourceConfig
from headgate.backend.kafka.source import SourceGates
from headgate.objects.api.admission import Admission
from headgate.objects.kinds.quotas import PUBLISH_EVENTS
from headgate.objects.store.store import Store
from headgate.objects.views.copies import EventPolicyCopy
from headgate_api.event.model import Event
from headgate_api.objects.kinds import Kind

SOURCE = SourceConfig(name="orders", topics=("orders",), broker="shop/orders")
SENDER = "system:serviceaccount:shop:source-orders"


def document(kind: str, name: str, version: str = "eventing.knative.dev/v1", **spec: object) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": "shop"}, "spec": spec}


class World:
    def __init__(self, folder: Path, mode: DefaultMode | None = DefaultMode.ALLOW_SAME_NAMESPACE) -> None:
        self.store = Store.open(folder / "control.db")
        self.admission = Admission(self.store)
        self.admission.create(Kind.BROKER, document("Broker", "orders"))
        self.now_s = 1_000.0
        policies = EventPolicyCopy(self.store, mode) if mode is not None else None
        self.gate = SourceGates(self.store, policies, 2, lambda: self.now_s)

    def policy(self, sub: str, *filters: dict[str, Any]) -> None:
        version = "eventing.knative.dev/v1alpha1"
        to = [{"ref": {"apiVersion": "eventing.knative.dev/v1", "kind": "Broker", "name": "orders"}}]
        made = document("EventPolicy", "p", version, to=to, filters=list(filters)) | {}
        made["spec"]["from"] = [{"sub": sub}]
        self.admission.apply(made)

    def limit(self, events: int) -> None:
        self.admission.apply(document("ResourceQuota", "q", "v1", hard={PUBLISH_EVENTS: events}))

    def admits(self, kind: str = "paid") -> bool:
        self.gate.wait_s(SOURCE)
        try:
            self.gate.check(SOURCE, Event("1.0", "1", "/s", kind))
        except EventForbiddenError as error:
            return SENDER not in error.message
        return True


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    found = World(tmp_path)
    yield found
    found.store.close()


def test_a_source_is_a_service_account_of_its_brokers_namespace(world: World) -> None:
    assert world.admits(), "no policy applies"
    world.policy("system:serviceaccount:shop:other")
    assert not world.admits()
    world.policy(SENDER, {"exact": {"type": "paid"}})
    assert [world.admits("paid"), world.admits("sent")] == [True, False]
    world.policy("system:serviceaccount:shop:*")
    assert world.admits("sent")


@pytest.mark.parametrize(
    ("mode", "is_admitted"), [(DefaultMode.DENY_ALL, False), (DefaultMode.ALLOW_ALL, True), (None, True)]
)
def test_the_default_mode_holds_for_sources_and_no_mode_asks_nobody(
    tmp_path: Path, mode: DefaultMode | None, is_admitted: bool
) -> None:
    world = World(tmp_path, mode)
    assert world.admits() is is_admitted
    world.store.close()


def test_over_its_quota_a_source_waits_as_long_as_its_share_asks(world: World) -> None:
    world.limit(10)
    assert world.gate.wait_s(SOURCE) == 0
    world.gate.stored(SOURCE, 15, 1_000)
    assert world.gate.wait_s(SOURCE) == pytest.approx(2.2), "five of ten are its share: two fronts or sources have them"
    world.now_s += 2.3
    assert world.gate.wait_s(SOURCE) == 0
    world.limit(0)
    assert world.gate.wait_s(SOURCE) > 1e9
    world.limit(1_000_000)
    world.now_s += 1
    assert world.gate.wait_s(SOURCE) == 0
