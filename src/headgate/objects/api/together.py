"""Several triggers or subscriptions applied by one request, as `headgate apply` sends them.

    POST /apis/headgate.dev/v1/namespaces/{namespace}/triggerapplies        {"items": [trigger, ...]}
    POST /apis/headgate.dev/v1/namespaces/{namespace}/subscriptionapplies   {"items": [subscription, ...]}

Each is judged as alone, their writes are one transaction: ten thousand requests would wait for ten thousand of them.
The answer has an item for each object that came, in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, TypeAlias

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headgate.auth.user import User
from headgate.filter.compile.plan import CompiledFilter
from headgate.objects.api.admission import (
    WRITE_ATTEMPTS_MAX,
    Admission,
    Admitted,
    TriedFilters,
    is_theirs,
    kept_of,
    outcome_of,
)
from headgate.objects.api.grants import Grants
from headgate.objects.api.http import Handler, in_thread, json_response, read_body
from headgate.objects.api.queries import user_of, write_options
from headgate.objects.api.validator import ceiling_warning
from headgate.objects.api.validator_processes import ValidatorProcesses
from headgate.objects.kinds.decode import Decoded
from headgate.objects.kinds.kube_status import Status, failure_of
from headgate.objects.kinds.managers import Manager, WriteOptions
from headgate.objects.kinds.validate import refuse_erased_filter
from headgate.objects.store.writes import Write
from headgate_api.errors import HeadgateError, InvalidInputError, TooLargeError
from headgate_api.event.json_text import may_repeat_a_member
from headgate_api.limits import APPLY_BYTES_MAX, APPLY_OBJECTS_MAX, OBJECT_BYTES_MAX
from headgate_api.objects.bodies import JSON_TYPES, FieldValidation, Read, decode_json
from headgate_api.objects.errors import AlreadyExistsError, MalformedObjectError, ObjectNotFoundError, StaleObjectError
from headgate_api.objects.kinds import APPLIED_TOGETHER, Kind, Object, ObjectKey, key_of

Result: TypeAlias = "Admitted | HeadgateError"


class ApplyRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Objects as they are in files."""

    items: Annotated[tuple[msgspec.Raw, ...], msgspec.Meta(max_length=APPLY_OBJECTS_MAX)]


