"""The log over HTTP: `GET /{namespace}/{broker}/events`, as lines, as server-sent events, or as one batch.

    curl 'localhost:8080/default/default/events?from=earliest&filter=data.amount>100&limit=10'

The `Accept` header chooses the form: `application/x-ndjson` (the default), `text/event-stream` (follows by itself) or
`application/cloudevents-batch+json` (one array; its end and its counters are headers).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from dataclasses import asdict, fields, replace
from functools import partial
from typing import Final, TypeVar

import msgspec
import structlog
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from headgate.log.errors import UnreadableEventsError
from headgate.objects.api.http import while_connected
from headgate.objects.api.queries import user_of
from headgate.scan.source import ScanCounters
from headgate.stream.follow import Readers, Turn
from headgate.stream.request import ReadRequest, read_request
from headgate_api import positions
from headgate_api.errors import HeadgateError, UnavailableError
from headgate_api.event import rfc3339
from headgate_api.event.http import BATCH_JSON
from headgate_api.event.json_format import encode_batch, encode_event
from headgate_api.event.model import Event
from headgate_api.limits import READ_BATCH_BYTES_MAX, READ_BATCH_EVENTS_MAX, READ_ENCODE_BYTES_MAX

POSITION_EXTENSION: Final = "hgposition"
STORED_EXTENSION: Final = "hgstored"
LINES: Final = "application/x-ndjson"
SERVER_SENT: Final = "text/event-stream"
_NO_STORE: Final = {"cache-control": "no-store"}
_CLIENT_GONE: Final = 499  # nobody sees it
_T = TypeVar("_T")
_log = structlog.get_logger(__name__)
_ReadProgress: Final = msgspec.defstruct(
    "ReadProgress",
    [("position", str), ("at_end", bool), *((field.name, int) for field in fields(ScanCounters))],
    rename="camel",
)
"""Where a reader is, and the counters of its scan."""


class ReadApi:
    """The reading end of every broker."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers

    def routes(self) -> list[Route]:
        return [Route("/{namespace}/{broker}/events", self._events, methods=["GET"])]

    async def _events(self, request: Request) -> Response:
        broker = await self._readers.broker(f"{request.path_params['namespace']}/{request.path_params['broker']}")
        form = _form(request.headers.get("accept", ""))
        parameters = list(request.query_params.multi_items())
        resumed = request.headers.get("last-event-id", "")
        if form == SERVER_SENT and resumed:  # a browser that lost the connection
            parameters = [(name, value) for name, value in parameters if name not in ("from", "first", "last")]
            parameters.append(("from", resumed))
        user, ceiling = user_of(request).name, user_of(request).ceiling
        follow = form == SERVER_SENT
        wanted = await asyncio.to_thread(read_request, broker, parameters, follow=follow, ceiling=ceiling)
        if form == BATCH_JSON:
            answer = await while_connected(request.receive, self._batch(wanted, user))
            return answer or Response(status_code=_CLIENT_GONE)
        reading = self._readers.reading(wanted, user=user)
        # The first turn is awaited: what is wrong with the request is still an error answer and not a broken body.
        first = await while_connected(request.receive, anext(reading))
        if first is None:
            return Response(status_code=_CLIENT_GONE)
        write, end = (_line, _error_line) if form == LINES else (_messages, _error_message)
        write = partial(write, with_time=wanted.with_time)
        return StreamingResponse(_stream(first, reading, write, end), media_type=form, headers=_NO_STORE)

    async def _batch(self, wanted: ReadRequest, user: str) -> Response:
        limit = min(wanted.limit or READ_BATCH_EVENTS_MAX, READ_BATCH_EVENTS_MAX)
        events: list[Event] = []
        bounded = replace(wanted, limit=limit, follow=False)
        size_bytes = 0
        async with aclosing(self._readers.reading(bounded, user=user)) as reading:
            try:
                async for turn in reading:
                    events += await _in_thread(turn.size_bytes, partial(_events_of, turn, wanted.with_time))
                    size_bytes += turn.size_bytes
                    if size_bytes >= READ_BATCH_BYTES_MAX:
                        break
            except (UnreadableEventsError, UnavailableError):
                if not events:
                    raise  # else it is the first thing that the next request meets
        progress = _progress(turn)
        named = msgspec.structs.asdict(progress).items()
        headers = {f"headgate-{name.replace('_', '-')}": str(value).lower() for name, value in named}
        body = await _in_thread(size_bytes, partial(encode_batch, events))
        return Response(body, media_type=BATCH_JSON, headers=headers | _NO_STORE)


