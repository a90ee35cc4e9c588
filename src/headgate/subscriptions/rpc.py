"""How are subscriptions consumed over gRPC? A stream a consumer: credits and acknowledgements in, events out.

The stream is the consumer: while it lasts it keeps its turn, and when it ends, however it ends, what it has not
acknowledged is free at once. A second stream of the same consumer takes the place of the first.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec

from headgate import limits
from headgate.errors import ConflictError
from headgate.filter.compile.compiler import compile_filter
from headgate.filter.compile.request import condition, filter_and_filters, text_of_message, texts_of
from headgate.log import positions
from headgate.rpc import headgate_pb2 as pb
from headgate.rpc.credits import Credits
from headgate.rpc.errors import ProtocolError
from headgate.rpc.events import to_message
from headgate.rpc.service import SUBSCRIPTIONS, Call, Service, attended
from headgate.subscriptions.api import StatsAnswer, check_consumer, check_delay
from headgate.subscriptions.cursor import Acked
from headgate.subscriptions.messages import Handed, Place, Pulled, SubscriptionNotFoundError
from headgate.subscriptions.service import Subscriptions

SubscribeCall = Call[pb.SubscribeRequest, pb.SubscribeResponse]


class ConsumerReplacedError(ConflictError):
    """The consumer has connected again."""

    code = "consumer-replaced"


class PullRpc:
    """The consuming end of every subscription.

    Args:
        subscriptions: Gives them; raises UnavailableError until they are there.
    """

    def __init__(self, subscriptions: Callable[[], Subscriptions]) -> None:
        self._subscriptions = subscriptions
        self._consumers: dict[tuple[str, str], _Consumer] = {}

    def service(self) -> Service:
        """For a gRPC server."""
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
        """Answers a consumer's stream."""
        first = await call.read_first()
        if not first.HasField("open"):
            raise ProtocolError("the first message has no open")
        name, consumer = first.open.subscription, first.open.consumer or f"stream-{uuid.uuid4().hex}"
        check_consumer(consumer)
        key = name, consumer
        while (old := self._consumers.get(key)) is not None:
            old.replaced.set()
            await old.gone.wait()
        all_ = self._subscriptions()
        mine = self._consumers[key] = _Consumer(all_, name, consumer, call)
        try:
            await mine.begin()
            await attended(mine.settle(), mine.receive(first), mine.hand(), mine.keep(), mine.until_replaced())
        finally:
            if mine.admitted:
                with contextlib.suppress(SubscriptionNotFoundError):  # it may have been deleted
                    all_.leave(name, consumer)
            del self._consumers[key]
            mine.gone.set()

    async def seek(self, call: Call[pb.SeekRequest, pb.SeekResponse]) -> None:
        """Moves a subscription; tells how far the search is."""
        asked = await call.read_first()
        first, last = await asyncio.to_thread(_conditions, asked)
        place = Place(asked.to or "earliest", first, last, asked.after)
        told = pb.SeekResponse()

        def tell(scanned: int, total: int) -> None:
            told.events_scanned, told.events_total = scanned, total

        seeking = asyncio.create_task(self._subscriptions().seek(asked.subscription, place, tell))
        try:
            while not (await asyncio.wait([seeking], timeout=limits.SEEK_PROGRESS_S))[0]:
                await call.write(told)
            sought = seeking.result()
        finally:
            seeking.cancel()
            await asyncio.gather(seeking, return_exceptions=True)
        told.done, told.epoch, told.position = True, sought.epoch, positions.write(sought.floor) or place.to
        await call.write(told)

    async def stats(self, call: Call[pb.StatsRequest, pb.StatsResponse]) -> None:
        """Where a subscription stands."""
        asked = await call.read_first()
        answer = StatsAnswer.of(await self._subscriptions().stats(asked.subscription))
        # What is None is left unset, and read as empty.
        await call.write(pb.StatsResponse(**msgspec.structs.asdict(answer)))

    async def analyze(self, call: Call[pb.AnalyzeRequest, pb.AnalyzeResponse]) -> None:
        """How many events of the backlog a filter would accept."""
        asked = await call.read_first()
        found = await self._subscriptions().analyze(asked.subscription, await asyncio.to_thread(_cel, asked.filter))
        await call.write(pb.AnalyzeResponse(**{name: getattr(found, name) for name in found.__slots__}))


