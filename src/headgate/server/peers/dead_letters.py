"""Dead letters and replays of all dispatchers: one list, one selection, a page at a time.

Each dispatcher has ids of its own and its own page of a selection. So `next` and `ceiling` of an answer have a number
for each, `120.37`, `-` for one that has no more. `deadletters/api.py` says what they mean.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import merge
from itertools import islice
from typing import Annotated, Any, Final
from urllib.parse import urlencode

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headgate.deadletters.api import (
    DEAD_LETTERS,
    PENDING,
    CountsPage,
    DeadLetterNotFoundError,
    PendingNotFoundError,
    counts_bound,
    routes_of,
)
from headgate.objects.api.grants import Grants
from headgate.objects.api.http import decoded_as, json_response, read_body
from headgate.objects.api.queries import user_of
from headgate.replay.api import BASE
from headgate.server.peers.dispatcher_group import DispatcherGroup, DispatcherQuestion, refusal
from headgate.server.peers.local_http import sent_path
from headgate_api import limits
from headgate_api.errors import InvalidInputError
from headgate_api.event import rfc3339
from headgate_api.objects.kinds import JsonObject, Kind

_IDS_NAMED: Final = 10
_DONE: Final = "-"
_Places = tuple[int | None, ...]
"""Of each dispatcher an id; None for one that has no more."""


class _Selection(msgspec.Struct, frozen=True):
    """What is read here of a selection; the rest is the dispatchers' (`deadletters.api.Selection`)."""

    ids: Annotated[tuple[int, ...], msgspec.Meta(min_length=1)] = ()
    after: str = ""
    ceiling: str = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=limits.DEADLETTER_PAGE_MAX)] = limits.DEADLETTER_PAGE_MAX
    newest: bool = False


@dataclass(frozen=True, slots=True)
class _Pages:
    """One page of each dispatcher that was asked, by its number; `after` are the ids behind which they begin."""

    after: _Places
    answers: dict[int, JsonObject]

    def next_places(self, taken: dict[int, int | None]) -> _Places:
        """Where the next pages begin; `taken`: the last id from each dispatcher with items left over, None for none."""
        places = list[int | None](self.after)
        for number, answer in self.answers.items():
            if number in taken:
                places[number] = taken[number] if taken[number] is not None else self.after[number]
            else:
                places[number] = answer.get("next")
        return tuple(places)

    def where(self, places: _Places) -> JsonObject:
        if all(place is None for place in places):
            return {}
        ceilings = [answer["ceiling"] for _, answer in sorted(self.answers.items())]
        known = iter(ceilings)
        return {
            "next": _written(places),
            "ceiling": _written([next(known) if number in self.answers else None for number in range(len(places))]),
        }