async def _in_thread(size_bytes: int, work: Callable[[], _T]) -> _T:
    """Encodes, or decodes, so many bytes; many are done in a thread, so that other readers do not wait."""
    return work() if size_bytes <= READ_ENCODE_BYTES_MAX else await asyncio.to_thread(work)


async def _stream(
    first: Turn,
    reading: AsyncGenerator[Turn, None],
    write: Callable[[Turn], bytes],
    end: Callable[[HeadgateError], bytes],
) -> AsyncGenerator[bytes, None]:
    async with aclosing(reading):
        yield await _in_thread(first.size_bytes, partial(write, first))
        try:
            async for turn in reading:
                yield await _in_thread(turn.size_bytes, partial(write, turn))
        except HeadgateError as error:  # everything before it has been written
            _log.error("a reader stops", error=error.message)
            yield end(error)


def _form(accept: str) -> str:
    for form in (SERVER_SENT, BATCH_JSON):
        if form in accept:
            return form
    return LINES


def _placed(turn: Turn, with_time: bool) -> Iterator[tuple[Event, dict[int, int]]]:
    """The events, each with its own position, and where the reader stands behind it."""
    times_us = (one for piece in turn.pieces for one in piece.append_times_us)
    for (partition, offset, event, behind), time_us in zip(turn.placed(), times_us, strict=True):
        place = {POSITION_EXTENSION: f"{partition}:{offset}"}
        if with_time:
            place[STORED_EXTENSION] = rfc3339.text(time_us)
        yield msgspec.structs.replace(event, extensions={**event.extensions, **place}), behind


def _events_of(turn: Turn, with_time: bool) -> list[Event]:
    return [event for event, _ in _placed(turn, with_time)]


def _progress(turn: Turn) -> msgspec.Struct:
    return _ReadProgress(positions.write(turn.positions), turn.at_end, **asdict(turn.counters))


def _line(turn: Turn, *, with_time: bool) -> bytes:
    """Events, one a line; a turn without events is a line `{"progress": ...}`."""
    if not turn.pieces:
        return msgspec.json.encode({"progress": _progress(turn)}) + b"\n"
    return b"".join(_one_line(event) + b"\n" for event in _events_of(turn, with_time))


def _error_line(error: HeadgateError) -> bytes:
    return msgspec.json.encode({"error": {"code": error.code, "message": error.message}}) + b"\n"


def _error_message(error: HeadgateError) -> bytes:
    return b"event: error\ndata: " + _error_line(error) + b"\n"


def _one_line(event: Event) -> bytes:
    """The JSON format; data is stored byte for byte, so line breaks are taken out."""
    text = encode_event(event)
    return msgspec.json.format(text, indent=-1) if b"\n" in text or b"\r" in text else text


def _messages(turn: Turn, *, with_time: bool) -> bytes:
    """A turn as server-sent events; each has the position behind it as id, which browsers send when they reconnect."""
    if not turn.pieces:
        position = positions.write(turn.positions).encode()
        return b"event: progress\nid: %b\ndata: %b\n\n" % (position, msgspec.json.encode(_progress(turn)))
    messages = [(positions.write(behind).encode(), _one_line(event)) for event, behind in _placed(turn, with_time)]
    return b"".join(b"id: %b\ndata: %b\n\n" % message for message in messages)
