"""Questions over HTTP: may I, may somebody, what may I (`kubectl auth`), what may I see; is this object valid."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headgate.auth.routes import EVENTING
from headgate.auth.rules import AccessRule, Attributes
from headgate.auth.user import User
from headgate.objects.api.admission import Admission
from headgate.objects.api.discovery import AUTHENTICATION, AUTHORIZATION, LOCAL_REVIEW, REVIEWS
from headgate.objects.api.grants import Grants
from headgate.objects.api.http import DOCUMENT_TYPES, decoded, in_thread, json_response, read_body
from headgate.objects.api.queries import user_of
from headgate.objects.kinds.decode import converted, without_metadata
from headgate.objects.kinds.kube_status import Status, failure_of
from headgate.objects.store.store import Store
from headgate_api.errors import HeadgateError, InvalidInputError
from headgate_api.limits import RBAC_TEXT_CHARS_MAX, SEEN_NAMESPACES_MAX
from headgate_api.objects.bodies import JSON_TYPES
from headgate_api.objects.errors import MalformedObjectError
from headgate_api.objects.kinds import GROUP, OWN_API_VERSION, JsonObject, Kind

_SpecT = TypeVar("_SpecT", bound=msgspec.Struct)


class _Resource(msgspec.Struct, frozen=True):
    """By the names of `Attributes`."""

    namespace: str = ""
    verb: str = ""
    group: str = ""
    resource: str = ""
    subresource: str = ""
    name: str = ""


class _Path(msgspec.Struct, frozen=True):
    path: str = ""
    verb: str = ""


class _AccessSpec(msgspec.Struct, frozen=True, rename="camel"):
    resource_attributes: _Resource | None = None
    non_resource_attributes: _Path | None = None
    user: str = ""
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)


class _RulesSpec(msgspec.Struct, frozen=True):
    namespace: str = ""


class ReviewApi:
    """The handlers."""

    def __init__(self, grants: Grants) -> None:
        self._authorizer = grants.authorizer

    def routes(self) -> Iterator[Route]:
        handlers = {
            "SelfSubjectAccessReview": self._may_i,
            "SubjectAccessReview": self._may_somebody,
            LOCAL_REVIEW: self._may_somebody_here,
            "SelfSubjectRulesReview": self._what_may_i,
            "SelfSubjectReview": self._who_am_i,
        }
        for kind, handler in handlers.items():
            place = "namespaces/{namespace}/" if kind == LOCAL_REVIEW else ""
            yield Route(f"/apis/{REVIEWS[kind]}/{place}{kind.lower()}s", handler, methods=["POST"])

    async def _may_i(self, request: Request) -> Response:
        document, spec = await _asked(request, "SelfSubjectAccessReview", _AccessSpec)
        return self._answer(document, user_of(request), spec)

    async def _may_somebody(self, request: Request) -> Response:
        return self._about_somebody(*await _asked(request, "SubjectAccessReview", _AccessSpec))

    async def _may_somebody_here(self, request: Request) -> Response:
        document, spec = await _asked(request, LOCAL_REVIEW, _AccessSpec)
        namespace = request.path_params["namespace"]
        if spec.resource_attributes is None or spec.resource_attributes.namespace != namespace:
            raise MalformedObjectError(f"spec.resourceAttributes.namespace must be {namespace!r}, as in the path")
        return self._about_somebody(document | {"metadata": {"namespace": namespace}}, spec)

    def _about_somebody(self, document: JsonObject, spec: _AccessSpec) -> Response:
        if not spec.user and not spec.groups:
            raise MalformedObjectError("spec.user: Invalid value: at least one of user or group must be specified")
        return self._answer(document, User(spec.user, spec.groups, spec.uid, spec.extra), spec)

    def _answer(self, document: JsonObject, user: User, spec: _AccessSpec) -> Response:
        decision = self._authorizer.allowed(user, _wanted(spec))
        status: JsonObject = {"allowed": decision.allowed}
        if decision.reason:
            status["reason"] = decision.reason
        return json_response(document | {"status": status}, 201)

    async def _what_may_i(self, request: Request) -> Response:
        document, spec = await _asked(request, "SelfSubjectRulesReview", _RulesSpec)
        rules = self._authorizer.rules_of(user_of(request), spec.namespace)
        status = {
            "resourceRules": [_resource_rule(rule) for rule in rules if not rule.paths],
            "nonResourceRules": [
                {"verbs": sorted(rule.verbs), "nonResourceURLs": sorted(rule.paths)} for rule in rules if rule.paths
            ],
            "incomplete": False,
        }
        return json_response(document | {"status": status}, 201)

    async def _who_am_i(self, request: Request) -> Response:
        document, _ = await _asked(request, "SelfSubjectReview", _RulesSpec)
        return json_response(document | {"status": {"userInfo": user_of(request).info}}, 201)


async def _asked(request: Request, kind: str, spec: type[_SpecT]) -> tuple[JsonObject, _SpecT]:
    """The question, to be sent back with its answer, and its spec."""
    document, _ = await decoded(request, await read_body(request, DOCUMENT_TYPES))
    version = REVIEWS[kind]
    if not isinstance(document, dict) or (document.get("apiVersion"), document.get("kind")) != (version, kind):
        raise MalformedObjectError(f"the body is no {kind} of {version}")
    written = document.get("spec") or {}
    found = converted(written, spec, f"spec of the {kind}")
    answer: JsonObject = {"kind": kind, "apiVersion": version, "metadata": {}}
    return answer if version == AUTHENTICATION else answer | {"spec": written}, found


def _wanted(spec: _AccessSpec) -> Attributes:
    resource, path = spec.resource_attributes, spec.non_resource_attributes
    if (resource is None) == (path is None):
        raise MalformedObjectError(
            f"a review of {AUTHORIZATION} has exactly one of resourceAttributes and nonResourceAttributes"
        )
    asked: msgspec.Struct | None = resource or path
    assert asked is not None
    texts = [*msgspec.structs.astuple(asked), spec.user, *spec.groups]
    if any(len(text) > RBAC_TEXT_CHARS_MAX for text in texts):
        raise MalformedObjectError(f"a text of a review has at most {RBAC_TEXT_CHARS_MAX} characters")
    if path is not None:
        return Attributes(path.verb, path=path.path or "/")
    assert resource is not None
    # In a question `*` asks for everything, which one rule alone can allow that says `*`, too.
    return Attributes(**msgspec.structs.asdict(resource))


def _resource_rule(rule: AccessRule) -> JsonObject:
    made: JsonObject = {
        "verbs": sorted(rule.verbs),
        "apiGroups": sorted(rule.groups),
        "resources": sorted(rule.resources),
    }
    if rule.names:
        made["resourceNames"] = sorted(rule.names)
    return made


# --- admission webhook ----------------------------------------------------------------------------
# `POST /admission/validate` takes an `AdmissionReview` (admission.k8s.io/v1) for a Trigger or a Broker. Nothing is
# stored: a cluster that keeps the objects refuses filters that are not understood when they are written.

WEBHOOK: Final = "/admission/validate"
REVIEW_VERSION: Final = "admission.k8s.io/v1"
_OPERATIONS: Final = frozenset({"CREATE", "UPDATE", "DELETE", "CONNECT"})
_REFUSED: Final = 422
_CLUSTERS: Final = frozenset({"finalizers", "ownerReferences"})
"""Of `metadata`: what means something to the cluster that keeps the object, and nothing here."""


class GroupVersionKind(msgspec.Struct, frozen=True):
    """Of the object."""

    kind: str
    group: str = ""
    version: str = ""


class AdmissionRequest(msgspec.Struct, frozen=True, rename="camel"):
    """The request, as far as it has effect; `object` is null for a delete."""

    uid: str
    kind: GroupVersionKind
    operation: str
    namespace: str = ""
    object: JsonObject | None = None
    old_object: JsonObject | None = None


class AdmissionReview(msgspec.Struct, frozen=True, rename="camel"):
    """The question's envelope."""

    api_version: str
    kind: str
    request: AdmissionRequest