class DeadLettersFront:
    """The handlers, of dead letters and of events that wait for their time."""

    def __init__(self, group: DispatcherGroup) -> None:
        self._group = group

    def routes(self) -> Iterator[Route]:
        redrive, discard = (partial(self._change, counted=counted) for counted in (("count", "gone"), ("count",)))
        handlers = (self._list, self._counts, self._group.pass_to_one, self._known)
        changes = {"redrive": redrive, "redrive/{name}": redrive, "discard": discard}
        yield from routes_of(DEAD_LETTERS, *handlers, changes)
        yield from routes_of(PENDING, *handlers, {"cancel": discard})

    async def _list(self, request: Request) -> Response:
        query: JsonObject = dict(request.query_params)
        selection = _converted(query)
        found = await self._pages(request, query, selection, selection.limit)
        if isinstance(found, Response):
            return found
        own = ([(number, item) for item in one["items"]] for number, one in found.answers.items())
        merged = merge(*own, key=lambda one: _order(one[1]), reverse=selection.newest)
        page = list(islice(merged, selection.limit))
        taken: dict[int, int | None] = {}
        for number, one in found.answers.items():
            ids = [item["id"] for owner, item in page if owner == number]
            if len(ids) < len(one["items"]):
                taken[number] = ids[-1] if ids else None
        return json_response({"items": [item for _, item in page], **found.where(found.next_places(taken))})

    async def _counts(self, request: Request) -> Response:
        answers = await self._group.ask_all(DispatcherQuestion.of(request))
        if (refused := refusal(answers)) is not None:
            return refused
        pages = [msgspec.json.decode(one.body, type=CountsPage) for one in answers]
        return json_response(CountsPage.joined(pages, counts_bound(request)))

    async def _known(self, request: Request) -> Response:
        body = await read_body(request)
        answers = await self._group.ask_all(DispatcherQuestion.of(request, body))
        if (refused := refusal(answers)) is not None:
            return refused
        return json_response({"known": sorted(id_ for answer in answers for id_ in answer.content["known"])})

    async def _change(self, request: Request, *, counted: Sequence[str]) -> Response:
        body = await read_body(request)
        selection = await decoded_as(request, body, _Selection, "the body is no selection")
        if selection.ids and not selection.after:  # a later page has taken the earlier ones away
            await self._check_ids(request, selection.ids)
        query: JsonObject = msgspec.json.decode(body)
        found = await self._pages(request, query, selection, max(1, selection.limit // self._group.count))
        if isinstance(found, Response):
            return found
        counts = {name: sum(answer[name] for answer in found.answers.values()) for name in counted}
        return json_response({**counts, **found.where(found.next_places({}))})

    async def _pages(self, request: Request, query: JsonObject, selection: _Selection, limit: int) -> _Pages | Response:
        """A page of each dispatcher that has more; or what one of them refuses it with."""
        after = _places(selection.after, self._group.count, 0)
        ceiling = _places(selection.ceiling, self._group.count, 0)
        numbers = [number for number, place in enumerate(after) if place is not None]

        async def one(number: int) -> Any:  # noqa: ANN401 - a `WholeAnswer`
            asked = query | {"after": after[number], "ceiling": ceiling[number] or 0, "limit": limit}
            if request.method == "GET":
                target = f"{sent_path(request.scope)}?{urlencode(asked)}"
                return await self._group.ask(number, DispatcherQuestion.of(request, target=target))
            return await self._group.ask(number, DispatcherQuestion.of(request, msgspec.json.encode(asked)))

        answers = await asyncio.gather(*map(one, numbers))
        if (refused := refusal(answers)) is not None:
            return refused
        return _Pages(after, {number: answer.content for number, answer in zip(numbers, answers, strict=True)})

    async def _check_ids(self, request: Request, ids: tuple[int, ...]) -> None:
        """Refuses ids that are not there before anything is done with the others."""
        path = sent_path(request.scope)
        is_pending = "/pending/" in path
        base, end, _ = path.rpartition("/pending/" if is_pending else "/deadletters/")
        target = f"{base}{end}known"
        body = msgspec.json.encode({"ids": ids})
        answers = await self._group.ask_all(DispatcherQuestion.of(request, body, target))
        if refusal(answers) is not None:
            return  # the same ids will be refused for the same reason
        known = {id_ for answer in answers for id_ in answer.content["known"]}
        if unknown := sorted(set(ids) - known):
            named = ", ".join(map(str, unknown[:_IDS_NAMED])) + (", ..." if len(unknown) > _IDS_NAMED else "")
            if is_pending:
                words = f"there is no pending event {named} in this namespace; nothing was done"
                hint = "its time may have come, or it was cancelled: `headgate pending list` shows those that wait"
                raise PendingNotFoundError(words, hint=hint)
            noun = "dead letter" if len(unknown) == 1 else "dead letters"
            hint = "it may have been sent or discarded: `headgate deadletter list` shows those that are kept"
            raise DeadLetterNotFoundError(f"there is no {noun} {named} in this namespace; nothing was done", hint=hint)


def _order(item: JsonObject) -> tuple[int, int]:
    """When a dead letter died, or a pending event was stored: ids of two dispatchers have no order over both."""
    return rfc3339.micros(item.get("died") or item["stored"]) or 0, item["id"]


def _converted(query: JsonObject) -> _Selection:
    try:
        return msgspec.convert({k: v for k, v in query.items() if k != "ids"}, _Selection, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidInputError(f"the query is no selection: {error}") from error


def _places(text: str, dispatchers: int, default: int) -> _Places:
    """What `next` or `ceiling` of an answer said; the default for each dispatcher when it is empty."""
    if not text:
        return (default,) * dispatchers
    parts = text.split(".")
    numbers = [part for part in parts if part != _DONE]
    if len(parts) != dispatchers or not all(one.isascii() and one.isdigit() and len(one) < 19 for one in numbers):
        hint = "give `after` and `ceiling` what the last page gave as `next` and `ceiling`, or begin anew"
        raise InvalidInputError(f"{text[:64]!r} is no place in this server's list", hint=hint)
    return tuple(None if part == _DONE else int(part) for part in parts)


def _written(places: Sequence[int | None]) -> str:
    return ".".join(_DONE if place is None else str(place) for place in places)


# --- replays --------------------------------------------------------------------------------------
# A replay is with the dispatcher that owns its trigger, one to a URL with the first.


class _Target(msgspec.Struct, frozen=True):
    """What is read here of a request for a replay; the rest is the dispatcher's."""

    trigger: str = ""
    url: str = ""


class ReplaysFront:
    """The handlers."""

    def __init__(self, group: DispatcherGroup, grants: Grants) -> None:
        self._group = group
        self._grants = grants

    def beginning(self) -> Iterator[Route]:
        """Where a replay begins: here it is judged where its events may go."""
        yield Route(BASE, self._create, methods=["POST"])

    def routes(self) -> Iterator[Route]:
        """Where the others answer, which decide nothing themselves."""
        yield Route(BASE, self._list, methods=["GET"])
        yield Route(f"{BASE}/{{id}}", self._group.pass_to_one, methods=["GET"])
        yield Route(f"{BASE}/{{id}}/cancel", self._group.pass_to_one, methods=["POST"])

    async def _list(self, request: Request) -> Response:
        answers = await self._group.ask_all(DispatcherQuestion.of(request))
        if (refused := refusal(answers)) is not None:
            return refused
        items = [item for answer in answers for item in answer.content["items"]]
        return json_response({"items": sorted(items, key=lambda item: (item["created"], item["id"]), reverse=True)})

    async def _create(self, request: Request) -> Response:
        body = await read_body(request)
        try:
            target = msgspec.json.decode(body, type=_Target)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            target = _Target()  # the dispatcher says what is wrong
        namespace, trigger = request.path_params["namespace"], target.trigger
        self._grants.judge_url(user_of(request), namespace, target.url)
        owner = await self._group.owner(Kind.TRIGGER, namespace, trigger) if trigger else 0
        return (await self._group.ask(owner, DispatcherQuestion.of(request, body))).response()
