"""A consumer of a subscription: the events it has, and which of its acknowledgements are on disk.

Acknowledgements are sent in numbered requests; the server says up to which number they are on disk. After a reconnect
what was not is sent again. The server, which then believes that the consumer has nothing, hands out again what is not
acknowledged; what this consumer has, or has acknowledged, is recognised by its id and not handed out a second time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from headgate_api.errors import HeadgateError, InvalidInputError
from headgate_api.limits import CLIENT_ACKS_MAX, CLIENT_CLOSE_S_MAX, CLIENT_HELD_MAX, CLIENT_WINDOW_DEFAULT
from headgate_api.rpc import headgate_pb2 as pb
from headgate_api.rpc.events import from_messages
from headgate_client.connection import Connection, Retry, Session, Stream, both
from headgate_client.errors import DisconnectedError
from headgate_client.values import Received

_Subscribe = Stream[pb.SubscribeRequest, pb.SubscribeResponse]


@dataclass(eq=False, slots=True)
class _Ack:
    """An acknowledgement, or a nack where it has a delay; `done` has the ids that the server did not know any more."""

    ids: list[str]
    delay_s: float | None
    done: asyncio.Future[list[str]]


_Ids = OrderedDict[str, None]
"""Ids in the order in which they came; at most CLIENT_HELD_MAX."""


def _add(ids: _Ids, id_: str) -> None:
    ids[id_] = None
    if len(ids) > CLIENT_HELD_MAX:
        ids.popitem(last=False)


class AsyncConsumer(Session):
    """Consumes a subscription, "namespace/name"; an async context manager and iterator.

    At its end it waits for acknowledgements on their way; what was not acknowledged goes to the next consumer. The
    server may send `window` events before they were handed out.
    """

    def __init__(
        self, connection: Connection, subscription: str, name: str, *, window: int = CLIENT_WINDOW_DEFAULT
    ) -> None:
        super().__init__(connection)
        if window < 1:
            raise InvalidInputError(f"window is {window}, at least one event must be on its way")
        self.subscription = subscription
        self.name = name
        self.epoch = 0
        """Counts the subscription's seeks; 0 before it has started."""
        self.is_active = False
        """Whether it is this consumer's turn; of a failover subscription one has it."""
        self._window = window
        self._credits = 0
        """Events that the server may send and has not."""
        self._arrived = asyncio.Event()
        self._buffer: deque[Received] = deque()
        self._held: _Ids = OrderedDict()
        """Handed out and not acknowledged."""
        self._acked: _Ids = OrderedDict()
        """Acknowledged, and the server may not know: one that comes again is acknowledged again."""
        self._known: set[str] = set()
        """Held or in the buffer when the stream began; the server will hand them out once more."""
        self._unsent: deque[_Ack] = deque()
        self._unsettled: OrderedDict[int, list[_Ack]] = OrderedDict()
        self._number = 0
        self._stale: set[str] = set()

    def __str__(self) -> str:
        return f"the consumer {self.name!r} of {self.subscription}"

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and self._error is None:
                async with asyncio.timeout(CLIENT_CLOSE_S_MAX):
                    await self.flush()
        except TimeoutError:
            raise DisconnectedError(
                f"{self} has acknowledgements that are not on disk after {CLIENT_CLOSE_S_MAX:.0f} s",
                hint="their events may come again",
            ) from None
        finally:
            await self.stop()

    # --- events ---------------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Received:
        return (await self.next_batch(1))[0]

    async def next_batch(self, count_max: int | None = None, *, wait_s: float | None = None) -> list[Received]:
        """The events that are there, at least one, at most `count_max`.

        After `wait_s` without a first one it is empty; None: it waits for as long as it takes. HeadgateError when the
        server refuses, or is away for too long.
        """
        await self.start()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while not self._buffer:
                    self._check()
                    self._arrived.clear()
                    await self._arrived.wait()
        count = len(self._buffer) if count_max is None else min(count_max, len(self._buffer))
        batch = [self._buffer.popleft() for _ in range(count)]
        for received in batch:
            _add(self._held, received.ack_id)
        if self._missing_credits():
            self._wake.set()
        return batch

    # --- acknowledgements -----------------------------------------------------------------------------

    def ack(self, *received: Received) -> asyncio.Future[list[str]]:
        """These events are done.

        The result is there when that is on disk; the caller may ignore it. It has the ids for which it came too late:
        there was a seek, or the event went elsewhere because the subscription's `ackTimeout` was over.
        """
        return self._settle_later([one.ack_id for one in received], None)

    def ack_up_to(self, received: Received) -> asyncio.Future[list[str]]:
        """This event is done, and so is every other that this consumer was handed before it; see `ack`."""
        ids = []
        for id_ in self._held:
            ids.append(id_)
            if id_ == received.ack_id:
                return self._settle_later(ids, None)
        return self._settle_later([received.ack_id], None)

    def nack(self, *received: Received, delay_s: float = 0.0) -> asyncio.Future[list[str]]:
        """These events are to be handed out again, to whom they may come, not before `delay_s`; see `ack`."""
        return self._settle_later([one.ack_id for one in received], delay_s)

    async def flush(self) -> None:
        """Returns when every acknowledgement is on disk; HeadgateError when the consumer has ended."""
        await asyncio.gather(*(ack.done for ack in self._pending()))

    def _pending(self) -> list[_Ack]:
        """Every acknowledgement that is not on disk, the oldest first."""
        return [*(ack for group in self._unsettled.values() for ack in group), *self._unsent]

    def _settle_later(self, ids: list[str], delay_s: float | None) -> asyncio.Future[list[str]]:
        self._check()
        ack = _Ack(ids, delay_s, asyncio.get_running_loop().create_future())
        ack.done.add_done_callback(lambda done: done.cancelled() or done.exception())  # the caller may ignore it
        for id_ in ids:
            self._held.pop(id_, None)
            if delay_s is None:
                _add(self._acked, id_)
            else:
                self._known.discard(id_)
        if ids:
            self._unsent.append(ack)
            self._wake.set()
        else:
            ack.done.set_result([])
        return ack.done

    def _ended(self, error: HeadgateError) -> None:
        for ack in self._pending():
            if not ack.done.done():
                ack.done.set_exception(error)
        self._arrived.set()

    # --- the stream -----------------------------------------------------------------------------------

    async def _talk(self, retry: Retry) -> None:
        stream: _Subscribe = self._connection.stream("Subscriptions/Subscribe", pb.SubscribeResponse)
        try:
            opening = pb.SubscribeRequest.Open(subscription=self.subscription, consumer=self.name)
            await stream.write(pb.SubscribeRequest(open=opening))
            first = await stream.must_read()
            self._opened()
            if not self._unsent:  # else it works when the server has settled some of that
                retry.opened()
            self._take(first)
            self._begun.set()
            await both(self._write(stream), self._read(stream, retry))
        finally:
            stream.cancel()

    def _opened(self) -> None:
        self._unsent = deque(self._pending())
        self._unsettled.clear()
        self._stale.clear()
        self._number = 0
        self._credits = 0
        self._known = {*self._held, *(received.ack_id for received in self._buffer)}

    def _missing_credits(self) -> int:
        """Events that the server may send from now on; 0 while they are too few for a message."""
        missing = self._window - len(self._buffer) - self._credits
        return missing if missing * 2 >= self._window else 0

    def _request(self) -> pb.SubscribeRequest | None:
        request = pb.SubscribeRequest(credits=self._missing_credits())
        self._credits += request.credits
        group: list[_Ack] = []
        while self._unsent and len(request.ack) < CLIENT_ACKS_MAX:
            ack = self._unsent[0]
            if ack.delay_s is not None:
                if request.HasField("nack") and request.nack.delay_s != ack.delay_s:
                    break
                request.nack.delay_s = ack.delay_s
                request.nack.ids.extend(ack.ids)
            else:
                request.ack.extend(ack.ids)
            group.append(self._unsent.popleft())
        if group:
            self._number += 1
            request.number = self._number
            self._unsettled[self._number] = group
        return request if group or request.credits else None

    async def _read(self, stream: _Subscribe, retry: Retry) -> None:
        while True:
            response = await stream.must_read()
            if response.settled:
                retry.worked()
            self._take(response)

    def _take(self, response: pb.SubscribeResponse) -> None:
        if response.epoch != self.epoch:
            # There was a seek: everything before it is void.
            self.epoch = response.epoch
            self._buffer.clear()
            self._held.clear()
            self._acked.clear()
            self._known.clear()
        self.is_active = response.active
        self._stale.update(response.stale)
        while self._unsettled and next(iter(self._unsettled)) <= response.settled:
            for ack in self._unsettled.popitem(last=False)[1]:
                self._settled(ack)
        if not self._unsettled:
            self._stale.clear()
        self._credits -= len(response.events)
        again: list[str] = []
        events = from_messages(received.event for received in response.events)
        for event, found in zip(events, response.events, strict=True):
            id_ = found.ack_id
            if id_ in self._acked:
                again.append(id_)
            elif id_ in self._known:
                self._known.discard(id_)
            else:
                self._buffer.append(Received(event, id_, found.deliveries, found.partition, found.offset))
        if again:
            self._settle_later(again, None)
        if response.events:
            self._arrived.set()
            if self._missing_credits():
                self._wake.set()

    def _settled(self, ack: _Ack) -> None:
        stale = [id_ for id_ in ack.ids if id_ in self._stale]
        if ack.delay_s is None:
            for id_ in ack.ids:
                if id_ not in self._stale:
                    self._acked.pop(id_, None)
        if not ack.done.done():
            ack.done.set_result(stale)
