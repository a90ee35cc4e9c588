"""The reason why an event was, or was not, delivered to a trigger, from log, outbox, cursors, dead letters, attempts.

What became of the event is read from the records of the processes that decide (`find.py`). Whether a filter wants it
is decided by cel-cpp again: part by part for one trigger, as a whole for all triggers of a broker.

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

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import islice

import msgspec

from headgate.delivery.journal import JournalEntry
from headgate.filter.cel.engine import OutcomeKind
from headgate.filter.cel.evaluate import EventView, program
from headgate.filter.compile.plan import Verdict
from headgate.filter.tools.trace import Trace, trace
from headgate.inspect.explanation import (
    CHANGED_SINCE,
    DELIVERED,
    ENDS,
    AttemptSummary,
    BrokerExplanation,
    EventExplanation,
    EventFate,
    attempts_of_delivery,
    condition,
    dead_letter_text,
    delivery_end,
    ended_text,
    not_ready_text,
    replayed_text,
    time_text,
    undelivered_text,
)
from headgate.inspect.find import (
    EventSearch,
    FoundEvent,
    KnownEvent,
    Records,
    RowRecord,
    SearchResult,
    Unfinished,
    find_event,
)
from headgate.objects.kinds.routing import Target
from headgate.objects.kinds.status import identity_of
from headgate.objects.store.store import Store
from headgate_api.event import rfc3339
from headgate_api.event.names import path_of
from headgate_api.objects.kinds import Broker, Kind, ObjectKey, Trigger, decode_stored


class Why:
    """Explains what became of an event. Blocking; any number of calls at the same time."""

    def __init__(self, records: Records, store: Store) -> None:
        self._records = records
        self._store = store

    def of_trigger(self, key: ObjectKey, search: EventSearch) -> EventExplanation:
        trigger = self._store.get(key)
        assert isinstance(trigger, Trigger)
        path, table = key.path, self._store.snapshot()
        target = next((one for one in table.targets if one.name == path and one.pull is None), None)
        nobody = f"{trigger.broker_key}/"
        broker = target.broker if target is not None else table.brokers.get(trigger.broker_key, nobody)
        found = self._find(broker, search)
        if isinstance(found, EventExplanation):
            return found
        if found.stored.broker != broker:
            return _of_other_broker(found, trigger.broker_key)
        if target is None:
            return EventExplanation(EventFate.NOT_READY, not_ready_text(trigger), found)
        return self._explain(trigger, target, _Asked(found, self._records.of_event(found, target.id)), trace)

    def of_broker(self, key: ObjectKey, search: EventSearch, *, after: str, limit: int) -> BrokerExplanation:
        """What became of an event for the triggers of a broker, a page of them behind the name `after`."""
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
        # What may be of the broker, by its text: one of many in the namespace need not be decoded for it.
        named = msgspec.json.encode(key.name)
        page = self._store.page(
            Kind.TRIGGER,
            key.namespace,
            after=(key.namespace, after) if after else None,
            test=lambda _, body: named in body,
        )
        decoded = (decode_stored(Kind.TRIGGER, item.body) for item in page.items)
        triggers = list(
            islice((one for one in decoded if isinstance(one, Trigger) and one.broker_key == key.path), limit + 1)
        )
        targets = {target.name: target for target in self._store.snapshot().targets if target.pull is None}
        event = _Asked(found, self._records.of_event(found))
        listed = [(one.metadata.name, self._for_list(one, targets, event)) for one in triggers[:limit]]
        return BrokerExplanation(found, tuple(listed), listed[-1][0] if len(triggers) > limit else "")

    def _for_list(self, trigger: Trigger, targets: Mapping[str, Target], event: _Asked) -> EventExplanation:
        target = targets.get(f"{trigger.metadata.namespace}/{trigger.metadata.name}")
        if target is None:
            return EventExplanation(EventFate.NOT_READY, not_ready_text(trigger))
        return self._explain(trigger, target, event, _whole)

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
        message = explanation.message + replayed_text(history)
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
        if record.unfinished is not None:
            waiting = _waiting(record.unfinished, history)
            return EventExplanation(EventFate.UNDELIVERED, undelivered_text(waiting, trigger), attempts=waiting)
        row, dead_letter = record.row, record.dead_letter
        if dead_letter is not None:
            attempts = AttemptSummary(
                dead_letter.attempts, 0, dead_letter.code, dead_letter.data.decode("utf-8", "replace")
            )
            return EventExplanation(EventFate.DEAD_LETTER, dead_letter_text(dead_letter), attempts=attempts)
        end = delivery_end(history)
        if end is not None and end.result in ENDS:
            return EventExplanation(EventFate.ENDED, ended_text(end, history), result=end.result or DELIVERED)
        judged = judge(target.filter.cel, EventView(event.found.stored.event, event.found.append_time_us))
        if end is not None or row.verdict == Verdict.ERROR or judged.outcome.kind is not OutcomeKind.TRUE:
            return _refused(judged) or EventExplanation(EventFate.CHANGED_SINCE, CHANGED_SINCE, trace=judged)
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
        end = delivery_end(history)
        if end is not None and end.result in ENDS:
            return EventExplanation(EventFate.ENDED, ended_text(end, history), result=end.result or DELIVERED)
        judged = judge(target.filter.cel, EventView(found.stored.event, found.append_time_us))
        refused = _refused(judged)
        if refused is not None:
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
        return EventExplanation(EventFate.CHANGED_SINCE, CHANGED_SINCE, trace=judged)


class _Asked:
    """An event and what dispatchers know of it."""

    def __init__(self, found: FoundEvent, known: KnownEvent) -> None:
        self.found = found
        self.known = known
        self._rows = {one.row.target: one for one in known.rows}
        self._attempts: dict[int, list[JournalEntry]] = {}
        for entry in known.attempts:
            self._attempts.setdefault(entry.target, []).append(entry)

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


def _waiting(unfinished: Unfinished, history: tuple[JournalEntry, ...]) -> AttemptSummary:
    """What is known of the attempts of a delivery that has not ended."""
    if not unfinished.failed:
        return AttemptSummary(0)
    tried = attempts_of_delivery(history)
    if not tried:
        return AttemptSummary(unfinished.failed, unfinished.due_us)
    last = tried[-1]
    return AttemptSummary(unfinished.failed, unfinished.due_us, last.status, reason=last.reason, detail=last.detail)
