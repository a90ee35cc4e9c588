"""The gRPC service of consumers: one stream each, credits and acknowledgements in, events out.

The stream is the consumer: while it lasts it keeps its lease, and when it ends, however it ends, what it has not
acknowledged is due at once. A second stream of the same consumer replaces the first.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import uuid
from collections.abc import Iterator

import msgspec

from headgate.auth.context import current_user
from headgate.filter.compile.compiler import compile_filter
from headgate.filter.compile.request import condition, filter_and_filters, text_of_message, texts_of
from headgate.rpc.service import SUBSCRIPTIONS, Credits, RpcCall, Service, attended
from headgate.storage.threads import cancel_all
from headgate.subscriptions.api import check_consumer, check_delay
from headgate.subscriptions.messages import (
    AckResult,
    ConsumerReplacedError,
    LeasedEvent,
    PullResult,
    SeekGoal,
    SubscriptionNotFoundError,
)
from headgate.subscriptions.service import Subscriptions
from headgate_api import limits
from headgate_api.rpc import headgate_pb2 as pb
from headgate_api.rpc.errors import ProtocolError
from headgate_api.rpc.events import to_message

SubscribeCall = RpcCall[pb.SubscribeRequest, pb.SubscribeResponse]


class SubscriptionsRpc:
    """The consuming end of every subscription."""

    def __init__(self, subscriptions: Subscriptions) -> None:
        self._subscriptions = subscriptions
        self._streams: dict[tuple[str, str], _ConsumerStream] = {}

    def service(self) -> Service:
        return Service(
            SUBSCRIPTIONS,
            {
                "Subscribe": (pb.SubscribeRequest, self.subscribe),
                "Seek": (pb.SeekRequest, self.seek),
                "Stats": (pb.StatsRequest, self.stats),
                "Analyze": (pb.AnalyzeRequest, self.analyze),
            },
        )

    async def subscribe(self, call: SubscribeCall) -> None:
        first = await call.read_first()
        if not first.HasField("open"):
            raise ProtocolError("the first message has no open")
        name, consumer = first.open.subscription, first.open.consumer or f"stream-{uuid.uuid4().hex}"
        check_consumer(consumer)
        key = name, consumer
        while (old := self._streams.get(key)) is not None:
            old.replaced.set()
            await old.ended.wait()
        subscriptions = self._subscriptions
        stream = self._streams[key] = _ConsumerStream(subscriptions, name, consumer, call)
        try:
            with subscriptions.consuming(name, consumer, current_user.get().name):
                await stream.begin()
                await attended(
                    stream.settle(), stream.receive(first), stream.hand_out(), stream.keep(), stream.until_replaced()
                )
        finally:
            if stream.admitted:
                with contextlib.suppress(SubscriptionNotFoundError):  # it may have been deleted
                    subscriptions.leave(name, consumer)
            del self._streams[key]
            stream.ended.set()

    async def seek(self, call: RpcCall[pb.SeekRequest, pb.SeekResponse]) -> None:
        """Moves a subscription; sends the progress of the search."""
        request = await call.read_first()
        first, last = await asyncio.to_thread(_conditions, request)
        goal = SeekGoal(request.to or "earliest", first, last, request.after)
        response = pb.SeekResponse()

        def on_progress(scanned: int, total: int) -> None:
            response.events_scanned, response.events_total = scanned, total

        seeking = asyncio.create_task(self._subscriptions.seek(request.subscription, goal, on_progress))
        try:
            while not (await asyncio.wait([seeking], timeout=limits.SEEK_PROGRESS_S))[0]:
                await call.write(response)
            done = seeking.result()
        finally:
            await cancel_all([seeking])
        response.done, response.epoch, response.position = True, done.epoch, done.position
        await call.write(response)

    async def stats(self, call: RpcCall[pb.StatsRequest, pb.StatsResponse]) -> None:
        request = await call.read_first()
        stats = await self._subscriptions.stats(request.subscription)
        # What is None is left unset, and read as empty.
        await call.write(pb.StatsResponse(**msgspec.structs.asdict(stats)))

    async def analyze(self, call: RpcCall[pb.AnalyzeRequest, pb.AnalyzeResponse]) -> None:
        request = await call.read_first()
        cel = await asyncio.to_thread(_cel, request.filter)
        analysis = await self._subscriptions.analyze(request.subscription, cel)
        await call.write(pb.AnalyzeResponse(**dataclasses.asdict(analysis)))


class _ConsumerStream:
    """One consumer's stream; `admitted`: it may have something to give back."""

    def __init__(self, subscriptions: Subscriptions, name: str, consumer: str, call: SubscribeCall) -> None:
        self.admitted = False
        self.replaced = asyncio.Event()
        self.ended = asyncio.Event()
        self._subscriptions = subscriptions
        self._name = name
        self._consumer = consumer
        self._call = call
        self._credits = Credits()
        self._last = PullResult([], 0)
        self._acking: asyncio.Queue[tuple[int, asyncio.Task[AckResult]] | None] = asyncio.Queue(limits.ACKS_MAX)

    async def begin(self) -> None:
        """Sends whether it is this consumer's turn."""
        self._last = await self._subscriptions.pull(self._name, self._consumer, count_max=0)
        self.admitted = True
        await self._call.write(self._response())

    async def receive(self, first: pb.SubscribeRequest) -> None:
        request: pb.SubscribeRequest | None = first
        while request is not None:
            if request.HasField("open") and request is not first:
                raise ProtocolError("only the first message has an open")
            self._credits.add(request.credits)
            if request.ack or request.ack_up_to or request.HasField("nack"):
                if max(len(request.ack), len(request.nack.ids)) > limits.SUBSCRIPTION_UNACKED_MAX:
                    raise ProtocolError(f"over {limits.SUBSCRIPTION_UNACKED_MAX} ids in one request")
                check_delay(request.nack.delay_s)
                acking = asyncio.create_task(self._ack(request))
                acking.add_done_callback(lambda task: task.cancelled() or task.exception())
                await self._acking.put((request.number, acking))
            request = await self._call.read()
        await self._acking.put(None)  # the client has sent its last message: what is under way is settled, then it ends

    async def _ack(self, request: pb.SubscribeRequest) -> AckResult:
        results: list[AckResult] = []
        if request.ack:
            results.append(await self._subscriptions.ack(self._name, self._consumer, ids=tuple(request.ack)))
        if request.ack_up_to:
            results.append(await self._subscriptions.ack(self._name, self._consumer, up_to=request.ack_up_to))
        count = sum(result.acknowledged for result in results)
        if request.nack.ids:
            results.append(await self._subscriptions.nack(self._name, tuple(request.nack.ids), request.nack.delay_s))
        return AckResult(count, tuple(id_ for result in results for id_ in result.stale))

    async def settle(self) -> None:
        """Sends which acknowledgements are on disk, in their order; returns behind the last one."""
        while (item := await self._acking.get()) is not None:
            number, acking = item
            await asyncio.wait([acking])  # what was acknowledged is, also when the stream ends meanwhile
            result = acking.result()
            response = self._response()
            response.acknowledged = result.acknowledged
            response.stale.extend(result.stale)
            response.settled = number
            await self._call.write(response)

    async def hand_out(self) -> None:
        """Sends events for as long as there are credits; also every change of the epoch and of whose turn it is."""
        while True:
            room = min(await self._credits.left(limits.PULL_POLL_S), limits.PULL_EVENTS_MAX)
            wait_s = limits.PULL_POLL_S if room else 0.0
            pulled = await self._subscriptions.pull(self._name, self._consumer, count_max=room, wait_s=wait_s)
            self._credits.take(len(pulled.events))
            changed = (pulled.epoch, pulled.active) != (self._last.epoch, self._last.active)
            self._last = pulled
            if pulled.events or changed:
                for response in self._responses(pulled.events):
                    await self._call.write(response)

    async def keep(self) -> None:
        """Keeps its lease while a client is slow to read what it was sent."""
        while True:
            await asyncio.sleep(self._subscriptions.keep(self._name, self._consumer))

    async def until_replaced(self) -> None:
        """Ends the stream when its consumer has opened another one."""
        await self.replaced.wait()
        raise ConsumerReplacedError(
            f"the consumer {self._consumer!r} has connected again", hint="give each consumer a name of its own"
        )

    def _response(self) -> pb.SubscribeResponse:
        return pb.SubscribeResponse(epoch=self._last.epoch, active=self._last.active)

    def _responses(self, events: list[LeasedEvent]) -> Iterator[pb.SubscribeResponse]:
        response, size_bytes = self._response(), 0
        for leased in events:
            if size_bytes >= limits.RPC_RESPONSE_BYTES:
                yield response
                response, size_bytes = self._response(), 0
            message = to_message(leased.event.event)
            size_bytes += message.ByteSize()
            response.events.add(
                ack_id=leased.id,
                event=message,
                deliveries=leased.deliveries,
                partition=leased.partition,
                offset=leased.offset,
            )
        yield response


def _cel(filter_: pb.Filter) -> str:
    return compile_filter(*filter_and_filters(*texts_of(filter_))).cel


def _conditions(request: pb.SeekRequest) -> tuple[str, str]:
    """The canonical CEL of `first` and of `last`; empty for none."""
    match request.WhichOneof("at"):
        case "first_expression":
            return condition(text_of_message(request.first_expression), "first"), ""
        case "last_expression":
            return "", condition(text_of_message(request.last_expression), "last")
        case _:
            return condition(request.first, "first"), condition(request.last, "last")
