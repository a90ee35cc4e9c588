"""Why an event was, or was not, delivered to a trigger, and its trace: from log, outbox, cursors, and what was noted.

What became of the event is read from the records of the processes that decide (`find.py`). Whether a filter wants it
is decided by cel-cpp again: part by part for one trigger, as a whole for all triggers of a broker.

    not in the log                         -> not stored
    of another broker                      -> other broker
    no row in the outbox, above watermark  -> not matched yet
    no row, below it, filter false, error  -> filter false, filter error (closed: not delivered)
    no row, below it, filter true          -> the trigger was not there, not Ready, or had another filter
    row, at or above the cursors           -> undelivered, with attempts and the time of the next one
    row, ended, with one in its store      -> pending until its time
    row, ended                             -> dead letter, ended (how, while the journal of attempts knows it), filter
                                              false or error (cel-cpp's word on a candidate)
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headgate.deadletters.store import DeadLetterState
from headgate.delivery.journal import JournalEntry, Origin
from headgate.event.arrow import EVENT_SCHEMA
from headgate.event.hops import ROOT, place_root, root_of
from headgate.filter.cel.engine import OutcomeKind
from headgate.filter.cel.errors import EvaluationError
from headgate.filter.cel.evaluate import EventView, program
from headgate.filter.cel.transform import apply_transform
from headgate.filter.compile.plan import Verdict
from headgate.filter.tools.trace import Trace, trace
from headgate.inspect.find import (
    EventSearch,
    FoundEvent,
    InspectedLog,
    KeptDeadLetter,
    KnownEvent,
    LogPage,
    MatchRow,
    OtherBroker,
    PullTrace,
    Records,
    RowRecord,
    SearchResult,
    Unfinished,
    find_event,
    is_below,
    time_text,
)
from headgate.objects.kinds.routing import Target
from headgate.objects.kinds.specs import retention_us
from headgate.objects.kinds.status import identity_of
from headgate.objects.store.store import Store
from headgate_api.event import rfc3339
from headgate_api.event.names import full_name, path_of
from headgate_api.limits import TREE_BYTES_MAX, TREE_EVENTS_MAX, TREE_SECONDS_MAX
from headgate_api.objects.kinds import Broker, Condition, Kind, Object, ObjectKey, Trigger
from headgate_api.plain_words import status_text


class EventFate(StrEnum):
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
    PENDING = "pending"
    UNDELIVERED = "undelivered"
    DEAD_LETTER = "dead-letter"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class AttemptSummary:
    """What is known of the attempts; the next one is due at `next_us`, 0 when that is not known.

    Of the last one: `code` is the HTTP status, `reason` why it failed, `detail` what was found behind the reason,
    `answer` what it said, shortened; 0 and empty where that is not known.
    """

    failed: int
    next_us: int = 0
    code: int = 0
    answer: str = ""
    reason: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class EventExplanation:
    """What became of an event for a trigger, and why.

    `trace` is what the filter says of the event, where that matters. `attempts` are of a delivery that has not ended,
    or of a dead letter. `result` is how a delivery has ended, empty when it has not, or nobody knows. `history` are
    attempts that the journal still knows, replays and dead letters among them. `next`, `other` and `searched_to_us` are
    as in `SearchResult`.
    """

    fate: EventFate
    message: str
    found: FoundEvent | None = None
    trace: Trace | None = None
    attempts: AttemptSummary | None = None
    result: str = ""
    history: tuple[JournalEntry, ...] = ()
    next: Mapping[int, int] = field(default_factory=dict)
    other: OtherBroker | None = None
    searched_to_us: int = 0


@dataclass(frozen=True, slots=True)
class BrokerExplanation:
    """What became of an event for a page of its broker's triggers; `event` may be why it was not found, and all."""

    event: EventExplanation | FoundEvent
    triggers: tuple[tuple[str, EventExplanation], ...] = ()
    after: str = ""


