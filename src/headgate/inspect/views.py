"""The API's JSON for what became of an event."""

from __future__ import annotations

import msgspec

from headgate.deadletters.store import StoredDeadLetter
from headgate.delivery.journal import JournalEntry
from headgate.event.identity import path_of
from headgate.event.json_format import encode_event
from headgate.filter.tools.trace import Part, Trace
from headgate.inspect.explanation import AttemptSummary, BrokerExplanation, EventExplanation, TriggerExplanation
from headgate.inspect.find import FoundEvent, OtherBroker
from headgate.inspect.sentences import time_text
from headgate.inspect.trace import EventTrace, MatchTrace
from headgate.inspect.tree import Relative
from headgate.log import positions


class FoundView(msgspec.Struct, frozen=True, rename="camel"):
    """The event as it was accepted, and where it stands."""

    broker: str
    partition: int
    offset: int
    stored: str
    event: msgspec.Raw


class TraceView(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """What the filter says of the event; `caret` shows the part that decided below the text."""

    cel: str
    outcome: str
    caret: str
    parts: tuple[Part, ...]
    error: str = ""


class AttemptsView(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Attempts so far."""

    failed: int
    next: str = ""
    code: int = 0
    answer: str = ""


class EntryView(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """An attempt, or the end of a delivery without one.

    Attributes:
        time: When it ended.
        origin: `delivery`, `replay`, `dead-letter` (to its sink) or `redrive`.
        attempt: From 1; absent for an end.
        status: HTTP status of the answer; absent for none.
        reason: Why it failed; absent when it did not.
        result: How the delivery ended; absent for an attempt.
    """

    time: str
    origin: str
    attempt: int = 0
    status: int = 0
    reason: str = ""
    result: str = ""


class WhyView(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Why, for one trigger; `next` goes into the next request when the event was not found in the piece searched."""

    trigger: str
    id: str
    fate: str
    message: str
    event: FoundView | None = None
    trace: TraceView | None = None
    attempts: AttemptsView | None = None
    history: tuple[EntryView, ...] = ()
    next: str = ""
    searched_to: str = ""


class TriggerWhyView(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Why, for one of a broker's triggers."""

    trigger: str
    fate: str
    message: str
    attempts: AttemptsView | None = None


class BrokerWhyView(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Why, for the triggers of a broker.

    Attributes:
        broker: `namespace/name`.
        id: The event's id.
        fate: `stored`, or why there is nothing to say of triggers.
        message: The same in a sentence.
        event: The event, when it is in the log.
        triggers: A page of them, by name.
        after: What the next request gives as `after` for the next page; absent at the end.
        next: What the next request gives as `next` when the event was not found in the piece that was searched.
        searched_to: How far back that piece went.
    """

    broker: str
    id: str
    fate: str
    message: str
    event: FoundView | None = None
    triggers: tuple[TriggerWhyView, ...] = ()
    after: str = ""
    next: str = ""
    searched_to: str = ""


class DeadLetterView(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A dead letter that is kept."""

    id: int
    state: str
    died: str
    reason: str
    code: int
    sink: str = ""
    problem: str = ""


class PullView(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """What a subscription has done with the event."""

    state: str
    deliveries: int = 0
    consumer: str = ""


class MatchView(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A trigger or subscription that the event was matched for; `kind` and `name` are absent when it is deleted."""

    time: str
    verdict: str
    generation: int
    position: int
    target: int
    kind: str = ""
    name: str = ""
    attempts: tuple[EntryView, ...] = ()
    dead_letter: DeadLetterView | None = None
    subscription: PullView | None = None


class RelativeView(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """An event that the traced one descends from, or that has come of it or of the same one."""

    hops: int
    id: str
    source: str
    type: str
    partition: int
    offset: int
    stored: str


class EventTraceView(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """An event's whole way.

    Attributes:
        event: The event, and where it is stored.
        chunk: First and last offset of the chunk that holds it.
        evaluated: Whether the matcher has passed it.
        matches: Every trigger and subscription that it was matched for.
        tree: The event's relatives, by replies and forwarding: the root first.
        tree_complete: Whether the log was searched for them to its end.
        replays: Replays to targets that it was not matched for.
    """

    event: FoundView
    chunk: tuple[int, int]
    evaluated: bool
    matches: tuple[MatchView, ...] = ()
    tree: tuple[RelativeView, ...] = ()
    tree_complete: bool = True
    replays: tuple[EntryView, ...] = ()


class TraceAnswer(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The newest event of the id in the piece that was searched; `next` goes on behind it, and is absent at the end."""

    trace: EventTraceView | None = None
    next: str = ""
    searched_to: str = ""


def token(reached: positions.Positions, other: OtherBroker | None) -> str:
    """Where a search goes on, for the next request."""
    written = positions.write(reached)
    return written if other is None or not written else f"{written}/{positions.write(dict([other]))}"


def why_view(trigger: str, id_: str, found: EventExplanation) -> WhyView:
    """Why, for one trigger: `namespace/name`."""
    return WhyView(
        trigger=trigger,
        id=id_,
        fate=found.fate,
        message=found.message,
        event=None if found.found is None else found_view(found.found),
        trace=None if found.trace is None else _trace(found.trace),
        attempts=_summary(found.attempts),
        history=tuple(map(_entry, found.history)),
        next=token(found.next, found.other),
        searched_to=_time(found.searched_to_us),
    )


def broker_view(broker: str, id_: str, found: BrokerExplanation) -> BrokerWhyView:
    """Why, for the triggers of a broker: `namespace/name`."""
    if isinstance(found.event, EventExplanation):
        view = why_view("", id_, found.event)
        return BrokerWhyView(
            broker, id_, view.fate, view.message, view.event, next=view.next, searched_to=view.searched_to
        )
    triggers = tuple(_trigger(one) for one in found.triggers)
    return BrokerWhyView(
        broker, id_, "stored", "the event is in the log", found_view(found.event), triggers, found.after
    )


def trace_view(trace: EventTrace) -> EventTraceView:
    """An event's whole way."""
    found = trace.found
    last = found.chunk_first_offset + found.chunk_record_count - 1
    return EventTraceView(
        found_view(found),
        (found.chunk_first_offset, last),
        trace.evaluated,
        tuple(map(_match, trace.matches)),
        tuple(map(_relative, trace.tree.events)),
        trace.tree.complete,
        tuple(map(_entry, trace.others)),
    )


def found_view(found: FoundEvent) -> FoundView:
    """An event in the log."""
    event = msgspec.Raw(encode_event(found.stored.event))
    return FoundView(path_of(found.stored.broker), found.partition, found.offset, _time(found.append_time_us), event)


def _relative(one: Relative) -> RelativeView:
    event = one.stored.event
    stored = _time(one.append_time_us)
    return RelativeView(one.hops, event.id, event.source, event.type, one.partition, one.offset, stored)


def _trigger(one: TriggerExplanation) -> TriggerWhyView:
    return TriggerWhyView(one.trigger, one.fate, one.message, _summary(one.attempts))


def _trace(traced: Trace) -> TraceView:
    outcome = traced.outcome
    return TraceView(traced.text, outcome.kind.name.lower(), traced.caret, traced.parts, outcome.message)


def _summary(attempts: AttemptSummary | None) -> AttemptsView | None:
    if attempts is None:
        return None
    return AttemptsView(attempts.failed, _time(attempts.next_us), attempts.code, attempts.answer)


def _entry(entry: JournalEntry) -> EntryView:
    return EntryView(_time(entry.time_us), entry.origin, entry.attempt, entry.status, entry.reason, entry.result)


def _match(match: MatchTrace) -> MatchView:
    row, key, pull = match.row, match.key, match.pull
    return MatchView(
        _time(row.time_us),
        row.verdict.name.lower(),
        row.generation,
        row.position,
        row.target,
        key.kind if key is not None else "",
        key.path if key is not None else "",
        tuple(map(_entry, match.attempts)),
        _dead_letter(match.dead_letter),
        PullView(pull.state, pull.deliveries, pull.consumer) if pull is not None else None,
    )


def _dead_letter(one: StoredDeadLetter | None) -> DeadLetterView | None:
    if one is None:
        return None
    return DeadLetterView(one.id, one.state, _time(one.died_us), one.reason, one.code, one.sink, one.problem)


def _time(time_us: int) -> str:
    return time_text(time_us) if time_us else ""
