"""The API's JSON for what became of an event, with its timeline. What is unknown, or does not apply, is left out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from headgate.deadletters.store import DeadLetterState
from headgate.delivery.journal import JournalEntry, Origin
from headgate.filter.tools.trace import Trace
from headgate.inspect.find import FoundEvent, KeptDeadLetter, SearchResult, time_text
from headgate.inspect.why import DELIVERED, AttemptSummary, BrokerExplanation, EventExplanation, EventTrace, MatchTrace
from headgate_api import positions
from headgate_api.event.json_format import encode_event
from headgate_api.event.names import path_of
from headgate_api.objects.kinds import JsonObject
from headgate_api.plain_words import status_text

_ORIGINS = {
    Origin.DELIVERY: "attempt {attempt}",
    Origin.REPLAY: "replay, attempt {attempt}",
    Origin.DEAD_LETTER: "attempt {attempt} at the dead-letter sink",
    Origin.REDRIVE: "redrive, attempt {attempt}",
}


class TimelineEntry(msgspec.Struct, frozen=True, omit_defaults=True, rename={"dead_letter": "deadLetter"}):
    """Something that happened to an event; `says` has it as a sentence.

    `what` is `stored`, `matched`, `attempt`, `ended`, `pending`, `dead-letter`, or `related` for an event of the same
    tree. Kind and name are of the trigger or subscription, where there is one. `attempt` is from 1, `result` how a
    delivery ended, `dead_letter` an id. `event` has id, source, type, hops and place of a related event.
    """

    time: str
    what: str
    says: str
    kind: str = ""
    name: str = ""
    generation: int = 0
    verdict: str = ""
    attempt: int = 0
    status: int = 0
    reason: str = ""
    origin: str = ""
    result: str = ""
    dead_letter: int = 0
    event: dict[str, object] | None = None


def timeline(trace: EventTrace) -> list[TimelineEntry]:
    """What is known of an event, the oldest first; of things of one moment, what leads to the others first."""
    found = trace.found
    first, last = _chunk(found)
    place = f"partition {found.partition}, offset {found.offset}, chunk {first} to {last}"
    entries = [_at(found.append_time_us, "stored", f"stored: {place}")]
    for match in trace.matches:
        entries += _matched(match)
    entries += [_attempt(one, "", "") for one in trace.others]
    entries += [_related(one, found.hops) for one in trace.tree.events]
    return [entry for _, entry in sorted(entries, key=lambda one: one[0])]


_Timed = tuple[int, TimelineEntry]


def _at(time_us: int, what: str, says: str, kind: str = "", name: str = "", **more: Any) -> _Timed:  # noqa: ANN401
    return time_us, TimelineEntry(time_text(time_us), what, says, kind, name, **more)


def _chunk(found: FoundEvent) -> tuple[int, int]:
    return found.chunk_first_offset, found.chunk_first_offset + found.chunk_record_count - 1


def _matched(match: MatchTrace) -> Iterator[_Timed]:
    row, key = match.row, match.key
    kind, name = (key.kind.value, key.path) if key is not None else ("", "")
    named = f"{kind.lower()} {name}" if name else f"something deleted (id {row.target})"
    verdict = row.verdict.name.lower()
    says = f"matched for {named}: {verdict}, generation {row.generation}"
    # A row is handed on while it is written: what comes of it may have the earlier time.
    matched_us = min([row.time_us, *(entry.time_us for entry in match.attempts)])
    yield _at(matched_us, "matched", says, kind, name, generation=row.generation, verdict=verdict)
    for entry in match.attempts:
        yield _attempt(entry, kind, name)
    letter = match.dead_letter
    if letter is not None and letter.state == DeadLetterState.PENDING:
        says = f"pending event {letter.id}, waits until {time_text(letter.due_us)}"
        yield _at(matched_us, "pending", says, kind, name)
    elif letter is not None:
        says = f"dead letter {letter.id} ({letter.reason}), {letter.state}"
        yield _at(letter.died_us, "dead-letter", says, kind, name, reason=letter.reason, dead_letter=letter.id)


def _attempt(entry: JournalEntry, kind: str, name: str) -> _Timed:
    if not entry.attempt:
        says = f"ended: {entry.result.replace('_', ' ')}"
        return _at(entry.time_us, "ended", says, kind, name, result=entry.result)
    answered = f": {status_text(entry.status, entry.reason, entry.detail)}"
    says = _ORIGINS[entry.origin].format(attempt=entry.attempt) + answered
    return _at(
        entry.time_us,
        "attempt",
        says + (f", failed: {entry.reason}" if entry.reason else ""),
        kind,
        name,
        attempt=entry.attempt,
        status=entry.status,
        reason=entry.reason,
        origin=entry.origin,
        result="" if entry.reason or entry.origin is not Origin.DELIVERY else DELIVERED,
    )


def _related(one: FoundEvent, hops: int) -> _Timed:
    event = one.stored.event
    below, above = "comes of it, or of the same event", "it descends from this one, or both from another"
    says = f"event {event.id} of type {event.type}: {below if one.hops > hops else above}"
    return _at(one.append_time_us, "related", says, event=_named(one))


def _named(one: FoundEvent) -> JsonObject:
    event = one.stored.event
    named = {"id": event.id, "source": event.source, "type": event.type, "hops": one.hops}
    return named | {"partition": one.partition, "offset": one.offset}


def why_json(trigger: str, id_: str, found: EventExplanation) -> JsonObject:
    """Why, for one trigger: `namespace/name`."""
    more = _given(
        trace=found.trace and _trace(found.trace),
        attempts=_summary(found.attempts),
        result=found.result,
        history=list(map(_entry, found.history)),
    )
    return {"trigger": trigger} | _explained(id_, found) | more


def broker_json(broker: str, id_: str, found: BrokerExplanation) -> JsonObject:
    """Why, for the triggers of a broker (`namespace/name`); `after` is where the next page begins."""
    if isinstance(found.event, EventExplanation):
        return {"broker": broker} | _explained(id_, found.event)
    stored = {"broker": broker, "id": id_, "fate": "stored", "message": "the event is in the log"}
    triggers = [_trigger(name, explanation) for name, explanation in found.triggers]
    return stored | _given(event=_found(found.event), triggers=triggers, after=found.after)


def trace_json(trace: EventTrace | None, result: SearchResult) -> JsonObject:
    """The whole way of the newest event of the id in the piece that was searched; `next` goes on behind it."""
    return _given(trace=trace and _event_trace(trace)) | _searched(result)


def timeline_json(
    broker: str, id_: str, trace: EventTrace | None, result: SearchResult, found: BrokerExplanation | None
) -> JsonObject:
    """Trace, timeline, and what became of the event for a page of the broker's triggers, in one."""
    answer = {"broker": broker, "id": id_} | trace_json(trace, result)
    if trace is None or found is None:
        return answer
    triggers = [_trigger(name, explanation) for name, explanation in found.triggers]
    return answer | {"timeline": timeline(trace), "triggers": triggers} | _given(after=found.after)


