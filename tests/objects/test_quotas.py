"""Resource quotas as objects of the API: the real kubectl, what is refused, and what is used."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from headgate.filter.compile.compiler import compile_filter
from headgate.filter.compile.plan import filter_cost
from headgate.objects.api.admission import Admission
from headgate.objects.kinds.managers import WriteOptions
from headgate.objects.kinds.quotas import (
    DEAD_LETTERS,
    FILTER_COST,
    NOT_ON_KAFKA,
    PUBLISH_EVENTS,
    READERS,
    RESOURCES,
    quantity,
)
from headgate.objects.store import writes
from headgate.objects.store.reconciler import Reconciler
from headgate.objects.store.store import Store
from headgate_api.limits import (
    FILTER_COST_COMPARED,
    FILTER_COST_EVALUATED,
    QUOTA_STATUS_S,
    RESOURCE_QUOTAS_PER_NAMESPACE_MAX,
)
from headgate_api.objects.errors import ExceededQuotaError, InvalidObjectError, MalformedObjectError, QuotaError
from headgate_api.objects.kinds import Kind, ObjectKey, ResourceQuota
from tests.objects.support import Kubectl, Server, broker, trigger
from tests.objects.test_rbac import role
from tests.objects.test_subscriptions import subscription
from tests.support import eventually

TRIGGERS = "count/triggers.eventing.knative.dev"


def quota(name: str = "q1", **hard: int | str) -> dict[str, Any]:
    spec = {"hard": {key.replace("__", "/"): value for key, value in hard.items()}}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": name}, "spec": spec}


def limiting(resource: str, limit: int | str, name: str = "q1") -> dict[str, Any]:
    return {**quota(name), "spec": {"hard": {resource: limit}}}


def used(store: Store, name: str = "q1", namespace: str = "default") -> dict[str, str]:
    found = store.get(ObjectKey(Kind.RESOURCE_QUOTA, namespace, name))
    assert isinstance(found, ResourceQuota)
    return found.status.used


@pytest.mark.slow  # what they do is below
def test_kubectl_makes_shows_and_changes_them(kubectl: Kubectl, server: Server) -> None:
    assert kubectl("create", "quota", "team-a", f"--hard={TRIGGERS}=1,{FILTER_COST}=2k") == (
        "resourcequota/team-a created\n"
    )
    kubectl("apply", "-f", "-", stdin=json.dumps(trigger("t1")))
    refused = kubectl("apply", "-f", "-", stdin=json.dumps(trigger("t2")), fails=True)
    assert (
        'Error from server (Forbidden): error when creating "STDIN": triggers.eventing.knative.dev "t2" is forbidden: '
        f"exceeded quota: team-a, requested: {TRIGGERS}=1, used: {TRIGGERS}=1, limited: {TRIGGERS}=1\n"
    ) == refused
    eventually(lambda: used(server.store, "team-a") == {TRIGGERS: "1", FILTER_COST: "1"})
    described = kubectl("describe", "quota", "team-a")
    assert [line.split() for line in described.splitlines() if "/" in line] == [
        [TRIGGERS, "1", "1"],
        [FILTER_COST, "1", "2k"],
    ]
    heads, row = kubectl("get", "quota").splitlines()
    assert heads.split() == ["NAME", "REQUEST", "LIMIT", "AGE"]
    assert row.startswith(f"team-a   {TRIGGERS}: 1/1, {FILTER_COST}: 1/2k ")
    kubectl("patch", "quota", "team-a", "-p", json.dumps({"spec": {"hard": {TRIGGERS: "2"}}}))
    kubectl("apply", "-f", "-", stdin=json.dumps(trigger("t2")))
    assert "Limits of what a namespace uses" in kubectl("explain", "resourcequota")
    assert kubectl("delete", "quota", "team-a") == 'resourcequota "team-a" deleted\n'
    kubectl("apply", "-f", "-", stdin=json.dumps(trigger("t3")))
    refused = kubectl("create", "quota", "pods", "--hard=pods=4", fails=True)
    assert 'spec.hard[pods]: Unsupported value: "pods"' in refused
    refused = kubectl("create", "quota", "scoped", f"--hard={TRIGGERS}=4", "--scopes=BestEffort", fails=True)
    assert "scopes are not supported" in refused


@pytest.mark.parametrize(
    ("written", "number"),
    [
        *[(0, 0), ("0", 0), (7, 7), ("5k", 5_000), ("64Mi", 64 << 20), ("1.5k", 1_500), ("1e3", 1_000), ("2E1", 20)],
        *[
            ("2000m", 2),
            ("8E", 8 * 10**18),
            (".5k", 500),
            ("1.", 1),
            ("100e-2", 1),
            (str((1 << 63) - 1), (1 << 63) - 1),
        ],
    ],
)
def test_quantities_are_those_of_kubernetes(written: int | str, number: int) -> None:
    assert quantity(written) == number


@pytest.mark.parametrize(
    "written",
    [
        *["", "-1", "+1", "1.5", "500m", "1 k", "k", "1K", "1kk", "0x10", "1e", "1e999", "9" * 39, "9" * 9_999, "٣"],
        *["8Ei", -1, str(1 << 63), "1_000", "NaN", "inf", "1ki"],
    ],
)
def test_what_is_no_quantity_is_refused(admission: Admission, written: int | str) -> None:
    with pytest.raises(InvalidObjectError) as caught:
        admission.create(Kind.RESOURCE_QUOTA, limiting(TRIGGERS, written))
    assert [cause.field for cause in caught.value.causes] == [f"spec.hard[{TRIGGERS}]"]


def test_a_limit_that_nobody_would_hold_is_refused(admission: Admission) -> None:
    for resource in ("pods", "count/pods", "requests.cpu", "headgate.dev/nothing", "", f"{TRIGGERS} "):
        with pytest.raises(InvalidObjectError, match="Unsupported value"):
            admission.create(Kind.RESOURCE_QUOTA, limiting(resource, 1))
    with pytest.raises(InvalidObjectError, match="at least one resource"):
        admission.create(Kind.RESOURCE_QUOTA, quota())
    wanted = limiting(TRIGGERS, 1)
    wanted["spec"]["scopes"] = ["Terminating"]
    with pytest.raises(InvalidObjectError, match="scopes are not supported"):
        admission.create(Kind.RESOURCE_QUOTA, wanted)
    with pytest.raises(MalformedObjectError, match="harder"):
        admission.create(Kind.RESOURCE_QUOTA, quota() | {"spec": {"harder": {TRIGGERS: 1}}})
    every = quota() | {"spec": {"hard": dict.fromkeys(RESOURCES, 1)}}
    admission.create(Kind.RESOURCE_QUOTA, every)


def test_every_quota_of_the_namespace_counts_and_no_other(admission: Admission) -> None:
    admission.create(Kind.RESOURCE_QUOTA, limiting(TRIGGERS, 2, "wide"))
    admission.create(Kind.RESOURCE_QUOTA, limiting(TRIGGERS, 1, "narrow"))
    admission.create(Kind.TRIGGER, trigger("t1"))
    with pytest.raises(ExceededQuotaError, match="exceeded quota: narrow, "):
        admission.create(Kind.TRIGGER, trigger("t2"))
    with pytest.raises(ExceededQuotaError):
        admission.create(Kind.TRIGGER, trigger("t2"), WriteOptions(dry_run=True))
    admission.create(Kind.TRIGGER, trigger("t2"), namespace="other")
    admission.store.delete(ObjectKey(Kind.TRIGGER, "default", "t1"))
    admission.create(Kind.TRIGGER, trigger("t2"))


def test_a_lowered_quota_takes_nothing_away(admission: Admission) -> None:
    key = ObjectKey(Kind.RESOURCE_QUOTA, "default", "q1")
    for name in ("t1", "t2"):
        admission.create(Kind.TRIGGER, trigger(name))
    admission.create(Kind.RESOURCE_QUOTA, limiting(TRIGGERS, 5))
    admission.merge(key, {"spec": {"hard": {TRIGGERS: 1}}})
    with pytest.raises(ExceededQuotaError, match=f"used: {TRIGGERS}=2, limited: {TRIGGERS}=1"):
        admission.create(Kind.TRIGGER, trigger("t3"))
    admission.merge(ObjectKey(Kind.TRIGGER, "default", "t1"), {"metadata": {"labels": {"a": "b"}}})
    Reconciler(admission.store).step()
    assert used(admission.store) == {TRIGGERS: "2"}


def test_the_cost_of_filters_is_that_of_their_rows() -> None:
    def cost(expression: str) -> int:
        return filter_cost(compile_filter({"cel": expression}))

    assert cost("ce.type == 'a'") == 1
    assert cost("ce.type == 'a' || ce.type == 'b'") == 2
    assert cost("ce.type.contains('a')") == FILTER_COST_COMPARED
    assert cost("ce.type.matches('^(ab)*$')") == FILTER_COST_EVALUATED
    assert filter_cost(compile_filter(None)) == 1


def test_dear_filters_are_refused_when_they_are_made_and_when_they_grow(admission: Admission) -> None:
    admission.create(Kind.RESOURCE_QUOTA, limiting(FILTER_COST, FILTER_COST_COMPARED + 1))
    admission.create(Kind.TRIGGER, trigger("t1", filter={"cel": "ce.type == 'a'"}))
    with pytest.raises(ExceededQuotaError, match=f"requested: {FILTER_COST}={FILTER_COST_EVALUATED}, used: .*=1, "):
        admission.create(Kind.TRIGGER, trigger("t2", filter={"cel": "ce.type.matches('^(ab)*$')"}))
    key = ObjectKey(Kind.TRIGGER, "default", "t1")
    with pytest.raises(ExceededQuotaError, match=f"requested: {FILTER_COST}={FILTER_COST_EVALUATED - 1}, "):
        admission.merge(key, {"spec": {"filter": {"cel": "ce.type.matches('^(ab)*$')"}}})
    admission.merge(key, {"spec": {"filter": {"cel": "ce.type.contains('a')"}}})
    admission.merge(key, {"spec": {"filter": {"cel": "ce.type == 'a'"}}})
    Reconciler(admission.store).step()
    assert used(admission.store) == {FILTER_COST: "1"}


def test_a_status_is_written_once_and_only_where_something_changed(admission: Admission) -> None:
    store, reconciler = admission.store, Reconciler(admission.store)
    for namespace in ("default", "other"):
        admission.create(Kind.RESOURCE_QUOTA, limiting(TRIGGERS, 5), namespace=namespace)
    reconciler.step()
    other = store.get(ObjectKey(Kind.RESOURCE_QUOTA, "other", "q1")).metadata.resource_version
    admission.create(Kind.TRIGGER, trigger("t1"))
    reconciler.step()
    assert used(store) == {TRIGGERS: "1"}
    assert store.get(ObjectKey(Kind.RESOURCE_QUOTA, "other", "q1")).metadata.resource_version == other
    assert reconciler.step() == 0
    admission.create(Kind.RESOURCE_QUOTA, limiting("count/secrets", 5, "q2"))
    reconciler.step()
    assert used(store, "q2") == {"count/secrets": "0"}


def test_the_status_says_what_processes_hold_and_follows_it(admission: Admission) -> None:
    store, now_s = admission.store, 1_000.0
    usage: dict[str, dict[str, int]] = {}
    reconciler = Reconciler(store, usage=lambda: dict(usage), clock_s=lambda: now_s)
    for namespace in ("default", "other"):
        hard = {"hard": {TRIGGERS: 5, DEAD_LETTERS: 7, PUBLISH_EVENTS: 9}}
        admission.create(Kind.RESOURCE_QUOTA, quota() | {"spec": hard}, namespace=namespace)
    reconciler.step()
    assert used(store) == {TRIGGERS: "0", DEAD_LETTERS: "0"}
    other = store.get(ObjectKey(Kind.RESOURCE_QUOTA, "other", "q1")).metadata.resource_version
    usage[DEAD_LETTERS] = {"default": 3}
    assert reconciler.step() == 0, "not each second"
    now_s += QUOTA_STATUS_S
    assert reconciler._is_due()
    assert reconciler.step() == 1
    assert used(store) == {TRIGGERS: "0", DEAD_LETTERS: "3"}
    admission.create(Kind.TRIGGER, trigger("t1"))
    reconciler.step()
    assert used(store) == {TRIGGERS: "1", DEAD_LETTERS: "3"}
    usage.clear()
    now_s += QUOTA_STATUS_S
    reconciler.step()
    assert used(store) == {TRIGGERS: "1", DEAD_LETTERS: "0"}
    assert store.get(ObjectKey(Kind.RESOURCE_QUOTA, "other", "q1")).metadata.resource_version == other
    Reconciler(store).step()
    assert used(store) == {TRIGGERS: "1"}, "who does not know it does not say it"


def test_a_limit_that_a_deployment_cannot_hold_is_refused_with_the_reason(store: Store) -> None:
    admission = Admission(store, on_kafka=True)
    for resource in NOT_ON_KAFKA:
        with pytest.raises(InvalidObjectError, match="no server of a deployment on Kafka knows") as caught:
            admission.create(Kind.RESOURCE_QUOTA, limiting(resource, 1))
        assert caught.value.http_status == 422
    admission.create(Kind.RESOURCE_QUOTA, limiting(READERS, 1))


def test_a_namespace_has_so_many_quotas_and_no_more(admission: Admission) -> None:
    for number in range(RESOURCE_QUOTAS_PER_NAMESPACE_MAX):
        admission.create(Kind.RESOURCE_QUOTA, limiting(TRIGGERS, 1, f"q{number}"))
    with pytest.raises(QuotaError, match="in the namespace default already"):
        admission.create(Kind.RESOURCE_QUOTA, limiting(TRIGGERS, 1, "one-more"))


SHARED = {
    Kind.BROKER: ("BROKERS_MAX", lambda: broker("b")),
    Kind.TRIGGER: ("TRIGGERS_MAX", trigger),
    Kind.SUBSCRIPTION: ("SUBSCRIPTIONS_MAX", subscription),
    Kind.ROLE: ("RBAC_OBJECTS_MAX", role),
}


@pytest.mark.parametrize("kind", SHARED)
def test_a_namespace_has_its_share_of_all_objects_and_loses_none(
    admission: Admission, monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    limit, document = SHARED[kind]
    there = len(admission.store.page(kind).items)  # the broker `default`
    most, own = 16, 12
    monkeypatch.setitem(writes._QUOTAS, kind, (limit, most))

    def create(namespace: str, name: str) -> None:
        made = document()
        made["metadata"] = {"name": name, "namespace": namespace}
        admission.create(kind, made)

    for number in range(own):
        create("loud", f"o{number}")
    refusal = rf"there are {own} .*loud already, its share of the {most} .*\({limit}\)"
    with pytest.raises(QuotaError, match=refusal) as found:
        create("loud", "one-more")
    assert (found.value.http_status, found.value.code) == (403, "quota")
    assert "for other namespaces" in found.value.hint
    create("quiet", "first")
    with pytest.raises(QuotaError, match="its share"):
        create("loud", "one-more")
    admission.store.delete(ObjectKey(kind, "loud", "o0"))
    admission.store.delete(ObjectKey(kind, "loud", "o1"))
    create("loud", "one-more")
    create("third", "first")
    monkeypatch.setitem(writes._QUOTAS, kind, (limit, 1))
    with pytest.raises(QuotaError, match=rf"which is the maximum \({limit}\)") as found:
        create("quiet", "second")
    assert "resource quota" in found.value.hint
    assert len(admission.store.page(kind).items) == own + 1 + there, "a limit takes nothing away"


def test_filters_of_an_older_version_get_their_cost(admission: Admission, tmp_path: Path) -> None:
    store = admission.store
    admission.create(Kind.TRIGGER, trigger("t1", filter={"cel": "ce.type == 'a'"}))
    connection = sqlite3.connect(tmp_path / "control.db", isolation_level=None)
    connection.execute("UPDATE targets SET cost = NULL")
    connection.close()
    generation = store.desired_generation()
    assert store.plans.left() == 1
    after: int | None = 0
    while after is not None:
        after = store.plans.recompile(after)
    assert (store.plans.left(), store.desired_generation()) == (0, generation)
    admission.create(Kind.RESOURCE_QUOTA, limiting(FILTER_COST, 1))
    Reconciler(store).step()
    assert used(store) == {FILTER_COST: "1"}
