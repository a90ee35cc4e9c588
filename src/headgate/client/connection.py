"""The connection to a server: one channel, streams with our errors, and pauses between tries."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar, cast

import grpc
from google.protobuf.message import Message
from grpc import aio

from headgate import limits
from headgate.bearer import TokenSource
from headgate.client.errors import ClosedError, DisconnectedError, error_of
from headgate.errors import HeadgateError
from headgate.rpc import headgate_pb2 as pb

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", limits.CLIENT_MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", int(limits.CLIENT_KEEPALIVE_S * 1_000)),
    # The pauses between tries are ours; gRPC's own would keep a server that is back waiting for up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", int(limits.CLIENT_BACKOFF_S_MIN * 1_000)),
    ("grpc.min_reconnect_backoff_ms", int(limits.CLIENT_BACKOFF_S_MIN * 1_000)),
    ("grpc.max_reconnect_backoff_ms", int(limits.CLIENT_BACKOFF_S_MIN * 1_000)),
    ("grpc.use_local_subchannel_pool", 1),
)


class Retry:
    """When to try again, and when to give up. An error that is not retriable is raised as it is.

    Args:
        patience_s: How long to try again what has worked before.
        clock_s: A monotonic clock.
        chance: A number of [0, 1), so that clients which lost one server do not come back all at once.
    """

    def __init__(
        self,
        patience_s: float,
        *,
        clock_s: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._patience_s = patience_s
        self._limit_s = min(patience_s, limits.CLIENT_CONNECT_S_MAX)
        self._clock_s = clock_s
        self._chance = chance
        self._failing_since_s: float | None = None
        self._opened_s: float | None = None
        self._tries = 0

    def opened(self) -> None:
        """The server was there and has agreed; that this works is known when it has lasted, or when `worked` says so.

        A server that agrees and then refuses, again and again, would else be called without pauses and for ever.
        """
        self._limit_s = self._patience_s
        self._opened_s = self._clock_s()

    def worked(self) -> None:
        """What was tried works now."""
        self._limit_s = self._patience_s
        self._failing_since_s = None
        self._tries = 0

    def pause_s(self, error: HeadgateError) -> float:
        """How long to wait before the next try.

        Raises:
            HeadgateError: The error itself: it is final, or patience is at its end.
        """
        if not error.retriable:
            raise error
        now_s = self._clock_s()
        if self._opened_s is not None and now_s - self._opened_s >= limits.CLIENT_LASTED_S_MIN:
            self.worked()
        self._opened_s = None
        if self._failing_since_s is None:
            self._failing_since_s = now_s
        if now_s - self._failing_since_s >= self._limit_s:
            raise error
        most_s = min(limits.CLIENT_BACKOFF_S_MAX, limits.CLIENT_BACKOFF_S_MIN * 2.0 ** min(self._tries, 16))
        self._tries += 1
        return most_s * (0.5 + self._chance() / 2)


class Stream(Generic[RequestT, ResponseT]):
    """One call of which both sides send many messages; every failure is an error of ours."""

    def __init__(self, call: aio.StreamStreamCall[RequestT, ResponseT], target: str) -> None:
        self._call = call
        self._target = target

    async def write(self, message: RequestT) -> None:
        """Sends a message; waits while the server takes none.

        Raises:
            HeadgateError: The call has ended.
        """
        try:
            await self._call.write(message)
        except aio.AioRpcError as error:
            raise error_of(error, self._target) from None
        except asyncio.InvalidStateError:
            raise await self._ended() from None

    async def read(self) -> ResponseT | None:
        """The server's next message; None when it has sent its last one and all is well.

        Raises:
            HeadgateError: The call has failed.
        """
        try:
            message = await self._call.read()
        except aio.AioRpcError as error:
            raise error_of(error, self._target) from None
        return None if message is aio.EOF else cast("ResponseT", message)

    async def must_read(self) -> ResponseT:
        """As `read`; a server that ends the call stops.

        Raises:
            HeadgateError: The call has ended.
        """
        message = await self.read()
        if message is None:
            raise DisconnectedError(f"{self._target} has ended the call")
        return message

    def cancel(self) -> None:
        """Ends the call; idempotent."""
        self._call.cancel()

    async def _ended(self) -> HeadgateError:
        code, details, metadata = await self._call.code(), await self._call.details(), None
        if code is not grpc.StatusCode.OK:
            metadata = await self._call.trailing_metadata()
        return error_of(
            aio.AioRpcError(
                grpc.StatusCode.UNAVAILABLE if code is grpc.StatusCode.OK else code,
                aio.Metadata(),
                metadata if metadata is not None else aio.Metadata(),
                details,
            ),
            self._target,
        )


class Connection:
    """The way to one server; belongs to the event loop that first uses it.

    Args:
        target: HOST:PORT, as gRPC takes it.
        credentials: For TLS; None for none.
        patience_s: How long a lost connection is tried again.
        tokens: The token to show; None for none.
    """

    def __init__(
        self,
        target: str,
        credentials: grpc.ChannelCredentials | None,
        patience_s: float,
        tokens: TokenSource | None = None,
    ) -> None:
        self.target = target
        self._credentials = credentials
        self._tokens = tokens or TokenSource()
        self._patience_s = patience_s
        self._open: aio.Channel | None = None
        self._closed = False

    def retry(self) -> Retry:
        """Of one thing that is to last."""
        return Retry(self._patience_s)

    def publish(self) -> Stream[pb.PublishRequest, pb.PublishResponse]:
        """Begins `Publisher.Publish`."""
        return self._stream("Publisher/Publish", pb.PublishResponse)

    def read(self) -> Stream[pb.ReadRequest, pb.ReadResponse]:
        """Begins `Reader.Read`."""
        return self._stream("Reader/Read", pb.ReadResponse)

    def subscribe(self) -> Stream[pb.SubscribeRequest, pb.SubscribeResponse]:
        """Begins `Subscriptions.Subscribe`."""
        return self._stream("Subscriptions/Subscribe", pb.SubscribeResponse)

    def seek(self) -> Stream[pb.SeekRequest, pb.SeekResponse]:
        """Begins `Subscriptions.Seek`, of which the request is the first message."""
        return self._stream("Subscriptions/Seek", pb.SeekResponse)

    async def call(self, method: str, request: Message, type_: type[ResponseT]) -> ResponseT:
        """A call that changes nothing, repeated while there is no server.

        Raises:
            HeadgateError: There is no answer.
        """
        retry = self.retry()
        while True:
            try:
                stream: Stream[Message, ResponseT] = self._stream(method, type_)
                try:
                    await stream.write(request)
                    return await stream.must_read()
                finally:
                    stream.cancel()
            except HeadgateError as error:
                await asyncio.sleep(retry.pause_s(error))

    async def close(self) -> None:
        """Ends everything; idempotent."""
        self._closed = True
        if self._open is not None:
            await self._open.close()

    def _stream(self, method: str, type_: type[ResponseT]) -> Stream[RequestT, ResponseT]:
        if self._closed:
            raise ClosedError("the client is closed")
        if self._open is None:
            self._open = (
                aio.insecure_channel(self.target, options=_OPTIONS)
                if self._credentials is None
                else aio.secure_channel(self.target, self._credentials, options=_OPTIONS)
            )
        call: aio.StreamStreamMultiCallable[RequestT, ResponseT] = self._open.stream_stream(
            f"/{pb.DESCRIPTOR.package}.{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=type_.FromString,
        )
        return Stream(call(metadata=self._shown()), self.target)

    def _shown(self) -> tuple[tuple[str, str], ...]:
        """What goes along with a call: the token as it is now."""
        host = self.target.rpartition(":")[0]
        header = self._tokens.header(host, is_tls=self._credentials is not None)
        return (("authorization", header),) if header else ()
