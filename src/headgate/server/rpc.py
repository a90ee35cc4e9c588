"""The gRPC address of a server; calls that other processes answer are passed on as bytes.

The front listens; what it does not answer itself goes to the Unix socket of the process that does, message by message,
unread. The status and the metadata at the end come from there.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

import grpc
from grpc import aio

from headgate import limits
from headgate.auth.authorizer import ForbiddenError
from headgate.auth.context import USER_HEADER, current_user, header_of
from headgate.auth.user import ANONYMOUS
from headgate.errors import HeadgateError, UnavailableError
from headgate.rpc.errors import ERROR, status
from headgate.rpc.service import PUBLISHER, READER, SUBSCRIPTIONS, Service
from headgate.server.absent import RoleAbsentError
from headgate.server.addresses import addresses_of
from headgate.server.authentication import Authentication, UsersOfCalls
from headgate.server.authorization import Authorization
from headgate.server.parts import Role, roles_of
from headgate.server.proxy import PartUnavailableError
from headgate.server.publishers_home import PublishersHome
from headgate.server.ready import parts_ready
from headgate.server.rpc_meta import HealthService, reflection_services
from headgate.server.tls import CertificateKeeper
from headgate.settings import Settings

Choose = Callable[[str, bytes], Awaitable[int]]
"""The number of the process that answers a call, by its method and first message."""
Metadata = tuple[tuple[str, str], ...]
"""Of a call: names and values."""


class CallsElsewhere(grpc.GenericRpcHandler):
    """The calls of one service, answered by other processes. Belongs to the event loop that runs it."""

    @abstractmethod
    async def close(self) -> None:
        """Ends what is under way."""


_OPTIONS: Final = (
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
    ("grpc.server_handshake_timeout_ms", int(limits.TLS_HANDSHAKE_S_MAX * 1_000)),
)
CHANNEL_OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),  # of our own process
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_http_proxy", 0),
)


@contextlib.asynccontextmanager
async def serving(
    handlers: Sequence[grpc.GenericRpcHandler],
    address: str,
    *,
    shared: bool = False,
    option: str = "--grpc",
    credentials: grpc.ServerCredentials | None = None,
) -> AsyncIterator[None]:
    """Serve gRPC for as long as the block lasts; at its end calls are cut off after READ_DRAIN_S_MAX.

    Args:
        handlers: What is answered.
        address: HOST:PORT, or `unix:` and a path; the socket is for this user only.
        shared: Whether other processes of this user listen there, too; else nobody can take half of the connections.
        option: The option of `headgate serve` that says the address, for the message.
        credentials: For TLS; None for none.

    Raises:
        UnavailableError: Nobody can listen there.
    """
    is_ours = address.startswith("unix:")
    if is_ours:
        handlers = [UsersOfCalls(one) for one in handlers]
    options = (("grpc.so_reuseport", int(shared)), *_OPTIONS, *(() if is_ours else _OPEN_TO_CLIENTS))
    server = aio.server(handlers=handlers, options=options, maximum_concurrent_rpcs=limits.RPCS_MAX)
    try:
        if credentials is None:
            server.add_insecure_port(address)
        else:
            server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise UnavailableError(f"gRPC cannot listen on {address}", hint=f"{option} HOST:PORT, or off") from error
    await server.start()
    if is_ours:
        Path(address.removeprefix("unix:")).chmod(0o600)
    try:
        yield
    finally:
        await server.stop(limits.READ_DRAIN_S_MAX)


@contextlib.asynccontextmanager
async def front(
    settings: Settings,
    publisher: Service,
    consuming: CallsElsewhere | None = None,
    number: int = 0,
    certificate: CertificateKeeper | None = None,
    authentication: Authentication | None = None,
    authorization: Authorization | None = None,
) -> AsyncIterator[None]:
    """Serve all of the contract, health and reflection where clients find it, unless that is switched off.

    Args:
        settings: The server's settings.
        publisher: What this process answers itself.
        consuming: Hands calls about subscriptions on; None: to the one dispatcher of this server.
        number: Of this front.
        certificate: The server's; None without TLS.
        authentication: Who makes the calls; None: everybody is anonymous.
        authorization: What he may do; None: everything.
    """
    addresses = [address for address in addresses_of(settings) if address.is_grpc]
    if not addresses:
        yield
        return
    has_reader = Role.READER in roles_of(settings)
    # Producers have a home where fronts own partitions.
    homes = range(0 if settings.is_on_kafka else settings.fronts)
    others = {one: HandedOn(PUBLISHER, [settings.front_rpc(one)]) for one in homes if one != number}
    handed_on = [consuming or to_dispatchers(settings)]
    if has_reader:
        handed_on.append(HandedOn(READER, [settings.reader_rpc]))
    absent = [] if has_reader else [Absent(Role.READER, READER)]
    health = HealthService(lambda: parts_ready(settings)).service()
    try:
        async with contextlib.AsyncExitStack() as stack:
            publishing: grpc.GenericRpcHandler = publisher
            if others:
                publishing = PublishersHome(publisher, others, settings.partitions)
                await stack.enter_async_context(serving([publisher], f"unix:{settings.front_rpc(number)}"))
            services = [publishing, *handed_on, *absent, health, *reflection_services()]
            handlers = (authentication or Authentication()).calls((authorization or Authorization()).calls(services))
            for address in addresses:
                credentials = certificate.grpc_credentials() if certificate is not None and address.is_tls else None
                shared = settings.fronts > 1
                server = serving(handlers, address.text, shared=shared, option=address.option, credentials=credentials)
                await stack.enter_async_context(server)
            yield
    finally:
        for service in (*handed_on, *others.values()):
            await service.close()


def to_dispatchers(settings: Settings, owner_of: Choose | None = None) -> HandedOn:
    """Hands calls about subscriptions on to the dispatchers of this server.

    Args:
        settings: The server's settings.
        owner_of: The number of the dispatcher that answers a call; None where there is one.
    """
    return HandedOn(SUBSCRIPTIONS, [settings.dispatcher_rpc(one) for one in range(settings.dispatchers)], owner_of)


class Absent(grpc.GenericRpcHandler):
    """The calls of a service whose role this server does not have: refused, with the reason.

    Args:
        role: Which.
        service: Its name in full.
    """

    def __init__(self, role: Role, service: str) -> None:
        self._role = role
        self._prefix = f"/{service}/"

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        """Refuses a call; None when it is not of this service."""
        if not details.method.startswith(self._prefix):
            return None

        async def refuse(_: object, context: aio.ServicerContext[bytes, bytes]) -> None:
            await context.abort(*status(RoleAbsentError(self._role)))

        return grpc.stream_stream_rpc_method_handler(refuse)


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
            opening = await context.read()
            first = opening if isinstance(opening, bytes) else None
            try:
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
        except ForbiddenError as error:  # the right is gone
            with contextlib.suppress(aio.AbortError):
                await context.abort(*status(error))
        await call.done_writing()
