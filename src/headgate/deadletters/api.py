"""The API of a dispatcher's dead letters: list, show, redrive and discard, a page of the store at a time.

Events that wait for their time have the same one, with `cancel` in the place of both (`PendingApi`).

`server/peers/dead_letters.py` asks all dispatchers, for clients; the paths are the same (`routes_of`).

Every answer to a selection says where it stopped (`next`, absent at the end), and the caller goes on there. So a
request that is broken off keeps what it has done, and a repeated one does no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headgate.deadletters.pending import Pending
from headgate.deadletters.sink_sender import DeadLetters
from headgate.deadletters.store import (
    DEAD,
    WAITING,
    DeadLetterCount,
    DeadLetterReader,
    DeadLetterState,
    DeadLetterSummary,
    counts_of,
    most_first,
)
from headgate.filter.cel.errors import FilterError
from headgate.filter.cel.evaluate import OutcomeKind, Program, program
from headgate.filter.compile.compiler import compile_filter
from headgate.objects.api.http import JSON, Handler, decoded_as, in_thread, json_response, path_id, read_body
from headgate.objects.kinds.routing import Target
from headgate.observe import metrics
from headgate_api import limits
from headgate_api.errors import HeadgateError, InvalidInputError, NotFoundError
from headgate_api.event import rfc3339
from headgate_api.event.json_format import encode_event
from headgate_api.event.model import Event
from headgate_api.objects.kinds import OWN_API_VERSION, JsonObject

_PREFIX: Final = f"/apis/{OWN_API_VERSION}"
DEAD_LETTERS: Final = "deadletters"
PENDING: Final = "pending"
_T = TypeVar("_T")
_Id = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]  # what SQLite takes


class DeadLetterNotFoundError(NotFoundError):
    """No dead letter has this id; it may have been sent, or discarded."""

    code = "letter-not-found"


class PendingNotFoundError(NotFoundError):
    """No pending event has this id; its time may have come, or it was cancelled."""

    code = "pending-not-found"


class TriggerUnknownError(NotFoundError):
    """Dead letters are to be sent to a trigger that no dispatcher knows."""

    code = "trigger-unknown"


class Selection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which dead letters, or pending events, are meant; what is empty selects all.

    `reason` is as dead letters show it: `400`, `5xx`, `timeout`, `filter-error`, ... `state` is `sending`, `kept` or
    `redriving`; a redrive and a discard without it and without `ids` mean `kept`. They died, or are due, from `since`
    on and before `until`, RFC 3339. `event` is the id of the event, `source` its source. `filter` is CEL over it, as in
    `spec.filter.expression`. A page has `limit` of them behind the id `after`, none beyond the id `ceiling`; 0 is the
    newest there is, so that what dies while a person redrives is not redriven with it. With `newest` the newest come
    first, and a page is below `after`. A redrive sends `rate` a second.
    """

    trigger: str = ""
    reason: str = ""
    state: str = ""
    since: str = ""
    until: str = ""
    event: str = ""
    source: str = ""
    filter: str = ""
    ids: Annotated[tuple[_Id, ...], msgspec.Meta(min_length=1)] = ()  # an empty list would select all
    after: _Id = 0
    ceiling: _Id = 0
    limit: int = limits.DEADLETTER_PAGE_MAX
    newest: bool = False
    rate: float = limits.REDRIVE_RATE_DEFAULT


class CountsPage(msgspec.Struct, frozen=True):
    """How many dead letters there are."""

    items: list[DeadLetterCount]  # the largest counts, DEADLETTER_COUNTS_MAX at most
    total: int
    kept: int  # of all, those that wait for a person
    more: bool  # whether items are left out

    @classmethod
    def of(cls, counts: list[DeadLetterCount], bound: int = limits.DEADLETTER_COUNTS_MAX) -> CountsPage:
        kept = sum(one.count for one in counts if one.state == DeadLetterState.KEPT)
        return cls(counts[:bound], sum(one.count for one in counts), kept, len(counts) > bound)

    @classmethod
    def joined(cls, pages: Sequence[CountsPage], bound: int = limits.DEADLETTER_COUNTS_MAX) -> CountsPage:
        """One page of those of several stores, none of which has a trigger of another one."""
        found = cls.of(most_first([one for page in pages for one in page.items]), bound)
        total, kept = sum(page.total for page in pages), sum(page.kept for page in pages)
        return cls(found.items, total, kept, found.more or any(page.more for page in pages))


