"""The client for programs without asyncio: each call waits for the same call of `aio`.

The coroutines run on one event loop in a thread of its own, shared by all clients of the process. An object may be used
by several threads, one at a time.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar, Unpack

from headgate_api.event.model import Event
from headgate_api.limits import CLIENT_WINDOW_DEFAULT
from headgate_client.aio import AsyncClient
from headgate_client.consumer import AsyncConsumer
from headgate_client.producer import AsyncProducer
from headgate_client.reader import AsyncReader, ReadOptions
from headgate_client.values import Place, Progress, ReadEvent, Received, SeekProgress, SeekResult, Single

S = TypeVar("S")
T = TypeVar("T")
P = ParamSpec("P")
M = TypeVar("M", AsyncClient, AsyncProducer, AsyncReader, AsyncConsumer)
_STEP: Final = 100
"""Events that an iteration takes from the loop at once."""


class _Loop:
    """An event loop in a thread, which begins with the first use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="headgate-client", daemon=True).start()
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine there and waits for it; an interrupt (Ctrl-C) cancels it."""
        running = self.begin(work)
        try:
            return running.result()
        except BaseException:
            running.cancel()
            raise


_loop: Final = _Loop()


class _Blocking(Generic[M]):
    """A context manager that enters and leaves one of `aio`."""

    def __init__(self, wrapped: M) -> None:
        self._async: M = wrapped

    def __enter__(self) -> Self:
        _loop.run(self._async.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _loop.run(self._async.__aexit__(kind, error, trace))


def _waited(call: Callable[Concatenate[M, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[_Blocking[M], P], T]:
    """A method that waits for one of `aio`: with the same parameters, result, errors and documentation."""

    @functools.wraps(call)
    def method(self: _Blocking[M], /, *arguments: P.args, **options: P.kwargs) -> T:
        return _loop.run(call(self._async, *arguments, **options))

    return method


def _of(make: Callable[P, M]) -> Callable[[Callable[[S, M], None]], Callable[Concatenate[S, P], None]]:
    """An `__init__` that takes what `make` takes, and is given what it makes."""

    def taking(init: Callable[[S, M], None]) -> Callable[Concatenate[S, P], None]:
        @functools.wraps(make.__init__)
        def made(self: S, /, *arguments: P.args, **options: P.kwargs) -> None:
            init(self, make(*arguments, **options))

        return made

    return taking


class Client(_Blocking[AsyncClient]):
    """A server, as a program without asyncio sees it; a context manager. It takes what `AsyncClient` takes."""

    @_of(AsyncClient)
    def __init__(self, client: AsyncClient) -> None:
        super().__init__(client)

    close = _waited(AsyncClient.close)
    publish = _waited(AsyncClient.publish)
    stats = _waited(AsyncClient.stats)
    analyze = _waited(AsyncClient.analyze)

    def producer(self, broker: str, *, name: str = "", first: int | None = None) -> Producer:
        """A stream of events to a broker. See `AsyncClient.producer`."""
        return Producer(self._async.producer(broker, name=name, first=first))

    def read(self, broker: str, **options: Unpack[ReadOptions]) -> Reader:
        """A reader of a broker's log. See `AsyncClient.read`."""
        return Reader(self._async.read(broker, **options))

    def subscribe(
        self, subscription: str, *, consumer: str | None = None, window: int = CLIENT_WINDOW_DEFAULT
    ) -> Consumer:
        """A consumer of a durable subscription. See `AsyncClient.subscribe`."""
        return Consumer(self._async.subscribe(subscription, consumer=consumer, window=window))

    def seek(
        self,
        subscription: str,
        to: Place = "earliest",
        *,
        first: Single | None = None,
        last: Single | None = None,
        after: bool = False,
        on_progress: Callable[[SeekProgress], None] | None = None,
    ) -> SeekResult:
        """Moves a subscription; Ctrl-C moves nothing. See `AsyncClient.seek`."""
        for step in _each(self._async.seeking(subscription, to, first=first, last=last, after=after)):
            if isinstance(step, SeekResult):
                return step
            if on_progress is not None:
                on_progress(step)
        raise AssertionError("a seek ends with its place or an error")