def _given(**fields: object) -> JsonObject:
    """The fields that say something."""
    return {name: value for name, value in fields.items() if value}


def _explained(id_: str, found: EventExplanation) -> JsonObject:
    """`next` goes into the next request when the event was not in the piece that was searched, back to `searchedTo`."""
    event = _given(event=found.found and _found(found.found))
    return {"id": id_, "fate": found.fate, "message": found.message} | event | _searched(found)


def _searched(found: SearchResult | EventExplanation) -> JsonObject:
    """How far a search came, and where it goes on in the next request."""
    reached, other = positions.write(found.next), found.other
    place = f"/{positions.write(dict([other]))}" if reached and other is not None else ""
    return _given(next=reached + place, searchedTo=_time(found.searched_to_us))


def _trigger(name: str, found: EventExplanation) -> JsonObject:
    more = _given(attempts=_summary(found.attempts), result=found.result)
    return {"trigger": name, "fate": found.fate, "message": found.message} | more


def _event_trace(trace: EventTrace) -> JsonObject:
    found = trace.found
    return {
        "event": _found(found),
        "chunk": _chunk(found),
        "evaluated": trace.evaluated,
        **_given(
            matches=[_match(one, trace.is_below_ceiling) for one in trace.matches],
            tree=list(map(_relative, trace.tree.events)),
            replays=list(map(_entry, trace.others)),
        ),
        **({} if trace.tree.complete else {"treeComplete": False}),
    }


def _found(found: FoundEvent) -> JsonObject:
    return {
        "broker": path_of(found.stored.broker),
        "partition": found.partition,
        "offset": found.offset,
        "stored": _time(found.append_time_us),
        "event": msgspec.Raw(encode_event(found.stored.event)),
    }


def _relative(one: FoundEvent) -> JsonObject:
    """An event that the traced one descends from, or that has come of it or of the same one."""
    return {"hops": one.hops} | _named(one) | {"stored": _time(one.append_time_us)}


def _trace(traced: Trace) -> JsonObject:
    """What the filter says of the event; `caret` shows the part that decided below the text."""
    outcome = traced.outcome
    said = {"cel": traced.text, "outcome": outcome.kind.name.lower(), "caret": traced.caret, "parts": traced.parts}
    return said | _given(error=outcome.message)


def _summary(attempts: AttemptSummary | None) -> JsonObject | None:
    if attempts is None:
        return None
    last = _given(code=attempts.code, reason=attempts.reason, detail=attempts.detail, answer=attempts.answer)
    return {"failed": attempts.failed} | _given(next=_time(attempts.next_us)) | last


def _entry(entry: JournalEntry) -> JsonObject:
    """An attempt (`attempt` counts from 1), or the end of a delivery without one (`result`)."""
    said = _given(attempt=entry.attempt, status=entry.status, reason=entry.reason, detail=entry.detail)
    return {"time": _time(entry.time_us), "origin": entry.origin} | said | _given(result=entry.result)


def _match(match: MatchTrace, is_below_ceiling: bool) -> JsonObject:
    """A trigger or subscription that the event was matched for; `kind` and `name` are absent when it is deleted.

    The position in the outbox counts matches of all events.
    """
    row, key, pull = match.row, match.key, match.pull
    return {
        "time": _time(row.time_us),
        "verdict": row.verdict.name.lower(),
        "generation": row.generation,
        **({} if is_below_ceiling else {"position": row.position}),
        "target": row.target,
        **_given(
            kind=key and key.kind,
            name=key and key.path,
            attempts=list(map(_entry, match.attempts)),
            **_kept(match.dead_letter),
            subscription=pull and {"state": pull.state} | _given(deliveries=pull.deliveries, consumer=pull.consumer),
        ),
    }


def _kept(one: KeptDeadLetter | None) -> JsonObject:
    """What is kept of it: a dead letter, or that it waits for its time."""
    if one is None:
        return {}
    if one.state == DeadLetterState.PENDING:
        return {"pending": {"id": one.id, "stored": _time(one.died_us), "due": _time(one.due_us)}}
    return {"deadLetter": _dead_letter(one)}


def _dead_letter(one: KeptDeadLetter) -> JsonObject:
    died = _time(one.died_us)
    kept = {"id": one.id, "state": one.state, "died": died, "reason": one.reason, "code": one.code}
    return kept | _given(sink=one.sink, problem=one.problem)


def _time(time_us: int) -> str:
    return time_text(time_us) if time_us else ""
