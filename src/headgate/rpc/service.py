"""The frame of every gRPC handler: messages in and out, and every error as a status.

All methods are served as streams: a call with one message is one on the wire, too. What handlers raise ends the call.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final, Generic, TypeVar, cast

import grpc
import structlog
from google.protobuf.message import Message
from grpc import aio

from headgate.rpc.wire import parsed
from headgate.storage.threads import cancel_all
from headgate_api.errors import HeadgateError
from headgate_api.rpc import headgate_pb2 as pb
from headgate_api.rpc.errors import ProtocolError, status

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)
CallContext = aio.ServicerContext[bytes, bytes]
Answer = Callable[[object, Any], Awaitable[None]]
"""Answers a call by its context, the second argument: gRPC's, or a `ReadAgain`."""

_log = structlog.get_logger(__name__)
PUBLISHER: Final = pb.DESCRIPTOR.services_by_name["Publisher"].full_name
READER: Final = pb.DESCRIPTOR.services_by_name["Reader"].full_name
SUBSCRIPTIONS: Final = pb.DESCRIPTOR.services_by_name["Subscriptions"].full_name
NO_MESSAGE: Final = "the call ended before its first message"
_INTERNAL: Final = "something went wrong here; the server's log says what"


class RpcCall(Generic[RequestT, ResponseT]):
    """One call as its handler sees it. Reads by one task at a time; writes by any."""

    def __init__(self, context: CallContext, type_: type[RequestT]) -> None:
        self._context = context
        self._type = type_
        self._writing = asyncio.Lock()
        self._sending: asyncio.Future[None] | None = None

    async def read(self) -> RequestT | None:
        """The client's next message; None when it has sent its last one. Raises ProtocolError as `parsed`."""
        data = await self.read_bytes()
        return None if data is None else parsed(self._type, data)

    async def read_bytes(self) -> bytes | None:
        """The client's next message, unread; None when it has sent its last one."""
        data: object = await self._context.read()
        return data if isinstance(data, bytes) else None

    async def read_first(self) -> RequestT:
        """The first message; raises ProtocolError where there is none, or the bytes are no such message."""
        message = await self.read()
        if message is None:
            raise ProtocolError(NO_MESSAGE)
        return message

    async def write(self, message: ResponseT) -> None:
        """Sends a message; waits while the client does not take it."""
        async with self._writing:
            await self.sent()  # one that was given up by whoever waited for it goes on
            self._sending = asyncio.ensure_future(self._context.write(message.SerializeToString()))
            self._sending.add_done_callback(lambda sending: sending.cancelled() or sending.exception())
            await asyncio.shield(self._sending)

    async def sent(self) -> None:
        """Waits until nothing is being sent: gRPC takes one message, or the end, at a time, and nothing back."""
        if self._sending is not None and not self._sending.done():
            await asyncio.wait([self._sending])


Handler = Callable[[RpcCall[Any, Any]], Awaitable[None]]


class Service(grpc.GenericRpcHandler):
    """A service: its name in full (`headgate.v1.Reader`), and by method the type of its messages and its handler."""

    def __init__(self, name: str, methods: Mapping[str, tuple[type[Message], Handler]]) -> None:
        self._handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            f"/{name}/{method}": grpc.stream_stream_rpc_method_handler(_answering(type_, handler))
            for method, (type_, handler) in methods.items()
        }

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        return self._handlers.get(details.method)


def _answering(type_: type[Message], handler: Handler) -> Answer:
    async def answer(_: object, context: CallContext) -> None:
        call = RpcCall[Message, Message](context, type_)
        try:
            try:
                await handler(call)
            finally:
                await call.sent()
        except HeadgateError as error:
            error.__traceback__ = None  # its frames hold tasks that hold the error, and what the client sent
            ending = status(error)
        except Exception as error:  # noqa: BLE001 - logged; the client gets a general message
            _log.exception("a call failed")
            error.__traceback__ = None
            ending = grpc.StatusCode.INTERNAL, _INTERNAL, ()
        else:
            return
        await context.abort(*ending)

    return answer


class ServiceCalls(grpc.GenericRpcHandler):
    """All calls of a service (its name in full), answered alike, unread; a HeadgateError ends one with its status."""

    def __init__(self, service: str) -> None:
        self._prefix = f"/{service}/"

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        if not details.method.startswith(self._prefix):
            return None

        async def answer(_: object, context: CallContext) -> None:
            try:
                await self.answer(details, context)
            except HeadgateError as error:
                await context.abort(*status(error))

        return grpc.stream_stream_rpc_method_handler(answer)

    @abstractmethod
    async def answer(self, details: grpc.HandlerCallDetails, context: CallContext) -> None:
        """Answers a call."""

    async def close(self) -> None:
        """Ends what is under way."""


class CallsBehind(grpc.GenericRpcHandler):
    """The calls of a handler, behind what has a say in each of them first.

    `behind` gets a method (`/service/method`) and what answers it, and says what answers instead.
    """

    def __init__(self, handler: grpc.GenericRpcHandler, behind: Callable[[str, Answer], Answer]) -> None:
        self._handler = handler
        self._behind = behind

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        found = self._handler.service(details)
        if found is None:
            return None
        return grpc.stream_stream_rpc_method_handler(self._behind(details.method, cast(Any, found).stream_stream))


class ReadAgain:
    """A call of which messages (`begun`) have been read: its handler reads them again, then the others as they come.

    `check` is called before a further message is handed out, and may raise.
    """

    def __init__(self, context: CallContext, *begun: object, check: Callable[[], None] = lambda: None) -> None:
        self._context = context
        self._begun = list(begun)
        self._check = check

    async def read(self) -> object:
        if self._begun:
            return self._begun.pop(0)
        message: object = await self._context.read()
        self._check()
        return message

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the call has
        return getattr(self._context, name)


def headers_of(context: CallContext) -> list[tuple[bytes, bytes]]:
    """The metadata of a call, as HTTP has headers."""
    return [
        (name.encode(), value if isinstance(value, bytes) else value.encode("latin-1", "replace"))
        for name, value in context.invocation_metadata() or ()
    ]


async def attended(main: Coroutine[Any, Any, None], *others: Coroutine[Any, Any, None]) -> None:
    """Runs a coroutine to its end, others beside it: when one of them fails, so does this. They are cancelled with it.

    One that returns leaves the rest alone.
    """
    first = asyncio.create_task(main)
    tasks = {first, *map(asyncio.create_task, others)}
    running = set(tasks)
    try:
        while first in running:
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
    finally:
        await cancel_all(tasks)


# --- credits --------------------------------------------------------------------------------------


class Credits:
    """A client's credits: how many more events it may be sent. For one event loop."""

    def __init__(self) -> None:
        self._left = 0
        self._ended = False
        self._changed = asyncio.Event()

    def add(self, count: int) -> None:
        self._left += count
        self._changed.set()

    def end(self) -> None:
        self._ended = True
        self._changed.set()

    async def left(self, wait_s: float | None = None) -> int:
        """Waits while there are none; 0 when none will come, or none have come in time."""
        try:
            async with asyncio.timeout(wait_s):
                while not self._left and not self._ended:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return 0
        return self._left

    def take(self, count: int) -> None:
        self._left -= count
