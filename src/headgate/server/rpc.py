"""The gRPC address of a server: what the front answers there, on health and reflection too, and what others answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

import grpc
from grpc import aio
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_reflection.v1alpha.reflection import aio as reflection
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest, ServerReflectionResponse

from headgate.rpc.service import (
    PUBLISHER,
    READER,
    SUBSCRIPTIONS,
    Answer,
    CallContext,
    CallsBehind,
    ReadAgain,
    RpcCall,
    Service,
    ServiceCalls,
)
from headgate.server.authentication import HEALTH, Authentication, client_of_call, users_of_calls
from headgate.server.authorization import Authorization
from headgate.server.listening import addresses_of
from headgate.server.parts import Role, ServerPart, roles_of
from headgate.server.peers.local_grpc import Choose, ForwardedCalls, ProducerForwarding
from headgate.server.ready import parts_ready
from headgate.server.refusals import RoleAbsentError
from headgate.server.tls import CertificateKeeper
from headgate.settings import Settings
from headgate.shares import FairPlaces
from headgate_api import limits
from headgate_api.errors import HeadgateError, NotFoundError, TooLargeError, UnavailableError

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
    ("grpc.max_connection_idle_ms", int(limits.RPC_IDLE_S_MAX * 1_000)),
    ("grpc.server_handshake_timeout_ms", int(limits.TLS_HANDSHAKE_S_MAX * 1_000)),
)
_BYTES_MAX: Final = {
    PUBLISHER: limits.RPC_REQUEST_BYTES_MAX,
    READER: limits.RPC_QUESTION_BYTES_MAX,
    SUBSCRIPTIONS: limits.RPC_QUESTION_BYTES_MAX,
}
"""Of one message; of the services about the server itself RPC_META_BYTES_MAX."""


class MessageTooLargeError(TooLargeError):
    """A message is larger than any that its method has a use for."""

    code = "message-too-large"


def _served(refused: FairPlaces, method: str, answer: Answer) -> Answer:
    """All calls: their messages are bounded before anybody decodes them, and end with the call."""
    limit_bytes = _BYTES_MAX.get(method.split("/")[1], limits.RPC_META_BYTES_MAX)
    is_bounded = limit_bytes == limits.RPC_REQUEST_BYTES_MAX  # by gRPC itself

    async def served(request: object, context: CallContext) -> None:
        try:
            await answer(request, _ServedCall(context, None if is_bounded else limit_bytes, refused))
        except aio.AbortError as error:
            # gRPC keeps it as long as the call, and it our frames, which hold messages and the call: a cycle. It is
            # raised again behind us.
            error.__traceback__ = error.__context__ = None

    return served


class _ServedCall(ReadAgain):
    """A call whose messages are bounded, and which is refused only when its first message has come.

    A client whose first message meets the end of the call may lose the status, and get "Internal error from Core"
    (grpc/grpc#36066). `limit_bytes` is None where gRPC has the bound; `refused` are the places of those that wait.
    """

    def __init__(self, context: CallContext, limit_bytes: int | None, refused: FairPlaces) -> None:
        super().__init__(context)
        self._limit_bytes = limit_bytes
        self._refused = refused
        self._is_asked = False
        self._has_come = asyncio.Event()

    async def read(self) -> object:
        """The next message; MessageTooLargeError when it is too large for its method."""
        self._is_asked = True
        try:
            message = await super().read()
        finally:
            self._has_come.set()
        if self._limit_bytes is not None and isinstance(message, bytes) and len(message) > self._limit_bytes:
            size_bytes, message = len(message), None
            raise MessageTooLargeError(f"a message of {size_bytes} bytes is over this method's {self._limit_bytes}")
        return message

    async def abort(self, *ending: Any) -> NoReturn:  # noqa: ANN401 - as gRPC has it
        """Ends the call with a status, behind its first message where there is a place to wait for it."""
        if not self._has_come.is_set():
            with (
                contextlib.suppress(TimeoutError, HeadgateError),
                self._refused.held("", client_of_call(self._context)),
            ):
                async with asyncio.timeout(limits.RPC_REFUSED_WAIT_S_MAX):
                    await (self._has_come.wait() if self._is_asked else self.read())
        await self._context.abort(*ending)


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

    `address` is HOST:PORT, or `unix:` and the path of a socket for this user only. With `shared` other processes of
    this user listen there, too; else nobody can take half of the connections. `option` is for the error's hint.
    """
    is_ours = address.startswith("unix:")
    if is_ours:
        handlers = [CallsBehind(one, users_of_calls) for one in handlers]
    refused = FairPlaces("refused-calls", "RPCS_REFUSED_MAX", limits.RPCS_REFUSED_MAX)
    handlers = [CallsBehind(one, partial(_served, refused)) for one in handlers]
    options = (("grpc.so_reuseport", int(shared)), *_OPTIONS, *(() if is_ours else _OPEN_TO_CLIENTS))
    server = aio.server(handlers=handlers, options=options, maximum_concurrent_rpcs=limits.RPCS_MAX)
    try:
        if credentials is None:
            server.add_insecure_port(address)
        else:
            server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise UnavailableError(f"gRPC cannot listen on {address}", hint=f"give {option} HOST:PORT, or off") from error
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
    consuming: ServiceCalls | None = None,
    number: int = 0,
    certificate: CertificateKeeper | None = None,
    authentication: Authentication | None = None,
    authorization: Authorization | None = None,
) -> AsyncIterator[None]:
    """Serve all of the contract, health and reflection where clients find it, unless that is switched off.

    None for `consuming` is this server's dispatchers; without the others everybody may do everything, in plain text.
    """
    addresses = [address for address in addresses_of(settings) if address.is_grpc]
    if not addresses:
        yield
        return
    has_reader = Role.READER in roles_of(settings)
    reading = ForwardedCalls(READER, [settings.reader_rpc]) if has_reader else Absent(Role.READER, READER)
    forwarded: list[ServiceCalls] = [consuming or to_dispatchers(settings), reading]
    fronts = ForwardedCalls(PUBLISHER, [settings.front_rpc(one) for one in range(settings.fronts)])
    health = HealthService(lambda: parts_ready(settings)).service()
    try:
        async with contextlib.AsyncExitStack() as stack:
            publishing: grpc.GenericRpcHandler = publisher
            # A producer belongs to the front that owns its partition.
            if settings.fronts > 1 and not settings.is_on_kafka:
                publishing = CallsBehind(publisher, ProducerForwarding(fronts, number, settings.partitions).behind)
                await stack.enter_async_context(serving([publisher], f"unix:{settings.front_rpc(number)}"))
            services = [publishing, *forwarded, health, *reflection_services()]
            handlers = (authentication or Authentication()).calls((authorization or Authorization()).calls(services))
            for address in addresses:
                credentials = certificate.grpc_credentials() if certificate is not None and address.is_tls else None
                shared = settings.fronts > 1
                server = serving(handlers, address.text, shared=shared, option=address.option, credentials=credentials)
                await stack.enter_async_context(server)
            yield
    finally:
        for service in (*forwarded, fronts):
            await service.close()


