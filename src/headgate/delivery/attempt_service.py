"""One attempt, whoever makes it: deliveries, replays, dead letters and redrives.

post -> hear of the subscriber -> store its reply -> judge: delivered | again after a pause | given up
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from headgate.auth.context import current_user
from headgate.auth.user import User, sender_of
from headgate.delivery.authentication import Access, IdentityTokens, RequestAuthentication, batch_id, message_id
from headgate.delivery.circuit import Subscriber, SubscriberHealth, Subscribers
from headgate.delivery.events import Headers, traced
from headgate.delivery.journal import Journal, Origin
from headgate.delivery.lifecycle import Delivery
from headgate.delivery.post import Transport
from headgate.delivery.retry import DELIVERED, SYSTEM, Answer, Clocks, Decision, Fate, Outcome, decide, judge
from headgate.delivery.webhook_handshake import Handshakes
from headgate.event.hops import HOPS_HEADER, REPLY_HEADER, ROOT_HEADER, hops_of
from headgate.event.trace import Context, context_of
from headgate.objects.kinds.routing import DeliveryRules
from headgate.objects.kinds.specs import delivery_rules
from headgate.objects.store.secret_store import SecretTable
from headgate.observe import metrics
from headgate.observe.tracing import Span, Tracing, Value, destination, event_attributes
from headgate_api import limits
from headgate_api.event.model import Event
from headgate_api.event.names import path_of

# --- replies --------------------------------------------------------------------------------------
# An event in a subscriber's 200 answer, or a batch of them, is POSTed to front as any producer's, with its hop count
# beside it. It is on disk before its delivery ends; a reply that could not be stored is a failed attempt, and the
# subscriber is asked again. Of a batch all events are stored, or none.
#
# The count is what the delivered event had, plus one. Nothing in the answer changes it, so a chain of replies ends at
# HOPS_MAX; and front counts what comes of one event, so a tree of replies ends at DESCENDANTS_MAX. A subscriber that
# publishes by itself is a producer: its events count from zero, and admission bounds it.

_TREE_IS_FULL: Final = 422
"""What front answers when too many events have come of the root."""
_REFUSALS: Final = {
    _TREE_IS_FULL: ("looped", "reply-tree"),
    **dict.fromkeys((400, 413, 415, 431), ("malformed", "reply-malformed")),
}
"""By front's answer how a reply is counted, and why its attempt has failed."""


@dataclass(frozen=True, slots=True)
class Answered:
    """What a reply answers."""

    broker: str  # `namespace/name` of the trigger's broker; a reply goes to the one that has the name now
    event: Event
    root: str  # the event that it descends from, or itself


class Replies(Protocol):
    """What attempts need for answers that are events."""

    async def store(self, to: Answered, answer: Answer, trace: Context) -> Outcome:
        """Bring a reply into the broker; what the attempt's outcome is then."""


class IngressReplies:
    """Replies by way of front. The transport shows that a request is the server's own."""

    def __init__(self, transport: Transport, url: str) -> None:
        self._transport = transport
        self._url = url

    async def store(self, to: Answered, answer: Answer, trace: Context) -> Outcome:
        """Success when the reply is on disk; else a failed attempt, tried again unless its loop has ended."""
        hops = hops_of(to.event) + 1
        if hops > limits.HOPS_MAX:
            return _refused("looped", "reply-hops", f"the reply would be hop {hops} of at most {limits.HOPS_MAX}")
        lineage = [(HOPS_HEADER, str(hops)), (ROOT_HEADER, to.root), (REPLY_HEADER, "true")]
        headers = [*answer.headers, *lineage, *trace.items()]
        outcome = await self._post(f"{self._url}/{to.broker}", headers, answer.body)
        if 200 <= outcome.status < 300:
            metrics.REPLIES.labels("stored").inc()
            return Outcome(200)
        counted, reason = _REFUSALS.get(outcome.status, ("refused", "reply-refused"))
        return _refused(counted, reason, outcome.body.decode("utf-8", "replace") or outcome.detail)

    async def _post(self, url: str, headers: Headers, body: bytes) -> Outcome:
        """Waits for a front that does not listen: it starts beside us, and asking the subscriber anew costs more."""
        ends = time.monotonic() + limits.REPLY_STORE_SECONDS_MAX
        while True:
            outcome = await self._transport.post(url, headers, body, ends - time.monotonic())
            if not outcome.unsent or time.monotonic() + limits.REPLY_RETRY_S >= ends:
                return outcome
            await asyncio.sleep(limits.REPLY_RETRY_S)


