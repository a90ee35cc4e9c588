"""A server that breaks connections, repeats itself and stays silent as a test wants it; it keeps what was promised.

The real server is the peer of every other test; this one exists because that one cannot be made to fail at each point.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc
from grpc import aio

from headgate_api.rpc import headgate_pb2 as pb
from headgate_api.rpc.cloudevents_pb2 import CloudEvent
from headgate_client.aio import AsyncClient

Point = Callable[[str], bool]
"""Whether the connection breaks at a point of the exchange, named after what has just happened."""


class BrokenError(Exception):
    """The connection breaks here."""


def never(_: str) -> bool:
    return False


class BreakAt:
    """Breaks at the nth point, and at every nth one again."""

    def __init__(self, every: int, times: int = 1_000) -> None:
        self.every = every
        self.times = times
        self.points = 0
        self.broken: list[str] = []

    def __call__(self, point: str) -> bool:
        self.points += 1
        if self.points % self.every == 0 and len(self.broken) < self.times:
            self.broken.append(point)
            return True
        return False


@dataclass
class Fake:
    """What the server knows, and how it fails.

    Attributes:
        log: Events as stored: (sequence, id).
        wanted: Ids of the subscription's events, in order; the position of each is its ack id.
        breaks: Where connections break.
        refuse: The problem that a request of these sequences is answered with; None to store it.
        repeat: How often each acknowledgement is said.
        window: How many requests are stored before any is acknowledged.
    """

    log: list[tuple[int, str]] = field(default_factory=list)
    filter_values: list[str] = field(default_factory=list)
    wanted: list[str] = field(default_factory=list)
    breaks: Point = never
    refuse: Callable[[pb.PublishRequest], pb.Problem | None] = lambda _: None
    repeat: int = 1
    status: tuple[grpc.StatusCode, str, tuple[tuple[str, str], ...]] | None = None
    answers: asyncio.Event | None = None
    newest: dict[str, int] = field(default_factory=dict)
    requests: list[tuple[int, int]] = field(default_factory=list)
    credits: list[int] = field(default_factory=list)
    starts: list[tuple[str, str]] = field(default_factory=list)
    acked: list[str] = field(default_factory=list)
    nacked: list[tuple[str, float]] = field(default_factory=list)
    handed: list[str] = field(default_factory=list)
    epoch: int = 1
    streams: int = 0
    taken_over: int = 0

    def point(self, name: str) -> None:
        if self.breaks(name):
            raise BrokenError(name)

    async def first(self, context, type_):
        """A call's first message, which is answered with `status` where there is one.

        It is read before: gRPC gives a client whose message is still under way an error of its own (STATUS_LOST).
        """
        self.streams += 1
        message = type_.FromString(await context.read())
        if self.status is not None:
            code, details, metadata = self.status
            await context.abort(code, details, metadata)
        return message

    # --- publish --------------------------------------------------------------------------------------

    async def publish(self, context) -> None:
        opening = (await self.first(context, pb.PublishRequest)).open
        self.point("open")
        number = self.newest.get(opening.producer, -1) + 1 + self.taken_over if opening.producer else 0
        await send(context, pb.PublishResponse(opened=pb.PublishResponse.Opened(next_sequence=number)))
        self.point("opened")
        while isinstance(data := await context.read(), bytes):
            request = pb.PublishRequest.FromString(data)
            first, last = request.sequence, request.sequence + len(request.events) - 1
            self.requests.append((first, last))
            self.point("received")
            if self.answers is not None:
                await self.answers.wait()
            problem = self.refuse(request)
            if problem is not None:
                refused = pb.PublishResponse.Refused(first=first, last=last, problem=problem)
                await send(context, pb.PublishResponse(refused=refused))
                continue
            duplicates = self.store(opening.producer, request)
            self.point("stored")
            done = pb.PublishResponse.Acknowledged(first=first, last=last, duplicates=duplicates)
            for _ in range(self.repeat):
                await send(context, pb.PublishResponse(acknowledged=done))
            self.point("acknowledged")

    def store(self, producer: str, request: pb.PublishRequest) -> int:
        duplicates = 0
        for sequence, event in enumerate(request.events, request.sequence):
            if producer and sequence <= self.newest.get(producer, -1):
                duplicates += 1
                continue
            self.newest[producer] = sequence
            self.log.append((sequence, event.id))
        self.filter_values += request.filter_values
        return duplicates

    # --- read -----------------------------------------------------------------------------------------

    async def read(self, context) -> None:
        """The log of one partition; two events a response, as far as credits go."""
        request = await self.first(context, pb.ReadRequest)
        opening = request.open
        start = getattr(opening, "from")
        self.starts.append((start, opening.first))
        self.credits.append(request.credits)
        at = {"": 0, "earliest": 0, "next": len(self.log)}.get(start)
        at = int(start.removeprefix("0:")) if at is None else at
        if opening.first:
            at = next(n for n in range(at, len(self.log)) if self.log[n][1] == opening.first)
        credit = Credit(context, pb.ReadRequest, request.credits, self.credits)
        self.point("open")
        await self.progress(context, at)
        self.point("begun")
        try:
            while at < len(self.log) or opening.follow:
                await credit.some()
                group = self.log[at : at + min(2, credit.left)]
                if not group:
                    await asyncio.sleep(0.01)
                    continue
                credit.left -= len(group)
                response = pb.ReadResponse(progress=pb.Progress(position=f"0:{at + len(group)}"))
                for offset, (_, id_) in enumerate(group, at):
                    read = response.events.add(partition=0, offset=offset)
                    read.event.MergeFrom(cloudevent(id_))
                self.point("to send")
                at += len(group)
                await send(context, response)
                self.point("sent")
        finally:
            credit.stop()

    async def progress(self, context, at: int) -> None:
        await send(context, pb.ReadResponse(progress=pb.Progress(position=f"0:{at}", at_end=at == len(self.log))))

    # --- subscribe ------------------------------------------------------------------------------------

    async def subscribe(self, context) -> None:
        """Hands out what is not acknowledged, in order, again to whoever comes next."""
        request = await self.first(context, pb.SubscribeRequest)
        assert request.open.consumer
        self.point("open")
        await send(context, pb.SubscribeResponse(epoch=self.epoch, active=True))
        self.point("begun")
        epoch, handed = self.epoch, set[str]()
        credit = Credit(context, pb.SubscribeRequest, request.credits, self.credits, self.told)
        try:
            while True:
                await credit.some()
                if epoch != self.epoch:  # by what this stream was told: a seek may come while a response goes out
                    epoch = self.epoch
                    handed.clear()
                    await credit.send(pb.SubscribeResponse(epoch=epoch, active=True))
                todo = [id_ for id_ in self.wanted if id_ not in self.acked and id_ not in handed]
                group = todo[: min(3, credit.left)]
                if not group:
                    await asyncio.sleep(0.01)
                    continue
                self.point("credits")
                credit.left -= len(group)
                handed.update(group)
                self.handed += group
                response = pb.SubscribeResponse(epoch=self.epoch, active=True)
                for id_ in group:
                    received = response.events.add(ack_id=f"{self.epoch}:{id_}", deliveries=1)
                    received.event.MergeFrom(cloudevent(id_))
                await credit.send(response)
                self.point("handed")
        finally:
            credit.stop()

    async def told(self, credit: Credit, request: pb.SubscribeRequest) -> None:
        stale = []
        self.point("ack received")
        for ack_id in request.ack:
            epoch, id_ = ack_id.split(":")
            if int(epoch) != self.epoch or id_ in self.acked:
                stale.append(ack_id)
            else:
                self.acked.append(id_)
        self.nacked += [(id_, request.nack.delay_s) for id_ in request.nack.ids]
        self.point("ack stored")
        if request.number:
            for _ in range(self.repeat):
                await credit.send(
                    pb.SubscribeResponse(epoch=self.epoch, active=True, settled=request.number, stale=stale)
                )
        self.point("settled")


class Credit:
    """Reads the rest of a client's messages, and what they allow to be sent."""

    def __init__(self, context, type_, credits: int, seen: list[int], told=None) -> None:
        self.left = credits
        self.failed: BaseException | None = None
        self._context = context
        self._writing = asyncio.Lock()
        self._came = asyncio.Event()
        self._task = asyncio.create_task(self._read(context, type_, seen, told))

    async def _read(self, context, type_, seen, told) -> None:
        try:
            while isinstance(data := await context.read(), bytes):
                request = type_.FromString(data)
                if request.credits:
                    seen.append(request.credits)
                self.left += request.credits
                self._came.set()
                if told is not None:
                    await told(self, request)
        except BrokenError as error:
            self.failed = error
        self.failed = self.failed or BrokenError("the client has ended")
        self._came.set()

    async def some(self) -> None:
        while True:
            if self.failed is not None:
                raise self.failed
            if self.left > 0:
                return
            self._came.clear()
            await self._came.wait()

    async def send(self, message) -> None:
        async with self._writing:
            await send(self._context, message)

    def stop(self) -> None:
        self._task.cancel()


