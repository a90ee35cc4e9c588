"""The roles that are there from the start, and whom they are given to; a start restores what they lack.

As in Kubernetes: `rbac.authorization.kubernetes.io/autoupdate: "false"` on one of them leaves it as it is. Rules and
subjects that people added stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from headgate.auth.routes import EVENTING, IDENTITY, OBJECT_VERBS, OWN, RBAC, REVIEWS
from headgate.auth.rules import uncovered
from headgate.auth.user import AUTHENTICATED, SUPERUSERS, UNAUTHENTICATED
from headgate.control.admission import Admission
from headgate.control.errors import ObjectNotFoundError
from headgate.control.objects import ClusterRole, ClusterRoleBinding, JsonObject, Kind, ObjectKey
from headgate.control.rbac_objects import RBAC_API_VERSION, RBAC_GROUP, PolicyRule, RbacSubject
from headgate.control.rbac_rules import access_rules

AUTO_UPDATE: Final = "rbac.authorization.kubernetes.io/autoupdate"
_LABELS: Final = {"kubernetes.io/bootstrapping": "rbac-defaults"}
_SEEN: Final = ("get", "list", "watch")


def _rule(group: str, resources: str, *verbs: str) -> PolicyRule:
    return PolicyRule(verbs=verbs, api_groups=(group,), resources=tuple(resources.split()))


def _paths(*paths: str) -> PolicyRule:
    return PolicyRule(verbs=("get",), non_resource_urls=paths)


_PUBLISHER: Final = (_rule(EVENTING, "brokers", "get"), _rule(EVENTING, "brokers/events", "create"))
_CONSUMER: Final = (
    _rule(OWN, "subscriptions", *_SEEN),
    _rule(OWN, "subscriptions/events", "update"),
    _rule(OWN, "subscriptions/stats subscriptions/seek", "get"),
)
_VIEWER: Final = (
    _rule(EVENTING, "brokers triggers eventpolicies eventtypes", *_SEEN),
    _rule(EVENTING, "brokers/status triggers/status eventpolicies/status eventtypes/status", "get"),
    _rule(EVENTING, "brokers/events brokers/filter brokers/why brokers/trace triggers/why", "get"),
    _rule(EVENTING, "brokers/timeline brokers/catalogue", "get"),
    _rule(EVENTING, "brokers/stats triggers/stats", "get", "list"),
    _rule(OWN, "summaries subscriptions/consumers", "get"),
    _rule(OWN, "subscriptions", *_SEEN),
    _rule(OWN, "subscriptions/status subscriptions/stats subscriptions/seek", "get"),
    _rule(OWN, "deadletters replays", "get", "list"),
    _rule("", "namespaces", "get"),
    _rule("", "resourcequotas", *_SEEN),
    _rule("", "resourcequotas/status", "get"),
    _rule("", "events", "list"),
)
_CHANGED: Final = tuple(verb for verb in OBJECT_VERBS if verb not in _SEEN)
_EDITOR: Final = (
    *_VIEWER,
    _rule(EVENTING, "brokers triggers eventtypes", *_CHANGED),
    _rule(EVENTING, "brokers/events brokers/backtest triggers/redrive", "create"),
    _rule(OWN, "subscriptions", *_CHANGED),
    _rule(OWN, "subscriptions/events", "update"),
    _rule(OWN, "subscriptions/seek subscriptions/analyze", "create"),
    _rule(OWN, "subscriptions/seek", "delete"),
    _rule(OWN, "deadletters", "update", "delete"),
    _rule(OWN, "replays", "create", "update"),
    _rule("", "secrets", *OBJECT_VERBS),
)
_ADMIN: Final = (
    *_EDITOR,
    _rule(RBAC, "roles rolebindings", *OBJECT_VERBS),
    _rule(EVENTING, "eventpolicies", *_CHANGED),
    _rule(REVIEWS, "localsubjectaccessreviews", "create"),
)

_IDENTITY: Final = ("/.well-known/openid-configuration", "/openid/v1/jwks", "/handshake/v1/allow")
"""For receivers of deliveries, who check tokens of this server, or allow deliveries, and are no clients of it."""

_CONSOLE: Final = ("/", "/ui", "/ui/*")
"""Pages without data: who opens them has not signed in yet."""

ROLES: Final[dict[str, tuple[PolicyRule, ...]]] = {
    "headgate:admin": _ADMIN,
    "headgate:editor": _EDITOR,
    "headgate:viewer": _VIEWER,
    "headgate:publisher": (*_PUBLISHER, _rule(EVENTING, "brokers/filter", "get")),
    "headgate:consumer": _CONSUMER,
    "cluster-admin": (
        PolicyRule(verbs=("*",), api_groups=("*",), resources=("*",)),
        PolicyRule(verbs=("*",), non_resource_urls=("*",)),
    ),
    "system:basic-user": (
        _rule(REVIEWS, "selfsubjectaccessreviews selfsubjectrulesreviews", "create"),
        _rule(IDENTITY, "selfsubjectreviews", "create"),
        _rule(OWN, "filters/test filters/explain filters/convert", "create"),
        _rule(OWN, "filters/dialects selfsubjectnamespaces", "get"),
    ),
    "system:discovery": (_paths("/api", "/api/*", "/apis", "/apis/*", "/openapi", "/openapi/*", "/version"),),
    "system:public-info-viewer": (_paths("/livez", "/readyz", "/healthz", "/version", *_IDENTITY, *_CONSOLE),),
    "system:monitoring": (_paths("/metrics", "/livez", "/livez/*", "/readyz", "/readyz/*", "/healthz", "/healthz/*"),),
}
"""The cluster roles by name."""
_GIVEN: Final = {
    "cluster-admin": (SUPERUSERS,),
    "system:basic-user": (AUTHENTICATED,),
    "system:discovery": (AUTHENTICATED,),
    "system:public-info-viewer": (AUTHENTICATED, UNAUTHENTICATED),
    "system:monitoring": ("system:monitoring",),
}
"""The groups that have some of them everywhere, by the name of the role and of its binding."""


def bootstrap(admission: Admission) -> int:
    """Make what is missing of the roles and bindings that are there from the start; blocking.

    Returns:
        How many were written.
    """
    return sum(_ensure(admission, document) for document in _documents())


def _documents() -> Iterator[JsonObject]:
    for name, rules in ROLES.items():
        yield _document(Kind.CLUSTER_ROLE, name, rules=_plain(rules))
    for name, groups in _GIVEN.items():
        subjects = [{"kind": "Group", "apiGroup": RBAC_GROUP, "name": group} for group in groups]
        role = {"apiGroup": RBAC_GROUP, "kind": "ClusterRole", "name": name}
        yield _document(Kind.CLUSTER_ROLE_BINDING, name, subjects=subjects, roleRef=role)


def _document(kind: Kind, name: str, **content: object) -> JsonObject:
    metadata = {"name": name, "labels": dict(_LABELS), "annotations": {AUTO_UPDATE: "true"}}
    return {"apiVersion": RBAC_API_VERSION, "kind": kind.value, "metadata": metadata, **content}


def _plain(structs: Sequence[msgspec.Struct]) -> object:
    """As a client would send them."""
    return msgspec.json.decode(msgspec.json.encode(structs))


def _ensure(admission: Admission, document: JsonObject) -> bool:
    """Whether something was written."""
    kind, name = Kind(document["kind"]), document["metadata"]["name"]
    key = ObjectKey(kind, "", name)
    try:
        there = admission.store.get(key)
    except ObjectNotFoundError:
        admission.create(kind, document)
        return True
    if there.metadata.annotations.get(AUTO_UPDATE) != "true":
        return False
    change: JsonObject = {}
    if isinstance(there, ClusterRole):
        lacking = [rule for rule in ROLES[name] if uncovered(access_rules(there.rules), access_rules([rule]))]
        if lacking:
            change["rules"] = _plain([*there.rules, *lacking])
    elif isinstance(there, ClusterRoleBinding):
        wanted = msgspec.convert(document["subjects"], tuple[RbacSubject, ...])
        absent = [one for one in wanted if one not in there.subjects]
        if absent:
            change["subjects"] = _plain([*there.subjects, *absent])
    if not change:
        return False
    admission.merge(key, change)
    return True
