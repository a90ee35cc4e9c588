"""Events that are given up: what a delivery hands over, and the queue that stores it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from headgate.delivery.events import SharedEvent
from headgate.delivery.lifecycle import Delivery
from headgate.delivery.retry import Outcome
from headgate.objects.kinds.routing import Target
from headgate_api import limits
from headgate_api.event.model import Event
from headgate_api.event.names import path_of
from headgate_api.objects.kinds import OWN_API_VERSION

CODE_NO_ANSWER: Final = 500
"""Knative's code for an attempt that had no answer."""
CODE_FILTER_ERROR: Final = 422
"""Ours for an event that the filter could not judge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """An event that could not be delivered."""

    target: int
    position: int  # of its outbox row
    partition: int
    offset: int
    trigger: str  # `namespace/name`
    broker: str  # `namespace/name`: the event's, whichever trigger it is redriven to
    event: Event  # as it was sent
    original: Event | None = None  # as it was stored, where that is another one
    stored_us: int | None = None  # when it was stored, microseconds since 1970 UTC; None where nobody knows
    died_us: int  # when it was given up, microseconds since 1970 UTC
    reason: str  # a bounded name: the status or what else was wrong, as in the metric of failed attempts
    destination: str  # URL that did not take it
    code: int  # HTTP status of the last attempt; CODE_NO_ANSWER when no answer came
    data: bytes  # first bytes of the last answer, or words
    is_shared: bool = False  # whether the answer was that to several events
    attempts: int
    sink: str = ""  # where it goes when its trigger is gone; empty when nowhere
    pending: int = 0  # the id of the pending event whose place it takes; 0 for none


class DeadLetterQueue(Protocol):
    """What those who give up events need of the dead letters."""

    async def put(self, dead_letter: DeadLetter) -> None:
        """Store a dead letter; returns when it is on disk, which it waits for as long as there is no room."""

    def has_room(self, namespace: str) -> bool:
        """Whether a dead letter of a namespace would be taken now."""

    def is_over_quota(self, namespace: str) -> bool:
        """Whether a namespace has as many dead letters as its quota or share allows: better not to wait then."""


async def give_up(
    queue: DeadLetterQueue,
    target: Target,
    delivery: Delivery,
    event: SharedEvent,
    outcome: Outcome,
    *,
    now_us: int,
    is_shared: bool = False,
) -> str:
    """Store the dead letter of a delivery whose last attempt ended so; `dead_lettered`, `failed` where no sink is.

    `is_shared`: the attempt was that of other events, too.
    """
    if not target.delivery.has_sink:
        return "failed"
    words = f"{outcome.reason}: {outcome.detail}".encode() if outcome.reason else b""
    given_up = DeadLetter(
        target=target.id,
        position=delivery.position,
        partition=delivery.partition,
        offset=delivery.offset,
        trigger=target.name,
        broker=path_of(event.broker),
        event=event.event,
        original=event.original if event.original is not event.event else None,
        stored_us=event.append_time_us,
        died_us=now_us,
        reason=outcome.label,
        destination=target.subscriber_uri or _path(target),
        code=outcome.status or CODE_NO_ANSWER,
        data=(outcome.body or words)[: limits.ERROR_BODY_BYTES_MAX],
        is_shared=is_shared,
        attempts=delivery.failures,
        sink=target.delivery.dead_letter_uri or "",
        pending=delivery.pending,
    )
    await queue.put(given_up)
    return "dead_lettered"


def _path(target: Target) -> str:
    """Names a subscription, which has no subscriber: where it stands in the API."""
    namespace, _, name = target.name.partition("/")
    return f"/apis/{OWN_API_VERSION}/namespaces/{namespace}/subscriptions/{name}"
