"""What those who consume a subscription get: values and errors, without anything that acts."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from headgate.delivery.events import SharedEvent
from headgate.subscriptions.store import SubscriptionCounters
from headgate_api.errors import ConflictError, InvalidInputError, NotFoundError, OverloadedError, UnavailableError


@dataclass(frozen=True, slots=True)
class LeasedEvent:
    """An event with a consumer, acknowledged by `id`; `deliveries` counts this handing out, too."""

    id: str
    deliveries: int
    partition: int
    offset: int
    event: SharedEvent


@dataclass(frozen=True, slots=True)
class AckResult:
    """What an acknowledgement did."""

    acknowledged: int  # events that have ended by it
    stale: tuple[str, ...] = ()  # ids of before a seek, of events that had ended, or that a restart will hand out again


@dataclass(frozen=True, slots=True)
class PullResult:
    """What a pull gives: events in the order of the outbox, those handed out before first."""

    events: list[LeasedEvent]
    epoch: int  # moves with every seek: what was handed out before need not be acknowledged
    active: bool = True  # False for a failover consumer whose turn it is not


class SubscriptionStats(SubscriptionCounters, kw_only=True, rename="camel"):
    """Where a subscription stands, in events; its counters are those since it was made."""

    backlog: int  # those that have not ended: unread and unacknowledged
    candidates: int  # of them, unread ones that cel-cpp has still to decide
    unacknowledged: int  # of them, those that were read
    oldest_unacknowledged: str | None  # when the oldest of the backlog was stored, RFC 3339; None without one
    history_left: int  # events of the log that its history has still to look at; not part of the backlog
    epoch: int  # see `PullResult`
    consumer: str | None  # who has the lease, or had it last; None once that one has left


class ConsumerLease(msgspec.Struct, frozen=True):
    """Who alone may take events, and until when (RFC 3339) if it says nothing more."""

    consumer: str
    until: str


class ConsumerView(msgspec.Struct, frozen=True):
    """What a consumer was handed out and has not acknowledged. Times are RFC 3339."""

    consumer: str
    events: int
    oldest: str  # when the oldest of them was stored
    due: str  # when the first of them is handed out again
    redelivered: int  # of them, those that were handed out more than once


class ConsumerList(msgspec.Struct, frozen=True, omit_defaults=True):
    """The consumers of a subscription, by name: at most CONSUMERS_SHOWN_MAX."""

    type: str
    items: list[ConsumerView]
    waiting: int  # events that were read and that nobody has now
    more: bool = False  # whether consumers are left out
    lease: ConsumerLease | None = None  # absent when nobody has it, and of a shared subscription


@dataclass(frozen=True, slots=True)
class BacklogAnalysis:
    """What a filter would take of a backlog: for how many of the events looked at it is true, false, or an error."""

    events: int
    accepted: int
    rejected: int
    errors: int
    complete: bool


@dataclass(frozen=True, slots=True)
class SeekGoal:
    """Where a seek goes.

    `to` is `earliest` (the earliest event kept), `latest` (behind everything matched so far), a time in RFC 3339 (what
    was stored at or after it), or a position.
    """

    to: str = "earliest"
    first: str = ""  # the first event from there on of which this CEL is true, whoever wants that event
    last: str = ""  # the last one before the end
    after: bool = False  # behind that event


@dataclass(frozen=True, slots=True)
class CompletedSeek:
    """What a seek did: the new epoch, and the first offset that counts by partition, or `earliest` or `latest`."""

    epoch: int
    position: str


# --- errors ---------------------------------------------------------------------------------------


class SubscriptionNotFoundError(NotFoundError):
    """There is no such subscription, or it is not in force yet."""

    code = "subscription-not-found"


class ConsumersQuotaError(OverloadedError):
    """As many consumers of a namespace's subscriptions are connected as its quota allows."""

    code = "consumers-quota"


class ConsumerBusyError(ConflictError):
    """Another consumer has the exclusive subscription."""

    code = "consumer-busy"


class ConsumerReplacedError(ConflictError):
    """The consumer has connected again."""

    code = "consumer-replaced"


class AckIdError(InvalidInputError):
    """An acknowledgement names something that pull cannot have given."""

    code = "ack-id"


class AckNotStoredError(UnavailableError):
    """The disk does not take it: what was acknowledged may be handed out again after a restart."""

    code = "ack-not-stored"


class SeekBusyError(ConflictError):
    """Another seek of the same subscription is under way."""

    code = "seek-busy"


class SeekCancelledError(ConflictError):
    """The seek was cancelled."""

    code = "seek-cancelled"


class PlaceNotFoundError(NotFoundError):
    """No event satisfies the expression of a seek."""

    code = "place-not-found"


class BrokerGoneError(NotFoundError):
    """The broker whose events are searched does not exist any more."""

    code = "broker-gone"
