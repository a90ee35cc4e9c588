"""Why was this event not delivered, over HTTP? A path below the trigger.

`GET /apis/eventing.knative.dev/v1/namespaces/{ns}/triggers/{name}/why?id=...&source=...&since=...&next=...`
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headgate.control.http import json_response
from headgate.control.objects import API_VERSION
from headgate.dispatch.why import Answer, Question, Why, time_text, trigger_key
from headgate.errors import InvalidInputError
from headgate.event import rfc3339
from headgate.event.identity import path_of
from headgate.event.json_format import encode_event
from headgate.filter.trace import Part
from headgate.log import positions
from headgate.log.errors import PositionError

PATH: Final = f"/apis/{API_VERSION}/namespaces/{{namespace}}/triggers/{{name}}/why"


class EventView(msgspec.Struct, frozen=True, rename="camel"):
    """The event as it was accepted, and where it stands."""

    broker: str
    partition: int
    offset: int
    stored: str
    event: msgspec.Raw


class TraceView(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """What the filter says of the event; `caret` shows the part that decided below the text."""

    cel: str
    outcome: str
    caret: str
    parts: tuple[Part, ...]
    error: str = ""


class AttemptsView(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Attempts so far."""

    failed: int
    next: str = ""
    code: int = 0
    answer: str = ""


class WhyView(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The answer; `next` goes into the next request when the event was not found in the piece that was searched."""

    trigger: str
    id: str
    fate: str
    message: str
    event: EventView | None = None
    trace: TraceView | None = None
    attempts: AttemptsView | None = None
    next: str = ""
    searched_to: str = ""


class WhyApi:
    """The handler.

    Args:
        why: Answers.
    """

    def __init__(self, why: Why) -> None:
        self._why = why

    def routes(self) -> Iterator[Route]:
        """Where it answers."""
        yield Route(PATH, self._answer, methods=["GET"])

    async def _answer(self, request: Request) -> Response:
        question = _question(request)
        answer = await run_in_threadpool(self._why.answer, question)
        return json_response(_view(question, answer))


def _question(request: Request) -> Question:
    query = request.query_params
    if not query.get("id"):
        raise InvalidInputError("the query names no event", hint="?id=EVENT-ID, and &source=SOURCE when ids repeat")
    since_us = 0
    if query.get("since"):
        found = rfc3339.micros(query["since"])
        if found is None:
            raise InvalidInputError("since is no RFC 3339 time", hint="since=2026-01-02T03:04:05Z")
        since_us = found
    key = trigger_key(request.path_params["namespace"], request.path_params["name"])
    reached, other = _next(query.get("next", ""))
    return Question(key, query["id"], query.get("source", ""), since_us, reached, other)


def _next(token: str) -> tuple[dict[int, int], tuple[int, int] | None]:
    """What `_token` has written: where to go on, and the place of another broker's event."""
    if not token:
        return {}, None
    reached, slash, other = token.partition("/")
    places = list(positions.parse(other).items()) if slash else []
    if len(places) > 1:
        raise PositionError(f"{token[:64]!r} is no position", hint="give back what the server gave as next")
    return positions.parse(reached), places[0] if places else None


def _token(answer: Answer) -> str:
    reached = positions.write(answer.next)
    return reached if answer.other is None else f"{reached}/{positions.write(dict([answer.other]))}"


def _view(question: Question, answer: Answer) -> WhyView:
    found, traced, attempts = answer.found, answer.trace, answer.attempts
    return WhyView(
        trigger=question.trigger.path,
        id=question.id,
        fate=answer.fate,
        message=answer.says,
        event=None
        if found is None
        else EventView(
            path_of(found.stored.broker),
            found.partition,
            found.offset,
            time_text(found.append_time_us),
            msgspec.Raw(encode_event(found.stored.event)),
        ),
        trace=None
        if traced is None
        else TraceView(
            traced.text, traced.outcome.kind.name.lower(), traced.caret, traced.parts, traced.outcome.message
        ),
        attempts=None
        if attempts is None
        else AttemptsView(
            attempts.failed,
            time_text(attempts.next_us) if attempts.next_us else "",
            attempts.code,
            attempts.answer,
        ),
        next=_token(answer),
        searched_to=time_text(answer.searched_to_us) if answer.searched_to_us else "",
    )