class Why:
    """Explains what became of an event. Blocking; any number of calls at the same time.

    `shown` makes of an object what whoever asks may see of it.
    """

    def __init__(self, records: Records, store: Store, shown: Callable[[Object], Object] = lambda obj: obj) -> None:
        self._records = records
        self._store = store
        self._shown = shown

    def of_trigger(self, key: ObjectKey, search: EventSearch) -> EventExplanation:
        trigger = self._shown(self._store.get(key))
        assert isinstance(trigger, Trigger)
        path, table = key.path, self._store.snapshot()
        target = table.trigger(path)
        nobody = f"{trigger.broker_key}/"
        broker = target.broker if target is not None else table.brokers.get(trigger.broker_key, nobody)
        if target is None and trigger.is_foreign:  # perhaps its right to see the broker's events is gone
            return EventExplanation(EventFate.NOT_READY, _not_ready_text(trigger))
        found = self._find(broker, search)
        if isinstance(found, EventExplanation):
            return found
        if found.stored.broker != broker:
            return _of_other_broker(found, trigger.broker_key)
        if target is None:
            return EventExplanation(EventFate.NOT_READY, _not_ready_text(trigger), found)
        return self._explain(trigger, target, _Asked(found, self._records.of_event(found, target.id)), trace)

    def of_broker(self, key: ObjectKey, search: EventSearch, *, after: str, limit: int) -> BrokerExplanation:
        """What became of an event for the triggers of a broker, a page of them behind the name `after`.

        Those of other namespaces are `namespace/name`, and come last.
        """
        broker = self._store.get(key)
        assert isinstance(broker, Broker)
        found = self._find(identity_of(broker), search)
        if isinstance(found, EventExplanation):
            return BrokerExplanation(found)
        if found.stored.broker != identity_of(broker):
            return BrokerExplanation(_of_other_broker(found, key.path))
        return self.of_stored(key, found, after=after, limit=limit)

    def of_stored(self, key: ObjectKey, found: FoundEvent, *, after: str, limit: int) -> BrokerExplanation:
        """What became of a stored event for the triggers of its broker; see `of_broker`."""
        keys = self._store.targets.triggers_of(key, full_name(after, key.namespace) if after else "", limit + 1)
        triggers = self._store.found(keys[:limit])  # in this order, without those that were deleted meanwhile
        targets = {target.name: target for target in self._store.snapshot().targets.values() if target.pull is None}
        event = _Asked(found, self._records.of_event(found))
        listed = [
            (one.name_at_broker, self._for_list(one, targets, event))
            for one in map(self._shown, triggers.values())
            if isinstance(one, Trigger)
        ]
        return BrokerExplanation(found, tuple(listed), listed[-1][0] if listed and len(keys) > limit else "")

    def _for_list(self, trigger: Trigger, targets: Mapping[str, Target], event: _Asked) -> EventExplanation:
        target = targets.get(f"{trigger.metadata.namespace}/{trigger.metadata.name}")
        if target is None:
            return EventExplanation(EventFate.NOT_READY, _not_ready_text(trigger))
        explained = self._explain(trigger, target, event, _whole)
        if not trigger.is_foreign:
            return explained
        # How somebody else's subscriber answers is told to those who may look at his trigger.
        return EventExplanation(explained.fate, f"{explained.fate}: a trigger of another namespace")

    def _find(self, broker: str, search: EventSearch) -> FoundEvent | EventExplanation:
        """The event; or why there is none."""
        served = self._store.served(path_of(broker))
        kept = search.kept(served.rule.retention_us if served is not None else None)
        result = find_event(self._records.log, broker, kept)
        return result.found or _not_found(result)

    # --- what became of it ------------------------------------------------------------------------------

    def _explain(self, trigger: Trigger, target: Target, event: _Asked, judge: _Judge) -> EventExplanation:
        history, row = event.history(target.id), event.row(target.id)
        if row is None:
            explanation = self._without_row(trigger, target, event, history, judge)
        else:
            explanation = self._with_row(trigger, target, event, history, row, judge)
        message = explanation.message + _replayed_text(history)
        return replace(explanation, found=event.found, history=history, message=message)

    def _with_row(
        self,
        trigger: Trigger,
        target: Target,
        event: _Asked,
        history: tuple[JournalEntry, ...],
        record: RowRecord,
        judge: _Judge,
    ) -> EventExplanation:
        if (letter := record.dead_letter) is not None and letter.state == DeadLetterState.PENDING:
            tried = _attempts_of_delivery(history)
            last = tried[-1] if tried else None
            status, reason = (last.status, last.reason) if last is not None else (0, "")
            if letter.due_us <= time.time_ns() // 1_000:  # it waits for its turn, or for the trigger to be resumed
                waiting = AttemptSummary(len(tried), 0, status, reason=reason)
                return EventExplanation(EventFate.UNDELIVERED, _undelivered_text(waiting, trigger), attempts=waiting)
            waiting = AttemptSummary(len(tried), letter.due_us, status, reason=reason)
            return EventExplanation(EventFate.PENDING, pending_text(letter), attempts=waiting)
        if record.unfinished is not None:
            waiting = _waiting(record.unfinished, history)
            return EventExplanation(EventFate.UNDELIVERED, _undelivered_text(waiting, trigger), attempts=waiting)
        if letter is not None:
            attempts = AttemptSummary(letter.attempts, 0, letter.code, letter.data.decode("utf-8", "replace"))
            return EventExplanation(EventFate.DEAD_LETTER, _dead_letter_text(letter), attempts=attempts)
        end = _delivery_end(history)
        if (ended := _ended(end, history)) is not None:
            return ended
        judged = judge(target.filter.cel, event.view)
        if end is not None or record.row.verdict == Verdict.ERROR or judged.outcome.kind is not OutcomeKind.TRUE:
            refused = _refused(judged) or _untransformed(target, event.view)
            return refused or EventExplanation(EventFate.CHANGED_SINCE, _CHANGED_SINCE, trace=judged)
        given_up = "sent to its dead-letter sink" if target.delivery.has_sink else "dropped"
        message = f"the filter matched and the delivery has ended: delivered, or given up and {given_up}"
        return EventExplanation(EventFate.ENDED, message, trace=judged)

    def _without_row(
        self, trigger: Trigger, target: Target, event: _Asked, history: tuple[JournalEntry, ...], judge: _Judge
    ) -> EventExplanation:
        found = event.found
        created_us = rfc3339.micros(trigger.metadata.creation_timestamp) or 0
        # A creation time has whole seconds.
        if found.append_time_us < created_us:
            message = f"the trigger was created at {trigger.metadata.creation_timestamp}, after the event was stored"
            return EventExplanation(EventFate.CREATED_LATER, message)
        if not event.known.of(target.id).is_matched:
            return EventExplanation(EventFate.NOT_MATCHED_YET, "the matcher has not come to the event yet")
        if (ended := _ended(_delivery_end(history), history)) is not None:
            return ended
        judged = judge(target.filter.cel, event.view)
        if (refused := _refused(judged)) is not None:
            return refused
        if event.known.of(target.id).is_trimmed:
            message = "the delivery has ended long ago, and the outbox is trimmed; the filter wants the event"
            return EventExplanation(EventFate.ENDED, message, trace=judged)
        ready = condition(trigger, "Ready")
        since_us = rfc3339.micros(ready.last_transition_time) if ready is not None else None
        never_changed = trigger.metadata.generation == 1
        if since_us is not None and never_changed:
            since_us += 999_999  # whole seconds, too: it was not Ready before, as it had no other filter
        if ready is None or ready.status != "True" or (since_us is not None and since_us > found.append_time_us):
            since = f" (ready since {ready.last_transition_time})" if ready and ready.status == "True" else ""
            other = "" if never_changed else ", or had another filter,"  # a change, too, makes it Ready anew
            message = f"the filter wants the event, but the trigger was not Ready{other} when it was stored{since}"
            return EventExplanation(EventFate.NOT_READY, message, trace=judged)
        return EventExplanation(EventFate.CHANGED_SINCE, _CHANGED_SINCE, trace=judged)


