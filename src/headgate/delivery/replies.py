"""Replies: an event in a subscriber's 200 answer goes into the broker by the one way in, ingress.

The dispatcher does not write the log; front does. A reply is POSTed to front as any producer's event, with its hop
count beside it, and the delivery goes on when front has answered: the reply is on disk before its delivery ends, and a
reply that could not be stored is a failed attempt, after which the subscriber is asked again.

The count is what the delivered event had, plus one. Nothing in the answer changes it, so a chain of replies ends at
HOPS_MAX; and front counts what comes of one event, so a tree of replies ends at DESCENDANTS_MAX. A subscriber that
publishes by itself is a producer: its events count from zero, and admission bounds it.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Final, Protocol

from headgate.delivery.encoding import Headers
from headgate.delivery.post import Transport
from headgate.delivery.retry import Answer, Outcome
from headgate.event.hops import HOPS_HEADER, ROOT_HEADER, hops_of
from headgate.event.trace import Context
from headgate.observe import metrics
from headgate_api import limits
from headgate_api.event.http import BATCH_JSON
from headgate_api.event.model import Event

_STORED: Final = metrics.REPLIES.labels("stored")
_TREE_IS_FULL: Final = 422
"""What front answers when too many events have come of the root."""
_REFUSED_AS_MALFORMED: Final = frozenset({400, 413, 415, 431})


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
            metrics.REPLIES.labels("looped").inc()
            return Outcome(200, "reply-hops", f"the reply would be hop {hops} of at most {limits.HOPS_MAX}")
        if any(name == "content-type" and value.lower().startswith(BATCH_JSON) for name, value in answer.headers):
            metrics.REPLIES.labels("malformed").inc()
            return Outcome(200, "reply-malformed", "a reply is one event, not a batch")
        headers = [*answer.headers, (HOPS_HEADER, str(hops)), (ROOT_HEADER, to.root), *trace.items()]
        outcome = await self._post(f"{self._url}/{to.broker}", headers, answer.body)
        if 200 <= outcome.status < 300:
            _STORED.inc()
            return Outcome(200)
        detail = outcome.body.decode("utf-8", "replace") or outcome.detail
        if outcome.status == _TREE_IS_FULL:
            metrics.REPLIES.labels("looped").inc()
            return Outcome(200, "reply-tree", detail)
        if outcome.status in _REFUSED_AS_MALFORMED:
            metrics.REPLIES.labels("malformed").inc()
            return Outcome(200, "reply-malformed", detail)
        metrics.REPLIES.labels("refused").inc()
        return Outcome(200, "reply-refused", detail)

    async def _post(self, url: str, headers: Headers, body: bytes) -> Outcome:
        """Waits for a front that does not listen: it starts beside us, and asking the subscriber anew is dearer."""
        ends = time.monotonic() + limits.REPLY_STORE_SECONDS_MAX
        while True:
            outcome = await self._transport.post(url, headers, body, ends - time.monotonic())
            if not outcome.unsent or time.monotonic() + limits.REPLY_RETRY_S >= ends:
                return outcome
            await asyncio.sleep(limits.REPLY_RETRY_S)