def counts_bound(request: Request) -> int:
    """How many counts an answer may have: the parameter `limit`, DEADLETTER_COUNTS_MAX without it."""
    text = request.query_params.get("limit", str(limits.DEADLETTER_COUNTS_MAX))
    if not text.isdecimal() or len(text) > 9 or not 1 <= int(text) <= limits.DEADLETTER_COUNTS_MAX:
        raise InvalidInputError(f"limit must be from 1 to {limits.DEADLETTER_COUNTS_MAX}")
    return int(text)


def routes_of(
    plural: str, list_: Handler, counts: Handler, show: Handler, known: Handler, changes: Mapping[str, Handler]
) -> Iterator[Route]:
    """The paths of one part of the store, which a dispatcher and a front have alike; `changes` by what ends theirs."""
    every, base = f"{_PREFIX}/{plural}", f"{_PREFIX}/namespaces/{{namespace}}/{plural}"
    for place in (every, base):
        yield Route(place, list_, methods=["GET"])
        yield Route(f"{place}/counts", counts, methods=["GET"])
    for name, change in {**changes, "known": known}.items():
        yield Route(f"{base}/{name}", change, methods=["POST"])
    yield Route(f"{base}/{{id}}", show, methods=["GET"])


class _PartApi:
    """What both have: the handlers that read one part of `deadletters.db` at `path`, those that `where` is true of."""

    where: str

    def __init__(self, path: Path) -> None:
        self._path = path

    def facts(self, found: DeadLetterSummary) -> JsonObject:
        """What is told of one beside its trigger and its event."""
        raise NotImplementedError

    def unknown(self, key: int) -> HeadgateError:
        raise NotImplementedError

    def _view(self, found: DeadLetterSummary, event: Event | None = None) -> JsonObject:
        """One in a list, or with its event in the JSON format; what is empty is left out."""
        namespace, _, trigger = found.trigger.partition("/")
        seen: JsonObject = {"id": found.id, "namespace": namespace, "trigger": trigger, **self.facts(found)}
        about = {"eventId": found.event_id, "eventSource": found.source, "eventType": found.type, "bytes": found.bytes}
        given: JsonObject = {"sink": found.sink, "problem": found.problem}
        if event is not None:
            given |= {"answer": found.data.decode("utf-8", "replace"), "event": msgspec.Raw(encode_event(event))}
        return seen | about | {name: value for name, value in given.items() if value}

    async def _list(self, request: Request) -> Response:
        selection = _converted(dict(request.query_params))
        namespace = request.path_params.get("namespace")

        def work(stored: DeadLetterReader) -> bytes:
            page, found = _select(stored, namespace, selection, self.where)
            return msgspec.json.encode({"items": [self._view(one) for one in found], **page})

        return Response(await self._read(work), media_type=JSON)

    async def _counts(self, request: Request) -> Response:
        found = await in_thread(counts_of, [self._path], request.path_params.get("namespace"), self.where)
        return json_response(CountsPage.of(found, counts_bound(request)))

    async def _show(self, request: Request) -> Response:
        key, namespace = path_id(request), request.path_params["namespace"]

        def work(stored: DeadLetterReader) -> JsonObject:
            found = stored.summaries(f"id = ? AND {self.where}", (key,), after=0, limit=1)
            event = stored.event(key)
            if not found or event is None or found[0].trigger.partition("/")[0] != namespace:
                raise self.unknown(key)
            return self._view(found[0], event)

        return json_response(await self._read(work))

    async def _known(self, request: Request) -> Response:
        selection, namespace = await _selection(request), request.path_params["namespace"]
        _check_count(selection)

        def work(stored: DeadLetterReader) -> list[int]:
            wanted = f"id IN ({', '.join('?' * len(selection.ids))}) AND {self.where}"
            found = stored.summaries(wanted, selection.ids, after=0, limit=len(selection.ids))
            return [one.id for one in found if one.trigger.partition("/")[0] == namespace]

        return json_response({"known": await self._read(work)})

    async def _selected(self, namespace: str, selection: Selection) -> tuple[dict[str, int], list[DeadLetterSummary]]:
        return await self._read(lambda stored: _select(stored, namespace, selection, self.where))

    async def _read(self, work: Callable[[DeadLetterReader], _T]) -> _T:
        """In a thread and on a connection of its own: a filter over many events holds up no dead letter."""

        def run() -> _T:
            with DeadLetterReader.open(self._path) as stored:
                return work(stored)

        return await in_thread(run)