class Producer(_Blocking[AsyncProducer]):
    """Publishes events to one broker; a context manager. See `AsyncProducer`."""

    @property
    def next_sequence(self) -> int:
        """The sequence that the next event gets."""
        return self._async.next_sequence

    @property
    def duplicates(self) -> int:
        """Events that the server had stored before."""
        return self._async.duplicates

    def send(self, events: Event | Iterable[Event], *, filter_value: str = "") -> None:
        """Takes events; `flush`, and the end of the context, say whether all were stored. See `AsyncProducer.send`."""
        _loop.run(self._async.send(events, filter_value=filter_value))

    publish = _waited(AsyncProducer.publish)
    flush = _waited(AsyncProducer.flush)


class Reader(_Blocking[AsyncReader]):
    """Reads a broker's log; a context manager and iterator. See `AsyncReader`."""

    def __iter__(self) -> Iterator[ReadEvent]:
        return self

    def __next__(self) -> ReadEvent:
        # What is there is taken without the loop, which would cost more than the event: the loop adds only in `fill`.
        found = self._async.take()
        if found is None:
            _loop.run(self._async.fill())
            found = self._async.take()
        if found is None:
            raise StopIteration
        return found

    next_batch = _waited(AsyncReader.next_batch)

    @property
    def position(self) -> str:
        """Behind everything that was handed out. See `AsyncReader.position`."""
        return self._async.position

    @property
    def progress(self) -> Progress:
        """What it has gone over."""
        return self._async.progress


class Consumer(_Blocking[AsyncConsumer]):
    """Consumes a subscription; a context manager and iterator. See `AsyncConsumer`."""

    def __init__(self, consumer: AsyncConsumer) -> None:
        super().__init__(consumer)
        self._events: deque[Received] = deque()
        self._epoch = 0

    def __iter__(self) -> Iterator[Received]:
        return self

    def __next__(self) -> Received:
        if self._epoch != self._async.epoch:
            self._events.clear()  # there was a seek
        if not self._events:
            self._events.extend(self.next_batch(_STEP))
            self._epoch = self._async.epoch
        return self._events.popleft()

    next_batch = _waited(AsyncConsumer.next_batch)

    def ack(self, *received: Received) -> Future[list[str]]:
        """These events are done; on disk when the result is there. See `AsyncConsumer.ack`."""
        return _loop.begin(_told(lambda: self._async.ack(*received)))

    def ack_up_to(self, received: Received) -> Future[list[str]]:
        """This event is done, and all that this consumer was handed before it. See `AsyncConsumer.ack_up_to`."""
        return _loop.begin(_told(lambda: self._async.ack_up_to(received)))

    def nack(self, *received: Received, delay_s: float = 0.0) -> Future[list[str]]:
        """These events are to be handed out again. See `AsyncConsumer.nack`."""
        return _loop.begin(_told(lambda: self._async.nack(*received, delay_s=delay_s)))

    flush = _waited(AsyncConsumer.flush)

    @property
    def epoch(self) -> int:
        """Counts the subscription's seeks."""
        return self._async.epoch

    @property
    def is_active(self) -> bool:
        """Whether it is this consumer's turn."""
        return self._async.is_active


async def _told(tell: Callable[[], asyncio.Future[list[str]]]) -> list[str]:
    return await tell()


def _each(found: AsyncGenerator[T, None]) -> Iterator[T]:
    """Steps through what a coroutine yields; who stops, or is interrupted, ends it."""
    try:
        while True:
            try:
                yield _loop.run(_step(found))
            except StopAsyncIteration:
                return
    finally:
        _loop.run(found.aclose())


async def _step(found: AsyncGenerator[T, None]) -> T:
    return await anext(found)