@dataclass(eq=False)
class _Consumer:
    """One stream.

    Attributes:
        admitted: Whether it may have anything to give back.
        replaced: Is set when another stream takes its place.
        gone: Is set when it has ended.
    """

    all: Subscriptions
    name: str
    consumer: str
    call: SubscribeCall
    admitted: bool = False
    replaced: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._credits = Credits()
        self._told = Pulled([], 0)
        self._acking: asyncio.Queue[tuple[int, asyncio.Task[Acked]] | None] = asyncio.Queue(limits.ACKS_MAX)

    async def begin(self) -> None:
        """Says that it is known and whether it is its turn."""
        self._told = await self.all.pull(self.name, self.consumer, count_max=0)
        self.admitted = True
        await self.call.write(self._response())

    async def receive(self, first: pb.SubscribeRequest) -> None:
        """Takes what the client says."""
        request: pb.SubscribeRequest | None = first
        while request is not None:
            if request.HasField("open") and request is not first:
                raise ProtocolError("only the first message has an open")
            self._credits.add(request.credits)
            if request.ack or request.ack_up_to or request.HasField("nack"):
                if max(len(request.ack), len(request.nack.ids)) > limits.SUBSCRIPTION_UNACKED_MAX:
                    raise ProtocolError(f"over {limits.SUBSCRIPTION_UNACKED_MAX} ids in one request")
                check_delay(request.nack.delay_s)
                dealing = asyncio.create_task(self._deal(request))
                dealing.add_done_callback(lambda task: task.cancelled() or task.exception())
                await self._acking.put((request.number, dealing))
            request = await self.call.read()
        await self._acking.put(None)  # the client has said its last word: what is under way is settled, then it is over

    async def _deal(self, request: pb.SubscribeRequest) -> Acked:
        done: list[Acked] = []
        if request.ack:
            done.append(await self.all.ack(self.name, self.consumer, ids=tuple(request.ack)))
        if request.ack_up_to:
            done.append(await self.all.ack(self.name, self.consumer, up_to=request.ack_up_to))
        count = sum(one.acknowledged for one in done)
        if request.nack.ids:
            done.append(await self.all.nack(self.name, tuple(request.nack.ids), request.nack.delay_s))
            await self.all.flush()
        return Acked(count, tuple(id_ for one in done for id_ in one.stale))

    async def settle(self) -> None:
        """Says which acknowledgements are on disk, in their order; returns behind the last one."""
        while (item := await self._acking.get()) is not None:
            number, dealing = item
            await asyncio.wait([dealing])  # what was acknowledged is, also when the stream ends meanwhile
            done = dealing.result()
            response = self._response()
            response.acknowledged = done.acknowledged
            response.stale.extend(done.stale)
            response.settled = number
            await self.call.write(response)

    async def hand(self) -> None:
        """Hands out events for as long as there are credits; says when somebody has sought, or whose turn it is."""
        while True:
            room = min(await self._credits.left(limits.PULL_POLL_S), limits.PULL_EVENTS_MAX)
            wait_s = limits.PULL_POLL_S if room else 0.0
            pulled = await self.all.pull(self.name, self.consumer, count_max=room, wait_s=wait_s)
            self._credits.take(len(pulled.events))
            changed = (pulled.epoch, pulled.active) != (self._told.epoch, self._told.active)
            self._told = pulled
            if pulled.events or changed:
                for response in self._responses(pulled.events):
                    await self.call.write(response)

    async def keep(self) -> None:
        """Keeps its turn while a client reads slowly what it was handed."""
        while True:
            await asyncio.sleep(self.all.keep(self.name, self.consumer))

    async def until_replaced(self) -> None:
        """Ends the stream when its consumer has opened another one."""
        await self.replaced.wait()
        raise ConsumerReplacedError(
            f"the consumer {self.consumer!r} has connected again", hint="give each consumer a name of its own"
        )

    def _response(self) -> pb.SubscribeResponse:
        return pb.SubscribeResponse(epoch=self._told.epoch, active=self._told.active)

    def _responses(self, events: list[Handed]) -> Iterator[pb.SubscribeResponse]:
        response, size_bytes = self._response(), 0
        for handed in events:
            if size_bytes >= limits.RPC_RESPONSE_BYTES:
                yield response
                response, size_bytes = self._response(), 0
            message = to_message(handed.event.event)
            size_bytes += message.ByteSize()
            response.events.add(
                ack_id=handed.id,
                event=message,
                deliveries=handed.deliveries,
                partition=handed.partition,
                offset=handed.offset,
            )
        yield response


def _cel(asked: pb.Filter) -> str:
    """The filter of a question.

    Raises:
        InvalidInputError: It says one filter in several ways.
        FilterError: It is refused.
    """
    return compile_filter(*filter_and_filters(*texts_of(asked))).cel


def _conditions(asked: pb.SeekRequest) -> tuple[str, str]:
    """The canonical CEL of `first` and of `last`; empty for none.

    Raises:
        FilterError: One of them is refused.
    """
    match asked.WhichOneof("at"):
        case "first_expression":
            return condition(text_of_message(asked.first_expression), "first"), ""
        case "last_expression":
            return "", condition(text_of_message(asked.last_expression), "last")
        case _:
            return condition(asked.first, "first"), condition(asked.last, "last")
