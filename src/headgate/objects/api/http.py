"""Requests and responses of the API: bodies, media types, JSON, and errors as `Status` objects."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import Executor
from typing import Any, Final, TypeVar

import msgspec
import structlog
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError, Message
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive

from headgate.auth.context import USER
from headgate.auth.user import ANONYMOUS
from headgate.objects.api import kubernetes_pb2 as pb
from headgate.objects.kinds.decode import check_shape
from headgate.objects.kinds.kube_status import failure, failure_of
from headgate.objects.kinds.patches import APPLY_PATCH
from headgate.shares import FairThreads
from headgate.storage.threads import Threads
from headgate_api.errors import HeadgateError, InvalidInputError, TooLargeError
from headgate_api.event.json_text import is_light
from headgate_api.limits import API_THREADS_MAX, OBJECT_BYTES_INLINE, OBJECT_BYTES_MAX, WARNINGS_CHARACTERS_MAX
from headgate_api.objects.bodies import (
    JSON_TYPES,
    YAML_TYPES,
    FieldValidation,
    Read,
    decode_as,
    decode_json,
    decode_json_or_yaml,
    decode_yaml,
    media_type,
)
from headgate_api.objects.errors import MalformedObjectError
from headgate_api.objects.kinds import JsonObject

JSON: Final = "application/json"
PROTOBUF: Final = "application/vnd.kubernetes.protobuf"
DOCUMENT_TYPES: Final = JSON_TYPES | YAML_TYPES | {PROTOBUF}
"""Of a body that is a document; clients send kinds that are built into Kubernetes as protobuf."""
_log = structlog.get_logger(__name__)
_ID_DIGITS_MAX: Final = 18
in_thread: Final = Threads("api", API_THREADS_MAX).run
"""Does what a request has to do that may wait for a disk."""
_T = TypeVar("_T")

Handler = Callable[[Request], Awaitable[Response]]


class UnsupportedMediaTypeError(InvalidInputError):
    """The body is in a form that is not taken."""

    code = "unsupported-media-type"
    http_status = 415


def json_response(value: JsonObject | msgspec.Struct, status_code: int = 200) -> Response:
    """A JSON body."""
    return Response(msgspec.json.encode(value), status_code, media_type=JSON)


async def bounded_body(request: Request, bytes_max: int) -> bytes:
    """The request's body, whatever it is; TooLargeError."""
    chunks = bytearray()
    async for chunk in request.stream():
        chunks += chunk
        if len(chunks) > bytes_max:
            raise TooLargeError(f"the body is over {bytes_max} bytes")
    return bytes(chunks)


async def read_body(
    request: Request, types: frozenset[str] = frozenset({JSON}), bytes_max: int = OBJECT_BYTES_MAX
) -> bytes:
    """The request's body, bounded and of one of these media types."""
    body = await bounded_body(request, bytes_max)
    found = media_type(request.headers.get("content-type", ""))
    if body and found not in types:
        raise UnsupportedMediaTypeError(
            f"the body of the request was in an unknown format {found!r} - "
            f"accepted media types include: {', '.join(sorted(filter(None, types)))}",
            hint=_MEDIA_HINTS.get(found, ""),
        )
    return body


