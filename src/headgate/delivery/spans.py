"""Spans of deliveries: one for the match, one for each attempt, both children of what stored the event."""

from __future__ import annotations

import time

from headgate.delivery.journal import Origin
from headgate.delivery.retry import Fate, Outcome, judge
from headgate.event.model import Event
from headgate.event.trace import context_of
from headgate.observe.tracing import Span, Tracing, Value, destination, event_attributes


class AttemptTracing:
    """Spans of deliveries.

    Args:
        tracing: Makes and exports them.
    """

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing

    def attempt(
        self, trigger: str, event: Event, failures: int, count: int, origin: Origin, stored_us: int = 0
    ) -> Span:
        """An attempt with `count` events, of which this is the first, begins.

        Before the first attempt of a delivery the match has ended, which began when the event was stored.
        """
        attributes: dict[str, Value] = event_attributes(
            destination("trigger", trigger),
            "http",
            event.id,
            event.source,
            event.type,
            event.specversion,
            event.subject,
        )
        parent = context_of(event)
        if origin is not Origin.DELIVERY:
            attributes["headgate.origin"] = origin.value
        elif not failures:
            match = self._tracing.start("match", parent, attributes, at_us=stored_us)
            match.end(at_us=max(stored_us, time.time_ns() // 1_000))
        attributes["headgate.attempt"] = failures + 1
        if count > 1:
            attributes["messaging.batch.message_count"] = count
        return self._tracing.start("deliver", parent, attributes)


def end(span: Span, outcome: Outcome) -> None:
    """The attempt has ended, its reply is stored."""
    attributes: dict[str, Value] = {"http.response.status_code": outcome.status} if outcome.status else {}
    span.end(attributes, error="" if judge(outcome) is Fate.DELIVERED else outcome.label)
