"""The trace of an event: stored, matched for whom, every attempt, what a subscription holds, dead letters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from headgate.control.log_spec import retention_us
from headgate.control.objects import Broker, Kind, ObjectKey
from headgate.control.status import identity_of
from headgate.control.store import Store
from headgate.deadletters.store import StoredDeadLetter
from headgate.delivery.journal import JournalEntry
from headgate.inspect.find import EventSearch, FoundEvent, SearchResult, find_event
from headgate.inspect.records import MatchRow, Records
from headgate.inspect.tree import EventTree, tree_of
from headgate.subscriptions.saved import SavedCursor


class PullState(StrEnum):
    """Where an event stands in a subscription."""

    UNREAD = "unread"
    HANDED_OUT = "handed-out"
    WAITING = "waiting"
    ENDED = "ended"  # acknowledged, refused by the filter, or given up


@dataclass(frozen=True, slots=True)
class PullTrace:
    """What a subscription has done with an event.

    Attributes:
        state: Where the event stands.
        deliveries: How often it was handed out; 0 when that is not known any more.
        consumer: Who has it; empty when nobody does.
    """

    state: PullState
    deliveries: int = 0
    consumer: str = ""


@dataclass(frozen=True, slots=True)
class MatchTrace:
    """A row of the outbox and what followed.

    Attributes:
        row: The row.
        key: The trigger or subscription; None when it is deleted.
        attempts: What is still known of them, the oldest first; ends, replays and dead letters among them.
        dead_letter: While it is kept.
        pull: Of a subscription.
    """

    row: MatchRow
    key: ObjectKey | None
    attempts: tuple[JournalEntry, ...]
    dead_letter: StoredDeadLetter | None
    pull: PullTrace | None


@dataclass(frozen=True, slots=True)
class EventTrace:
    """Everything that is known of one stored event.

    Attributes:
        found: The event, and where it is stored.
        evaluated: Whether the matcher has passed it.
        matches: Every trigger and subscription that it was matched for, in order.
        tree: What the event descends from, and what has come of it.
        others: Attempts without a row, the oldest first: replays to a URL, or to a trigger of today.
    """

    found: FoundEvent
    evaluated: bool
    matches: tuple[MatchTrace, ...]
    tree: EventTree
    others: tuple[JournalEntry, ...]


class Tracer:
    """Traces events. Blocking; any number of calls at the same time.

    Args:
        records: The files.
        store: The objects.
    """

    def __init__(self, records: Records, store: Store) -> None:
        self._records = records
        self._store = store

    def trace(self, broker: ObjectKey, search: EventSearch) -> tuple[EventTrace | None, SearchResult]:
        """The newest event that is searched for, and where the search has stopped.

        Raises:
            ObjectNotFoundError: There is no such broker.
            UnavailableError: A file of the dispatcher is busy.
        """
        stored = self._store.get(broker)
        assert isinstance(stored, Broker)
        kept = search.kept(retention_us(stored.spec.log))
        result = find_event(self._records.log, identity_of(stored), kept)
        found = result.found
        if found is None or found.stored.broker != identity_of(stored):
            return None, result
        # Before the rows are looked for: what is below the watermark now has its rows.
        evaluated = self._records.is_matched(found)
        known = self._records.attempts(found)
        rows = self._records.rows(found)
        keys = self._store.target_keys()
        matches = []
        for row in rows:
            key = keys.get(row.target)
            attempts = tuple(entry for entry in known if entry.target == row.target)
            dispatcher = self._records.of(row.target)
            dead_letter = dispatcher.dead_letter(row.target, row.position)
            pull = _pull(row, dispatcher.subscriptions()) if key is not None and key.kind is Kind.SUBSCRIPTION else None
            matches.append(MatchTrace(row, key, attempts, dead_letter, pull))
        matched = {row.target for row in rows}
        others = tuple(entry for entry in known if entry.target not in matched)
        tree = tree_of(self._records.log, found)
        return EventTrace(found, evaluated or bool(rows), tuple(matches), tree, others), result


def _pull(row: MatchRow, subscriptions: Mapping[int, SavedCursor]) -> PullTrace:
    saved = subscriptions.get(row.target)
    if saved is None:
        return PullTrace(PullState.UNREAD)
    for unacked in saved.unacked:
        if unacked.position == row.position:
            state = PullState.HANDED_OUT if unacked.consumer else PullState.WAITING
            return PullTrace(state, unacked.deliveries, unacked.consumer)
    return PullTrace(PullState.UNREAD if row.position >= saved.next else PullState.ENDED)
