"""Services of the contract on a Unix socket, and a client that speaks its messages; for tests of handlers."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
from grpc import aio

from headgate.server.rpc import serving
from headgate_api.rpc.errors import ERROR, HINT


class Refused(Exception):
    """A call ended with a status that is not OK."""

    def __init__(self, error: aio.AioRpcError) -> None:
        metadata = dict(error.trailing_metadata() or ())
        self.status = error.code()
        self.code = metadata.get(ERROR)
        self.hint = metadata.get(HINT)
        self.details = error.details() or ""
        super().__init__(f"{self.status} {self.code}: {self.details}")


class Stream:
    """One call; `read` gives None at its end and raises Refused when it ends badly."""

    def __init__(self, call: Any, type_: Any) -> None:
        self._call = call
        self._type = type_

    async def write(self, message: Any) -> None:
        # What the server has ended already is told by the next read.
        with contextlib.suppress(aio.AioRpcError, Exception):
            await self._call.write(message if isinstance(message, bytes) else message.SerializeToString())

    async def end(self) -> None:
        await self._call.done_writing()

    async def read(self) -> Any:
        try:
            data = await self._call.read()
        except aio.AioRpcError as error:
            raise Refused(error) from None
        return None if data is aio.EOF else self._type.FromString(data)

    async def rest(self) -> list[Any]:
        await self.end()
        found = []
        while (message := await self.read()) is not None:
            found.append(message)
        return found

    def cancel(self) -> None:
        self._call.cancel()


class Client:
    """Opens calls on a channel."""

    def __init__(self, channel: aio.Channel) -> None:
        self._channel = channel

    def call(self, method: str, type_: Any) -> Stream:
        return Stream(self._channel.stream_stream(f"/headgate.v1.{method}")(), type_)


@contextlib.asynccontextmanager
async def client(address: str) -> AsyncIterator[Client]:
    async with aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        yield Client(channel)


@contextlib.asynccontextmanager
async def served(*services: grpc.GenericRpcHandler) -> AsyncIterator[Client]:
    # A path of its own: those that pytest makes may be too long for a Unix socket.
    with tempfile.TemporaryDirectory() as folder:
        address = f"unix:{Path(folder) / 's'}"
        async with serving(services, address), client(address) as found:
            yield found
