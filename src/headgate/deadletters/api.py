"""The API of a dispatcher's dead letters: list, show, redrive and discard, a page of the store at a time.

Events that wait for their time have the same one, with `cancel` in the place of both (`PendingApi`).

`server/peers/dead_letters.py` asks all dispatchers, for clients; the paths are the same (`routes_of`).

Every answer to a selection says where it stopped (`next`, absent at the end), and the caller goes on there. So a
request that is broken off keeps what it has done, and a repeated one does no harm. A user below a ceiling has a part of
the store, as if there were nothing else (`own.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Final, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headgate.deadletters.own import LetterRights, OwnLetters
from headgate.deadletters.pending import Pending
from headgate.deadletters.sink_sender import DeadLetters
from headgate.deadletters.store import (
    DEAD,
    WAITING,
    DeadLetterCount,
    DeadLetterReader,
    DeadLetterState,
    DeadLetterSummary,
    counted,
    counts_of,
    most_first,
)
from headgate.filter.cel.errors import FilterError
from headgate.filter.cel.evaluate import OutcomeKind, Program, program
from headgate.filter.compile.compiler import compile_filter
from headgate.objects.api.http import JSON, Handler, decoded_as, in_thread, json_response, path_id, read_body
from headgate.objects.api.queries import user_of
from headgate.objects.kinds.routing import Target
from headgate.observe import metrics
from headgate_api import limits
from headgate_api.errors import HeadgateError, InvalidInputError, NotFoundError, UnavailableError
from headgate_api.event import rfc3339
from headgate_api.event.json_format import encode_event
from headgate_api.event.model import Event
from headgate_api.objects.kinds import OWN_API_VERSION, JsonObject

_PREFIX: Final = f"/apis/{OWN_API_VERSION}"
DEAD_LETTERS: Final = "deadletters"
PENDING: Final = "pending"
_T = TypeVar("_T")
Settled = Callable[[], Awaitable[None]]
"""Waits until no delivery that has ended by now is repeated: else a kill would bring back what somebody took away."""
_at_once: Final[Settled] = partial(asyncio.sleep, 0)
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
    first, and a page is below `after`. A redrive sends `rate` a second. Below the ceiling of a right `ceiling` is the
    time at which the first page began: the newest id may be that of another's.
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
    partial: bool = False  # whether only the newest are counted, as each has to be looked at below a ceiling

    @classmethod
    def of(
        cls, counts: list[DeadLetterCount], bound: int = limits.DEADLETTER_COUNTS_MAX, *, partial: bool = False
    ) -> CountsPage:
        kept = sum(one.count for one in counts if one.state == DeadLetterState.KEPT)
        return cls(counts[:bound], sum(one.count for one in counts), kept, len(counts) > bound, partial)

    @classmethod
    def joined(cls, pages: Sequence[CountsPage], bound: int = limits.DEADLETTER_COUNTS_MAX) -> CountsPage:
        """One page of those of several stores, none of which has a trigger of another one."""
        found = cls.of(most_first([one for page in pages for one in page.items]), bound)
        total, kept = sum(page.total for page in pages), sum(page.kept for page in pages)
        more, partial = (any(getattr(page, name) for page in (found, *pages)) for name in ("more", "partial"))
        return cls(found.items, total, kept, more, partial)


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
    """What both have: the handlers that read one part of `deadletters.db` at `path`, those that `where` is true of.

    `rights` says what is whose; None: nothing is told to a user below a ceiling.
    """

    where: str

    def __init__(self, path: Path, rights: LetterRights | None, settled: Settled) -> None:
        self._path = path
        self._rights = rights
        self._settled = settled

    def facts(self, found: DeadLetterSummary) -> JsonObject:
        """What is told of one beside its trigger and its event."""
        raise NotImplementedError

    def unknown(self, key: int) -> HeadgateError:
        raise NotImplementedError

    async def _own(self, request: Request) -> OwnLetters | None:
        """What of it is the user's; None: all, as the gate has it."""
        user = user_of(request)
        if not user.ceiling:
            return None
        if self._rights is None:
            raise UnavailableError("nobody knows here what is whose")
        return await self._rights.of(user)

    def _view(self, found: DeadLetterSummary, own: OwnLetters | None, event: Event | None = None) -> JsonObject:
        """One in a list, or with its event in the JSON format; what is empty is left out."""
        namespace, _, trigger = found.trigger.partition("/")
        id_ = found.id if own is None else own.ids.shown(found.id)
        seen: JsonObject = {"id": id_, "namespace": namespace, "trigger": trigger, **self.facts(found)}
        about = {"eventId": found.event_id, "eventSource": found.source, "eventType": found.type, "bytes": found.bytes}
        given: JsonObject = {"sink": found.sink, "problem": found.problem}
        if event is not None:
            # The answer to several events may speak of any of them.
            answer = found.data.decode("utf-8", "replace") if own is None or not found.is_shared else ""
            given |= {"answer": answer, "event": msgspec.Raw(encode_event(event))}
        return seen | about | {name: value for name, value in given.items() if value}

    async def _list(self, request: Request) -> Response:
        selection, own = _converted(dict(request.query_params)), await self._own(request)
        namespace = request.path_params.get("namespace")

        def work(stored: DeadLetterReader) -> bytes:
            page, found = _select(stored, namespace, selection, self.where, own)
            return msgspec.json.encode({"items": [self._view(one, own) for one in found], **page})

        return Response(await self._read(work), media_type=JSON)

    async def _counts(self, request: Request) -> Response:
        namespace, bound, own = request.path_params.get("namespace"), counts_bound(request), await self._own(request)
        if own is None:
            return json_response(CountsPage.of(await in_thread(counts_of, [self._path], namespace, self.where), bound))
        newest = Selection(newest=True)
        page, found = await self._read(lambda stored: _select(stored, namespace, newest, self.where, own))
        return json_response(CountsPage.of(counted(found), bound, partial="next" in page))

    async def _show(self, request: Request) -> Response:
        key, namespace, own = path_id(request), request.path_params["namespace"], await self._own(request)

        def work(stored: DeadLetterReader) -> JsonObject:
            for one in self._of_ids(stored, (key,), namespace, own):
                if (event := stored.event(one.id)) is not None:
                    return self._view(one, own, event)
            raise self.unknown(key)

        return json_response(await self._read(work))

    async def _known(self, request: Request) -> Response:
        selection, namespace = await _selection(request), request.path_params["namespace"]
        own = await self._own(request)
        _check_count(selection)

        def work(stored: DeadLetterReader) -> list[int]:
            found = self._of_ids(stored, selection.ids, namespace, own)
            return [one.id if own is None else own.ids.shown(one.id) for one in found]

        return json_response({"known": await self._read(work)})

    def _of_ids(
        self, stored: DeadLetterReader, ids: Sequence[int], namespace: str, own: OwnLetters | None
    ) -> Iterator[DeadLetterSummary]:
        """Those of some ids that there are in a namespace, as far as they are the user's."""
        meant = ids if own is None else [own.ids.meant(one) for one in ids]
        wanted = f"id IN ({', '.join('?' * len(ids))}) AND {self.where}"
        for one in stored.summaries(wanted, tuple(meant), after=0, limit=len(ids)):
            if one.trigger.partition("/")[0] == namespace and (own is None or own.has(stored, one)):
                yield one

    async def _selected(self, request: Request, selection: Selection) -> tuple[dict[str, int], list[DeadLetterSummary]]:
        namespace, own = request.path_params["namespace"], await self._own(request)
        return await self._read(lambda stored: _select(stored, namespace, selection, self.where, own))

    async def _read(self, work: Callable[[DeadLetterReader], _T]) -> _T:
        """In a thread and on a connection of its own: a filter over many events holds up no dead letter."""

        def run() -> _T:
            with DeadLetterReader.open(self._path) as stored:
                return work(stored)

        return await in_thread(run)


