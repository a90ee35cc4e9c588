"""Kubernetes' discovery documents: groups, resources, version."""

from __future__ import annotations

import platform
from typing import Final

import headgate
from headgate.control.objects import GROUP, OWN_GROUP, VERSION, JsonObject, Kind

KUBERNETES_MINOR: Final = "32"
"""The minor version of Kubernetes whose API conventions are followed."""
_VERBS: Final = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
_NAMESPACE_VERBS: Final = [verb for verb in _VERBS if verb != "deletecollection"]
_CATEGORIES: Final = {GROUP: ["all", "knative", "eventing"], OWN_GROUP: ["all", "eventing"]}
AUTHORIZATION: Final = "authorization.k8s.io/v1"


def version() -> JsonObject:
    """`/version`."""
    return {
        "major": "1",
        "minor": KUBERNETES_MINOR,
        "gitVersion": f"v1.{KUBERNETES_MINOR}.0+headgate.{headgate.__version__}",
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": platform.python_implementation(),
        "platform": f"{platform.system().lower()}/{platform.machine()}",
    }


def core_versions() -> JsonObject:
    """`/api`."""
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}


def core_resources() -> JsonObject:
    """`/api/v1`: what kubectl looks at beside our objects."""
    return _resources(
        "v1",
        [
            _resource("namespaces", "Namespace", _NAMESPACE_VERBS, short=["ns"], namespaced=False),
            _resource("events", "Event", ["list"], short=["ev"]),
            _resource(Kind.SECRET.plural, Kind.SECRET.value, _VERBS),
        ],
    )


def groups() -> JsonObject:
    """`/apis`."""
    names = (GROUP, OWN_GROUP, AUTHORIZATION.split("/")[0])
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [group(name) for name in names]}


def group(name: str) -> JsonObject:
    """`/apis/GROUP`."""
    v1 = {"groupVersion": f"{name}/v1", "version": "v1"}
    return {"kind": "APIGroup", "apiVersion": "v1", "name": name, "versions": [v1], "preferredVersion": v1}


def object_resources(group: str) -> JsonObject:
    """`/apis/GROUP/v1`, of a group that has objects."""
    resources = []
    for kind in (kind for kind in Kind if kind.group == group):
        short = ["hgsub"] if kind is Kind.SUBSCRIPTION else None
        resources += [
            _resource(kind.plural, kind.value, _VERBS, short=short, categories=_CATEGORIES[group]),
            _resource(f"{kind.plural}/status", kind.value, ["get"]),
        ]
    return _resources(f"{group}/{VERSION}", resources)


def authorization_resources() -> JsonObject:
    """`/apis/authorization.k8s.io/v1`: what `kubectl auth can-i` asks."""
    return _resources(
        AUTHORIZATION,
        [
            _resource("selfsubjectaccessreviews", "SelfSubjectAccessReview", ["create"], namespaced=False),
            _resource("selfsubjectrulesreviews", "SelfSubjectRulesReview", ["create"], namespaced=False),
        ],
    )


def access_review() -> JsonObject:
    """The answer to `may I ...?`: there is no authorization, who reaches the port may do everything."""
    return _review("SelfSubjectAccessReview", {"allowed": True, "reason": "this server has no authorization"})


def rules_review() -> JsonObject:
    """The answer to `what may I do?`."""
    rule = {"verbs": _VERBS, "apiGroups": [GROUP], "resources": ["brokers", "triggers"]}
    own = {"verbs": _VERBS, "apiGroups": [OWN_GROUP], "resources": ["subscriptions"]}
    namespaces = {"verbs": _NAMESPACE_VERBS, "apiGroups": [""], "resources": ["namespaces"]}
    secrets = {"verbs": _VERBS, "apiGroups": [""], "resources": ["secrets"]}
    read = {"verbs": ["list"], "apiGroups": [""], "resources": ["events"]}
    rules = [rule, own, namespaces, secrets, read]
    return _review("SelfSubjectRulesReview", {"resourceRules": rules, "nonResourceRules": [], "incomplete": False})


def _review(kind: str, status: JsonObject) -> JsonObject:
    return {"kind": kind, "apiVersion": AUTHORIZATION, "metadata": {}, "spec": {}, "status": status}


def _resources(group_version: str, resources: list[JsonObject]) -> JsonObject:
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources}


def _resource(
    name: str,
    kind: str,
    verbs: list[str],
    *,
    short: list[str] | None = None,
    categories: list[str] | None = None,
    namespaced: bool = True,
) -> JsonObject:
    resource: JsonObject = {
        "name": name,
        "singularName": "" if "/" in name else kind.lower(),
        "namespaced": namespaced,
        "kind": kind,
        "verbs": verbs,
    }
    if short:
        resource["shortNames"] = short
    if categories:
        resource["categories"] = categories
    return resource
