"""Calls over gRPC that another process answers, on its Unix socket: message by message, unread, its status too."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

import grpc
from grpc import aio

from headgate.auth.context import USER_HEADER, current_user, header_of
from headgate.auth.user import ANONYMOUS
from headgate.ingress.partitions import partition_of_key
from headgate.rpc.service import Answer, CallContext, ReadAgain, ServiceCalls
from headgate.rpc.wire import publishing
from headgate.server.parts import front_of
from headgate.server.peers.local_http import PartUnavailableError
from headgate_api.errors import HeadgateError
from headgate_api.rpc.errors import ERROR, STATUS_LOST, ProtocolError, status

Choose = Callable[[str, bytes], Awaitable[int]]
"""The number of the process that answers a call, by its method and first message."""
Metadata = tuple[tuple[str, str], ...]

CHANNEL_OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),  # of our own process
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_http_proxy", 0),
)


class ForwardedCalls(ServiceCalls):
    """The calls of one service, answered by another process, or the one that `choose` names. For one event loop."""

    def __init__(self, service: str, sockets: Sequence[Path], choose: Choose | None = None) -> None:
        super().__init__(service)
        self._sockets = sockets
        self._choose = choose if len(sockets) > 1 else None
        self._channels: dict[int, aio.Channel] = {}

    @property
    def count(self) -> int:
        return len(self._sockets)

    async def answer(self, details: grpc.HandlerCallDetails, context: CallContext) -> None:
        number, first = 0, None
        if self._choose is not None:
            opening: object = await context.read()
            first = opening if isinstance(opening, bytes) else None
            number = await self._choose(details.method, first or b"")
        await self.forward(number, details.method, context, first)

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()

    def channel(self, number: int) -> aio.Channel:
        if number not in self._channels:  # not before: it belongs to the loop that runs
            socket = self._sockets[number]
            self._channels[number] = aio.insecure_channel(f"unix:{socket}", options=CHANNEL_OPTIONS)
        return self._channels[number]

    async def forward(self, number: int, method: str, context: CallContext, first: bytes | None) -> None:
        """Forwards a call to the process of a number; `first` is the message that has been read of it."""
        call: aio.StreamStreamCall[bytes, bytes] = self.channel(number).stream_stream(method)(
            timeout=context.time_remaining(), metadata=user_metadata()
        )
        await relayed(call, context, first)


async def relayed(call: aio.StreamStreamCall[bytes, bytes], context: CallContext, first: bytes | None = None) -> None:
    """Passes messages on, after `first`, between a client and who answers it, until one of them ends the call."""
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
    """Whether who should answer is not there, or why it ended the call is lost; else it has ended the call itself."""
    metadata = error.trailing_metadata() or ()
    is_broken = error.code() is grpc.StatusCode.UNAVAILABLE or error.details() == STATUS_LOST
    return is_broken and all(name != ERROR for name, _ in metadata)


async def aborted(context: CallContext, error: aio.AioRpcError) -> None:
    """Ends a client's call as who answered it has done."""
    if is_gone(error):
        await context.abort(*status(PartUnavailableError()))
    await context.abort(error.code(), error.details() or "", tuple(error.trailing_metadata() or ()))


def user_metadata() -> Metadata:
    """The metadata of a call that is forwarded: its user, and nothing of what the client sent."""
    user = current_user.get()
    return () if user is ANONYMOUS else ((USER_HEADER.decode(), header_of(user).decode()),)


async def _send(context: CallContext, call: aio.StreamStreamCall[bytes, bytes], first: bytes | None) -> None:
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


class ProducerForwarding:
    """The way of a producer's stream to the front that writes the partition of the producer's name.

    There is what is known of the producer's numbers, and there a new stream ends the old one. A stream that names no
    producer is answered where it comes.
    """

    def __init__(self, fronts: ForwardedCalls, own: int, partitions: int) -> None:
        self._fronts = fronts
        self._own = own
        self._partitions = partitions

    def behind(self, method: str, answer: Answer) -> Answer:
        async def answered(request: object, context: CallContext) -> None:
            first: object = await context.read()
            if isinstance(first, bytes) and (owner := self._owner(first)) != self._own:
                await self._fronts.forward(owner, method, context, first)
            else:
                await answer(request, ReadAgain(context, first))

        return answered

    def _owner(self, first: bytes) -> int:
        try:
            producer = publishing(first).head.open.producer
        except ProtocolError:
            return self._own  # refused as any such message is
        if not producer:
            return self._own
        return front_of(partition_of_key(producer, self._partitions), self._fronts.count)
