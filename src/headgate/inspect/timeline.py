"""The timeline of an event's life: all that its trace knows, in the order of time, each with a sentence."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from headgate.delivery.journal import JournalEntry, Origin
from headgate.event.status import status_text
from headgate.inspect.find import FoundEvent
from headgate.inspect.sentences import DELIVERED, time_text
from headgate.inspect.trace import EventTrace, MatchTrace

_ORIGINS = {
    Origin.DELIVERY: "attempt {attempt}",
    Origin.REPLAY: "replay, attempt {attempt}",
    Origin.DEAD_LETTER: "attempt {attempt} at the dead-letter sink",
    Origin.REDRIVE: "redrive, attempt {attempt}",
}


class TimelineEntry(msgspec.Struct, frozen=True, omit_defaults=True, rename={"dead_letter": "deadLetter"}):
    """Something that happened to an event.

    Attributes:
        time: When, RFC 3339.
        what: `stored`, `matched`, `attempt`, `ended`, `dead-letter`, or `related` for an event of the same tree.
        says: The same as a sentence.
        kind: `Trigger` or `Subscription`, where it is about one that exists.
        name: `namespace/name` of it.
        generation: Of the filters that matched.
        verdict: The matcher's.
        attempt: From 1.
        status: HTTP status of the answer.
        reason: Why an attempt failed.
        origin: Why it was made.
        result: How a delivery ended: `delivered`, `dead_lettered`, `failed`, ...
        dead_letter: Its id.
        event: Id, source, type, hops and place of a related event.
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
    first, last = found.chunk_first_offset, found.chunk_first_offset + found.chunk_record_count - 1
    place = f"partition {found.partition}, offset {found.offset}, chunk {first} to {last}"
    entries = [(found.append_time_us, TimelineEntry(time_text(found.append_time_us), "stored", f"stored: {place}"))]
    for match in trace.matches:
        entries += _match(match)
    entries += [(one.time_us, _attempt(one, "", "")) for one in trace.others]
    entries += [(one.append_time_us, _related(one, found.hops)) for one in trace.tree.events]
    return [entry for _, entry in sorted(entries, key=lambda one: one[0])]


def _match(match: MatchTrace) -> Iterator[tuple[int, TimelineEntry]]:
    row, key = match.row, match.key
    kind, name = (key.kind.value, key.path) if key is not None else ("", "")
    named = f"{kind.lower()} {name}" if name else f"something deleted (id {row.target})"
    verdict = row.verdict.name.lower()
    says = f"matched for {named}: {verdict}, generation {row.generation}"
    # A row is handed on while it is written: what comes of it may have the earlier time.
    matched_us = min([row.time_us, *(entry.time_us for entry in match.attempts)])
    yield (
        matched_us,
        TimelineEntry(time_text(matched_us), "matched", says, kind, name, generation=row.generation, verdict=verdict),
    )
    for entry in match.attempts:
        yield entry.time_us, _attempt(entry, kind, name)
    letter = match.dead_letter
    if letter is not None:
        says = f"dead letter {letter.id} ({letter.reason}), {letter.state}"
        yield (
            letter.died_us,
            TimelineEntry(
                time_text(letter.died_us), "dead-letter", says, kind, name, reason=letter.reason, dead_letter=letter.id
            ),
        )


def _attempt(entry: JournalEntry, kind: str, name: str) -> TimelineEntry:
    if not entry.attempt:
        says = f"ended: {entry.result.replace('_', ' ')}"
        return TimelineEntry(time_text(entry.time_us), "ended", says, kind, name, result=entry.result)
    answered = f": {status_text(entry.status, entry.reason)}"
    says = _ORIGINS[entry.origin].format(attempt=entry.attempt) + answered
    return TimelineEntry(
        time_text(entry.time_us),
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


def _related(one: FoundEvent, hops: int) -> TimelineEntry:
    event = one.stored.event
    relation = (
        "comes of it, or of the same event" if one.hops > hops else "it descends from this one, or both from another"
    )
    described: dict[str, object] = {
        "id": event.id,
        "source": event.source,
        "type": event.type,
        "hops": one.hops,
        "partition": one.partition,
        "offset": one.offset,
    }
    says = f"event {event.id} of type {event.type}: {relation}"
    return TimelineEntry(time_text(one.append_time_us), "related", says, event=described)
