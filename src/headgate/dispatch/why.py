"""Why was this event not delivered to this trigger? Answered from the files: log, outbox, cursors, dead letters.

An event is looked for by its id, newest first, a bounded piece of the log a call. What became of it is read where the
processes that decide write it down; what a filter says of it is asked of cel-cpp again, part by part.

    not in the log                         -> not stored
    of another broker                      -> other broker
    no row in the outbox, above watermark  -> not matched yet
    no row, below it, filter false, error  -> filter false, filter error (closed: not delivered)
    no row, below it, filter true          -> the trigger was not there, not Ready, or had another filter
    row, at or above the cursors           -> undelivered, with attempts and the time of the next one
    row, ended                             -> dead letter, ended (how, while the journal of attempts knows it), filter
                                              false or error (cel-cpp's word on a candidate)
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

import pyarrow.compute as pc

from headgate.control.objects import Kind, ObjectKey, Trigger
from headgate.control.routing import Target
from headgate.control.store import Store
from headgate.dispatch.cursors import Cursors, CursorStore, TargetCursor
from headgate.dispatch.journal import DIRECTORY, Entry, entries
from headgate.dispatch.letters import Letter, LetterStore
from headgate.dispatch.outbox import OUTBOX_SCHEMA, PROGRESS_TARGET
from headgate.errors import UnavailableError
from headgate.event import rfc3339
from headgate.event.arrow import EVENT_SCHEMA, StoredEvent, from_batch
from headgate.filter.cel import OutcomeKind
from headgate.filter.plan import Verdict
from headgate.filter.trace import Trace, trace
from headgate.filter.view import EventView
from headgate.limits import CLOCK_SLACK_S, WHY_BYTES_MAX, WHY_CHUNKS_MAX, WHY_SECONDS_MAX
from headgate.log.reader import PartitionReader
from headgate.log.search import newest_first, newest_of_all

_ID, _SOURCE, _BROKER = (EVENT_SCHEMA.get_field_index(name) for name in ("id", "source", "broker"))
_COLUMN: Final = {name: OUTBOX_SCHEMA.get_field_index(name) for name in OUTBOX_SCHEMA.names}


class Fate(StrEnum):
    """What became of an event for a trigger."""

    NOT_FOUND = "not-found-yet"  # in the piece of the log that was searched; `next` says where to go on
    NOT_STORED = "not-stored"
    OTHER_BROKER = "other-broker"
    CREATED_LATER = "created-later"
    NOT_READY = "not-ready"
    NOT_MATCHED_YET = "not-matched-yet"
    FILTER_FALSE = "filter-false"
    FILTER_ERROR = "filter-error"
    CHANGED_SINCE = "changed-since"
    UNDELIVERED = "undelivered"
    DEAD_LETTER = "dead-letter"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Found:
    """An event in the log."""

    partition: int
    offset: int
    append_time_us: int
    stored: StoredEvent


@dataclass(frozen=True, slots=True)
class Attempts:
    """What is known of the attempts.

    Attributes:
        failed: How many failed so far.
        next_us: When the next one is due, microseconds since 1970 UTC; 0 when it is not known.
        code: HTTP status of the last one, 0 when it is not known.
        answer: What it said, shortened.
    """

    failed: int
    next_us: int = 0
    code: int = 0
    answer: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """Why.

    Attributes:
        fate: In one word.
        says: In one sentence.
        found: The event, when it is in the log.
        trace: What the filter says of the event, part by part, where that matters.
        attempts: Of a delivery that has not ended, or of a dead letter.
        next: Where to go on searching: partition to offset; set with NOT_FOUND only.
        other: Partition and offset of the newest event of the id that another broker has accepted; with `next` only.
        searched_to_us: Append time of the oldest chunk that was searched; 0 when there was none.
    """

    fate: Fate
    says: str
    found: Found | None = None
    trace: Trace | None = None
    attempts: Attempts | None = None
    next: Mapping[int, int] = field(default_factory=dict)
    other: tuple[int, int] | None = None
    searched_to_us: int = 0


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked.

    Attributes:
        trigger: The trigger's key.
        id: The event's id.
        source: The event's source; empty finds the newest event of the id.
        since_us: Look at nothing older, microseconds since 1970 UTC.
        before: Where an earlier call ended: its `next`.
        other: Its `other`.
    """

    trigger: ObjectKey
    id: str
    source: str = ""
    since_us: int = 0
    before: Mapping[int, int] = field(default_factory=dict)
    other: tuple[int, int] | None = None


