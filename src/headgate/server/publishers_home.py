"""The way of a producer's stream to its home: the front that writes the partition of the producer's name.

There is what is known of the producer's numbers, and there a new stream ends the old one, whichever front the client
has connected to. A stream without a producer's name is answered where it comes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from headgate.ingress.partitions import partition_of_key
from headgate.rpc.headgate_pb2 import PublishRequest
from headgate.rpc.service import Service
from headgate.server.handed_on_calls import HandedOn
from headgate.server.parts import front_of

_Context = aio.ServicerContext[bytes, bytes]


class PublishersHome(grpc.GenericRpcHandler):
    """The publishing service of one of several fronts.

    Args:
        own: Answers the streams of this one.
        others: Hand a stream on to the other fronts, by their numbers.
        partitions: Of the log.
    """

    def __init__(self, own: Service, others: Mapping[int, HandedOn], partitions: int) -> None:
        self._own = own
        self._others = others
        self._partitions = partitions

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        """What answers a call; None when it is not of this service."""
        handler = self._own.service(details)
        if handler is None:
            return None
        method, answer_here = details.method, cast(Any, handler).stream_stream

        async def answer(request: object, context: _Context) -> None:
            first: object = await context.read()
            if isinstance(first, bytes) and (other := self._home(first)) is not None:
                await other.hand_on(method, context, first)
            else:
                await answer_here(request, _Begun(context, first))

        return grpc.stream_stream_rpc_method_handler(answer)

    def _home(self, first: bytes) -> HandedOn | None:
        """Who else answers a stream that begins so; None for ourselves."""
        try:
            producer = PublishRequest.FromString(first).open.producer
        except DecodeError:
            return None  # refused as any such message is
        if not producer:
            return None
        partition = partition_of_key(producer, self._partitions)
        return self._others.get(front_of(partition, len(self._others) + 1))


class _Begun:
    """A call whose first message has been read: it is read once more."""

    def __init__(self, context: _Context, first: object) -> None:
        self._context = context
        self._first = [first]

    async def read(self) -> object:
        """The next message."""
        return self._first.pop() if self._first else await self._context.read()

    def __getattr__(self, name: str) -> object:
        return getattr(self._context, name)
