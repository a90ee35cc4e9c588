"""A producer: keeps the events that are not acknowledged, and sends them again after a reconnect.

Requests are runs of sequences, acknowledgements ranges of them. A producer with a name is idempotent: the server drops
what it has stored before. Without a name what was on its way when a connection broke may be stored twice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType

from headgate_api.errors import EventTooLargeError, HeadgateError, UnavailableError
from headgate_api.event.model import Event
from headgate_api.limits import (
    CLIENT_REQUEST_BYTES_MAX,
    CLIENT_REQUEST_EVENTS_MAX,
    CLIENT_UNACKED_BYTES_MAX,
    CLIENT_UNACKED_EVENTS_MAX,
    EVENT_BYTES_MAX,
)
from headgate_api.rpc import headgate_pb2 as pb
from headgate_api.rpc.cloudevents_pb2 import CloudEvent
from headgate_api.rpc.events import to_message
from headgate_client.connection import Connection, Retry, Session, Stream, both
from headgate_client.errors import ProducerNameTakenError, SequenceUnknownError, refusal_of

_Publish = Stream[pb.PublishRequest, pb.PublishResponse]


class _Call:
    """Events that were given together: `done` says when the last is stored, or why one is not; `end` ends one."""

    __slots__ = ("done", "left", "watched")

    def __init__(self, *, watched: bool) -> None:
        self.left = 0
        self.watched = watched
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.done.add_done_callback(lambda done: done.cancelled() or done.exception())  # the caller may ignore it

    def end(self, error: HeadgateError | None = None) -> None:
        self.left -= 1
        if not self.done.done():
            if error is not None:
                self.done.set_exception(error)
            elif self.left == 0:
                self.done.set_result(None)


@dataclass(eq=False, slots=True)
class _Waiting:
    """An event that is not acknowledged."""

    sequence: int
    message: CloudEvent
    size_bytes: int
    filter_value: str
    call: _Call


class AsyncProducer(Session):
    """Publishes events to one broker; an async context manager that waits for the acknowledgement of all at its end.

    See `AsyncClient.producer`; the broker is "namespace/name", and the name is empty for none.
    """

    def __init__(self, connection: Connection, broker: str, name: str = "", first: int | None = None) -> None:
        super().__init__(connection)
        self.broker = broker
        self.name = name
        self.duplicates = 0
        """Events that the server had stored before."""
        self._next = first
        self._stored = 0
        """The server has said that everything below is stored."""
        self._taken = 0
        """Nobody else has stored a sequence from here on."""
        self._waiting: dict[int, _Waiting] = {}
        self._bytes = 0
        self._to_send: deque[_Waiting] = deque()
        self._freed = asyncio.Event()
        self._refused: HeadgateError | None = None
        self._on_way: set[int] = set()
        """Sent on this stream and not answered."""
        self._held_back: HeadgateError | None = None
        """Why nothing more is sent on this stream: what was refused goes before it, on the next one."""

    def __str__(self) -> str:
        return f"the producer {self.name!r} of {self.broker}" if self.name else f"the producer of {self.broker}"

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                await self.flush()
        finally:
            await self.stop()

    @property
    def next_sequence(self) -> int:
        """The sequence that the next event gets."""
        assert self._next is not None, "not opened yet"
        return self._next

    @property
    def unacknowledged(self) -> int:
        """Events given and not acknowledged."""
        return len(self._waiting)

    async def send(self, events: Event | Iterable[Event], *, filter_value: str = "") -> asyncio.Future[None]:
        """Takes one event or any number; waits only while CLIENT_UNACKED_EVENTS_MAX are not acknowledged.

        The result is done when all of them are on disk, else it fails with what `flush` raises, too.

        Raises:
            HeadgateError: The producer has ended.
            EventTooLargeError: An event is over 1 MiB; those before it were taken.
        """
        return (await self._send(events, filter_value, watched=False)).done

    async def publish(self, events: Event | Iterable[Event], *, filter_value: str = "") -> None:
        """Publishes one event or any number; returns when all of them are on disk. See `AsyncClient.publish`.

        Raises:
            RefusedError: The server will never store them, or others that went with them in one request.
            HeadgateError: The producer has ended; what was not acknowledged may or may not be stored.
        """
        await (await self._send(events, filter_value, watched=True)).done

    async def flush(self) -> None:
        """Returns when everything that was given is on disk.

        Raises:
            RefusedError: Of what `send` took since the last flush, something was not stored.
            HeadgateError: The producer has ended.
        """
        while self._waiting:
            self._check()
            self._freed.clear()
            await self._freed.wait()
        refused, self._refused = self._refused, None
        if refused is not None:
            raise refused
        self._check()

    # --- what waits -----------------------------------------------------------------------------------

    async def _send(self, events: Event | Iterable[Event], filter_value: str, *, watched: bool) -> _Call:
        await self.start()
        call = _Call(watched=watched)
        call.left = 1  # so that it is not done before all were taken
        for event in (events,) if isinstance(events, Event) else events:
            message = to_message(event)
            size_bytes = message.ByteSize()
            if size_bytes > EVENT_BYTES_MAX:
                raise EventTooLargeError(f"event {event.id!r} has {size_bytes} bytes, over {EVENT_BYTES_MAX}")
            while self._is_full(size_bytes):
                self._freed.clear()
                await self._freed.wait()
            self._check()
            sequence = self.next_sequence
            self._next = sequence + 1
            call.left += 1
            waiting = self._waiting[sequence] = _Waiting(sequence, message, size_bytes, filter_value, call)
            self._bytes += size_bytes
            self._to_send.append(waiting)
            self._wake.set()
        call.end()
        return call

    def _is_full(self, size_bytes: int) -> bool:
        count = len(self._waiting)
        if self._error is not None or not count:
            return False
        return count >= CLIENT_UNACKED_EVENTS_MAX or self._bytes + size_bytes > CLIENT_UNACKED_BYTES_MAX

    def _answered(self, first: int, last: int, error: HeadgateError | None = None) -> None:
        """What was answered before is not there any more, so it may be answered twice."""
        sequences = range(first, min(last + 1, self.next_sequence))  # no more than there are, whatever a server says
        self._on_way.difference_update(sequences)
        for sequence in sequences:
            waiting = self._waiting.pop(sequence, None)
            if waiting is not None:
                self._bytes -= waiting.size_bytes
                waiting.call.end(error)
                if error is not None and not waiting.call.watched:
                    self._refused = self._refused or error
        self._freed.set()

    def _ended(self, error: HeadgateError) -> None:
        for waiting in self._waiting.values():
            waiting.call.end(error)
        self._to_send.clear()
        self._freed.set()

    # --- the stream -----------------------------------------------------------------------------------

    async def _talk(self, retry: Retry) -> None:
        stream: _Publish = self._connection.stream("Publisher/Publish", pb.PublishResponse)
        try:
            await stream.write(pb.PublishRequest(open=pb.PublishRequest.Open(broker=self.broker, producer=self.name)))
            self._opened((await stream.must_read()).opened)
            if not self._waiting:
                retry.worked()
            await both(self._write(stream), self._read(stream, retry))
        finally:
            stream.cancel()

    def _opened(self, opened: pb.PublishResponse.Opened) -> None:
        stored = opened.next_sequence
        if not self._begun.is_set():
            self._next = stored if self._next is None else self._next
            self._taken = max(self._next, stored)
            self._begun.set()
        if self.name and stored < self._stored:
            raise SequenceUnknownError(
                f"{self} has events up to {self._stored - 1} acknowledged, and the server no longer knows of them",
                hint=f"what was not acknowledged may be stored: look, and begin anew with first={self._stored}",
            )
        self._stored = max(self._stored, stored)
        if self.name and stored > max(self._taken, self.next_sequence):
            raise ProducerNameTakenError(
                f"{self} has published {self.next_sequence - 1} as its newest event, the server has {stored - 1}",
                hint="give each process a producer name of its own",
            )
        self._held_back = None
        self._on_way.clear()
        self._to_send = deque(self._waiting.values())

    def _request(self) -> pb.PublishRequest | None:
        """The next events in a row, as many as one request takes; None when all were sent, or nothing is sent now."""
        group: list[_Waiting] = []
        size_bytes = 0
        while self._held_back is None and self._to_send and len(group) < CLIENT_REQUEST_EVENTS_MAX:
            waiting = self._to_send[0]
            if group and (
                waiting.sequence != group[-1].sequence + 1 or size_bytes + waiting.size_bytes > CLIENT_REQUEST_BYTES_MAX
            ):
                break
            group.append(self._to_send.popleft())
            size_bytes += waiting.size_bytes
        if not group:
            return None
        self._on_way.update(waiting.sequence for waiting in group)
        values = [waiting.filter_value for waiting in group]
        messages = [waiting.message for waiting in group]
        return pb.PublishRequest(
            sequence=group[0].sequence, events=messages, filter_values=values if any(values) else None
        )

    async def _read(self, stream: _Publish, retry: Retry) -> None:
        while True:
            response = await stream.must_read()
            match response.WhichOneof("what"):
                case "acknowledged":
                    retry.worked()
                    self.duplicates += response.acknowledged.duplicates
                    self._stored = max(self._stored, min(response.acknowledged.last + 1, self.next_sequence))
                    self._answered(response.acknowledged.first, response.acknowledged.last)
                case "refused":
                    self._refuse(response.refused)
                case _:
                    pass  # of a later version
            if self._held_back is not None and not self._on_way:
                raise self._held_back

    def _refuse(self, refused: pb.PublishResponse.Refused) -> None:
        first, last, problem = refused.first, refused.last, refused.problem
        if problem.retriable:
            self._on_way.difference_update(range(first, min(last + 1, self.next_sequence)))
            self._held_back = UnavailableError(problem.detail, hint=problem.hint)
            self._held_back.code = problem.code
        else:
            self._answered(first, last, refusal_of(problem, first, last))