def _refused(counted: str, reason: str, detail: str) -> Outcome:
    metrics.REPLIES.labels(counted).inc()
    return Outcome(200, reason, detail)


# --- attempt service ------------------------------------------------------------------------------

TURN_S: Final = 0.2
"""How often those look again who wait for somebody else's attempt, which decides whether a circuit closes."""

DEFAULT_RULES: Final = delivery_rules(None, ordered=False)
"""Of what belongs to no trigger, or to none any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipient:
    """Where attempts go, and by which rules."""

    url: str
    rules: DeliveryRules = DEFAULT_RULES
    target: int = 0  # id of the trigger; 0 without one
    name: str = ""  # of the trigger, `namespace/name`; empty without one
    origin: Origin = Origin.DELIVERY
    replies_to: str = ""  # the broker that replies go to, `namespace/name`; empty where none are taken
    subscriber: Subscriber | None = None  # whose health an attempt tells of; None when it goes elsewhere
    access: Access | None = None
    sender: User | None = None  # as whom events enter the server's own brokers; None: as the trigger

    @classmethod
    def subscriber_of(cls, subscriber: Subscriber, origin: Origin = Origin.DELIVERY) -> Recipient:
        target = subscriber.target
        return cls(
            url=target.subscriber_uri,
            rules=target.delivery,
            target=target.id,
            name=target.name,
            origin=origin,
            replies_to=path_of(target.broker),
            subscriber=subscriber,
            access=Access.to_subscriber(target),
        )


class OutgoingMessage(NamedTuple):
    """What one attempt sends."""

    headers: Headers
    body: bytes
    event: Event  # the event, the first one of a batch: its trace goes on
    answered: Event  # the event that a reply descends from: of a batch the one with the most hops
    root: str  # the root of that one
    event_count: int = 1
    stored_us: int = 0  # when the event was stored, microseconds since 1970 UTC


class AttemptService:
    """Makes attempts and judges them, on one event loop. Without `handshakes` no receiver is asked first."""

    def __init__(
        self,
        transport: Transport,
        replies: Replies,
        journal: Journal,
        health: SubscriberHealth,
        *,
        secrets: SecretTable | None = None,
        identities: IdentityTokens | None = None,
        handshakes: Handshakes | None = None,
        tracing: Tracing | None = None,
        clocks: Clocks = SYSTEM,
    ) -> None:
        self._transport = transport
        self._handshakes = handshakes
        self._replies = replies
        self.journal = journal
        self.health = health
        self._tracing = tracing
        self.clocks = clocks
        self.authentication = RequestAuthentication(transport, secrets, clocks, identities)
        self.subscribers = Subscribers()

    async def refresh(self) -> None:
        await self.authentication.refresh()
        if self._handshakes is not None:
            await self._handshakes.refresh()

    async def send(
        self,
        to: Recipient,
        delivery: Delivery,
        message: OutgoingMessage,
        heard: Callable[[Outcome], None] | None = None,
    ) -> Outcome:
        """Make one attempt, as the recipient's sender, else as the trigger. It fails where its reply cannot be stored.

        `delivery` says what was tried before; of a batch it is the first one. `heard` gets the subscriber's answer
        before a reply in it is stored.
        """
        headers, body, event, answered, root, count, stored_us = message
        current_user.set(to.sender or sender_of(to.name))
        span = None
        if self._tracing is not None:
            span = _attempt_span(self._tracing, to, event, delivery.failures, count, stored_us)
            headers = traced(headers, span.context)
        handshakes = self._handshakes
        if handshakes is not None and not handshakes.wanted(to.rules, to.url):
            handshakes = None
        if to.access is None and handshakes is None:
            outcome = await self._transport.post(to.url, headers, body, to.rules.timeout_s)
        else:
            id_ = batch_id(body) if count > 1 else message_id(event, root if to.origin is Origin.REPLAY else "")
            access, timeout_s, per_s = to.access or Access("", None), to.rules.timeout_s, to.rules.rate_per_s
            outcome = await self.authentication.post(access, id_, to.url, headers, body, timeout_s, handshakes, per_s)
            if to.subscriber is not None:
                to.subscriber.allowed_per_s = handshakes.per_s(to.url) if handshakes is not None else None
        if heard is not None:
            heard(outcome)
        if to.subscriber is not None:
            self.health.heard(to.subscriber, delivery, outcome)
        if outcome.reply is not None and to.replies_to:
            context = span.context if span is not None else context_of(event)
            outcome = await self._replies.store(Answered(to.replies_to, answered, root), outcome.reply, context)
        if span is not None:
            _end_span(span, outcome)
        return outcome

    async def send_in_turn(self, to: Recipient, delivery: Delivery, message: OutgoingMessage) -> Outcome:
        """Make one attempt as soon as circuit and rate of its subscriber, if it goes to one, let it start."""
        subscriber, now = to.subscriber, self.clocks.now
        if subscriber is None:
            delivery.started_at = now()
            return await self.send(to, delivery, message)
        while (wait_s := subscriber.wait_s(now())) > 0:
            await asyncio.sleep(min(wait_s, TURN_S))
        delivery.started_at = now()
        subscriber.begin(delivery.started_at)
        try:
            return await self.send(to, delivery, message)
        finally:
            subscriber.end()

    def settle(self, to: Recipient, delivery: Delivery, outcome: Outcome, at: float) -> Decision:
        """What follows from an attempt that ended `at` (monotonic seconds) for one event; tells the journal."""
        if judge(outcome) is Fate.DELIVERED:
            self.record(to, delivery, outcome)
            return DELIVERED
        self.record(to, delivery, outcome, outcome.label)
        delivery.fail(at)
        now_s, chance = self.clocks.now_us() / 1e6, self.clocks.chance()
        return decide(to.rules, outcome, delivery.failures, delivery.tried_us / 1e6, now_s=now_s, chance=chance)

    def record(self, to: Recipient, delivery: Delivery, outcome: Outcome, reason: str = "") -> None:
        """Write an attempt into the journal: why it failed, or nothing when the event has been delivered."""
        number, partition, offset = delivery.failures + 1, delivery.partition, delivery.offset
        detail = outcome.detail if reason and not outcome.answered else ""
        self.journal.attempt(partition, offset, to.target, number, outcome.status, reason, to.origin, detail)


def _attempt_span(tracing: Tracing, to: Recipient, event: Event, failures: int, count: int, stored_us: int) -> Span:
    """The span of an attempt, a child of what stored its first event; and that of the match, before a first one."""
    place = destination("trigger", to.name)
    attributes: dict[str, Value] = event_attributes(
        place, "http", event.id, event.source, event.type, event.specversion, event.subject
    )
    parent = context_of(event)
    if to.origin is not Origin.DELIVERY:
        attributes["headgate.origin"] = to.origin.value
    elif not failures:
        match = tracing.start("match", parent, attributes, at_us=stored_us)
        match.end(at_us=max(stored_us, time.time_ns() // 1_000))
    attributes["headgate.attempt"] = failures + 1
    if count > 1:
        attributes["messaging.batch.message_count"] = count
    return tracing.start("deliver", parent, attributes)


def _end_span(span: Span, outcome: Outcome) -> None:
    attributes: dict[str, Value] = {"http.response.status_code": outcome.status} if outcome.status else {}
    span.end(attributes, error="" if judge(outcome) is Fate.DELIVERED else outcome.label)
