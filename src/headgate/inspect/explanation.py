"""The explanation of what became of an event: a word, a sentence, and their evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from headgate.delivery.journal import JournalEntry
from headgate.filter.tools.trace import Trace
from headgate.inspect.find import FoundEvent, OtherBroker


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
    """What is known of the attempts.

    Attributes:
        failed: How many failed so far.
        next_us: When the next one is due, microseconds since 1970 UTC; 0 when it is not known.
        code: HTTP status of the last one, 0 when it is not known, or no answer came.
        reason: Why the last one failed; empty when it is not known.
        answer: What it said, shortened.
    """

    failed: int
    next_us: int = 0
    code: int = 0
    answer: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class EventExplanation:
    """What became of an event for a trigger, and why.

    Attributes:
        fate: In one word.
        message: In one sentence.
        found: The event, when it is in the log.
        trace: What the filter says of the event, part by part, where that matters.
        attempts: Of a delivery that has not ended, or of a dead letter.
        result: How a delivery has ended, as the journal has it: `delivered`, `dead_lettered`, `failed`, ...; "" when it
            has not, or nobody knows it any more.
        history: Attempts for the trigger that the journal still knows, replays and dead letters among them.
        next: Where to go on searching: partition to offset; set with NOT_FOUND only.
        other: The newest event of the id that another broker has accepted; with `next` only.
        searched_to_us: Append time of the oldest chunk that was searched; 0 when there was none.
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
    """What became of an event for the triggers of its broker.

    Attributes:
        event: The event as it was found; or why it was not, which is then the whole answer.
        triggers: A page of the broker's triggers: names, and what became of the event for each.
        after: The name to go on behind; empty at the end.
    """

    event: EventExplanation | FoundEvent
    triggers: tuple[tuple[str, EventExplanation], ...] = ()
    after: str = ""
