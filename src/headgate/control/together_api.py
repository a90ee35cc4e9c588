"""Several triggers or subscriptions applied by one request: what `headgate apply` sends.

    POST /apis/headgate.dev/v1/namespaces/{namespace}/triggerapplies        {"items": [trigger, ...]}
    POST /apis/headgate.dev/v1/namespaces/{namespace}/subscriptionapplies   {"items": [subscription, ...]}

A client that sends ten thousand requests waits for ten thousand answers and makes ten thousand transactions; one that
sends forty waits for forty. The answer has an item for each that came, in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headgate.control.admission import Admission
from headgate.control.bodies import JSON_TYPES, FieldValidation, Read, decode_json
from headgate.control.errors import MalformedObjectError
from headgate.control.grants import Grants
from headgate.control.http import Handler, json_response, read_body
from headgate.control.kube_status import Status, failure_of
from headgate.control.objects import APPLIED_TOGETHER, Kind
from headgate.control.queries import WriteOptions, write_options
from headgate.control.together import Result, TogetherApply
from headgate.errors import HeadgateError, InvalidInputError, TooLargeError
from headgate.limits import APPLY_BYTES_MAX, APPLY_OBJECTS_MAX, OBJECT_BYTES_MAX


class ApplyRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Objects as they are in files."""

    items: Annotated[tuple[msgspec.Raw, ...], msgspec.Meta(max_length=APPLY_OBJECTS_MAX)]


class AppliedItem(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of one object.

    Attributes:
        name: Of the object; empty with an error.
        outcome: `created`, `configured` or `unchanged`; empty with an error.
        warnings: What its author should hear.
        error: Why nothing became of it.
    """

    name: str = ""
    outcome: str = ""
    warnings: tuple[str, ...] = ()
    error: Status | None = None


class ApplyAnswer(msgspec.Struct, frozen=True):
    """What became of each object."""

    items: tuple[AppliedItem, ...]


class TogetherApi:
    """The handlers.

    Args:
        admission: Where objects go.
        grants: Judges their author.
    """

    def __init__(self, admission: Admission, grants: Grants) -> None:
        self._together = TogetherApply(admission, grants)

    def routes(self) -> Iterator[Route]:
        """Where they answer."""
        for kind, name in APPLIED_TOGETHER.items():
            yield Route(f"/apis/headgate.dev/v1/namespaces/{{namespace}}/{name}", self._handler(kind), methods=["POST"])

    def _handler(self, kind: Kind) -> Handler:
        async def handle(request: Request) -> Response:
            body = await read_body(request, JSON_TYPES, APPLY_BYTES_MAX)
            namespace, options = request.path_params["namespace"], write_options(request)
            return json_response(await run_in_threadpool(self._applied, kind, body, namespace, options))

        return handle

    def _applied(self, kind: Kind, body: bytes, namespace: str, options: WriteOptions) -> ApplyAnswer:
        items = _items(body)
        results: dict[int, Result] = {}
        read: dict[int, Read] = {}
        for place, item in enumerate(items):
            try:
                read[place] = _document(bytes(item), options["validation"])
            except (MalformedObjectError, TooLargeError) as error:
                results[place] = error
        documents = [one.document for one in read.values()]
        done = self._together.apply(kind, documents, namespace=namespace, **options)
        results |= zip(read, done, strict=True)
        warnings = {place: one.warnings for place, one in read.items()}
        return ApplyAnswer(tuple(_item(results[place], warnings.get(place, ())) for place in range(len(items))))


def _items(body: bytes) -> tuple[msgspec.Raw, ...]:
    """The objects of a body, which are read one by one."""
    try:
        items = msgspec.json.decode(body, type=ApplyRequest).items
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"the body is no list of objects: {error}") from error
    if body.count(b":") != 1 + sum(bytes(item).count(b":") for item in items):  # of lists before the last one
        raise InvalidInputError("the body has items twice")
    return items


def _document(item: bytes, validation: FieldValidation) -> Read:
    """One object, within the bounds of one that comes alone."""
    if len(item) > OBJECT_BYTES_MAX:
        raise TooLargeError(f"the object is over {OBJECT_BYTES_MAX} bytes")
    return decode_json(item, validation)


def _item(result: Result, warnings: tuple[str, ...]) -> AppliedItem:
    if isinstance(result, HeadgateError):
        return AppliedItem(error=failure_of(result))
    return AppliedItem(result.obj.metadata.name, result.outcome, warnings + result.warnings)
