"""How is the log read over gRPC? As over HTTP, by as many events as the client has room for.

Each response says where the reader is behind its events, so that whoever loses the connection goes on there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing

from headgate.event.names import full_name
from headgate.filter.compile.request import text_of_message, texts_of
from headgate.limits import RPC_RESPONSE_BYTES
from headgate.log import positions
from headgate.rpc import headgate_pb2 as pb
from headgate.rpc.credits import Credits
from headgate.rpc.errors import ProtocolError
from headgate.rpc.events import to_message
from headgate.rpc.service import READER, RpcCall, Service, attended
from headgate.stream.follow import Turn
from headgate.stream.readers import Readers
from headgate.stream.request import ReadRequest, read_request

ReadCall = RpcCall[pb.ReadRequest, pb.ReadResponse]


class ReadRpc:
    """The reading end of every broker.

    Args:
        readers: Who reads.
    """

    def __init__(self, readers: Readers) -> None:
        self._readers = readers

    def service(self) -> Service:
        """For a gRPC server."""
        return Service(READER, {"Read": (pb.ReadRequest, self.read)})

    async def read(self, call: ReadCall) -> None:
        """Answers a stream."""
        first = await call.read_first()
        if not first.HasField("open"):
            raise ProtocolError("the first message has no open")
        asked = first.open
        broker = await self._readers.broker(full_name(asked.broker))
        wanted = await asyncio.to_thread(read_request, broker, list(parameters(asked)), follow=asked.follow)
        self._readers.check_room()
        credits = Credits()
        credits.add(first.credits)
        await attended(self._send(call, wanted, credits), _receive(call, credits))

    async def _send(self, call: ReadCall, wanted: ReadRequest, credits: Credits) -> None:
        async with aclosing(self._readers.reading(wanted, credits)) as reading:
            async for turn in reading:
                for response in responses(turn):
                    await call.write(response)


async def _receive(call: ReadCall, credits: Credits) -> None:
    while (request := await call.read()) is not None:
        if request.HasField("open"):
            raise ProtocolError("only the first message has an open")
        credits.add(request.credits)
    credits.end()


def parameters(asked: pb.ReadRequest.Open) -> Iterator[tuple[str, str]]:
    """What is asked for as HTTP's parameters, of which one function knows what they mean."""
    one, listed = texts_of(asked.filter)
    said = {
        "from": getattr(asked, "from"),
        "first": asked.first,
        "filter": one,
        "filters": listed,
        "matchUnfiltered": "true" if asked.match_unfiltered else "",
    }
    yield from ((name, text) for name, text in said.items() if text)
    if asked.HasField("first_expression"):
        yield "first", text_of_message(asked.first_expression)
    yield from (("filterValue", value) for value in asked.filter_values)


def responses(turn: Turn) -> Iterator[pb.ReadResponse]:
    """A turn as messages of about RPC_RESPONSE_BYTES, each with where the reader is behind it."""
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
    counters = turn.counters
    return pb.Progress(
        position=positions.write(at),
        at_end=at_end,
        chunks_read=counters.chunks_read,
        chunks_skipped=counters.chunks_skipped,
        chunks_false_positive=counters.false_positive_chunks,
        events_scanned=counters.events_scanned,
        events_matched=counters.events_matched,
        filter_errors=counters.filter_errors,
        events_missed=counters.events_missed,
        events_corrupt=counters.events_corrupt,
    )
