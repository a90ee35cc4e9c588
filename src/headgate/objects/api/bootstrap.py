"""What a start writes: roles that are there from the start, manifests of a directory, and what migrations change.

A start restores what the roles lack. As in Kubernetes, `rbac.authorization.kubernetes.io/autoupdate: "false"` on one of
them leaves it as it is. Rules and subjects that people added stay.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
import structlog

from headgate.auth.routes import EVENTING, IDENTITY, OBJECT_VERBS, OWN, RBAC, REVIEWS
from headgate.auth.rules import uncovered
from headgate.auth.user import AUTHENTICATED, SUPERUSERS, UNAUTHENTICATED
from headgate.objects.api.admission import Admission
from headgate.objects.kinds.managers import MANIFESTS, managers_of, owned, updated
from headgate.objects.kinds.rbac_rules import access_rules
from headgate.objects.store.namespaces import decode_namespace, namespace
from headgate.objects.store.secret_store import SecretTable
from headgate.objects.store.store import Store
from headgate_api.errors import HeadgateError, InvalidInputError, UnavailableError
from headgate_api.limits import RECOMPILED_FILTERS_MAX
from headgate_api.objects.access_objects import RBAC_API_VERSION, RBAC_GROUP, PolicyRule, RbacSubject
from headgate_api.objects.bodies import is_namespace
from headgate_api.objects.errors import InvalidObjectError, NamespaceError, ObjectNotFoundError
from headgate_api.objects.kinds import ClusterRole, ClusterRoleBinding, JsonObject, Kind, Metadata, Namespace, ObjectKey
from headgate_api.objects.manifests import Document, ManifestError, read_path

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
    _rule(EVENTING, "brokers/timeline brokers/catalogue brokers/lint", "get"),
    _rule(EVENTING, "brokers/stats triggers/stats", "get", "list"),
    _rule(OWN, "summaries subscriptions/consumers", "get"),
    _rule(OWN, "subscriptions", *_SEEN),
    _rule(OWN, "subscriptions/status subscriptions/stats subscriptions/seek", "get"),
    _rule(OWN, "deadletters pending replays", "get", "list"),
    _rule("", "namespaces", "get"),
    _rule("", "resourcequotas", *_SEEN),
    _rule("", "resourcequotas/status", "get"),
    _rule("", "events", "list"),
)
_SUBSCRIBER: Final = _rule(EVENTING, "brokers", "knsubscribe")
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
    _rule(OWN, "pending", "delete"),
    _rule(OWN, "replays", "create", "update"),
    _rule("", "secrets", *OBJECT_VERBS),
)
_ADMIN: Final = (
    *_EDITOR,
    _SUBSCRIBER,
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
    "headgate:subscriber": (_SUBSCRIBER,),
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
_GIVEN: Final = {
    "cluster-admin": (SUPERUSERS,),
    "system:basic-user": (AUTHENTICATED,),
    "system:discovery": (AUTHENTICATED,),
    "system:public-info-viewer": (AUTHENTICATED, UNAUTHENTICATED),
    "system:monitoring": ("system:monitoring",),
}
"""The groups that have some of them everywhere, by the name of the role and of its binding."""


def bootstrap(admission: Admission) -> int:
    """Make what is missing of the roles and bindings that are there from the start; how many. Blocking."""
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


# --- manifests ------------------------------------------------------------------------------------


def load(admission: Admission, directory: Path) -> Counter[str]:
    """Apply every manifest of a directory and of those below it; how many were `created`, `configured`, `unchanged`.

    Raises ManifestError with what is wrong in all files; nothing is written then.
    """
    documents = list(read_path(directory))
    problems: list[str] = []
    seen: dict[tuple[str, str], str] = {}
    for document in documents:
        try:
            kind, path = _checked(admission, document.value)
            if (kind, path) in seen:
                problems.append(f"{document.source}: {kind} {path} is in {seen[kind, path]} already")
            seen[kind, path] = document.source
            _applied(admission, document.value, dry_run=True)
        except (InvalidInputError, NamespaceError) as error:
            problems.extend(problems_of(document, error))
    if problems:
        raise ManifestError(tuple(problems))
    return Counter(_applied(admission, document.value) for document in documents)


def _checked(admission: Admission, document: object) -> tuple[str, str]:
    """Kind and path of a document, checked as far as that needs no store."""
    if is_namespace(document):
        return "Namespace", decode_namespace(document).metadata.name
    key = admission.check(document)
    return key.kind, key.path


def _applied(admission: Admission, document: object, *, dry_run: bool = False) -> str:
    if not is_namespace(document):
        return admission.apply(document, dry_run=dry_run).outcome
    given, store, outcome = decode_namespace(document).metadata, admission.store, "unchanged"

    def make(old: Namespace | None) -> Namespace:
        nonlocal outcome
        before = old.metadata if old is not None else Metadata()
        labels, annotations = before.labels | given.labels, before.annotations | given.annotations
        if old is not None and (labels, annotations) == (before.labels, before.annotations):
            return old
        outcome = "configured" if old is not None else "created"
        new = namespace(given.name, msgspec.structs.replace(before, labels=labels, annotations=annotations))
        managers = managers_of(old) if old is not None else {}
        return owned(new, updated(managers, old, new, MANIFESTS, store.now()))

    store.namespaces.change(given.name, make, dry_run=dry_run)
    return outcome


def problems_of(document: Document, error: HeadgateError) -> tuple[str, ...]:
    """An error as lines that say where: file, document, field."""
    hint = f"\n  hint: {error.hint}" if error.hint else ""
    if isinstance(error, InvalidObjectError):
        named = f" ({error.kind} {error.name})" if error.name else ""
        return tuple(f"{document.source}{named}: {cause}{hint}" for cause in error.causes)
    return (f"{document.source}: {error.message}{hint}",)


# --- migrations -----------------------------------------------------------------------------------


RETRY_S: Final = 1.0
"""Between two tries while the store does not work."""
_log = structlog.get_logger("headgate.objects")


async def recompile_all(store: Store, note: Callable[[str], None]) -> None:
    """Compile every filter anew that another compiler compiled; `note` hears of it, "" at the end."""
    count, done = -1, 0
    after: int | None = 0
    while after is not None:
        try:
            if count < 0:
                count = await asyncio.to_thread(store.plans.left)
            if count:
                note(f"compiles stored filters anew: {done:,} of {count:,} done")
            after = await asyncio.to_thread(store.plans.recompile, after)
            done = min(count, done + RECOMPILED_FILTERS_MAX)
        except UnavailableError as error:
            _log.warning("cannot compile stored filters anew", reason=error.message)
            await asyncio.sleep(RETRY_S)
    if count:
        _log.info("stored filters are compiled anew", filters=count)
        note("")


async def reseal_all(secrets: SecretTable) -> None:
    """Encrypt every stored Secret by the first key that another one encrypted."""
    after: int | None = 0
    count = 0
    while after is not None:
        try:
            after, done = await asyncio.to_thread(secrets.reseal, after)
            count += done
        except UnavailableError as error:
            _log.warning("cannot encrypt stored Secrets anew", reason=error.message)
            await asyncio.sleep(RETRY_S)
    if count:
        _log.info("stored Secrets are encrypted by the first key now", rows=count)