class DeadLettersApi(_PartApi):
    """The handlers of dead letters, which `dead_letters` alone changes."""

    where = DEAD

    def __init__(self, path: Path, dead_letters: DeadLetters) -> None:
        super().__init__(path)
        self._dead_letters = dead_letters

    def routes(self) -> Iterator[Route]:
        redrive, discard = self._redrive, self._discard
        changes = {"redrive": redrive, "redrive/{name}": redrive, "discard": discard}
        return routes_of(DEAD_LETTERS, self._list, self._counts, self._show, self._known, changes)

    def unknown(self, key: int) -> HeadgateError:
        hint = "it may have been sent or discarded"
        return DeadLetterNotFoundError(f"there is no dead letter {key}", hint=hint)

    async def _redrive(self, request: Request) -> Response:
        selection, namespace = await _selection(request), request.path_params["namespace"]
        least, most = limits.RATE_PER_S_MIN, limits.REDRIVE_RATE_MAX
        if not least <= selection.rate <= most:
            raise InvalidInputError(f"rate must be from {least:g} to {most:.0f} dead letters a second")

        to = self._trigger(namespace, request.path_params["name"]) if "name" in request.path_params else None
        page, found = await self._selected(namespace, selection)
        ids = [one.id for one in found if to is not None or self._dead_letters.find(one.target) is not None]
        count = await self._dead_letters.redrive(ids, pace_us=int(1e6 / selection.rate), to=to)
        return json_response({"count": count, "gone": len(found) - len(ids), **page})

    def _trigger(self, namespace: str, name: str) -> Target:
        found = self._dead_letters.find_trigger(f"{namespace}/{name}")
        if found is None:
            raise TriggerUnknownError(
                f"there is no trigger {name!r} in namespace {namespace!r} whose subscriber has an address",
                hint="a trigger that was just created is known within a second",
            )
        return found

    async def _discard(self, request: Request) -> Response:
        selection, namespace = await _selection(request), request.path_params["namespace"]
        page, found = await self._selected(namespace, selection)
        count = await self._dead_letters.discard([one.id for one in found])
        metrics.DEAD_LETTERS.labels("discarded").inc(count)
        return json_response({"count": count, **page})

    def facts(self, found: DeadLetterSummary) -> JsonObject:
        return {
            "state": found.state,
            "reason": found.reason,
            "died": rfc3339.text(found.died_us),
            "attempts": found.attempts,
            "code": found.code,
            "destination": found.destination,
        }


class PendingApi(_PartApi):
    """The handlers of events that wait for their time, which `pending` alone changes."""

    where = WAITING

    def __init__(self, path: Path, pending: Pending) -> None:
        super().__init__(path)
        self._pending = pending

    def routes(self) -> Iterator[Route]:
        return routes_of(PENDING, self._list, self._counts, self._show, self._known, {"cancel": self._cancel})

    def unknown(self, key: int) -> HeadgateError:
        hint = "its time may have come, or it was cancelled"
        return PendingNotFoundError(f"there is no pending event {key}", hint=hint)

    async def _cancel(self, request: Request) -> Response:
        body = await read_body(request)
        selection = await decoded_as(request, body, Selection, "the body is no selection of pending events")
        page, found = await self._selected(request.path_params["namespace"], selection)
        count = await self._pending.cancel([one.id for one in found])
        return json_response({"count": count, **page})

    def facts(self, found: DeadLetterSummary) -> JsonObject:
        due, stored = rfc3339.text(found.due_us), rfc3339.text(found.died_us)
        return {"due": due, "stored": stored, "attempts": found.failures}