class Why:
    """Answers questions. Blocking; any number at the same time.

    Args:
        data: The data directory.
        store: The objects.
    """

    def __init__(self, data: Path, store: Store) -> None:
        self._data = data
        self._store = store

    def answer(self, question: Question) -> Answer:
        """What became of an event.

        Raises:
            ObjectNotFoundError: There is no such trigger.
            UnavailableError: A file of the dispatcher is busy.
        """
        trigger = self._store.get(question.trigger)
        assert isinstance(trigger, Trigger)
        looked = self._find(question, trigger.broker_key)
        if isinstance(looked, Answer):
            return looked
        if looked.stored.broker != trigger.broker_key:
            says = (
                f"the event was accepted by broker {looked.stored.broker}, the trigger listens to {trigger.broker_key}"
            )
            return Answer(Fate.OTHER_BROKER, says, looked)
        path = question.trigger.path
        target = next((one for one in self._store.snapshot().targets if one.name == path and one.pull is None), None)
        if target is None:
            return Answer(Fate.NOT_READY, f"the trigger gets no events: {_reason(trigger)}", looked)
        return self._became(trigger, target, looked)

    # --- the event --------------------------------------------------------------------------------------

    def _find(self, question: Question, broker: str) -> Found | Answer:
        """The newest event of the id, of the trigger's broker if it has one; or why there is none."""
        ends_s = time.monotonic() + WHY_SECONDS_MAX
        chunks = size = searched_us = 0
        reached = dict(question.before)
        other = question.other
        log = self._data / "log"
        for partition, chunk in newest_of_all(log, before=question.before, not_before_us=question.since_us):
            # One chunk at least: who asks again gets on, however slow the disk is.
            if chunks and (chunks >= WHY_CHUNKS_MAX or size >= WHY_BYTES_MAX or time.monotonic() > ends_s):
                says = f"not among the newest events back to {time_text(searched_us)}; go on with `next`"
                return Answer(Fate.NOT_FOUND, says, next=reached, other=other, searched_to_us=searched_us)
            rows = pc.indices_nonzero(pc.equal(chunk.batch.column(_ID), question.id)).to_pylist()
            for row in reversed(rows):
                if question.source and chunk.batch.column(_SOURCE)[row].as_py() != question.source:
                    continue
                stored = from_batch(chunk.batch, row)
                found = Found(partition, chunk.first_offset + row, chunk.append_time_us, stored)
                if stored.broker == broker:
                    return found
                other = other or (partition, found.offset)
            reached[partition] = chunk.first_offset
            chunks, size, searched_us = chunks + 1, size + chunk.size_bytes, chunk.append_time_us
        if other is not None and (kept := self._at(other, question)) is not None:
            return kept
        back = f"back to {time_text(searched_us)}" if searched_us else "which is empty"
        says = f"no event of this id is in the log, {back}: it was not accepted, or is no longer kept"
        return Answer(Fate.NOT_STORED, says, searched_to_us=searched_us)

    def _at(self, place: tuple[int, int], question: Question) -> Found | None:
        """The event of a place, if it still is there, and is one that was asked for: a client may name any place."""
        partition, offset = place
        with PartitionReader.open(self._data / "log" / str(partition), start=offset) as reader:
            chunk = reader.read()
            if chunk is None or chunk.first_offset != offset:
                return None
            stored = from_batch(chunk.batch, 0)
        if stored.event.id != question.id or question.source not in ("", stored.event.source):
            return None
        return Found(partition, offset, chunk.append_time_us, stored)

    # --- what became of it ------------------------------------------------------------------------------

    def _became(self, trigger: Trigger, target: Target, found: Found) -> Answer:
        cursors = self._cursors()
        # Before its row is looked for: what is below the watermark now has its rows.
        is_matched = found.offset < self._watermark(found.partition, cursors)
        row = self._row(found, target.id)
        if row is None:
            return self._without_row(trigger, target, found, is_matched=is_matched)
        position, verdict = row
        cursor = next((one for one in cursors.targets if one.target == target.id), None)
        waiting = _waiting(position, cursors.position, cursor)
        if waiting is not None:
            return Answer(Fate.UNDELIVERED, _undelivered(waiting, trigger), found, attempts=waiting)
        letter = self._letter(target.id, position)
        if letter is not None:
            return Answer(Fate.DEAD_LETTER, _buried(letter), found, attempts=_of_letter(letter))
        end = self._end(target.id, found)
        if end is not None and end.result in _ENDS:
            return _ended(end, found)
        judged = trace(target.filter.cel, EventView(found.stored.event))
        if end is not None or verdict == Verdict.ERROR or judged.outcome.kind is not OutcomeKind.TRUE:
            return _judged(judged, found) or Answer(Fate.CHANGED_SINCE, _CHANGED, found, judged)
        given_up = "sent to its dead-letter sink" if target.delivery.has_sink else "dropped"
        says = f"the filter matched and the delivery has ended: delivered, or given up and {given_up}"
        return Answer(Fate.ENDED, says, found, judged)

    def _without_row(self, trigger: Trigger, target: Target, found: Found, *, is_matched: bool) -> Answer:
        created_us = rfc3339.micros(trigger.metadata.creation_timestamp) or 0
        # A creation time has whole seconds.
        if found.append_time_us < created_us:
            says = f"the trigger was created at {trigger.metadata.creation_timestamp}, after the event was stored"
            return Answer(Fate.CREATED_LATER, says, found)
        if not is_matched:
            return Answer(Fate.NOT_MATCHED_YET, "the matcher has not come to the event yet", found)
        end = self._end(target.id, found)
        if end is not None and end.result in _ENDS:
            return _ended(end, found)
        judged = trace(target.filter.cel, EventView(found.stored.event))
        answer = _judged(judged, found)
        if answer is not None:
            return answer
        oldest_us = self._oldest_row_us()
        if oldest_us and found.append_time_us < oldest_us:
            says = "the delivery has ended long ago, and the outbox is trimmed; the filter wants the event"
            return Answer(Fate.ENDED, says, found, judged)
        ready = next((one for one in trigger.status.conditions if one.type == "Ready"), None)
        since_us = rfc3339.micros(ready.last_transition_time) if ready is not None else None
        if ready is None or ready.status != "True" or (since_us is not None and since_us > found.append_time_us):
            since = f" (ready since {ready.last_transition_time})" if ready and ready.status == "True" else ""
            says = f"the filter wants the event, but the trigger was not Ready when it was stored{since}"
            return Answer(Fate.NOT_READY, says, found, judged)
        return Answer(Fate.CHANGED_SINCE, _CHANGED, found, judged)

    # --- files of the dispatcher ------------------------------------------------------------------------

    def _cursors(self) -> Cursors:
        path = self._data / "dispatch.db"
        if not path.exists():
            return Cursors()
        try:
            return CursorStore.read(path)
        except sqlite3.OperationalError as error:
            raise UnavailableError(f"the dispatcher's cursors cannot be read now: {error}") from error

    @property
    def _outbox(self) -> Path:
        return self._data / "outbox" / "0"

    def _row(self, found: Found, target: int) -> tuple[int, int] | None:
        """Position and verdict of the outbox row of an event and a target."""
        earliest_us = found.append_time_us - int(CLOCK_SLACK_S * 1_000_000)
        for chunk in newest_first(self._outbox, not_before_us=earliest_us, wanted=[str(target)]):
            batch = chunk.batch
            hit = pc.and_(
                pc.equal(batch.column(_COLUMN["target"]), target),
                pc.and_(
                    pc.equal(batch.column(_COLUMN["offset"]), found.offset),
                    pc.equal(batch.column(_COLUMN["partition"]), found.partition),
                ),
            )
            for row in pc.indices_nonzero(hit).to_pylist():
                return chunk.first_offset + row, batch.column(_COLUMN["verdict"])[row].as_py()
        return None

    def _watermark(self, partition: int, cursors: Cursors) -> int:
        """Every event of the partition below it has been matched: the newest progress row, else what cursors know."""
        for chunk in newest_first(self._outbox, wanted=[str(PROGRESS_TARGET)]):
            batch = chunk.batch
            progress = pc.and_(
                pc.equal(batch.column(_COLUMN["target"]), PROGRESS_TARGET),
                pc.equal(batch.column(_COLUMN["partition"]), partition),
            )
            rows = pc.indices_nonzero(progress).to_pylist()
            if rows:
                return int(batch.column(_COLUMN["offset"])[rows[-1]].as_py())
            if chunk.first_offset < cursors.position:
                break
        return cursors.watermarks.get(partition, 0)

    def _oldest_row_us(self) -> int:
        """When the oldest row was written that the outbox still has; 0 when nothing was trimmed."""
        with PartitionReader.open(self._outbox, start=0) as reader:
            if not reader.first_offset():
                return 0
            chunk = reader.read()
            return chunk.append_time_us if chunk is not None else 0

    def _letter(self, target: int, position: int) -> Letter | None:
        path = self._data / "deadletters.db"
        if not path.exists():
            return None
        with closing(LetterStore(path)) as letters:
            found = letters.page("target = ? AND position = ?", (target, position), after=0, limit=1)
        return found[0] if found else None

    def _end(self, target: int, found: Found) -> Entry | None:
        """How a delivery has ended: a good attempt or an end without one, while it is known."""
        known = entries(self._data / DIRECTORY, found.partition, found.offset)
        ends = [one for one in known if one.target == target and not one.reason]
        return ends[-1] if ends else None