class DeadLettersApi(_PartApi):
    """The handlers of dead letters, which `dead_letters` alone changes."""

    where = DEAD

    def __init__(
        self, path: Path, dead_letters: DeadLetters, rights: LetterRights | None = None, settled: Settled = _at_once
    ) -> None:
        super().__init__(path, rights, settled)
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
        page, found = await self._selected(request, selection)
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
        selection = await _selection(request)
        page, found = await self._selected(request, selection)
        count = await self._dead_letters.discard([one.id for one in found])
        await self._settled()
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

    def __init__(
        self, path: Path, pending: Pending, rights: LetterRights | None = None, settled: Settled = _at_once
    ) -> None:
        super().__init__(path, rights, settled)
        self._pending = pending

    def routes(self) -> Iterator[Route]:
        return routes_of(PENDING, self._list, self._counts, self._show, self._known, {"cancel": self._cancel})

    def unknown(self, key: int) -> HeadgateError:
        hint = "its time may have come, or it was cancelled"
        return PendingNotFoundError(f"there is no pending event {key}", hint=hint)

    async def _cancel(self, request: Request) -> Response:
        body = await read_body(request)
        selection = await decoded_as(request, body, Selection, "the body is no selection of pending events")
        page, found = await self._selected(request, selection)
        count = await self._pending.cancel([one.id for one in found])
        await self._settled()
        return json_response({"count": count, **page})

    def facts(self, found: DeadLetterSummary) -> JsonObject:
        due, stored = rfc3339.text(found.due_us), rfc3339.text(found.died_us)
        return {"due": due, "stored": stored, "attempts": found.failures}