class _Asked:
    """An event and what dispatchers know of it."""

    def __init__(self, found: FoundEvent, known: KnownEvent) -> None:
        self.found = found
        self.known = known
        self._rows = {one.row.target: one for one in known.rows}
        self._attempts: dict[int, list[JournalEntry]] = {}
        for entry in known.attempts:
            self._attempts.setdefault(entry.target, []).append(entry)

    @property
    def view(self) -> EventView:
        return EventView(self.found.stored.event, self.found.append_time_us)

    def row(self, target: int) -> RowRecord | None:
        return self._rows.get(target)

    def history(self, target: int) -> tuple[JournalEntry, ...]:
        """The attempts for a target, the oldest first."""
        return tuple(self._attempts.get(target, ()))


_Judge = Callable[[str, EventView], Trace]


def _whole(cel: str, view: EventView) -> Trace:
    """What a filter decides about an event, without its parts: a trace costs a compilation for each."""
    return Trace(cel, program(cel).evaluate_view(view), (), left_out=False)


def _not_found(result: SearchResult) -> EventExplanation:
    if result.next:
        message = f"not among the newest events back to {time_text(result.searched_to_us)}; go on with `next`"
        return EventExplanation(
            EventFate.NOT_FOUND, message, next=result.next, other=result.other, searched_to_us=result.searched_to_us
        )
    back = f"back to {time_text(result.searched_to_us)}" if result.searched_to_us else "which is empty"
    message = f"no event of this id is in the log, {back}: it was not accepted, or is no longer kept"
    return EventExplanation(EventFate.NOT_STORED, message, searched_to_us=result.searched_to_us)