def to_dispatchers(settings: Settings, owner_of: Choose | None = None) -> ForwardedCalls:
    """Hands calls about subscriptions on to the dispatchers of this server."""
    return ForwardedCalls(
        SUBSCRIPTIONS, [settings.dispatcher_rpc(one) for one in range(settings.dispatchers)], owner_of
    )


class Absent(ServiceCalls):
    """The calls of a service whose role this server does not have: refused, with the reason."""

    def __init__(self, role: Role, service: str) -> None:
        super().__init__(service)
        self._role = role

    async def answer(self, details: grpc.HandlerCallDetails, context: CallContext) -> None:
        raise RoleAbsentError(self._role)


# --- health and reflection ------------------------------------------------------------------------
# Health (`grpc.health.v1`) is what /readyz says, for each service of the parts that answer it; the empty name stands
# for all. Reflection lets grpcurl and its like call without our .proto files.

REFLECTION: Final = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
"""Two names of the same messages: newer clients ask for the first, the library has the second."""
_ANSWER: Final = {
    "": frozenset(Role),
    PUBLISHER: frozenset({Role.FRONT}),
    READER: frozenset({Role.FRONT, Role.READER}),
    SUBSCRIPTIONS: frozenset({Role.FRONT, Role.DISPATCHER}),
}

HealthCall = RpcCall[HealthCheckRequest, HealthCheckResponse]
ReflectionCall = RpcCall[ServerReflectionRequest, ServerReflectionResponse]


class HealthService:
    """Health; what it asks of parts runs in a thread."""

    def __init__(self, parts: Callable[[], Mapping[ServerPart, bool]]) -> None:
        self._parts = parts
        self._known: Mapping[ServerPart, bool] = {}
        self._look_at = 0.0
        self._looking = asyncio.Lock()

    def service(self) -> Service:
        return Service(HEALTH, {"Check": (HealthCheckRequest, self._check), "Watch": (HealthCheckRequest, self._watch)})

    async def _check(self, call: HealthCall) -> None:
        asked = await call.read_first()
        if asked.service not in _ANSWER:
            raise NotFoundError(f"there is no service {asked.service[:128]!r}")
        await call.write(HealthCheckResponse(status=await self._status(asked.service)))

    async def _watch(self, call: HealthCall) -> None:
        asked = await call.read_first()
        said = None
        while True:
            status = await self._status(asked.service)
            if status != said:
                said = status
                await call.write(HealthCheckResponse(status=status))
            await asyncio.sleep(limits.HEALTH_POLL_S)

    async def _status(self, service: str) -> HealthCheckResponse.ServingStatus:
        if service not in _ANSWER:
            return HealthCheckResponse.SERVICE_UNKNOWN
        async with self._looking:  # one look for all who ask
            now = asyncio.get_running_loop().time()
            if now >= self._look_at:
                self._known = await asyncio.to_thread(self._parts)
                self._look_at = now + limits.HEALTH_POLL_S
        answering = _ANSWER[service]
        if service and not answering <= {part.role for part in self._known}:
            return HealthCheckResponse.SERVICE_UNKNOWN  # of another server of the deployment
        serving = all(is_ready for part, is_ready in self._known.items() if part.role in answering)
        return HealthCheckResponse.SERVING if serving else HealthCheckResponse.NOT_SERVING


def reflection_services() -> list[Service]:
    """The reflection service under both its names."""
    known = reflection.ReflectionServicer([PUBLISHER, READER, SUBSCRIPTIONS, HEALTH, *REFLECTION])

    async def answer(call: ReflectionCall) -> None:
        async def requests() -> AsyncIterator[ServerReflectionRequest]:
            while (request := await call.read()) is not None:
                yield request

        async for response in known.ServerReflectionInfo(requests(), None):
            await call.write(response)

    return [Service(name, {"ServerReflectionInfo": (ServerReflectionRequest, answer)}) for name in REFLECTION]
