"""What the gRPC address tells about itself: the standard services for health and for reflection.

Health (`grpc.health.v1`) is what /readyz says, for each service the parts that answer it; the empty name stands for all
parts. Reflection lets grpcurl and its like call without our .proto files. Both are served by the front.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Final

from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_reflection.v1alpha.reflection import aio as reflection
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest, ServerReflectionResponse

from headgate.rpc.service import PUBLISHER, READER, SUBSCRIPTIONS, RpcCall, Service
from headgate.server.parts import Role, ServerPart
from headgate_api.errors import NotFoundError
from headgate_api.limits import HEALTH_POLL_S

HEALTH: Final = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
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
    """The health service. Belongs to an event loop. What it asks of parts runs in a thread."""

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
            await asyncio.sleep(HEALTH_POLL_S)

    async def _status(self, service: str) -> HealthCheckResponse.ServingStatus:
        if service not in _ANSWER:
            return HealthCheckResponse.SERVICE_UNKNOWN
        async with self._looking:  # one look for all who ask
            now = asyncio.get_running_loop().time()
            if now >= self._look_at:
                self._known = await asyncio.to_thread(self._parts)
                self._look_at = now + HEALTH_POLL_S
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
