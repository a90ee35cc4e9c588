"""The explanation of what became of an event: a word, a sentence for people, and their evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from headgate.deadletters.store import DeadLetterState
from headgate.delivery.journal import JournalEntry, Origin
from headgate.filter.tools.trace import Trace
from headgate.inspect.find import FoundEvent, KeptDeadLetter, OtherBroker
from headgate_api.event import rfc3339
from headgate_api.event.status import status_text
from headgate_api.objects.kinds import Condition, Trigger


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
    UNDELIVERED = "undelivered"
    DEAD_LETTER = "dead-letter"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class AttemptSummary:
    """What is known of the attempts; the next one is due at `next_us`, since 1970 UTC, 0 when that is not known.

    Of the last one: `code` is the HTTP status, 0 when it is not known or no answer came; `reason` why it failed, empty
    when that is not known; `detail` what was found behind the reason; `answer` what it said, shortened.
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

    `trace` is what the filter says of the event, part by part, where that matters. `attempts` are of a delivery that
    has not ended, or of a dead letter. `result` is how a delivery has ended, as the journal has it, empty when it has
    not, or nobody knows it any more. `history` are attempts that the journal still knows, replays and dead letters
    among them. With NOT_FOUND `next` is where to go on searching, partition to offset, and `other` the newest event of
    the id that another broker has accepted. `searched_to_us` is the append time of the oldest chunk that was searched;
    0 for none.
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
    """What became of an event for a page of its broker's triggers; `after` is the name to go on behind, if any.

    `event` is as it was found; or why it was not, which is then the whole answer.
    """

    event: EventExplanation | FoundEvent
    triggers: tuple[tuple[str, EventExplanation], ...] = ()
    after: str = ""


DELIVERED: Final = "delivered"
"""Stands for the result of an end that is a good attempt."""
ENDS: Final = {
    "": "delivered at attempt {attempt} ({last})",
    "dead_lettered": "given up; {dead_letter}",
    "failed": "given up and dropped{after}",
    "expired": "given up and dropped: it was not taken within the bounds of a backlog",
    "gone": "dropped: the trigger had gone or had no address",
    "lost": "dropped: the log no longer held the event",
}
"""The sentence for an end, by its result; the filter explains the others."""
CHANGED_SINCE: Final = "the filter of today wants the event; the trigger had another one when it was matched"


def attempts_of_delivery(history: tuple[JournalEntry, ...]) -> list[JournalEntry]:
    """The attempts of the delivery itself, without those of replays and dead letters."""
    return [one for one in history if one.origin is Origin.DELIVERY and one.attempt]


def delivery_end(history: tuple[JournalEntry, ...]) -> JournalEntry | None:
    """How the delivery has ended: a good attempt or an end without one, while it is known."""
    ends = [one for one in history if one.origin is Origin.DELIVERY and not one.reason]
    return ends[-1] if ends else None


def ended_text(end: JournalEntry, history: tuple[JournalEntry, ...]) -> str:
    """How the delivery has ended, with the last status."""
    tried = attempts_of_delivery(history)
    after = f"; {_last(tried[-1].status, tried[-1].reason, tried[-1].detail)}" if tried else ""
    message = ENDS[end.result].format(
        attempt=end.attempt, last=status_text(end.status), after=after, dead_letter=_took_dead_letter(history)
    )
    return f"the delivery has ended, {time_text(end.time_us)}: {message}"


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


def replayed_text(history: tuple[JournalEntry, ...]) -> str:
    """What is added of the last replay."""
    replays = [one for one in history if one.origin is Origin.REPLAY]
    if not replays:
        return ""
    last = replays[-1]
    result = f"failed ({last.reason})" if last.reason else f"delivered ({status_text(last.status)})"
    return f"; replayed at {time_text(last.time_us)}: {result}"


def undelivered_text(attempts: AttemptSummary, trigger: Trigger) -> str:
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


def dead_letter_text(dead_letter: KeptDeadLetter) -> str:
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


def not_ready_text(trigger: Trigger) -> str:
    """Why a trigger gets no events."""
    ready = condition(trigger, "Ready")
    reason = ready.message or ready.reason if ready is not None else "it has not been looked at yet"
    return f"the trigger gets no events: {reason}"


def time_text(time_us: int) -> str:
    """RFC 3339 in milliseconds."""
    return rfc3339.text(time_us, "milliseconds")
