"""Publishing over gRPC: one stream per producer, many requests under way, each answered after its fsync.

A request that cannot be stored is refused, and the stream goes on. Of a producer with a name, what comes behind a
request that may be stored later is refused as well: nothing of it may be stored before that. The producer opens the
next stream and sends again what was not acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from headgate.auth.context import current_user
from headgate.auth.event_policies import EventForbiddenError
from headgate.auth.user import User
from headgate.filter.skipping.prune import EXTENSION
from headgate.ingress.errors import BrokerReplacedError
from headgate.ingress.intake import Intake, count_refusal
from headgate.ingress.producers import ProducerStreams, Producing
from headgate.ingress.publish_quota import PublishQuotaError, delay_refusal
from headgate.objects.kinds.specs import ServedBroker
from headgate.rpc.service import NO_MESSAGE, PUBLISHER, RpcCall, Service, attended
from headgate.rpc.wire import Publishing, parsed, publishing
from headgate.shares import FairPlaces
from headgate_api import limits
from headgate_api.errors import EventError, EventTooLargeError, HeadgateError, InvalidInputError, TooLargeError
from headgate_api.event.model import Event
from headgate_api.event.names import full_name, namespace_of, path_of
from headgate_api.rpc.cloudevents_pb2 import CloudEvent
from headgate_api.rpc.errors import ProtocolError, problem
from headgate_api.rpc.events import from_messages
from headgate_api.rpc.headgate_pb2 import PublishRequest, PublishResponse

_NUMBER_MAX: Final = (1 << 64) - 2
"""The next one, `next_sequence`, is still a uint64."""

PublishCall = RpcCall[PublishRequest, PublishResponse]


@dataclass(frozen=True)
class _Pending:
    """A request under way, by its first and last number."""

    first: int
    last: int
    stored: asyncio.Task[int]


class PublishRpc:
    """The publishing end of every broker."""

    def __init__(self, intake: Intake, producers: ProducerStreams) -> None:
        self._intake = intake
        self._producers = producers
        self._places = FairPlaces("publish-streams", "PUBLISH_STREAMS_MAX", limits.PUBLISH_STREAMS_MAX)

    def service(self) -> Service:
        return Service(PUBLISHER, {"Publish": (PublishRequest, self.publish)})

    async def publish(self, call: PublishCall) -> None:
        user = current_user.get()
        with self._places.held("", user.name):  # what it is for stands in the first message
            first = await call.read_bytes()
            if first is None:
                raise ProtocolError(NO_MESSAGE)
            opened = publishing(first).head.open
            broker = self._intake.broker(full_name(opened.broker))
        producing: Producing | None = None
        with self._places.held(namespace_of(broker.identity), user.name):
            try:
                if opened.producer:
                    producing = await self._producers.open(broker.identity, opened.producer, user.name)
                number = 0 if producing is None else producing.next_number
                await call.write(PublishResponse(opened=PublishResponse.Opened(next_sequence=number)))
                stream = _Stream(self._intake, broker, producing, call, user)
                await attended(stream.acknowledge(), stream.receive(first), stream.until_replaced())
            finally:
                if producing is not None:
                    producing.owner.close(producing)


class _Stream:
    def __init__(
        self, intake: Intake, broker: ServedBroker, producing: Producing | None, call: PublishCall, sender: User
    ) -> None:
        self._intake = intake
        self._sender = sender
        self._turn = asyncio.Lock()
        """Whose request is looked at: it keeps their order, as it is given in the order in which it is asked for."""
        self._broker = broker
        self._producing = producing
        self._call = call
        self._pending: asyncio.Queue[_Pending | None] = asyncio.Queue(limits.PUBLISH_REQUESTS_MAX)
        self._next = 0

    async def receive(self, first: bytes) -> None:
        """Takes the client's requests, as many at a time as may be under way."""
        message: bytes | None = first
        while message is not None:
            request, size_bytes = publishing(message), len(message)
            if request.head.HasField("open") and message is not first:
                raise ProtocolError("only the first message has an open")
            if request.events:
                await self._pending.put(self._begin(request, size_bytes))
            message = await self._call.read_bytes()
        await self._pending.put(None)

    def _begin(self, request: Publishing, size_bytes: int) -> _Pending:
        number = request.head.sequence
        last = number + len(request.events) - 1
        if last > _NUMBER_MAX:
            raise ProtocolError(f"the last event's sequence is {last}; the largest one is {_NUMBER_MAX}")
        if number < self._next:
            raise ProtocolError(f"sequence is {number}; the next one is {self._next} or above")
        self._next = last + 1
        # Tasks begin in the order in which they are made, and enqueue their events before they wait.
        stored = asyncio.create_task(self._store(request, size_bytes))
        stored.add_done_callback(lambda task: task.cancelled() or task.exception())  # also when no task awaits it
        return _Pending(number, last, stored)

    async def _store(self, request: Publishing, size_bytes: int) -> int:
        started_s = self._intake.clock_s()
        broker = self._in_force()
        try:
            self._intake.check_quota(broker, self._producing)
        except PublishQuotaError:
            await delay_refusal()
            raise
        async with self._turn:
            if size_bytes <= limits.RPC_BYTES_UNCOUNTED and len(request.events) <= limits.DECODE_EVENTS_INLINE:
                events = decode(request)
            else:
                decoding = partial(decode, request)
                events = await self._intake.decoded(self._broker, self._sender.name, decoding, size_bytes)
            if self._intake.knows_senders:
                await self._intake.admit(self._broker, events, self._sender)
        stored = await self._intake.store(
            self._in_force(),
            events,
            size_bytes,
            started_s=started_s,
            protocol="grpc",
            producing=self._producing,
            first=request.head.sequence,
        )
        return stored.before

    def _in_force(self) -> ServedBroker:
        """The broker as it is now; the stream ends with it: another one of its name has no numbers of its producers."""
        path = path_of(self._broker.identity)
        now = self._intake.broker(path)
        if now.identity != self._broker.identity:
            raise BrokerReplacedError(f"the broker {path!r} was deleted and created again", hint="open another stream")
        return now

    async def acknowledge(self) -> None:
        """Answers the requests in their order; returns behind the last one."""
        while (pending := await self._pending.get()) is not None:
            await asyncio.wait([pending.stored])  # what is under way is not given up with the stream
            numbers = {"first": pending.first, "last": pending.last}
            # Asked for and not raised: this frame would be in its traceback, and hold the request as long as it waits.
            error = pending.stored.exception()
            if error is None:
                done = PublishResponse.Acknowledged(**numbers, duplicates=pending.stored.result())
                await self._call.write(PublishResponse(acknowledged=done))
                continue
            if not isinstance(error, HeadgateError):
                raise error
            count_refusal(error)
            if isinstance(error, BrokerReplacedError) or not (
                error.retriable or isinstance(error, InvalidInputError | TooLargeError | EventForbiddenError)
            ):
                raise error  # it is not the request that is wrong
            refused = PublishResponse.Refused(**numbers, problem=problem(error))
            del pending, error  # which hold it, too
            await self._call.write(PublishResponse(refused=refused))

    async def until_replaced(self) -> None:
        if self._producing is not None:
            await self._producing.replaced.wait()
            self._producing.check_in_force()


def decode(request: Publishing) -> Sequence[Event]:
    """The events of a request, which get its filter values as their attributes; an EventError has the index."""
    count, values = len(request.events), request.head.filter_values
    if count > limits.PUBLISH_EVENTS_MAX:
        raise TooLargeError(f"{count} events in one request are over {limits.PUBLISH_EVENTS_MAX} (PUBLISH_EVENTS_MAX)")
    if values and len(values) != count:
        raise InvalidInputError(f"{len(values)} filter values for {count} events")
    return from_messages(_messages(request.events, values))


def _messages(events: Sequence[bytes], values: Sequence[str]) -> Iterator[CloudEvent]:
    """Reads one event after the other: other threads wait for each."""
    for data, value in zip(events, values or [""] * len(events), strict=True):
        if len(data) > limits.EVENT_BYTES_MAX:
            raise EventTooLargeError(f"an event must not be larger than {limits.EVENT_BYTES_MAX} bytes")
        try:
            message = parsed(CloudEvent, data)
        except ProtocolError as error:
            raise EventError(error.message) from None
        if value:  # as any attribute it is checked, and counts in the event's size
            message.attributes[EXTENSION].ce_string = value
        yield message