def cloudevent(id_: str) -> CloudEvent:
    return CloudEvent(id=id_, source="/fake", spec_version="1.0", type="t")


async def send(context, message) -> None:
    await context.write(message.SerializeToString())


class _Handlers(grpc.GenericRpcHandler):
    def __init__(self, fake: Fake) -> None:
        self._methods = {
            "/headgate.v1.Publisher/Publish": fake.publish,
            "/headgate.v1.Reader/Read": fake.read,
            "/headgate.v1.Subscriptions/Subscribe": fake.subscribe,
        }

    def service(self, details):
        method = self._methods.get(details.method)
        if method is None:
            return None

        async def answer(_, context) -> None:
            try:
                await method(context)
            except BrokenError as error:
                await context.abort(grpc.StatusCode.UNAVAILABLE, f"broken at {error}")

        return grpc.stream_stream_rpc_method_handler(answer)


@asynccontextmanager
async def serving(fake: Fake, calls_max: int | None = None) -> AsyncIterator[str]:
    """Its address."""
    server = aio.server(handlers=[_Handlers(fake)], maximum_concurrent_rpcs=calls_max)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


@asynccontextmanager
async def connected(fake: Fake) -> AsyncIterator[AsyncClient]:
    """A client of it."""
    async with serving(fake) as target, AsyncClient(target) as client:
        yield client
