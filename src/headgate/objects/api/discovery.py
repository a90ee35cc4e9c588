"""Discovery documents: Kubernetes' groups, resources and version, and who signs tokens, as OpenID Connect has it."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import headgate
from headgate.objects.api.http import in_thread, json_response
from headgate.objects.store.signing_keys import ALGORITHM
from headgate.objects.store.store import Store
from headgate_api.objects.kinds import GROUP, KINDS_WITH_STATUS, OWN_GROUP, RBAC_GROUP, VERSION, JsonObject, Kind

KUBERNETES_MINOR: Final = "32"
"""The minor version of Kubernetes whose API conventions are followed."""
_VERBS: Final = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
_NAMESPACE_VERBS: Final = [verb for verb in _VERBS if verb != "deletecollection"]
_CATEGORIES: Final = {GROUP: ["all", "knative", "eventing"], OWN_GROUP: ["all", "eventing"]}
AUTHORIZATION: Final = "authorization.k8s.io/v1"
AUTHENTICATION: Final = "authentication.k8s.io/v1"
OBJECT_GROUPS: Final = (GROUP, OWN_GROUP, RBAC_GROUP)
GROUPS: Final = (*OBJECT_GROUPS, *(one.split("/")[0] for one in (AUTHORIZATION, AUTHENTICATION)))
"""All of them but the core group."""


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
            *_of_kinds("", "v1"),
        ],
    )


def groups() -> JsonObject:
    """`/apis`."""
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [group(name) for name in GROUPS]}


def group(name: str) -> JsonObject:
    """`/apis/GROUP`."""
    versions = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions_of(name)]
    return {"kind": "APIGroup", "apiVersion": "v1", "name": name, "versions": versions, "preferredVersion": versions[0]}


def versions_of(group: str) -> tuple[str, ...]:
    """The versions of a group, the preferred one first."""
    return tuple(dict.fromkeys((VERSION, *(kind.version for kind in Kind if kind.group == group))))


def object_resources(group: str, version: str = VERSION) -> JsonObject:
    """`/apis/GROUP/VERSION`, of a group that has objects."""
    return _resources(f"{group}/{version}", list(_of_kinds(group, version)))


def _of_kinds(group: str, version: str) -> Iterator[JsonObject]:
    short, categories = {Kind.SUBSCRIPTION: ["hgsub"], Kind.RESOURCE_QUOTA: ["quota"]}, _CATEGORIES.get(group)
    for kind in (kind for kind in Kind if (kind.group, kind.version) == (group, version)):
        names, namespaced = short.get(kind), kind.is_namespaced
        yield _resource(kind.plural, kind.value, _VERBS, short=names, categories=categories, namespaced=namespaced)
        if kind in KINDS_WITH_STATUS:
            yield _resource(f"{kind.plural}/status", kind.value, ["get"])


def review_resources(group: str) -> JsonObject:
    """`/apis/authorization.k8s.io/v1` and `/apis/authentication.k8s.io/v1`: what `kubectl auth` asks."""
    found = [
        _resource(f"{kind.lower()}s", kind, ["create"], namespaced=kind == LOCAL_REVIEW)
        for kind in REVIEWS
        if REVIEWS[kind] == group
    ]
    return _resources(group, found)


LOCAL_REVIEW: Final = "LocalSubjectAccessReview"
REVIEWS: Final = {
    "SelfSubjectAccessReview": AUTHORIZATION,
    "SelfSubjectRulesReview": AUTHORIZATION,
    "SubjectAccessReview": AUTHORIZATION,
    LOCAL_REVIEW: AUTHORIZATION,
    "SelfSubjectReview": AUTHENTICATION,
}
"""Questions about rights and users, by kind: the group that they belong to."""


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


# --- OpenID Connect -------------------------------------------------------------------------------


OPENID: Final = "/.well-known/openid-configuration"
KEYS: Final = "/openid/v1/jwks"


class IdentityApi:
    """The handlers; the store has the keys, and knows the server's URL, which is the issuer."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def routes(self) -> Iterator[Route]:
        yield Route(OPENID, self._configuration, methods=["GET"])
        yield Route(KEYS, self._keys, methods=["GET"])

    async def _configuration(self, request: Request) -> Response:
        issuer = await in_thread(self._store.public_url.get)
        return json_response(
            {
                "issuer": issuer,
                "jwks_uri": f"{issuer}{KEYS}",
                "response_types_supported": ["id_token"],
                "subject_types_supported": ["public"],
                "id_token_signing_alg_values_supported": [ALGORITHM],
            }
        )

    async def _keys(self, request: Request) -> Response:
        response = json_response({"keys": await in_thread(self._store.signing_keys.public)})
        response.headers["content-type"] = "application/jwk-set+json"
        return response