async def while_connected(receive: Receive, work: Awaitable[_T]) -> _T | None:
    """What the work gives; None when the client left and it was cancelled. The request's body must have been read."""
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_left(receive))
    try:
        await asyncio.wait([working, gone], return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        gone.cancel()
        working.cancel()
        await asyncio.wait([working, gone])


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


_MEDIA_HINTS: Final = {
    "application/apply-patch+cbor": "send application/apply-patch+yaml",
    "application/strategic-merge-patch+json": "use a merge patch: kubectl patch --type merge",
    "application/x-www-form-urlencoded": "curl needs -H 'Content-Type: application/json'",
}


def path_id(request: Request) -> int:
    """The number that the path calls `id`, of digits that a database of ours can hold."""
    text = request.path_params["id"]
    if not (text.isascii() and text.isdigit()) or len(text) > _ID_DIGITS_MAX:
        raise InvalidInputError(f"{text[: 2 * _ID_DIGITS_MAX]!r} is no id: ids are numbers of at most 18 digits")
    return int(text)


_DECODING: Final = FairThreads(1, "bodies")
"""One body is decoded after the other: threads that want the interpreter at the same time would each take a turn of it
before the event loop, and its producers, had theirs."""


_MAGIC: Final = b"k8s\0"
_MESSAGES: Final[Mapping[str, type[Message]]] = {
    name: getattr(pb, name)
    for name in (
        *("Namespace", "DeleteOptions", "Secret", "ResourceQuota"),
        *("Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"),
        *("SelfSubjectAccessReview", "SubjectAccessReview", "SelfSubjectRulesReview", "SelfSubjectReview"),
    )
} | {"LocalSubjectAccessReview": pb.SubjectAccessReview}


def decode_protobuf(body: bytes) -> object:
    """A document in Kubernetes' protobuf, which kubectl sends of some kinds, as JSON has it."""
    if not body.startswith(_MAGIC):
        raise MalformedObjectError("the body is no Kubernetes protobuf: it does not begin with k8s")
    try:
        envelope = pb.Unknown.FromString(body[len(_MAGIC) :])
        type_ = _MESSAGES.get(envelope.typeMeta.kind)
        if type_ is None:
            raise MalformedObjectError(
                f"a {envelope.typeMeta.kind[:100]!r} is not read as protobuf", hint="send JSON or YAML"
            )
        message = type_.FromString(envelope.raw)
    except DecodeError as error:
        raise MalformedObjectError(f"the body is no Kubernetes protobuf: {error}") from error
    found: dict[str, Any] = MessageToDict(message)
    extra = found.get("spec", {}).get("extra", {})
    for name in extra:
        extra[name] = extra[name].get("items", [])
    hard = found.get("spec", {}).get("hard", {})
    for name in hard:
        hard[name] = hard[name].get("string", "")
    return {"apiVersion": envelope.typeMeta.apiVersion, "kind": envelope.typeMeta.kind, **found}


_DECODERS: Final[dict[str, Callable[[bytes, FieldValidation], Read]]] = {
    APPLY_PATCH: decode_json_or_yaml,
    PROTOBUF: lambda body, _: Read(decode_protobuf(body)),
    **dict.fromkeys(YAML_TYPES, lambda body, _: Read(decode_yaml(body))),
}


async def decoded(request: Request, body: bytes, validation: FieldValidation = FieldValidation.STRICT) -> Read:
    """The body as a document, YAML or JSON by its media type, within the bounds of an object; small JSON at once.

    `validation` says what a member does that an object has twice; in YAML it is always refused.
    """
    decode = _DECODERS.get(media_type(request.headers.get("content-type", "")), decode_json)

    def work() -> Read:
        read = decode(body, validation)
        check_shape(read.document)
        return read

    if decode is decode_json and len(body) <= OBJECT_BYTES_INLINE:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_thread(request), work)


async def decoded_as(request: Request, body: bytes, type_: type[_T], problem: str) -> _T:
    """A JSON body as a type of ours, by `decode_as`; a small one at once."""
    if is_light(body):
        return decode_as(body, type_, problem)
    return await asyncio.get_running_loop().run_in_executor(_thread(request), decode_as, body, type_, problem)


def _thread(request: Request) -> Executor:
    return _DECODING.of(request.path_params.get("namespace", ""), request.scope.get(USER, ANONYMOUS).name)


_UNPRINTABLE: Final = re.compile(r"[^\x20-\x7e]")


def warn(response: Response, warnings: Iterable[str]) -> None:
    """Puts warnings into headers, as far as there is room; what is no printable ASCII is escaped."""
    left = WARNINGS_CHARACTERS_MAX
    for warning in warnings:
        text = _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", warning[:left])
        text = text[:left] + "..." if len(text) > left or len(warning) > left else text
        quoted = text.replace("\\", "\\\\").replace('"', '\\"')
        response.headers.append("Warning", f'299 - "{quoted}"')
        left -= len(text) + len('299 - ""')
        if left <= 0:
            break


async def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HeadgateError)
    if error.detail:
        _log.error("a request failed", path=request.url.path, problem=str(error))
    response = json_response(failure_of(error), error.http_status)
    if error.retriable:
        response.headers["Retry-After"] = "1"
    return response


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    messages = {
        404: "the server could not find the requested resource",
        405: "the server does not allow this method on the requested resource",
    }
    return json_response(failure(error.status_code, messages.get(error.status_code, error.detail)), error.status_code)


async def _on_bug(request: Request, error: Exception) -> Response:
    # Starlette raises the error again behind this answer, so that the server logs it.
    return json_response(failure(500, "an internal error occurred"), 500)


ERROR_HANDLERS: Final = {HeadgateError: _on_error, HTTPException: _on_http_error, Exception: _on_bug}
"""For a Starlette app: every error is a Status."""
