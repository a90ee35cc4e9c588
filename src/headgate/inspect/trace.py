"""The trace of an event: stored, matched for whom, every attempt, what a subscription holds, dead letters."""

from __future__ import annotations

from dataclasses import dataclass

from headgate.control.objects import Broker, Kind, ObjectKey
from headgate.control.specs import retention_us
from headgate.control.status import identity_of
from headgate.control.store import Store
from headgate.delivery.journal import JournalEntry
from headgate.inspect.find import EventSearch, FoundEvent, SearchResult, find_event
from headgate.inspect.records import KeptDeadLetter, MatchRow, PullTrace, Records
from headgate.inspect.tree import EventTree, tree_of


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
    dead_letter: KeptDeadLetter | None
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
        records: Where events are, and what became of them.
        store: The objects.
    """

    def __init__(self, records: Records, store: Store) -> None:
        self._records = records
        self._store = store

    def trace(self, broker: ObjectKey, search: EventSearch) -> tuple[EventTrace | None, SearchResult]:
        """The newest event that is searched for, and where the search has stopped.

        Raises:
            ObjectNotFoundError: There is no such broker.
            UnavailableError: A file is busy, or a dispatcher does not answer.
        """
        stored = self._store.get(broker)
        assert isinstance(stored, Broker)
        kept = search.kept(retention_us(stored.spec.log))
        result = find_event(self._records.log, identity_of(stored), kept)
        found = result.found
        if found is None or found.stored.broker != identity_of(stored):
            return None, result
        event = self._records.of_event(found)
        known, rows = event.attempts, event.rows
        keys = self._store.target_keys()
        matches = []
        for one in rows:
            row, key = one.row, keys.get(one.row.target)
            attempts = tuple(entry for entry in known if entry.target == row.target)
            pull = one.pull if key is not None and key.kind is Kind.SUBSCRIPTION else None
            matches.append(MatchTrace(row, key, attempts, one.dead_letter, pull))
        matched = {one.row.target for one in rows}
        others = tuple(entry for entry in known if entry.target not in matched)
        tree = tree_of(self._records.log, found)
        return EventTrace(found, event.is_matched or bool(rows), tuple(matches), tree, others), result
