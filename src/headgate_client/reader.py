"""A reader of the log: events as they come, and the position to go on at, also after a reconnect."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Sequence
from dataclasses import fields
from typing import Self, TypedDict

from headgate_api.errors import HeadgateError, InvalidInputError
from headgate_api.limits import CLIENT_WINDOW_DEFAULT
from headgate_api.rpc import headgate_pb2 as pb
from headgate_api.rpc.events import from_messages
from headgate_client.connection import Connection, Stream
from headgate_client.errors import ClosedError
from headgate_client.values import (
    Filter,
    Place,
    Progress,
    ReadEvent,
    Single,
    condition_text,
    filter_message,
    place_text,
)


class ReadOptions(TypedDict, total=False):
    """Which events a reader reads.

    Attributes:
        start: Where to begin: `earliest` (the default), `latest`, `next`, a time of storing, or a position.
        first: CEL, or what `headgate.expr` builds: begin at the first event from there on of which it is true.
        filter: Only events that it accepts.
        filter_values: Only events with one of these; chunks without them are passed over.
        match_unfiltered: Events without a filter value, too.
        follow: At the end, wait for more, which is the default; else the iteration ends there.
        window: Events that may be on their way; by default CLIENT_WINDOW_DEFAULT.
    """

    start: Place
    first: Single | None
    filter: Filter | None
    filter_values: Sequence[str]
    match_unfiltered: bool
    follow: bool
    window: int


class AsyncReader:
    """Reads a broker's log, as `ReadOptions` say; an async context manager and iterator. A server's error ends it."""

    def __init__(
        self,
        connection: Connection,
        broker: str,
        *,
        start: Place = "earliest",
        first: Single | None = None,
        filter: Filter | None = None,
        filter_values: Sequence[str] = (),
        match_unfiltered: bool = False,
        follow: bool = True,
        window: int = CLIENT_WINDOW_DEFAULT,
    ) -> None:
        if window < 1:
            raise InvalidInputError(f"window is {window}, at least one event must be on its way")
        self._connection = connection
        self._retry = connection.retry()
        self._opening = pb.ReadRequest.Open(
            broker=broker,
            first=condition_text(first),
            filter_values=filter_values,
            match_unfiltered=match_unfiltered,
            filter=filter_message(filter),
            follow=follow,
        )
        setattr(self._opening, "from", place_text(start))
        self._follow = follow
        self._window = window
        self._credits = 0
        self._stream: Stream[pb.ReadRequest, pb.ReadResponse] | None = None
        self._reading: asyncio.Task[pb.ReadResponse | None] | None = None
        self._events: deque[ReadEvent] = deque()
        self._position = ""
        self._closed = False
        self.progress = Progress()
        """What it has gone over."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReadEvent:
        await self.fill()
        found = self.take()
        if found is None:
            raise StopAsyncIteration
        return found

    async def next_batch(self, *, wait_s: float | None = None) -> list[ReadEvent]:
        """The events that are there, at least one; empty at the end of the log, unless the reader follows.

        After `wait_s` it is empty, too; None: it waits for as long as it takes. HeadgateError as for `fill`.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self.fill()
        events = list(self._events)
        self._events.clear()
        return events

    async def fill(self) -> None:
        """Waits until there is an event to take, or the end of the log.

        HeadgateError when the server refuses, or is away for too long.
        """
        while not self._events:
            if await self._receive() is None:
                return

    def take(self) -> ReadEvent | None:
        """The next event that is there; None when there is none."""
        return self._events.popleft() if self._events else None

    @property
    def position(self) -> str:
        """Behind everything that was handed out: where another reader goes on. Empty before it has started."""
        if not self._events:
            return self._position
        places = dict(part.split(":") for part in self._position.split(",") if part)
        for event in reversed(self._events):
            places[str(event.partition)] = str(event.offset)
        return ",".join(f"{partition}:{offset}" for partition, offset in places.items())

    async def start(self) -> None:
        """Opens it; returns when the server has said where the reader begins, or raises HeadgateError. Idempotent."""
        while not self._position and not self._events:
            if await self._receive() is None:
                return

    async def stop(self) -> None:
        """Ends it; idempotent."""
        self._closed = True
        if self._reading is not None:
            self._reading.cancel()
        if self._stream is not None:
            self._stream.cancel()

    async def _receive(self) -> pb.ReadResponse | None:
        if self._closed:
            raise ClosedError("the reader is closed")
        # Who gives up waiting, by a timeout say, does not end the call. What has failed stays: its error ended this.
        if self._reading is None:
            self._reading = asyncio.create_task(self._response())
        response = await asyncio.shield(self._reading)
        self._reading = None
        if response is not None:
            self._take(response)
        return response

    async def _response(self) -> pb.ReadResponse | None:
        """The server's next response, over any number of reconnects; None at the end."""
        while True:
            try:
                if self._stream is None:
                    await self._begin()
                return await self._next()
            except HeadgateError as error:
                if self._stream is not None:
                    self._stream.cancel()
                    self._stream = None
                await asyncio.sleep(self._retry.pause_s(error))

    async def _begin(self) -> None:
        self._stream = self._connection.stream("Reader/Read", pb.ReadResponse)
        self._credits = self._window
        await self._stream.write(pb.ReadRequest(open=self._opening, credits=self._credits))

    async def _next(self) -> pb.ReadResponse | None:
        assert self._stream is not None
        # All that came has been handed out: this is not called before.
        if self._credits <= self._window // 2:
            await self._stream.write(pb.ReadRequest(credits=self._window - self._credits))
            self._credits = self._window
        response = await (self._stream.must_read() if self._follow else self._stream.read())
        if response is not None:
            self._retry.worked()
            self._credits -= len(response.events)
        return response

    def _take(self, response: pb.ReadResponse) -> None:
        events = from_messages(read.event for read in response.events)
        self._events.extend(
            ReadEvent(event, read.partition, read.offset) for event, read in zip(events, response.events, strict=True)
        )
        found = response.progress
        if found.position:
            # The next stream begins here, and need not look for the first event again.
            self._position = found.position
            self._opening.ClearField("first")
            setattr(self._opening, "from", found.position)
        self.progress = Progress(**{field.name: getattr(found, field.name) for field in fields(Progress)})
