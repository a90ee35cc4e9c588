"""The HTTP API of consumers: pull, acknowledge, seek and ask, below the subscription's own path.

It runs in the process that owns the cursors; the front passes requests on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Final, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headgate.filter.compile.compiler import compile_filter
from headgate.filter.compile.request import condition
from headgate.objects.api.http import decoded_as, in_thread, json_response, read_body
from headgate.objects.api.queries import path_named, user_of
from headgate.subscriptions.messages import AckResult, LeasedEvent, SeekGoal
from headgate.subscriptions.registry import RunningSeek
from headgate.subscriptions.service import Subscriptions
from headgate_api import limits
from headgate_api.errors import InvalidInputError
from headgate_api.event.json_format import encode_event
from headgate_api.objects.kinds import OWN_API_VERSION, JsonObject

_RequestT = TypeVar("_RequestT", bound="_ConsumerRequest")
PREFIX: Final = f"/apis/{OWN_API_VERSION}/namespaces/{{namespace}}/subscriptions/{{name}}"
METHODS: Final = {
    "pull": ("POST",),
    "ack": ("POST",),
    "nack": ("POST",),
    "leave": ("POST",),
    "seek": ("POST", "GET", "DELETE"),
    "analyze": ("POST",),
    "stats": ("GET",),
    "consumers": ("GET",),
}
"""The paths below a subscription's own, and their methods."""


class _ConsumerRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    consumer: str = ""


class _PullRequest(_ConsumerRequest, frozen=True):
    max: int = limits.PULL_EVENTS_DEFAULT
    wait: float = 0.0


class _AckRequest(_ConsumerRequest, frozen=True):
    ids: tuple[str, ...] = ()
    up_to: str = ""


class _NackRequest(_ConsumerRequest, frozen=True):
    ids: tuple[str, ...] = ()
    delay: float = 0.0


class _SeekRequest(_ConsumerRequest, frozen=True):
    to: str = "earliest"
    first: str | dict[str, object] = ""
    last: str | dict[str, object] = ""
    after: bool = False


class _AnalyzeRequest(_ConsumerRequest, frozen=True):
    filter: dict[str, object] | None = None
    filters: tuple[dict[str, object], ...] = ()


class SubscriptionsApi:
    """The handlers, one for each of METHODS, for a Starlette app."""

    def __init__(self, subscriptions: Subscriptions) -> None:
        self._subscriptions = subscriptions

    def routes(self) -> Iterator[Route]:
        for name, methods in METHODS.items():
            yield Route(f"{PREFIX}/{name}", getattr(self, f"_{name}"), methods=list(methods))

    async def _pull(self, request: Request) -> Response:
        body = await _decoded(request, _PullRequest)
        if not 1 <= body.max <= limits.PULL_EVENTS_MAX:
            raise InvalidInputError(f"max must be between 1 and {limits.PULL_EVENTS_MAX}")
        if not 0 <= body.wait <= limits.PULL_WAIT_S_MAX:
            raise InvalidInputError(f"wait must be between 0 and {limits.PULL_WAIT_S_MAX:.0f} seconds")
        name, consumer = path_named(request), body.consumer
        with self._subscriptions.consuming(name, consumer, user_of(request).name):
            pulled = await self._subscriptions.pull(
                name, consumer, count_max=body.max, wait_s=body.wait, is_gone=request.is_disconnected
            )
        events = [_event(one) for one in pulled.events]
        return json_response({"events": events, "epoch": pulled.epoch, "active": pulled.active})

    async def _ack(self, request: Request) -> Response:
        body = await _decoded(request, _AckRequest)
        if bool(body.ids) == bool(body.up_to):
            raise InvalidInputError("an acknowledgement has either ids or upTo")
        _check_ids(body.ids)
        if body.up_to and not body.consumer:
            hint = "give the consumer that the pull named, or ids, which need none"
            raise InvalidInputError("upTo needs consumer: only its events are acknowledged", hint=hint)
        return _acked(await self._subscriptions.ack(path_named(request), body.consumer, ids=body.ids, up_to=body.up_to))

    async def _nack(self, request: Request) -> Response:
        body = await _decoded(request, _NackRequest)
        if not body.ids:
            raise InvalidInputError("ids is missing")
        _check_ids(body.ids)
        check_delay(body.delay)
        return _acked(await self._subscriptions.nack(path_named(request), body.ids, body.delay))

    async def _leave(self, request: Request) -> Response:
        body = await _decoded(request, _ConsumerRequest)
        return json_response({"released": self._subscriptions.leave(path_named(request), body.consumer)})

    async def _seek(self, request: Request) -> Response:
        name = path_named(request)
        if request.method == "DELETE":
            return json_response({"cancelled": self._subscriptions.cancel_seek(name)})
        if request.method == "GET":
            return json_response(_seeking(self._subscriptions.running_seek(name)))
        body = await _decoded(request, _SeekRequest)
        first = await in_thread(condition, body.first, "first")
        last = await in_thread(condition, body.last, "last")
        done = await self._subscriptions.seek(name, SeekGoal(body.to, first, last, body.after))
        return json_response({"running": False, "epoch": done.epoch, "position": done.position})

    async def _analyze(self, request: Request) -> Response:
        body = await _decoded(request, _AnalyzeRequest)
        compiled = await in_thread(compile_filter, body.filter, body.filters)
        return json_response(dataclasses.asdict(await self._subscriptions.analyze(path_named(request), compiled.cel)))

    async def _stats(self, request: Request) -> Response:
        return json_response(await self._subscriptions.stats(path_named(request)))

    async def _consumers(self, request: Request) -> Response:
        return json_response(self._subscriptions.consumers(path_named(request)))


def check_consumer(name: str) -> None:
    """Raises InvalidInputError for a consumer's name that is too long."""
    if len(name) > limits.CONSUMER_CHARS_MAX:
        raise InvalidInputError(f"consumer has over {limits.CONSUMER_CHARS_MAX} characters")


def check_delay(delay_s: float) -> None:
    """Raises InvalidInputError for a delay out of its range."""
    if not 0 <= delay_s <= limits.ACK_TIMEOUT_S_MAX:
        raise InvalidInputError(f"delay must be between 0 and {limits.ACK_TIMEOUT_S_MAX:.0f} seconds")


def _check_ids(ids: tuple[str, ...]) -> None:
    if len(ids) > limits.SUBSCRIPTION_UNACKED_MAX:
        raise InvalidInputError(
            f"{len(ids)} ids are over {limits.SUBSCRIPTION_UNACKED_MAX} (SUBSCRIPTION_UNACKED_MAX)",
            hint="consumers of a subscription never have more: send several requests",
        )


async def _decoded(request: Request, type_: type[_RequestT]) -> _RequestT:
    body = await decoded_as(request, await read_body(request) or b"{}", type_, "the body")
    check_consumer(body.consumer)
    return body


def _event(leased: LeasedEvent) -> JsonObject:
    return {
        "ackId": leased.id,
        "deliveries": leased.deliveries,
        "position": f"{leased.partition}:{leased.offset}",
        "event": msgspec.Raw(encode_event(leased.event.event)),
    }


def _seeking(seek: RunningSeek | None) -> JsonObject:
    """The seek under way, if any, and how far it is."""
    if seek is None:
        return {"running": False}
    goal = seek.goal
    given = {name: cel for name, cel in (("first", goal.first), ("last", goal.last)) if cel}
    return {"running": True, "to": goal.to, **given, "eventsScanned": seek.scanned, "eventsTotal": seek.total}


def _acked(done: AckResult) -> Response:
    return json_response({"acknowledged": done.acknowledged, "stale": list(done.stale)})