_ENDS: Final = {
    "": "delivered at attempt {attempt}",
    "dead_lettered": "given up; its dead letter was taken by the sink, redriven or discarded",
    "failed": "given up and dropped",
    "expired": "given up and dropped, for nobody took it within the bounds of a backlog",
    "gone": "dropped, for the trigger had gone or had no address",
    "lost": "dropped, for the log no longer held the event",
}
"""What is said of an end, by its result; the others are the filter's matter."""
_CHANGED: Final = "the filter of today wants the event; the trigger had another one when it was matched"


def _ended(end: Entry, found: Found) -> Answer:
    says = _ENDS[end.result].format(attempt=end.attempt)
    return Answer(Fate.ENDED, f"the delivery has ended, {time_text(end.time_us)}: {says}", found)


def _judged(judged: Trace, found: Found) -> Answer | None:
    match judged.outcome.kind:
        case OutcomeKind.FALSE:
            return Answer(Fate.FILTER_FALSE, "the filter is false for the event", found, judged)
        case OutcomeKind.ERROR:
            says = f"the filter is an error for the event, which therefore is not delivered: {judged.outcome.message}"
            return Answer(Fate.FILTER_ERROR, says, found, judged)
        case _:
            return None


def _waiting(position: int, handed: int, cursor: TargetCursor | None) -> Attempts | None:
    """What is known of a delivery that has not ended; None when it has."""
    if position >= handed:
        return Attempts(0)
    if cursor is None:
        return None
    for tried in cursor.retries:
        if tried.position == position:
            return Attempts(tried.failures, tried.due_us)
    behind = cursor.lag_from is not None and position >= cursor.lag_from
    return Attempts(0) if behind or position in cursor.pending else None