def _of_other_broker(found: FoundEvent, broker: str) -> EventExplanation:
    accepted = path_of(found.stored.broker)
    message = (
        f"an earlier broker {broker} accepted the event, and has been deleted"
        if accepted == broker
        else f"broker {accepted} accepted the event, not {broker}"
    )
    return EventExplanation(EventFate.OTHER_BROKER, message, found)


def _refused(judged: Trace) -> EventExplanation | None:
    """What follows when the filter does not want the event; None when it does."""
    outcome = judged.outcome
    match outcome.kind:
        case OutcomeKind.FALSE:
            return EventExplanation(EventFate.FILTER_FALSE, "the filter is false for the event", trace=judged)
        case OutcomeKind.ERROR:
            message = f"the filter is an error for the event, which therefore is not delivered: {outcome.message}"
            return EventExplanation(EventFate.FILTER_ERROR, message, trace=judged)
        case _:
            return None


def _untransformed(target: Target, view: EventView) -> EventExplanation | None:
    """What follows when the trigger's transform makes no event of this one; None when it does."""
    if target.transform:
        try:
            apply_transform(target.transform, view)
        except EvaluationError as error:
            message = f"the transform is an error for the event, which therefore is not delivered: {error.message}"
            return EventExplanation(EventFate.FILTER_ERROR, message)
    return None


def _waiting(unfinished: Unfinished, history: tuple[JournalEntry, ...]) -> AttemptSummary:
    """What is known of the attempts of a delivery that has not ended."""
    if not unfinished.failed:
        return AttemptSummary(0)
    tried = _attempts_of_delivery(history)
    if not tried:
        return AttemptSummary(unfinished.failed, unfinished.due_us)
    last = tried[-1]
    return AttemptSummary(unfinished.failed, unfinished.due_us, last.status, reason=last.reason, detail=last.detail)


# --- sentences ------------------------------------------------------------------------------------


DELIVERED: Final = "delivered"
"""Stands for the result of an end that is a good attempt."""
_ENDS: Final = {
    "": "delivered at attempt {attempt} ({last})",
    "dead_lettered": "given up; {dead_letter}",
    "failed": "given up and dropped{after}",
    "expired": "given up and dropped: it was too late, by its expirytime, the trigger's ttl or the bounds of a backlog",
    "gone": "dropped: the trigger had gone or had no address",
    "lost": "dropped: the log no longer held the event",
    "cancelled": "dropped: it waited for its time, and was cancelled",
}
"""The sentence for an end, by its result; the filter explains the others."""
_CHANGED_SINCE: Final = "the filter of today wants the event; the trigger had another one when it was matched"


def _attempts_of_delivery(history: tuple[JournalEntry, ...]) -> list[JournalEntry]:
    """The attempts of the delivery itself, without those of replays and dead letters."""
    return [one for one in history if one.origin is Origin.DELIVERY and one.attempt]


def _delivery_end(history: tuple[JournalEntry, ...]) -> JournalEntry | None:
    """How the delivery has ended: a good attempt or an end without one, while it is known."""
    ends = [one for one in history if one.origin is Origin.DELIVERY and not one.reason]
    return ends[-1] if ends else None


def _ended(end: JournalEntry | None, history: tuple[JournalEntry, ...]) -> EventExplanation | None:
    """How the delivery has ended, with the last status; None where the filter explains it, or nothing is known."""
    if end is None or end.result not in _ENDS:
        return None
    tried = _attempts_of_delivery(history)
    after = f"; {_last(tried[-1].status, tried[-1].reason, tried[-1].detail)}" if tried else ""
    message = _ENDS[end.result].format(
        attempt=end.attempt, last=status_text(end.status), after=after, dead_letter=_took_dead_letter(history)
    )
    says = f"the delivery has ended, {time_text(end.time_us)}: {message}"
    return EventExplanation(EventFate.ENDED, says, result=end.result or DELIVERED)


