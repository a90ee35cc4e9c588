"""Replays of all dispatchers: a replay is with the dispatcher that owns its trigger, one to a URL with the first."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headgate.control.grants import Grants
from headgate.control.http import json_response, read_body
from headgate.control.queries import user_of
from headgate.replay.api import BASE
from headgate.server.dispatcher_group import DispatcherGroup, DispatcherQuestion, refusal
from headgate_api.control.objects import Kind


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
        yield Route(f"{BASE}/{{id}}", self._one, methods=["GET"])
        yield Route(f"{BASE}/{{id}}/cancel", self._one, methods=["POST"])

    async def _list(self, request: Request) -> Response:
        answers = await self._group.ask_all(DispatcherQuestion.of(request))
        refused = refusal(answers)
        if refused is not None:
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

    async def _one(self, request: Request) -> Response:
        return (await self._group.ask_for_one(DispatcherQuestion.of(request))).response()
