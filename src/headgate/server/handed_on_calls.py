"""Calls over gRPC that another process answers.

The front listens; what it does not answer itself goes to the Unix socket of the process that does, message by message,
unread. The status and the metadata at the end come from there.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from headgate.auth.context import USER_HEADER, current_user, header_of
from headgate.auth.user import ANONYMOUS
from headgate.errors import HeadgateError
from headgate.ingress.partitions import partition_of_key
from headgate.rpc.errors import ERROR, status
from headgate.rpc.headgate_pb2 import PublishRequest
from headgate.rpc.service import Service
from headgate.server.parts import front_of
from headgate.server.proxy import PartUnavailableError

# --- handed on calls ------------------------------------------------------------------------------

Choose = Callable[[str, bytes], Awaitable[int]]
"""The number of the process that answers a call, by its method and first message."""
Metadata = tuple[tuple[str, str], ...]
"""Of a call: names and values."""

CHANNEL_OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),  # of our own process
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_http_proxy", 0),
)


class CallsElsewhere(grpc.GenericRpcHandler):
    """The calls of one service, answered by other processes. Belongs to the event loop that runs it."""

    @abstractmethod
    async def close(self) -> None:
        """Ends what is under way."""


class HandedOn(CallsElsewhere):
    """The calls of one service, answered by another process. Belongs to the event loop that runs it.

    Args:
        service: Its name in full.
        sockets: Where that process serves it; several when each answers its own share of the calls.
        choose: The number of the one that answers, by the method and the call's first message.
    """

    def __init__(self, service: str, sockets: Sequence[Path], choose: Choose | None = None) -> None:
        self._prefix = f"/{service}/"
        self._sockets = sockets
        self._choose = choose if len(sockets) > 1 else None
        self._channels: dict[int, aio.Channel] = {}

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        """Hands a call on; None when it is not of this service."""
        method = details.method
        if not method.startswith(self._prefix):
            return None

        async def answer(_: object, context: aio.ServicerContext[bytes, bytes]) -> None:
            await self.hand_on(method, context)

        return grpc.stream_stream_rpc_method_handler(answer)

    async def close(self) -> None:
        """Ends what is under way."""
        for channel in self._channels.values():
            await channel.close()

    def _channel(self, number: int) -> aio.Channel:
        channel = self._channels.get(number)
        if channel is None:
            channel = self._channels[number] = aio.insecure_channel(
                f"unix:{self._sockets[number]}", options=CHANNEL_OPTIONS
            )
        return channel

    async def hand_on(
        self, method: str, context: aio.ServicerContext[bytes, bytes], first: bytes | None = None
    ) -> None:
        """Hands a call on.

        Args:
            method: Its path.
            context: gRPC's.
            first: The message that has been read of it; None for none.
        """
        number = 0
        if self._choose is not None:
            try:
                opening = await context.read()
                first = opening if isinstance(opening, bytes) else None
                number = await self._choose(method, first or b"")
            except HeadgateError as error:
                await context.abort(*status(error))
        call: aio.StreamStreamCall[bytes, bytes] = self._channel(number).stream_stream(method)(
            timeout=context.time_remaining(), metadata=user_metadata()
        )
        await relayed(call, context, first)


async def relayed(
    call: aio.StreamStreamCall[bytes, bytes], context: aio.ServicerContext[bytes, bytes], first: bytes | None = None
) -> None:
    """Passes messages on between a client and who answers it, until one of them ends the call.

    Args:
        call: To who answers.
        context: Of the client's call.
        first: A message that has been read of it; None for none.
    """
    sending = asyncio.create_task(_send(context, call, first))
    try:
        while isinstance(message := await call.read(), bytes):
            await context.write(message)
    except aio.AioRpcError as error:
        await aborted(context, error)
    finally:
        sending.cancel()
        call.cancel()


def is_gone(error: aio.AioRpcError) -> bool:
    """Whether who should answer is not there; else it has ended the call itself."""
    metadata = error.trailing_metadata() or ()
    return error.code() is grpc.StatusCode.UNAVAILABLE and all(name != ERROR for name, _ in metadata)


async def aborted(context: aio.ServicerContext[bytes, bytes], error: aio.AioRpcError) -> None:
    """Ends a client's call as who answered it has done."""
    if is_gone(error):
        gone = PartUnavailableError()
        await context.abort(*status(gone))
    await context.abort(error.code(), error.details() or "", tuple(error.trailing_metadata() or ()))


def user_metadata() -> Metadata:
    """The metadata of a call that is handed on: its user, and nothing of what the client sent."""
    user = current_user.get()
    return () if user is ANONYMOUS else ((USER_HEADER.decode(), header_of(user).decode()),)


async def _send(
    context: aio.ServicerContext[bytes, bytes], call: aio.StreamStreamCall[bytes, bytes], first: bytes | None
) -> None:
    """The client's messages, until its last one or the answer's end; the first one may have been read."""
    with contextlib.suppress(aio.AioRpcError, aio.UsageError, asyncio.InvalidStateError):
        if first is not None:
            await call.write(first)
        try:
            while isinstance(message := await context.read(), bytes):
                await call.write(message)
        except HeadgateError as error:  # the right is gone, or a message is too large
            with contextlib.suppress(aio.AbortError):
                await context.abort(*status(error))
        await call.done_writing()


# --- publishers home ------------------------------------------------------------------------------
# The way of a producer's stream to its home: the front that writes the partition of the producer's name.
#
# There is what is known of the producer's numbers, and there a new stream ends the old one, whichever front the client
# has connected to. A stream without a producer's name is answered where it comes.

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
