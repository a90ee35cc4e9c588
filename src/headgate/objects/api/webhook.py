"""The admission webhook: `AdmissionReview`s answered by the admission itself.

`POST /admission/validate` takes an `AdmissionReview` (admission.k8s.io/v1) for a Trigger or a Broker. Nothing is
stored: a cluster that keeps the objects refuses filters that are not understood when they are written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headgate.objects.api.admission import Admission
from headgate.objects.api.http import decoded, json_response, read_body
from headgate.objects.kinds.kube_status import Status, failure_of
from headgate_api.errors import HeadgateError, InvalidInputError
from headgate_api.objects.bodies import JSON_TYPES
from headgate_api.objects.errors import MalformedObjectError
from headgate_api.objects.kinds import GROUP, JsonObject, Kind

PATH: Final = "/admission/validate"
REVIEW_VERSION: Final = "admission.k8s.io/v1"
_OPERATIONS: Final = frozenset({"CREATE", "UPDATE", "DELETE", "CONNECT"})
_REFUSED: Final = 422


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


class AdmissionAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """The answer's envelope."""

    api_version: str
    kind: str
    response: AdmissionResponse


class AdmissionWebhook:
    """The handler."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    def routes(self) -> Iterator[Route]:
        yield Route(PATH, self._validate, methods=["POST"])

    async def _validate(self, request: Request) -> Response:
        document, _ = await decoded(request, await read_body(request, JSON_TYPES))

        def work() -> AdmissionAnswer:
            return AdmissionAnswer(REVIEW_VERSION, "AdmissionReview", self._judged(_review(document).request))

        return json_response(await run_in_threadpool(work))

    def _judged(self, request: AdmissionRequest) -> AdmissionResponse:
        if request.operation in ("DELETE", "CONNECT"):
            return AdmissionResponse(request.uid, True)
        if request.kind.kind not in set(Kind) or request.kind.group != Kind(request.kind.kind).group:
            problem = f"cannot judge a {request.kind.kind} of {request.kind.group or 'the core group'}"
            raise MalformedObjectError(problem, hint=f"register the webhook for brokers and triggers of {GROUP}")
        if not request.object:
            raise MalformedObjectError(f"request.object is missing, which a {request.operation} has")
        kind, new, old = Kind(request.kind.kind), _own_fields(request.object), _own_fields(request.old_object)
        try:
            warnings = self._admission.review(kind, new, old or None, namespace=request.namespace or None)
        except InvalidInputError as error:
            return AdmissionResponse(request.uid, False, _status(error))
        return AdmissionResponse(request.uid, True, warnings=warnings)


_CLUSTERS: Final = frozenset({"finalizers", "ownerReferences"})
"""Of `metadata`: what means something to the cluster that keeps the object, and nothing here."""


def _own_fields(document: JsonObject | None) -> JsonObject:
    metadata = document.get("metadata") if document else None
    if document is None or not isinstance(metadata, dict):
        return document or {}
    return {**document, "metadata": {key: value for key, value in metadata.items() if key not in _CLUSTERS}}


def _review(document: object) -> AdmissionReview:
    try:
        review = msgspec.convert(document, AdmissionReview)
    except msgspec.ValidationError as error:
        raise MalformedObjectError(f"the body is no AdmissionReview: {error}") from error
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
