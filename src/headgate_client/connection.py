"""The connection to a server: one channel, streams with our errors, pauses between tries, and what outlives it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final, Generic, Self, TypeVar, cast

import grpc
from google.protobuf.message import Message
from grpc import aio

from headgate_api import limits
from headgate_api.bearer import TokenSource
from headgate_api.errors import HeadgateError, InvalidInputError
from headgate_api.rpc import headgate_pb2 as pb
from headgate_client.errors import ClosedError, DisconnectedError, error_of

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
_SCHEMES: Final = {"https://": True, "http://": False}
"""Of targets, and whether TLS is spoken there."""


class Retry:
    """When to try again, and when to give up. An error that is not retriable is raised as it is.

    `chance` gives a number of [0, 1), so that clients which lost one server do not come back all at once.
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
        """How long to wait before the next try; raises the error itself if it is final, or patience is at its end."""
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
    """One call of which both sides send many messages; every failure, and every end too early, is a HeadgateError."""

    def __init__(self, call: aio.StreamStreamCall[RequestT, ResponseT], target: str) -> None:
        self._call = call
        self._target = target

    async def write(self, message: RequestT) -> None:
        try:
            await self._call.write(message)
        except aio.AioRpcError as error:
            raise error_of(error, self._target) from None
        except asyncio.InvalidStateError:
            raise await self._ended() from None

    async def read(self) -> ResponseT | None:
        """The server's next message; None when it has sent its last one and all is well."""
        try:
            message = await self._call.read()
        except aio.AioRpcError as error:
            raise error_of(error, self._target) from None
        return None if message is aio.EOF else cast("ResponseT", message)

    async def must_read(self) -> ResponseT:
        """As `read`; a server that ends the call stops."""
        message = await self.read()
        if message is None:
            raise DisconnectedError(f"{self._target} has ended the call")
        return message

    def cancel(self) -> None:
        """Ends the call; idempotent."""
        self._call.cancel()

    async def _ended(self) -> HeadgateError:
        code, details, metadata = await self._call.code(), await self._call.details(), aio.Metadata()
        if code is grpc.StatusCode.OK:
            code = grpc.StatusCode.UNAVAILABLE
        else:
            metadata = await self._call.trailing_metadata() or metadata
        return error_of(aio.AioRpcError(code, aio.Metadata(), metadata, details), self._target)


class Connection:
    """The way to one server, HOST:PORT, of one event loop; it is tried again for `patience_s` after it was lost."""

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

    async def call(self, method: str, request: Message, type_: type[ResponseT]) -> ResponseT:
        """A call that changes nothing, repeated while there is no server; HeadgateError when there is no answer."""
        retry = self.retry()
        while True:
            try:
                stream: Stream[Message, ResponseT] = self.stream(method, type_)
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

    def stream(self, method: str, type_: type[ResponseT]) -> Stream[RequestT, ResponseT]:
        """Begins a call, such as `Publisher/Publish`."""
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


def address_of(target: str, *, is_tls: bool) -> tuple[str, bool]:
    """HOST:PORT of a target, and whether TLS is spoken there; InvalidInputError for something else.

    A target may begin with `https://` or `http://`; `is_tls` is what it means without.
    """
    scheme, is_secure = next(((one, tls) for one, tls in _SCHEMES.items() if target.startswith(one)), ("", is_tls))
    address = target.removeprefix(scheme).rstrip("/")
    if not address or "/" in address:
        raise InvalidInputError(
            f"{target!r} is no HOST:PORT", hint="the address that `headgate serve --grpc` has, with https:// for TLS"
        )
    if scheme == "http://" and is_tls:
        raise InvalidInputError(f"{target} is without TLS, and certificates are given", hint="https://HOST:PORT")
    return address, is_secure


def channel_credentials(cacert: str | Path, client_cert: str | Path, client_key: str | Path) -> grpc.ChannelCredentials:
    """Credentials from files in PEM format: of the CAs that are trusted, of a certificate to show, and of its key.

    A file that is not named is HEADGATE_CACERT, HEADGATE_CLIENT_CERT or HEADGATE_CLIENT_KEY; without these gRPC's own
    CAs are trusted, and nothing is shown. InvalidInputError when a file cannot be read, or one of the two is missing.
    """
    trusted = _content("cacert", cacert)
    certificate, key = _content("client_cert", client_cert), _content("client_key", client_key)
    if (certificate is None) is not (key is None):
        raise InvalidInputError("client_cert and client_key go together", hint="two files in PEM format")
    return grpc.ssl_channel_credentials(trusted, key, certificate)


def _content(name: str, path: str | Path) -> bytes | None:
    chosen = str(path) or os.environ.get(f"HEADGATE_{name.upper()}", "")
    if not chosen:
        return None
    try:
        content = Path(chosen).read_bytes()
    except OSError as error:
        raise InvalidInputError(f"{name} {chosen} cannot be read: {error.strerror}", hint="a PEM file") from error
    if b"-----BEGIN" not in content:
        raise InvalidInputError(f"{name} {chosen} is not in PEM format", hint="it begins with -----BEGIN")
    return content


class Session(ABC):
    """A stream that outlives its connection: a task opens it, and opens it again when it ends."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._retry = connection.retry()
        self._task: asyncio.Task[None] | None = None
        self._error: HeadgateError | None = None
        self._begun = asyncio.Event()
        self._wake = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    @property
    def error(self) -> HeadgateError | None:
        """What ended it; None while it lasts."""
        return self._error

    async def start(self) -> None:
        """Opens it; returns when the server has agreed, or raises HeadgateError. Idempotent."""
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        await self._begun.wait()
        self._check()

    async def stop(self) -> None:
        """Ends it at once; idempotent."""
        self._end(ClosedError(f"{self} is closed"))
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _end(self, error: HeadgateError) -> None:
        if self._error is None:
            self._error = error
            self._ended(error)
        self._begun.set()
        self._wake.set()

    async def _run(self) -> None:
        try:
            while True:
                try:
                    await self._talk(self._retry)
                except HeadgateError as error:
                    await asyncio.sleep(self._retry.pause_s(error))
        except HeadgateError as error:
            self._end(error)
        except Exception as error:
            self._end(HeadgateError(f"{self} failed: {error!r}"))
            raise

    @abstractmethod
    async def _talk(self, retry: Retry) -> None:
        """One stream, from its opening to its end; the next one follows at once, or after a retriable HeadgateError."""

    async def _write(self, stream: Stream[Any, Any]) -> None:
        while True:
            request = self._request()
            if request is None:
                self._wake.clear()
                await self._wake.wait()
            else:
                await stream.write(request)

    @abstractmethod
    def _request(self) -> Message | None:
        """What the server is to know now; None for nothing until `_wake` is set."""

    @abstractmethod
    def _ended(self, error: HeadgateError) -> None:
        """Wakes everybody who waits."""


async def both(sending: Coroutine[Any, Any, None], receiving: Coroutine[Any, Any, None]) -> None:
    """Runs both until one of them ends; raises what it raised."""
    tasks = [asyncio.create_task(sending), asyncio.create_task(receiving)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        await task