class AdmissionResponse(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer; `status` has the reason of a refusal."""

    uid: str
    allowed: bool
    status: Status | None = None
    warnings: tuple[str, ...] = ()


class AdmissionWebhook:
    """The handler."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    def routes(self) -> Iterator[Route]:
        yield Route(WEBHOOK, self._validate, methods=["POST"])

    async def _validate(self, request: Request) -> Response:
        document, _ = await decoded(request, await read_body(request, JSON_TYPES))

        response = await in_thread(lambda: self._judged(_admission_review(document).request))
        return json_response({"apiVersion": REVIEW_VERSION, "kind": "AdmissionReview", "response": response})

    def _judged(self, request: AdmissionRequest) -> AdmissionResponse:
        if request.operation in ("DELETE", "CONNECT"):
            return AdmissionResponse(request.uid, True)
        if request.kind.kind not in set(Kind) or request.kind.group != Kind(request.kind.kind).group:
            problem = f"cannot judge a {request.kind.kind} of {request.kind.group or 'the core group'}"
            raise MalformedObjectError(problem, hint=f"register the webhook for brokers and triggers of {GROUP}")
        if not request.object:
            raise MalformedObjectError(f"request.object is missing, which a {request.operation} has")
        kind, new = Kind(request.kind.kind), without_metadata(request.object, _CLUSTERS)
        old = without_metadata(request.old_object, _CLUSTERS) if request.old_object else None
        try:
            warnings = self._admission.review(kind, new, old, namespace=request.namespace or None)
        except InvalidInputError as error:
            return AdmissionResponse(request.uid, False, _status(error))
        return AdmissionResponse(request.uid, True, warnings=warnings)


def _admission_review(document: object) -> AdmissionReview:
    review = converted(document, AdmissionReview, "the body is no AdmissionReview")
    if (review.api_version, review.kind) != (REVIEW_VERSION, "AdmissionReview"):
        found = f"{review.api_version} {review.kind}"
        raise MalformedObjectError(f"the body is a {found[:100]}, expected {REVIEW_VERSION} AdmissionReview")
    if not review.request.uid:
        raise MalformedObjectError("request.uid is empty, and the answer must name it")
    if review.request.operation not in _OPERATIONS:
        raise MalformedObjectError(f"request.operation is {review.request.operation[:20]!r}")
    return review


def _status(error: HeadgateError) -> Status:
    """Why not: 422 whatever rule was broken, because that is what a cluster's clients show."""
    return msgspec.structs.replace(failure_of(error), code=_REFUSED, reason="Invalid")


# --- namespaces -----------------------------------------------------------------------------------
# Those that a user may see, in which he may list triggers or brokers: a console offers them.
#
#     GET /apis/headgate.dev/v1/selfsubjectnamespaces
#
# Who may list them everywhere is told so, and every namespace that there is.


_LISTED: Final = tuple(Attributes("list", EVENTING, name) for name in ("triggers", "brokers"))


class SeenNamespaces(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer, at most SEEN_NAMESPACES_MAX; `all`: the user may list triggers and brokers everywhere."""

    all: bool = msgspec.field(name="all")
    namespaces: list[str]
    more: bool = False


class SeenNamespacesApi:
    """The handler."""

    def __init__(self, store: Store, grants: Grants) -> None:
        self._store = store
        self._grants = grants

    def routes(self) -> Iterator[Route]:
        yield Route(f"/apis/{OWN_API_VERSION}/selfsubjectnamespaces", self._answer, methods=["GET"])

    async def _answer(self, request: Request) -> Response:
        return json_response(await in_thread(self._seen, user_of(request)))

    def _seen(self, user: User) -> SeenNamespaces:
        authorizer = self._grants.authorizer
        sees_all = all(authorizer.allowed(user, wanted).allowed for wanted in _LISTED)
        names = [one.metadata.name for one in self._store.namespaces.all()[0]]
        if not sees_all:
            # Rule by rule: the decisions that are remembered are for requests, and there may be many namespaces.
            names = [
                name
                for name in names
                if any(
                    rule.allows(wanted._replace(namespace=name))
                    for rule in authorizer.rules_of(user, name)
                    for wanted in _LISTED
                )
            ]
        return SeenNamespaces(sees_all, names[:SEEN_NAMESPACES_MAX], len(names) > SEEN_NAMESPACES_MAX)
