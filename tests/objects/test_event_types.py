"""EventTypes: their rules, conditions, numbers, the API, and those that are made of events."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headgate.objects.api.admission import Admission
from headgate.objects.kinds.event_types import event_type_of, is_uri
from headgate.objects.store import writes
from headgate.objects.store.reconciler import Reconciler
from headgate.objects.store.store import Store
from headgate_api import limits
from headgate_api.objects.errors import InvalidObjectError, QuotaError
from headgate_api.objects.kinds import Broker, EventType, Kind, ObjectKey
from tests.go_programs import kn as built_kn
from tests.objects.support import Server, broker

API = "eventing.knative.dev/v1"
ORDERS = {"apiVersion": API, "kind": "Broker", "name": "orders"}


def event_type(name: str = "e", **spec: Any) -> dict[str, Any]:
    spec = {"type": "order.paid", **spec}
    return {"apiVersion": f"{API}beta2", "kind": "EventType", "metadata": {"name": name}, "spec": spec}


LONG = "x" * (limits.EVENT_TYPE_TEXT_CHARS_MAX + 1)


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"type": ""}, "spec.type"),
        ({"type": LONG}, "spec.type"),
        ({"description": LONG}, "spec.description"),
        ({"source": "%zz"}, "spec.source"),
        ({"source": "1:2"}, "spec.source"),
        ({"source": "a b"}, "spec.source"),
        ({"schema": "http://[x/"}, "spec.schema"),
        ({"schemaData": "x" * (limits.EVENT_TYPE_SCHEMA_CHARS_MAX + 1)}, "spec.schemaData"),
        ({"reference": {"apiVersion": API, "kind": "Broker"}}, "spec.reference.name"),
        ({"reference": {"kind": "Broker", "name": "b"}}, "spec.reference.apiVersion"),
        ({"reference": {**ORDERS, "namespace": "elsewhere"}}, "spec.reference.namespace"),
        ({"reference": ORDERS, "broker": "orders"}, "spec.broker"),
    ],
)
def test_what_is_wrong_is_named(store: Store, spec: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidObjectError) as caught:
        Admission(store).create(Kind.EVENT_TYPE, event_type(**spec))
    assert [cause.field for cause in caught.value.causes] == [field]


@pytest.mark.parametrize("good", ["/shop", "https://x.example:80/a?b=c#d", "urn:a:b", "a/b:c", "%20", "http://[::1]/"])
def test_sources_that_go_can_read(good: str) -> None:
    assert is_uri(good)


def test_all_of_it_is_immutable(store: Store) -> None:
    admission = Admission(store)
    admission.create(Kind.EVENT_TYPE, event_type())
    key = ObjectKey(Kind.EVENT_TYPE, "default", "e")
    with pytest.raises(InvalidObjectError, match="immutable"):
        admission.merge(key, {"spec": {"description": "another"}})
    assert admission.merge(key, {"metadata": {"labels": {"team": "a"}}}).obj.metadata.labels == {"team": "a"}


def test_conditions_follow_the_broker(store: Store) -> None:
    admission, reconciler = Admission(store), Reconciler(store)

    def ready(name: str) -> tuple[str, str]:
        for _ in range(3):
            reconciler.step()
        found = store.get(ObjectKey(Kind.EVENT_TYPE, "default", name))
        assert isinstance(found, EventType)
        assert found.status.observed_generation == 1
        (one,) = [condition for condition in found.status.conditions if condition.type == "Ready"]
        return one.status, one.reason

    admission.create(Kind.EVENT_TYPE, event_type("named", reference=ORDERS))
    admission.create(Kind.EVENT_TYPE, event_type("old", broker="orders"))
    admission.create(Kind.EVENT_TYPE, event_type("free"))
    admission.create(Kind.EVENT_TYPE, event_type("foreign", reference={**ORDERS, "kind": "Channel"}))
    assert ready("named") == ready("old") == ("False", "BrokerDoesNotExist")
    assert ready("free") == ("True", "")
    assert ready("foreign") == ("Unknown", "ReferenceGetFailed")
    admission.create(Kind.BROKER, broker("orders"))
    assert ready("named") == ready("old") == ("True", "")
    store.delete(ObjectKey(Kind.BROKER, "default", "orders"))
    assert ready("named") == ready("old") == ("False", "BrokerDoesNotExist")


def test_there_are_not_too_many(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    admission = Admission(store)
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q", "namespace": "small"}}
    hard = {"hard": {"count/eventtypes.eventing.knative.dev": "1"}}
    admission.create(Kind.RESOURCE_QUOTA, {**quota, "spec": hard})
    admission.create(Kind.EVENT_TYPE, event_type("one"), namespace="small")
    with pytest.raises(QuotaError, match="exceeded quota"):
        admission.create(Kind.EVENT_TYPE, event_type("two"), namespace="small")
    monkeypatch.setitem(writes._NAMESPACE_QUOTAS, Kind.EVENT_TYPE, 2)
    for name in ("one", "two"):
        admission.create(Kind.EVENT_TYPE, event_type(name))
    with pytest.raises(QuotaError, match="in the namespace default"):
        admission.create(Kind.EVENT_TYPE, event_type("three"))


def test_those_of_events_are_named_as_knative_names_them(store: Store) -> None:
    orders = store.get(ObjectKey(Kind.BROKER, "default", "default"))
    assert isinstance(orders, Broker)
    made = event_type_of(orders, "order.paid", "/shop")
    assert made is not None
    assert made["metadata"]["name"] == "et-default-24f0f9caf0727c089c957118c3f0fe98"
    assert Admission(store).create(Kind.EVENT_TYPE, made).outcome == "created"
    strange = event_type_of(orders, "order.paid", "not a uri")
    assert strange is not None
    assert "source" not in strange["spec"], "a source that Go cannot read would spoil every list"
    assert event_type_of(orders, LONG, "/shop") is None


# --- clients --------------------------------------------------------------------------------------

Kn = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def kn(server: Server, tmp_path: Path) -> Kn:
    program = built_kn()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "h",
        "clusters": [{"name": "h", "cluster": {"server": server.url}}],
        "contexts": [{"name": "h", "context": {"cluster": "h", "user": "h", "namespace": "default"}}],
        "users": [{"name": "h", "user": {}}],
    }
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "KUBECONFIG": str(tmp_path / "kubeconfig")}

    def run(*arguments: str, fails: bool = False) -> subprocess.CompletedProcess[str]:
        command = [str(program), "eventtype", *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode != 0) is fails, done.stdout + done.stderr
        return done

    return run


@pytest.mark.timeout(900)  # kn is built at the first time
@pytest.mark.slow  # Go builds kn
def test_kn_lists_describes_creates_and_deletes(kn: Kn, server: Server) -> None:
    assert kn("list").stdout == "No eventtypes found.\n"
    kn("create", "paid", "--type", "order.paid", "--source", "/shop", "--reference", "broker:default")
    kn("create", "old", "--type", "order.old", "--broker", "default")
    Admission(server.store).create(Kind.EVENT_TYPE, event_type("ours", source="urn:x:y"))
    listed = [line.split() for line in kn("list").stdout.splitlines()]
    assert listed[0] == ["NAME", "TYPE", "SOURCE", "REFERENCE", "AGE", "READY"]
    assert [row[0] for row in listed[1:]] == ["old", "ours", "paid"]
    assert listed[3][1:4] == ["order.paid", "/shop", "default"]
    described = kn("describe", "paid").stdout
    assert "/shop" in described
    assert "Broker" in described
    assert "order.paid" in kn("describe", "paid", "-o", "yaml").stdout
    assert "not found" in kn("describe", "nosuch", fails=True).stderr
    assert "spec.type" in kn("create", "none", "--type", "", fails=True).stderr
    assert "already exists" in kn("create", "paid", "--type", "x", fails=True).stderr
    kn("delete", "paid")
    assert len(kn("list").stdout.splitlines()) == 3
    found = server.request("GET", f"/apis/{API}beta2/namespaces/default/eventtypes/old").json
    assert found["spec"] == {"type": "order.old", "reference": {**ORDERS, "name": "default"}}, "kn's own translation"


@pytest.mark.slow  # a kind as the others, which test_kubectl.py shows
def test_kubectl_knows_them(kubectl: Callable[..., str]) -> None:
    document = event_type("paid", source="/shop", reference=ORDERS, description="Paid orders")
    assert "created" in kubectl("apply", "-f", "-", stdin=json.dumps(document))
    row = kubectl("get", "eventtypes", "--no-headers").split()
    assert row[:3] == ["paid", "order.paid", "/shop"]
    assert "immutable" in kubectl(
        "patch", "eventtype", "paid", "--type", "merge", "-p", '{"spec": {"type": "x"}}', fails=True
    )
    assert "What they are, for people" in kubectl("explain", "eventtypes.spec.description")
