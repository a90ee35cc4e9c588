"""EventPolicies as objects: their rules, what they apply to, conditions, copies that follow, and the API."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.auth.authorizer import ForbiddenError
from headgate.auth.event_policies import DefaultMode
from headgate.auth.user import authenticated
from headgate.objects.api.admission import Admission
from headgate.objects.api.bootstrap import bootstrap
from headgate.objects.api.grants import Grants
from headgate.objects.kinds.egress import UrlPolicy
from headgate.objects.kinds.managers import Manager, WriteOptions
from headgate.objects.kinds.status import ServerUrls
from headgate.objects.store.reconciler import Reconciler
from headgate.objects.store.store import Store
from headgate.objects.views.copies import EventPolicyCopy, RbacCopy
from headgate_api import limits
from headgate_api.objects.errors import InvalidObjectError, MalformedObjectError, QuotaError
from headgate_api.objects.kinds import Broker, EventPolicy, Kind, ObjectKey
from tests.objects.support import Server, broker, trigger

API = "eventing.knative.dev/v1"
ORDERS = {"ref": {"apiVersion": API, "kind": "Broker", "name": "orders"}}
CRM = {"ref": {"apiVersion": API, "kind": "Trigger", "name": "crm"}}
CRM_NAME = "system:serviceaccount:default:oidc-eventing.knative.dev-trigger-crm"
URLS = ServerUrls(("http://127.0.0.1:8080",), default_mode=DefaultMode.ALLOW_SAME_NAMESPACE)


def policy(name: str = "p", **spec: Any) -> dict[str, Any]:
    if "from_" in spec:
        spec["from"] = spec.pop("from_")
    return {"apiVersion": f"{API}alpha1", "kind": "EventPolicy", "metadata": {"name": name}, "spec": spec}


def selector(**changes: object) -> dict[str, object]:
    return {"selector": {"apiVersion": API, "kind": "Broker", **changes}}


MANY = limits.EVENT_POLICY_ITEMS_MAX + 1
WRONG = [
    (policy(to=[{}]), "spec.to[0]"),
    (policy(to=[ORDERS | selector()]), "spec.to[0]"),
    (policy(to=[{"ref": ORDERS["ref"] | {"kind": "Channel"}}]), "spec.to[0].ref.kind"),
    (policy(to=[{"ref": ORDERS["ref"] | {"apiVersion": "v1"}}]), "spec.to[0].ref.apiVersion"),
    (policy(to=[{"ref": ORDERS["ref"] | {"name": ""}}]), "spec.to[0].ref.name"),
    (policy(to=[selector(kind="Sink")]), "spec.to[0].selector.kind"),
    (policy(to=[selector(matchExpressions=[{"key": "a", "operator": "Like"}])]), "matchExpressions[0].operator"),
    (policy(to=[selector(matchExpressions=[{"operator": "Exists"}])]), "matchExpressions[0].key"),
    (policy(to=[selector(matchExpressions=[{"key": "a", "operator": "In"}])]), "matchExpressions[0].values"),
    (
        policy(to=[selector(matchExpressions=[{"key": "a", "operator": "Exists", "values": ["b"]}])]),
        "matchExpressions[0].values",
    ),
    (policy(to=[selector(matchLabels={f"l{n}": "x" for n in range(MANY)})]), "spec.to[0].selector"),
    (policy(to=[ORDERS] * MANY), "spec.to"),
    (policy(from_=[{}]), "spec.from[0]"),
    (policy(from_=[CRM | {"sub": "x"}]), "spec.from[0]"),
    (policy(from_=[{"ref": {"kind": "Trigger", "apiVersion": API}}]), "spec.from[0].ref.name"),
    (policy(from_=[{"sub": "a*b"}]), "spec.from[0].sub"),
    (policy(from_=[{"sub": "*b"}]), "spec.from[0].sub"),
    (policy(from_=[{"sub": "x" * (limits.RBAC_TEXT_CHARS_MAX + 1)}]), "spec.from[0].sub"),
    (policy(from_=[{"sub": "x"}] * MANY), "spec.from"),
    (policy(filters=[{"exact": {}}]), "spec.filters[0].exact"),
    (policy(filters=[{}]), "spec.filters[0]"),
    (policy(filters=[{"cesql": "type ="}]), "spec.filters[0].cesql"),
    (policy(filters=[{"exact": {"type": "t"}}, {"cel": "ce.type == 5"}]), "spec.filters[1].cel"),
    (policy(from_=[{"subject": "x"}]), "spec.from[0]"),
    (policy(to="orders"), "spec.to"),
]


@pytest.mark.parametrize(("document", "field"), WRONG)
def test_what_is_no_policy(admission: Admission, document: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidObjectError) as error:
        admission.create(Kind.EVENT_POLICY, document)
    assert any(field in cause.field for cause in error.value.causes), error.value.causes


def test_a_misspelt_field_is_refused(admission: Admission) -> None:
    with pytest.raises(MalformedObjectError, match=r'unknown field "spec\.form"'):
        admission.create(Kind.EVENT_POLICY, policy(form=[{"sub": "x"}]))


def test_a_reference_says_its_namespace(admission: Admission) -> None:
    made = admission.create(Kind.EVENT_POLICY, policy(from_=[CRM, {"sub": "a*"}])).obj
    assert isinstance(made, EventPolicy)
    assert made.spec.from_[0].ref is not None
    assert made.spec.from_[0].ref.namespace == "default"


def test_a_namespace_has_so_many(admission: Admission, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(limits_of_writes(), Kind.EVENT_POLICY, 2)
    for number in range(2):
        admission.create(Kind.EVENT_POLICY, policy(f"p{number}"))
    with pytest.raises(QuotaError, match="eventpolicies in the namespace default"):
        admission.create(Kind.EVENT_POLICY, policy("more"))


def limits_of_writes() -> dict[Kind, int]:
    from headgate.objects.store import writes

    return writes._NAMESPACE_QUOTAS


def conditions(store: Store, kind: Kind, name: str) -> dict[str, tuple[str, str]]:
    found = store.get(ObjectKey(kind, "default", name))
    assert isinstance(found, Broker | EventPolicy)
    return {one.type: (one.status, one.reason) for one in found.status.conditions}


def test_conditions_follow_what_is_there(admission: Admission, store: Store) -> None:
    reconciler = Reconciler(store, server=URLS)
    admission.create(Kind.BROKER, broker("orders"))
    reconciler.step()
    assert conditions(store, Kind.BROKER, "orders")["EventPoliciesReady"] == ("True", "DefaultAuthorizationMode")
    source = {"ref": {"apiVersion": "sources.knative.dev/v1", "kind": "PingSource", "name": "ping"}}
    admission.create(Kind.EVENT_POLICY, policy(to=[ORDERS], from_=[CRM, {"sub": "ann"}]))
    admission.create(Kind.EVENT_POLICY, policy("ping", to=[ORDERS], from_=[source]))
    admission.create(Kind.EVENT_POLICY, policy("elsewhere", to=[{"ref": ORDERS["ref"] | {"name": "x"}}]))
    reconciler.step()
    assert conditions(store, Kind.EVENT_POLICY, "p")["Ready"] == ("False", "SubjectsNotResolved")
    assert conditions(store, Kind.EVENT_POLICY, "elsewhere")["Ready"] == ("True", "")
    assert conditions(store, Kind.BROKER, "orders")["EventPoliciesReady"] == ("False", "EventPoliciesNotReady")
    admission.create(Kind.TRIGGER, trigger("crm", broker="orders"))
    reconciler.step()
    found = store.get(ObjectKey(Kind.EVENT_POLICY, "default", "p"))
    assert isinstance(found, EventPolicy)
    assert found.status.from_ == (CRM_NAME, "ann")
    assert conditions(store, Kind.EVENT_POLICY, "p")["Ready"] == ("True", "")
    assert conditions(store, Kind.BROKER, "orders")["Ready"] == ("False", "EventPoliciesNotReady")
    store.delete(ObjectKey(Kind.EVENT_POLICY, "default", "ping"))
    reconciler.step()
    there = store.get(ObjectKey(Kind.BROKER, "default", "orders"))
    assert isinstance(there, Broker)
    assert conditions(store, Kind.BROKER, "orders")["Ready"] == ("True", "")
    assert [(one.api_version, one.name) for one in there.status.policies] == [(f"{API}alpha1", "p")]
    assert there.status.address is not None
    assert there.status.address.audience == "eventing.knative.dev/broker/default/orders"
    assert reconciler.step() == 0


def test_a_server_that_knows_no_users_says_that_policies_do_nothing(admission: Admission, store: Store) -> None:
    admission.create(Kind.BROKER, broker("orders"))
    admission.create(Kind.EVENT_POLICY, policy(from_=[{"sub": "ann"}]))
    Reconciler(store).step()
    assert conditions(store, Kind.EVENT_POLICY, "p")["Ready"] == ("False", "AuthenticationDisabled")
    assert conditions(store, Kind.BROKER, "orders")["EventPoliciesReady"] == ("True", "AuthenticationDisabled")
    there = store.get(ObjectKey(Kind.BROKER, "default", "orders"))
    assert isinstance(there, Broker)
    assert (there.status.policies, there.status.address and there.status.address.audience) == ((), "")


def test_a_copy_follows_every_write(admission: Admission, store: Store) -> None:
    copy = EventPolicyCopy(store, DefaultMode.DENY_ALL)
    ann, eve = authenticated("ann"), authenticated("eve")

    def admitted(name: str = "default/orders") -> tuple[bool, bool]:
        copy.refresh()
        policies = copy.authority.policies
        return policies.admission(ann, name).every, policies.admission(eve, name).every

    assert admitted() == (False, False)
    admission.create(Kind.EVENT_POLICY, policy(to=[selector(matchLabels={"tier": "a"})], from_=[{"sub": "ann"}]))
    admission.create(Kind.BROKER, broker("orders"))
    assert admitted() == (False, False)
    orders, named = ObjectKey(Kind.BROKER, "default", "orders"), ObjectKey(Kind.EVENT_POLICY, "default", "p")
    admission.merge(orders, {"metadata": {"labels": {"tier": "a"}}})
    assert admitted() == (True, False)
    admission.merge(named, {"spec": {"from": [{"sub": "e*"}]}})
    assert admitted() == (False, True)
    admission.merge(named, {"spec": {"filters": [{"prefix": {"type": "order."}}]}})
    assert admitted() == (False, False)
    assert copy.authority.policies.admission(eve, "default/orders").filters == ('ce.type.startsWith("order.")',)
    admission.merge(named, {"spec": {"filters": None, "to": None}})  # all brokers of the namespace
    assert admitted() == (False, True)
    assert admitted("default/default") == (False, True)
    elsewhere = broker("orders")
    elsewhere["metadata"]["namespace"] = "other"
    admission.create(Kind.BROKER, elsewhere)
    assert admitted("other/orders") == (False, False)
    store.delete(named)
    assert admitted() == (False, False)


@pytest.mark.parametrize(
    ("requirement", "labels", "holds"),
    [
        ({"operator": "In", "values": ["a", "b"]}, {"tier": "b"}, True),
        ({"operator": "In", "values": ["a", "b"]}, {"tier": "c"}, False),
        ({"operator": "In", "values": ["a", "b"]}, {}, False),
        ({"operator": "NotIn", "values": ["a"]}, {"tier": "a"}, False),
        ({"operator": "NotIn", "values": ["a"]}, {}, True),
        ({"operator": "Exists"}, {"tier": ""}, True),
        ({"operator": "Exists"}, {}, False),
        ({"operator": "DoesNotExist"}, {}, True),
        ({"operator": "DoesNotExist"}, {"tier": "a"}, False),
    ],
)
def test_selectors(
    admission: Admission, store: Store, requirement: dict[str, object], labels: dict[str, str], holds: bool
) -> None:
    document = broker("orders")
    document["metadata"]["labels"] = labels
    admission.create(Kind.BROKER, document)
    wanted = selector(matchExpressions=[{"key": "tier", **requirement}])
    admission.create(Kind.EVENT_POLICY, policy(to=[wanted], from_=[{"sub": "ann"}]))
    copy = EventPolicyCopy(store, DefaultMode.DENY_ALL)
    copy.refresh()
    assert copy.authority.policies.admission(authenticated("ann"), "default/orders").every is holds


def test_who_writes_a_policy_has_the_right_to_publish(store: Store) -> None:
    roles = RbacCopy(store)
    grants = Grants(store, UrlPolicy(), roles.authorizer, roles.refresh)
    admission = Admission(store, grants=grants)
    bootstrap(Admission(store))
    ann, eve = authenticated("ann"), authenticated("eve")
    for user, role in ((ann, "headgate:admin"), (eve, "headgate:viewer")):
        binding = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": user.name},
            "subjects": [{"kind": "User", "name": user.name}],
            "roleRef": {"kind": "ClusterRole", "name": role},
        }
        Admission(store).create(Kind.ROLE_BINDING, binding)
    document = policy(from_=[{"sub": "*"}])
    with pytest.raises(ForbiddenError, match="brokers/events"):
        admission.create(Kind.EVENT_POLICY, document, WriteOptions(Manager("kubectl", user=eve)))
    made = admission.create(Kind.EVENT_POLICY, document, WriteOptions(Manager("kubectl", user=ann))).obj
    assert made.metadata.annotations["eventing.knative.dev/creator"] == "ann"

    Admission(store).create(Kind.TRIGGER, trigger("there"), namespace="other")
    refusals = []
    for name in ("there", "missing"):
        ref = CRM["ref"] | {"name": name, "namespace": "other"}
        document = policy("looks", from_=[{"ref": ref}])
        with pytest.raises(ForbiddenError, match='cannot get resource "triggers"') as refused:
            admission.create(Kind.EVENT_POLICY, document, WriteOptions(Manager("kubectl", user=ann)))
        refusals.append(refused.value.message.replace(name, ""))
    assert refusals[0] == refusals[1], "an answer tells whether another team's trigger exists"


def test_the_api_serves_policies(server: Server) -> None:
    base = "/apis/eventing.knative.dev/v1alpha1"
    groups = server.request("GET", "/apis/eventing.knative.dev").json
    assert [one["version"] for one in groups["versions"]] == ["v1", "v1alpha1", "v1beta2"]
    assert groups["preferredVersion"]["version"] == "v1"
    (first, second) = server.request("GET", base).json["resources"]
    assert (first["name"], first["singularName"], second["name"]) == (
        "eventpolicies",
        "eventpolicy",
        "eventpolicies/status",
    )
    names = [one["name"] for one in server.request("GET", "/apis/eventing.knative.dev/v1").json["resources"]]
    assert names == ["brokers", "brokers/status", "triggers", "triggers/status"]
    path = f"{base}/namespaces/default/eventpolicies"
    assert server.request("POST", path, policy(from_=[{"sub": "ann"}])).status == 201
    assert server.request("GET", f"{path}/p/status").json["kind"] == "EventPolicy"
    listed = server.request("GET", path).json
    assert (listed["kind"], listed["apiVersion"]) == ("EventPolicyList", "eventing.knative.dev/v1alpha1")
    schema = server.request("GET", f"/openapi/v3{base}").json["components"]["schemas"]
    spec = schema["dev.knative.eventing.v1alpha1.EventPolicy"]["properties"]["spec"]["properties"]
    assert set(spec) == {"to", "from", "filters"}
    assert "cesql" in spec["filters"]["items"]["properties"]