def _select(
    stored: DeadLetterReader, namespace: str | None, selection: Selection, where: str, own: OwnLetters | None
) -> tuple[dict[str, int], list[DeadLetterSummary]]:
    """The dead letters of one page that are meant, and where the next page begins; of those that are the user's."""
    if where == WAITING and (selection.state or selection.reason):
        raise InvalidInputError("events that wait for their time have neither a state nor a reason")
    wanted = _program(selection.filter)
    _check_count(selection)
    conditions: list[str] = [where]
    parameters: list[object] = []

    def need(condition: str, *values: object) -> None:
        conditions.append(condition)
        parameters.extend(values)

    after, ids = selection.after, selection.ids
    if own is None:
        ceiling = selection.ceiling or stored.newest()
        need("id <= ?", ceiling)
    else:
        after, ids, ceiling = own.ids.meant(after), tuple(map(own.ids.meant, ids)), selection.ceiling or own.now_us
        if selection.ceiling:
            need("died_us <= ?", ceiling)
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
    if ids:
        need(f"id IN ({', '.join('?' * len(ids))})", *ids)
    looked_at_max = selection.limit + (limits.DEADLETTERS_PASSED_MAX if own is not None else 0)
    rows = stored.summaries(
        " AND ".join(conditions), tuple(parameters), after=after, limit=looked_at_max, newest=selection.newest
    )
    found, end = _first(stored, rows, selection.limit, own)
    page = {"ceiling": ceiling} | ({"next": end if own is None else own.ids.shown(end)} if end else {})
    if wanted is not None:
        found = [one for one in found if _takes(wanted, stored.event(one.id))]  # one event in memory at a time
    return page, found


def _first(
    stored: DeadLetterReader, rows: Iterator[DeadLetterSummary], limit: int, own: OwnLetters | None
) -> tuple[list[DeadLetterSummary], int]:
    """The first of a user's, and the id behind which there may be more; 0 where there is none.

    Where he has as many as he asks for, it is that of the last of his: whose the next one is does not matter.
    """
    found, passed = list[DeadLetterSummary](), 0
    for one in rows:
        if own is None or own.has(stored, one):
            found.append(one)
        else:
            passed += 1
        if len(found) == limit or passed == limits.DEADLETTERS_PASSED_MAX:
            return found, one.id
    return found, 0


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