def _undelivered(attempts: Attempts, trigger: Trigger) -> str:
    health = next((one for one in trigger.status.conditions if one.type == "SubscriberHealthy"), None)
    said = f"; {health.message}" if health is not None and health.status != "True" and health.message else ""
    if not attempts.failed:
        return f"matched, and waiting for its turn{said}"
    due = f", the next attempt is due at {time_text(attempts.next_us)}" if attempts.next_us else ""
    return f"matched, not delivered yet: {attempts.failed} attempts failed{due}{said}"


def _buried(letter: Letter) -> str:
    return (
        f"given up after {letter.attempts} attempts ({letter.reason}), a dead letter since {time_text(letter.died_us)}"
    )


def _of_letter(letter: Letter) -> Attempts:
    return Attempts(letter.attempts, 0, letter.code, letter.data.decode("utf-8", "replace"))


def _reason(trigger: Trigger) -> str:
    ready = next((one for one in trigger.status.conditions if one.type == "Ready"), None)
    return ready.message or ready.reason if ready is not None else "it has not been looked at yet"


def time_text(time_us: int) -> str:
    """RFC 3339 in milliseconds."""
    return rfc3339.text(time_us, "milliseconds")


def trigger_key(namespace: str, name: str) -> ObjectKey:
    """The key of a trigger."""
    return ObjectKey(Kind.TRIGGER, namespace, name)