def _last(status: int, reason: str, detail: str) -> str:
    return f"the last {'answer was' if status else 'attempt got'} {status_text(status, reason, detail)}"


def _took_dead_letter(history: tuple[JournalEntry, ...]) -> str:
    """What became of a dead letter that is no longer kept."""
    good = [one for one in history if one.origin in _TOOK and not one.reason]
    if not good:
        return "its dead letter was discarded, or taken so long ago that no attempt is known"
    last = good[-1]
    return f"{_TOOK[last.origin]} took its dead letter at {time_text(last.time_us)} ({status_text(last.status)})"


_TOOK: Final = {Origin.DEAD_LETTER: "the dead-letter sink", Origin.REDRIVE: "the subscriber, after a redrive,"}


def _replayed_text(history: tuple[JournalEntry, ...]) -> str:
    """What is added of the last replay."""
    replays = [one for one in history if one.origin is Origin.REPLAY]
    if not replays:
        return ""
    last = replays[-1]
    result = f"failed ({last.reason})" if last.reason else f"delivered ({status_text(last.status)})"
    return f"; replayed at {time_text(last.time_us)}: {result}"


def _undelivered_text(attempts: AttemptSummary, trigger: Trigger) -> str:
    """What a delivery that has not ended waits for."""
    if condition(trigger, "Delivering") is not None:
        tried = f" after {attempts.failed} failed attempts" if attempts.failed else ""
        return f"matched, and waiting{tried}: the trigger is paused"
    health = condition(trigger, "SubscriberHealthy")
    trouble = f"; {health.message}" if health is not None and health.status != "True" and health.message else ""
    if not attempts.failed:
        return f"matched, and waiting for its turn{trouble}"
    last = f", {_last(attempts.code, attempts.reason, attempts.detail)}" if attempts.code or attempts.reason else ""
    due = f", the next attempt is due at {time_text(attempts.next_us)}" if attempts.next_us else ""
    return f"matched, not delivered yet: {attempts.failed} attempts failed{last}{due}{trouble}"


def pending_text(pending: KeptDeadLetter) -> str:
    """What an event waits for that is not to be delivered yet, or that failed when its time had come."""
    at = f"until {time_text(pending.due_us)}"
    return f"matched, and waits {at}: by its deliverytime, the trigger's delay, or the pause after an attempt"


def _dead_letter_text(dead_letter: KeptDeadLetter) -> str:
    """Why an event is a dead letter, and what it waits for."""
    attempts = "1 attempt" if dead_letter.attempts == 1 else f"{dead_letter.attempts} attempts"
    waits = {
        DeadLetterState.SENDING: f"it waits for the dead-letter sink {dead_letter.sink}",
        DeadLetterState.KEPT: "it is kept for a person",
        DeadLetterState.REDRIVING: "it is being redriven",
    }[DeadLetterState(dead_letter.state)]
    problem = f" ({dead_letter.problem})" if dead_letter.problem else ""
    since = time_text(dead_letter.died_us)
    return f"given up after {attempts} ({dead_letter.reason}), a dead letter since {since}: {waits}{problem}"


def condition(trigger: Trigger, type_: str) -> Condition | None:
    """A condition of a trigger's status."""
    return next((one for one in trigger.status.conditions if one.type == type_), None)


def _not_ready_text(trigger: Trigger) -> str:
    """Why a trigger gets no events."""
    ready = condition(trigger, "Ready")
    reason = ready.message or ready.reason if ready is not None else "it has not been looked at yet"
    return f"the trigger gets no events: {reason}"


# --- trace ----------------------------------------------------------------------------------------
# The whole way: stored, matched for whom, every attempt, what a subscription holds, dead letters, its tree.

_EXTENSIONS: Final = EVENT_SCHEMA.get_field_index("extensions")
_PLACE: Final = re.compile(r"([0-9]{1,4})-([0-9]{1,19})-[0-9a-f]{8}")


@dataclass(frozen=True, slots=True)
class EventTree:
    """An event's relatives in its broker, the root first, then as they were stored; `complete`: all was searched."""

    events: tuple[FoundEvent, ...]
    complete: bool


