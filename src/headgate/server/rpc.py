"""The gRPC address of a server; calls that other processes answer are passed on as bytes.

The front listens; what it does not answer itself goes to the Unix socket of the process that does, message by message,
unread. The status and the metadata at the end come from there.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final

import grpc
from grpc import aio

from headgate import limits
from headgate.errors import UnavailableError
from headgate.rpc.errors import ERROR, status
from headgate.rpc.service import READER, SUBSCRIPTIONS, Service
from headgate.server.proxy import PartUnavailableError
from headgate.server.ready import parts_ready
from headgate.server.rpc_meta import HealthService, reflection_services
from headgate.settings import OFF, Settings

_OPTIONS: Final = (
    ("grpc.so_reuseport", 0),  # else a second server on the port would take half of the connections
    ("grpc.max_receive_message_length", limits.RPC_REQUEST_BYTES_MAX),
    ("grpc.max_metadata_size", limits.RPC_METADATA_BYTES_MAX),
    ("grpc.keepalive_time_ms", int(limits.RPC_KEEPALIVE_S * 1_000)),
    ("grpc.keepalive_timeout_ms", int(limits.RPC_KEEPALIVE_TIMEOUT_S * 1_000)),
    # A client may ask as often as we do; gRPC's own bound of five minutes takes a careful client for an attacker.
    ("grpc.http2.min_ping_interval_without_data_ms", int(limits.RPC_KEEPALIVE_S * 500)),
    ("grpc.keepalive_permit_without_calls", 1),
)
# Where clients connect. On the socket of a process they all come over one connection, that of the front.
_OPEN_TO_CLIENTS: Final = (
    ("grpc.max_concurrent_streams", limits.RPC_STREAMS_A_CONNECTION_MAX),
    ("grpc.max_allowed_incoming_connections", limits.RPC_CONNECTIONS_MAX),
)
_CHANNEL: Final = (
    ("grpc.max_receive_message_length", -1),  # of our own process
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_http_proxy", 0),
)


@contextlib.asynccontextmanager
async def serving(handlers: Sequence[grpc.GenericRpcHandler], address: str) -> AsyncIterator[None]:
    """Serve gRPC for as long as the block lasts; at its end calls are cut off after READ_DRAIN_S_MAX.

    Args:
        handlers: What is answered.
        address: HOST:PORT, or `unix:` and a path; the socket is for this user only.

    Raises:
        UnavailableError: Nobody can listen there.
    """
    is_ours = address.startswith("unix:")
    options = _OPTIONS if is_ours else (*_OPTIONS, *_OPEN_TO_CLIENTS)
    server = aio.server(handlers=handlers, options=options, maximum_concurrent_rpcs=limits.RPCS_MAX)
    try:
        server.add_insecure_port(address)
    except RuntimeError as error:
        raise UnavailableError(f"gRPC cannot listen on {address}", hint="--grpc HOST:PORT, or --grpc off") from error
    await server.start()
    if is_ours:
        Path(address.removeprefix("unix:")).chmod(0o600)
    try:
        yield
    finally:
        await server.stop(limits.READ_DRAIN_S_MAX)


@contextlib.asynccontextmanager
async def front(settings: Settings, publisher: Service) -> AsyncIterator[None]:
    """Serve all of the contract, health and reflection where clients find it, unless that is switched off."""
    if settings.grpc == OFF:
        yield
        return
    handed_on = [
        HandedOn(READER, settings.reader_rpc),
        HandedOn(SUBSCRIPTIONS, settings.dispatcher_rpc),
    ]
    health = HealthService(lambda: parts_ready(settings.run_directory)).service()
    try:
        async with serving([publisher, *handed_on, health, *reflection_services()], settings.grpc):
            yield
    finally:
        for service in handed_on:
            await service.close()


class HandedOn(grpc.GenericRpcHandler):
    """The calls of one service, answered by another process. Belongs to the event loop that runs it.

    Args:
        service: Its name in full.
        socket: Where that process serves it.
    """

    def __init__(self, service: str, socket: Path) -> None:
        self._prefix = f"/{service}/"
        self._socket = socket
        self._channel: aio.Channel | None = None

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        """Hands a call on; None when it is not of this service."""
        method = details.method
        if not method.startswith(self._prefix):
            return None

        async def answer(_: object, context: aio.ServicerContext[bytes, bytes]) -> None:
            await self._hand_on(method, context)

        return grpc.stream_stream_rpc_method_handler(answer)

    async def close(self) -> None:
        """Ends what is under way."""
        if self._channel is not None:
            await self._channel.close()

    async def _hand_on(self, method: str, context: aio.ServicerContext[bytes, bytes]) -> None:
        if self._channel is None:
            self._channel = aio.insecure_channel(f"unix:{self._socket}", options=_CHANNEL)
        call: aio.StreamStreamCall[bytes, bytes] = self._channel.stream_stream(method)(timeout=context.time_remaining())
        sending = asyncio.create_task(_send(context, call))
        try:
            while isinstance(message := await call.read(), bytes):
                await context.write(message)
        except aio.AioRpcError as error:
            metadata = tuple(error.trailing_metadata() or ())
            if error.code() is grpc.StatusCode.UNAVAILABLE and all(name != ERROR for name, _ in metadata):
                gone = PartUnavailableError()
                await context.abort(*status(gone))
            await context.abort(error.code(), error.details() or "", metadata)
        finally:
            sending.cancel()
            call.cancel()


async def _send(context: aio.ServicerContext[bytes, bytes], call: aio.StreamStreamCall[bytes, bytes]) -> None:
    """The client's messages, until its last one or the answer's end."""
    with contextlib.suppress(aio.AioRpcError, aio.UsageError, asyncio.InvalidStateError):
        while isinstance(message := await context.read(), bytes):
            await call.write(message)
        await call.done_writing()
