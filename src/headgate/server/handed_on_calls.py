"""Calls over gRPC that another process answers.

The front listens; what it does not answer itself goes to the Unix socket of the process that does, message by message,
unread. The status and the metadata at the end come from there.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

import grpc
from grpc import aio

from headgate.auth.context import USER_HEADER, current_user, header_of
from headgate.auth.user import ANONYMOUS
from headgate.errors import HeadgateError
from headgate.rpc.errors import ERROR, status
from headgate.server.proxy import PartUnavailableError

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
