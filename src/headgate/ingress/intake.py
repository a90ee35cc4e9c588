"""The one way of decoded events into the log: forged ones are refused, the others traced, stored and counted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Final

from headgate.auth.user import User
from headgate.event.hops import ATTRIBUTES, NO_LINEAGE, Descendants, Lineage, forgery, with_lineage
from headgate.event.trace import context_of, with_context
from headgate.ingress.event_gate import EventGate
from headgate.ingress.partitions import EventPartitions, Stored
from headgate.ingress.producers import Producing
from headgate.ingress.publish_quota import PublishQuotas
from headgate.objects.kinds.specs import ServedBroker
from headgate.observe.metrics import (
    BROKER_EVENTS_ACCEPTED,
    EVENTS_ACCEPTED,
    EVENTS_MALFORMED,
    REQUESTS_REFUSED,
    STORE_SECONDS,
)
from headgate.observe.tracing import Protocol, Span, Tracing, Value, destination, event_attributes
from headgate.shares import FairPlaces, FairThreads
from headgate_api.errors import EventError, EventTooLargeError, HeadgateError
from headgate_api.event.attributes import DELIVERY_TIME, EXPIRY_TIME, delivery_us, expiry_us
from headgate_api.event.model import Event, may_have_extension
from headgate_api.event.names import namespace_of, path_of
from headgate_api.limits import DECODE_WAITING_BYTES_MAX, PENDING_SECONDS_MAX, PUBLISH_EVENTS_MAX
from headgate_api.objects.errors import UnknownBrokerError

_CHECKED: Final = frozenset({*ATTRIBUTES, EXPIRY_TIME, DELIVERY_TIME})
"""Extensions that mean something to the broker."""
NO_TRACE: Final[Mapping[str, str]] = {}


class Intake:
    """The one way of events into the log.

    `served` gives the broker "namespace/name", None when there is none that accepts events; it is called for every
    request, so it must be cheap. Without `quotas` no quota counts; without a `gate` everybody may send everything.
    `clock_s` is monotonic.
    """

    def __init__(
        self,
        partitions: EventPartitions,
        served: Callable[[str], ServedBroker | None],
        *,
        tracing: Tracing | None = None,
        quotas: PublishQuotas | None = None,
        clock_s: Callable[[], float] = time.perf_counter,
        gate: EventGate | None = None,
    ) -> None:
        self._gate = gate
        self._partitions = partitions
        self._served = served
        self._tracing = tracing
        self._quotas = quotas
        self.clock_s = clock_s
        self._descendants = Descendants()
        self._decoder = FairThreads(1, "decode")
        self._undecoded = FairPlaces("undecoded", "DECODE_WAITING_BYTES_MAX", DECODE_WAITING_BYTES_MAX, "bytes")
        """Bodies that wait for it."""

    @property
    def knows_senders(self) -> bool:
        """Whether anybody is asked for whom events come from: then `admit` goes before `store`."""
        return self._gate is not None

    async def admit(
        self, broker: ServedBroker, events: Sequence[Event], sender: User, *, is_reply: bool = False
    ) -> None:
        """Lets a sender's events pass, all of one request; raises as `EventGate.admit` does."""
        if self._gate is not None:
            await self._gate.admit(sender, path_of(broker.identity), events, is_reply=is_reply)

    def broker(self, path: str) -> ServedBroker:
        """The broker "namespace/name"; UnknownBrokerError when there is none that accepts events."""
        broker = self._served(path)
        if broker is None:
            raise UnknownBrokerError(f"there is no broker {path!r}", hint="create it first, or check the path")
        return broker

    async def decoded(
        self, broker: ServedBroker, sender: str, decode: Callable[[], Sequence[Event]], size_bytes: int
    ) -> Sequence[Event]:
        """Decodes what is too large for the event loop, in a thread that gives turns by namespace and sender.

        No step of `decode` may be a long one, as the loop waits for each. PlacesTakenError: bodies of
        DECODE_WAITING_BYTES_MAX wait already, or the sender's share of them.
        """
        namespace = namespace_of(broker.identity)
        with self._undecoded.held(namespace, sender, size_bytes):
            thread = self._decoder.of(namespace, sender)
            return await asyncio.get_running_loop().run_in_executor(thread, decode)

    def check_quota(self, broker: ServedBroker, producing: Producing | None = None) -> None:
        """Lets a request go on to be decoded and stored, at once; what is refused costs as little as can be.

        `producing` is the stream of a producer that numbers its events, which ends with what is refused.
        """
        if self._quotas is None or (quota := self._quotas.get(broker.identity)) is None:
            return
        try:
            self._quotas.check(quota)
        except HeadgateError as error:
            if producing is not None:
                producing.chain.end(error)  # it may be stored later, and nothing that comes behind it before
            raise

    async def store(
        self,
        broker: ServedBroker,
        events: Sequence[Event],
        size_bytes: int,
        *,
        started_s: float,
        lineage: Lineage = NO_LINEAGE,
        trace: Mapping[str, str] = NO_TRACE,
        protocol: Protocol = "http",
        producing: Producing | None = None,
        first: int = 0,
    ) -> Stored:
        """Stores the events of one request; returns once all of them are on disk.

        At most PUBLISH_EVENTS_MAX events are enqueued before anything is awaited; others may wait for other requests.
        `size_bytes` is about the memory that they take while they wait, `started_s` is by `clock_s`, `trace` the
        context that the request came with. `producing` is the stream of a producer that numbers its events, `first` the
        first one's number.

        Raises as `EventPartitions.store` and `store_numbered` do, EventError for an attribute that is the broker's own,
        and TooManyDescendantsError.
        """
        if may_have_extension(events, _CHECKED):
            _refuse_wrong(events)
        tree = f"{namespace_of(broker.identity)}/{lineage.root}" if lineage.root else ""
        if lineage.hops:
            if tree:
                self._descendants.take(tree, len(events))
            events = await _each(events, lambda event: with_lineage(event, *lineage))
        span: Span | None = None
        if self._tracing is not None:
            span = self._span(self._tracing, path_of(broker.identity), protocol, events, trace)
            trace = span.context
        if trace:
            context = trace
            events = await _each(events, lambda event: with_context(event, context))
        quota = self._quotas.get(broker.identity) if self._quotas is not None else None
        if quota is not None:
            quota.take(len(events), size_bytes)
        try:
            if producing is None:
                stored = await self._partitions.store(broker, events, size_bytes)
            else:
                before = await self._partitions.store_numbered(producing, broker.rule, first, events, size_bytes)
                stored = Stored(before)
        except HeadgateError as error:
            if tree:
                self._descendants.give_back(tree, len(events))
            if quota is not None:
                quota.take(-len(events), -size_bytes)
            if span is not None:
                span.end(_answered(protocol, error.http_status), error=error.code)
            raise
        if span is not None:
            span.end(_answered(protocol, HTTPStatus.ACCEPTED))
        new = len(events) - stored.before
        if quota is not None:
            quota.stored(new, size_bytes)
        EVENTS_ACCEPTED.inc(new)
        BROKER_EVENTS_ACCEPTED.labels(path_of(broker.identity)).inc(new)
        STORE_SECONDS.observe(self.clock_s() - started_s)
        return stored

    def _span(
        self, tracing: Tracing, broker: str, protocol: Protocol, events: Sequence[Event], trace: Mapping[str, str]
    ) -> Span:
        """The span of a request; the context that it came with goes before what the event carries."""
        first = events[0]
        named = (first.id, first.source, first.type, first.specversion, first.subject)
        attributes = event_attributes(destination("broker", broker), protocol, *named)
        if len(events) > 1:
            attributes["messaging.batch.message_count"] = len(events)
        return tracing.start("receive", trace or context_of(first), attributes)