class AppliedItem(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of one object: `created`, `configured` or `unchanged`; name and outcome are empty with an error."""

    name: str = ""
    outcome: str = ""
    warnings: tuple[str, ...] = ()
    error: Status | None = None


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A document that is admitted and not yet written; `attempt` counts its writes."""

    place: int
    key: ObjectKey
    document: object
    decoded: Decoded
    plan: CompiledFilter | None
    attempt: int = 1


class TogetherApi:
    """Creates triggers or subscriptions of a namespace, or gives those that are there what documents say.

    Labels, annotations and finalizers that a document does not name are kept. Who applies may change every object of
    the kind in the namespace, which the gate has seen to; whether he may create is judged here, object by object.
    May block: call it in a thread.
    """

    def __init__(
        self,
        admission: Admission,
        grants: Grants,
        tried: TriedFilters,
        validators: ValidatorProcesses | None = None,
    ) -> None:
        self._admission = admission
        self._tried = tried
        self._validators = validators or ValidatorProcesses(admission.validator)
        self._store = admission.store
        self._grants = grants

    def close(self) -> None:
        """No call may come any more."""
        self._validators.close()

    def apply(self, kind: Kind, documents: Sequence[object], how: WriteOptions, *, namespace: str) -> list[Result]:
        """Apply documents in their order, all of a kind on which no other object's admission depends.

        Of each document what became of it, or the error that it alone would have had. UnavailableError alone is raised:
        nothing can be written now, but objects before may have been.
        """
        results: dict[int, Result] = {}
        waiting: list[_Waiting] = []
        validated = self._validators.each(kind, documents, namespace, how.validation)
        for place, (document, found) in enumerate(zip(documents, validated, strict=True)):
            if isinstance(found, HeadgateError):
                results[place] = _of_one(found)
            else:
                waiting.append(_Waiting(place, key_of(found[0].obj), document, *found))
        while waiting:
            first = {one.key: one for one in reversed(waiting)}  # of a name that is there twice the second one waits
            turn = sorted(first.values(), key=lambda one: one.place)
            behind = [one for one in waiting if first[one.key] is not one]
            again = self._write(turn, results, how)
            waiting = sorted([*again, *behind], key=lambda one: one.place)
        return [results[place] for place in range(len(documents))]

    def _write(self, turn: Sequence[_Waiting], results: dict[int, Result], how: WriteOptions) -> list[_Waiting]:
        """Writes documents of different names; returns those of which another writer came between read and write."""
        there = self._store.found(one.key for one in turn)
        ready: list[tuple[_Waiting, Object | None, Write]] = []
        for one in turn:
            old = there.get(one.key)
            try:
                made = self._made(one, old, how.by)
                ready.append((one, old, Write(made, self._admission.below_ceiling(made, one.plan), old is None)))
            except HeadgateError as error:
                results[one.place] = _of_one(error)
        stored = self._store.write_all([write for _, _, write in ready], dry_run=how.dry_run) if ready else []
        again = []
        for (one, old, write), new in zip(ready, stored, strict=True):
            if not isinstance(new, HeadgateError):
                warnings = one.decoded.warnings + ceiling_warning(write.plan)
                results[one.place] = Admitted(new, warnings, outcome_of(old, new))
            elif one.attempt < WRITE_ATTEMPTS_MAX and _came_between(new, old, write.obj):
                again.append(replace(one, attempt=one.attempt + 1))
            else:
                results[one.place] = new
        return again

    def _made(self, one: _Waiting, old: Object | None, by: Manager) -> Object:
        if old is None:
            self._grants.judge_create(by.user, one.key)
            return self._admission.created(one.decoded, None, by)
        refuse_erased_filter(old, one.decoded.obj, one.document)
        return self._admission.changed(old, kept_of(old, one.decoded), None, by)

    def routes(self) -> Iterator[Route]:
        for kind, name in APPLIED_TOGETHER.items():
            yield Route(f"/apis/headgate.dev/v1/namespaces/{{namespace}}/{name}", self._handler(kind), methods=["POST"])

    def _handler(self, kind: Kind) -> Handler:
        async def handle(request: Request) -> Response:
            body = await read_body(request, JSON_TYPES, APPLY_BYTES_MAX)
            namespace, how, user = request.path_params["namespace"], write_options(request), user_of(request)
            return json_response({"items": await in_thread(self._applied, kind, body, namespace, how, user)})

        return handle

    def _applied(self, kind: Kind, body: bytes, namespace: str, how: WriteOptions, user: User) -> list[AppliedItem]:
        items = _items(body)
        results: dict[int, Result] = {}
        read: dict[int, Read] = {}
        for place, item in enumerate(items):
            try:
                read[place] = _document(bytes(item), how.validation)
            except (MalformedObjectError, TooLargeError) as error:
                results[place] = error
        documents = [one.document for one in read.values()]
        results |= zip(read, self.apply(kind, documents, how, namespace=namespace), strict=True)
        warnings = {place: one.warnings for place, one in read.items()}
        if how.dry_run:
            admitted = {place: one for place, one in results.items() if isinstance(one, Admitted)}
            told = self._tried.warnings(user, [one.obj for one in admitted.values()])
            results |= {
                place: replace(one, warnings=one.warnings + more)
                for (place, one), more in zip(admitted.items(), told, strict=True)
            }
        return [_item(results[place], warnings.get(place, ())) for place in range(len(items))]


def _of_one(error: HeadgateError) -> HeadgateError:
    """An error that concerns one object; one that concerns all, as the same may succeed later, is raised."""
    if error.retriable:
        raise error
    return error


def _came_between(error: HeadgateError, old: Object | None, obj: Object) -> bool:
    """Whether a write failed because its object has been made, changed or deleted since it was read."""
    if old is None:
        return isinstance(error, AlreadyExistsError)
    return isinstance(error, ObjectNotFoundError) or (isinstance(error, StaleObjectError) and not is_theirs(obj, old))


def _items(body: bytes) -> tuple[msgspec.Raw, ...]:
    try:
        request = msgspec.json.decode(body, type=ApplyRequest)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"the body is no list of objects: {error}") from error
    if may_repeat_a_member(body, request):
        raise InvalidInputError("the body has items twice")
    return request.items


def _document(item: bytes, validation: FieldValidation) -> Read:
    """One object, within the bounds of one that comes alone."""
    if len(item) > OBJECT_BYTES_MAX:
        raise TooLargeError(f"the object is over {OBJECT_BYTES_MAX} bytes")
    return decode_json(item, validation)


def _item(result: Result, warnings: tuple[str, ...]) -> AppliedItem:
    if isinstance(result, HeadgateError):
        return AppliedItem(error=failure_of(result))
    return AppliedItem(result.obj.metadata.name, result.outcome, warnings + result.warnings)
