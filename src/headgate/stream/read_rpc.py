"""The gRPC service of readers: as over HTTP, but only as many events as the client has credits for.

Each response carries the position behind its events: a client that loses the connection goes on there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import asdict

from headgate.auth.context import current_user
from headgate.filter.compile.request import text_of_message, texts_of
from headgate.rpc.service import READER, Credits, RpcCall, Service, attended
from headgate.stream.follow import Readers, Turn
from headgate.stream.request import ReadRequest, read_request
from headgate_api import positions
from headgate_api.event.names import full_name
from headgate_api.limits import RPC_RESPONSE_BYTES
from headgate_api.rpc import headgate_pb2 as pb
from headgate_api.rpc.errors import ProtocolError
from headgate_api.rpc.events import to_message

ReadCall = RpcCall[pb.ReadRequest, pb.ReadResponse]


class ReadRpc:
    """The reading end of every broker."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers

    def service(self) -> Service:
        return Service(READER, {"Read": (pb.ReadRequest, self.read)})

    async def read(self, call: ReadCall) -> None:
        first = await call.read_first()
        if not first.HasField("open"):
            raise ProtocolError("the first message has no open")
        opening = first.open
        broker = await self._readers.broker(full_name(opening.broker))
        given, ceiling = list(parameters(opening)), current_user.get().ceiling
        wanted = await asyncio.to_thread(read_request, broker, given, follow=opening.follow, ceiling=ceiling)
        credits = Credits()
        credits.add(first.credits)
        await attended(self._send(call, wanted, credits), _receive(call, credits))

    async def _send(self, call: ReadCall, wanted: ReadRequest, credits: Credits) -> None:
        async with aclosing(self._readers.reading(wanted, credits, current_user.get().name)) as reading:
            async for turn in reading:
                for response in responses(turn):
                    await call.write(response)


async def _receive(call: ReadCall, credits: Credits) -> None:
    while (request := await call.read()) is not None:
        if request.HasField("open"):
            raise ProtocolError("only the first message has an open")
        credits.add(request.credits)
    credits.end()


def parameters(opening: pb.ReadRequest.Open) -> Iterator[tuple[str, str]]:
    """A request as HTTP's parameters: one function reads both."""
    one, listed = texts_of(opening.filter)
    given = {
        "from": getattr(opening, "from"),
        "first": opening.first,
        "filter": one,
        "filters": listed,
        "matchUnfiltered": "true" if opening.match_unfiltered else "",
    }
    yield from ((name, text) for name, text in given.items() if text)
    if opening.HasField("first_expression"):
        yield "first", text_of_message(opening.first_expression)
    yield from (("filterValue", value) for value in opening.filter_values)


def responses(turn: Turn) -> Iterator[pb.ReadResponse]:
    """A turn as messages of about RPC_RESPONSE_BYTES, each with the position behind it."""
    response, size_bytes, reached = pb.ReadResponse(), 0, turn.before
    for partition, offset, event, at in turn.placed():
        if size_bytes >= RPC_RESPONSE_BYTES:
            response.progress.CopyFrom(_progress(turn, reached, at_end=False))
            yield response
            response, size_bytes = pb.ReadResponse(), 0
        message = to_message(event)
        size_bytes += message.ByteSize()
        response.events.add(event=message, partition=partition, offset=offset)
        reached = at
    response.progress.CopyFrom(_progress(turn, turn.positions, at_end=turn.at_end))
    yield response


def _progress(turn: Turn, at: dict[int, int], *, at_end: bool) -> pb.Progress:
    counters = asdict(turn.counters)
    false_positive = counters.pop("false_positive_chunks")
    return pb.Progress(position=positions.write(at), at_end=at_end, chunks_false_positive=false_positive, **counters)