async def _each(events: Sequence[Event], change: Callable[[Event], Event]) -> list[Event]:
    """All events changed; the event loop has its turns between those of a large batch."""
    changed: list[Event] = []
    for event in events:
        if changed and not len(changed) % PUBLISH_EVENTS_MAX:
            await asyncio.sleep(0)
        changed.append(change(event))
    return changed


def _answered(protocol: Protocol, status: int) -> dict[str, Value]:
    return {"http.response.status_code": int(status)} if protocol == "http" else {}


def count_refusal(error: HeadgateError) -> None:
    """Counts a refusal; of an invalid event also what was wrong, in words that no producer chooses."""
    REQUESTS_REFUSED.labels(error.code).inc()
    if isinstance(error, EventError) and not isinstance(error, EventTooLargeError):
        attribute = error.attribute or "message"
        known = attribute in EVENTS_MALFORMED.values
        EVENTS_MALFORMED.labels(attribute if known else "extension").inc()


def _refuse_wrong(events: Sequence[Event]) -> None:
    for index, event in enumerate(events):
        if (error := forgery(event) or _wrong_expiry(event) or _wrong_delivery(event)) is not None:
            raise error if len(events) == 1 else error.at(index)


def _wrong_expiry(event: Event) -> EventError | None:
    """An event that may be too old is not delivered: the broker must know when that is."""
    if EXPIRY_TIME not in event.extensions or expiry_us(event) is not None:
        return None
    hint = "until when the event is of use, such as 2026-03-04T05:06:07Z"
    return EventError("is no timestamp (RFC 3339)", attribute=EXPIRY_TIME, hint=hint)


def _wrong_delivery(event: Event) -> EventError | None:
    """An event that is to wait says until when, and not for longer than the store of pending events keeps it."""
    if DELIVERY_TIME not in event.extensions:
        return None
    due_us, expires_us = delivery_us(event), expiry_us(event)
    if due_us is None:
        problem, hint = "is no timestamp (RFC 3339)", "when the event is to be delivered, such as 2026-03-04T05:06:07Z"
    elif due_us > time.time_ns() // 1_000 + PENDING_SECONDS_MAX * 1_000_000:
        problem = f"is more than {PENDING_SECONDS_MAX // 86_400} days from now"
        hint = "publish the event later; without deliverytime it is delivered at once"
    elif expires_us is not None and expires_us <= due_us:
        problem = f"is not before {EXPIRY_TIME}: nobody would get the event"
        hint = f"give it an earlier {DELIVERY_TIME}, or a later {EXPIRY_TIME}"
    else:
        return None
    return EventError(problem, attribute=DELIVERY_TIME, hint=hint)