def tree_of(log: InspectedLog, found: FoundEvent, ceiling: str = "") -> EventTree:
    """The tree that an event belongs to, as far as it is below a ceiling: a bounded search, forward from its root."""
    event = found.stored.event
    root = root_of(event) or place_root(event, found.partition, found.offset)
    first = _root(log, root, found)
    since_us = found.append_time_us if first is None else first.append_time_us
    events = [first] if first is not None and is_below(first, ceiling) else []
    written = f'"{ROOT}":"{root}"'
    ends_s, left_bytes = time.monotonic() + TREE_SECONDS_MAX, TREE_BYTES_MAX
    complete = True
    for page in log.descendants(root, since_us):
        events += (one for one in _related(page, written, found) if is_below(one, ceiling))
        left_bytes -= page.size_bytes
        if left_bytes <= 0 or len(events) >= TREE_EVENTS_MAX or time.monotonic() > ends_s:
            complete = False
            break
    events.sort(key=lambda one: (one is not first, one.append_time_us, one.partition, one.offset))
    return EventTree(tuple(events[:TREE_EVENTS_MAX]), complete)


def _root(log: InspectedLog, root: str, found: FoundEvent) -> FoundEvent | None:
    place = _PLACE.fullmatch(root)
    if place is None:
        return None
    partition, offset = int(place[1]), int(place[2])
    if (partition, offset) == (found.partition, found.offset):
        return None
    first = log.at(partition, offset)
    if first is None or first.stored.broker != found.stored.broker:
        return None
    return first if place_root(first.stored.event, partition, offset) == root else None


def _related(page: LogPage, written: str, found: FoundEvent) -> list[FoundEvent]:
    extensions: pa.Array = page.batch.column(_EXTENSIONS)
    if extensions.null_count == len(extensions):
        return []
    related = map(page.event, pc.indices_nonzero(pc.match_substring(extensions, written)).to_pylist())
    itself, broker = (found.partition, found.offset), found.stored.broker
    return [one for one in related if (one.partition, one.offset) != itself and one.stored.broker == broker]


@dataclass(frozen=True, slots=True)
class MatchTrace:
    """A row of the outbox and what followed, the oldest first; the key is None for what is deleted."""

    row: MatchRow
    key: ObjectKey | None
    attempts: tuple[JournalEntry, ...]
    dead_letter: KeptDeadLetter | None
    pull: PullTrace | None


@dataclass(frozen=True, slots=True)
class EventTrace:
    """Everything that is known of one stored event; `evaluated` says whether the matcher has passed it.

    `others` are attempts without a row: replays to a URL, or to a trigger of today. `is_below_ceiling`: who asks may
    not know of all events, so nothing is told that counts others.
    """

    found: FoundEvent
    evaluated: bool
    matches: tuple[MatchTrace, ...]
    tree: EventTree
    others: tuple[JournalEntry, ...]
    is_below_ceiling: bool = False


class Tracer:
    """Traces events. Blocking; any number of calls at the same time."""

    def __init__(self, records: Records, store: Store, *, is_below_ceiling: bool = False) -> None:
        self._records = records
        self._store = store
        self._is_below_ceiling = is_below_ceiling

    def trace(self, broker: ObjectKey, search: EventSearch) -> tuple[EventTrace | None, SearchResult]:
        """The newest event that is searched for, and where the search has stopped."""
        stored = self._store.get(broker)
        assert isinstance(stored, Broker)
        kept = search.kept(retention_us(stored.spec.log))
        result = find_event(self._records.log, identity_of(stored), kept)
        found = result.found
        if found is None or found.stored.broker != identity_of(stored):
            return None, result
        event = self._records.of_event(found)
        known, rows = event.attempts, event.rows
        keys = self._store.targets.keys()

        def is_told(target: int) -> bool:
            """What becomes of the event in another namespace is told to those who may look there."""
            key = keys.get(target)
            return key is None or key.namespace == broker.namespace

        matches = []
        for one in rows:
            row, key = one.row, keys.get(one.row.target)
            if not is_told(row.target):
                matches.append(MatchTrace(row, key, (), None, None))
                continue
            attempts = tuple(entry for entry in known if entry.target == row.target)
            pull = one.pull if key is not None and key.kind is Kind.SUBSCRIPTION else None
            matches.append(MatchTrace(row, key, attempts, one.dead_letter, pull))
        matched = {one.row.target for one in rows}
        others = tuple(one for one in known if one.target not in matched and is_told(one.target))
        tree, is_evaluated = tree_of(self._records.log, found, search.ceiling), event.is_matched or bool(rows)
        return EventTrace(found, is_evaluated, tuple(matches), tree, others, self._is_below_ceiling), result