def _select(
    stored: DeadLetterReader, namespace: str | None, selection: Selection, where: str
) -> tuple[dict[str, int], list[DeadLetterSummary]]:
    """The dead letters of one page that are meant, and where the next page begins."""
    if where == WAITING and (selection.state or selection.reason):
        raise InvalidInputError("events that wait for their time have neither a state nor a reason")
    wanted = _program(selection.filter)
    limit = selection.limit
    _check_count(selection)
    conditions: list[str] = [where]
    parameters: list[object] = []

    def need(condition: str, *values: object) -> None:
        conditions.append(condition)
        parameters.extend(values)

    ceiling = selection.ceiling or stored.newest()
    need("id <= ?", ceiling)
    if namespace is not None:
        if selection.trigger:
            need("trigger = ?", f"{namespace}/{selection.trigger}")
        else:
            need("trigger >= ? AND trigger < ?", f"{namespace}/", f"{namespace}0")
    if selection.reason:
        need("reason = ?", selection.reason)
    if selection.state:
        states = [one for one in DeadLetterState if one is not DeadLetterState.PENDING]
        if selection.state not in states:
            raise InvalidInputError(f"state must be one of {', '.join(states)}")
        need("state = ?", selection.state)
    for name, sign in (("since", ">="), ("until", "<")):
        text = getattr(selection, name)
        if text:
            instant = rfc3339.micros(text)
            if instant is None:
                raise InvalidInputError(f"{name} must be a time as in RFC 3339, such as 2026-01-02T03:04:05Z")
            need(f"{'died_us' if where == DEAD else 'due_us'} {sign} ?", instant)
    if selection.event:
        need("event_id = ?", selection.event)
    if selection.source:
        need("source = ?", selection.source)
    if selection.ids:
        need(f"id IN ({', '.join('?' * len(selection.ids))})", *selection.ids)
    found = stored.summaries(
        " AND ".join(conditions), tuple(parameters), after=selection.after, limit=limit, newest=selection.newest
    )
    page = {"ceiling": ceiling} | ({"next": found[-1].id} if len(found) == limit else {})
    if wanted is not None:
        found = [one for one in found if _takes(wanted, stored.event(one.id))]  # one event in memory at a time
    return page, found


def _check_count(selection: Selection) -> None:
    if not 1 <= selection.limit <= limits.DEADLETTER_PAGE_MAX or len(selection.ids) > limits.DEADLETTER_PAGE_MAX:
        raise InvalidInputError(f"a page has 1 to {limits.DEADLETTER_PAGE_MAX} dead letters")


def _takes(wanted: Program, event: Event | None) -> bool:
    """Whether a filter takes an event; one whose dead letter has just gone is none."""
    return event is not None and wanted.evaluate(event).kind is OutcomeKind.TRUE


def _program(expression: str) -> Program | None:
    if not expression:
        return None
    found = program(compile_filter({"expression": expression}).cel)
    if found.reads_publish_time:
        hint = "select by the time of the failure: since, until"
        raise FilterError("a dead letter does not keep its publish_time", field="filter", hint=hint)
    return found


async def _selection(request: Request) -> Selection:
    """What is to be redriven or discarded: dead letters that are still to be sent only for those who name them."""
    body = await read_body(request)
    selection = await decoded_as(request, body, Selection, "the body is no selection of dead letters")
    if selection.ids or selection.state:
        return selection
    return msgspec.structs.replace(selection, state=DeadLetterState.KEPT)


def _converted(query: dict[str, str]) -> Selection:
    try:
        return msgspec.convert(query, Selection, strict=False)  # numbers come as text
    except msgspec.ValidationError as error:
        raise InvalidInputError(f"the query is no selection: {error}") from error
