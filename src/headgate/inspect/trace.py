"""The trace of an event: stored, matched for whom, every attempt, what a subscription holds, dead letters, its tree."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headgate.delivery.journal import JournalEntry
from headgate.event.arrow import EVENT_SCHEMA
from headgate.event.hops import ROOT, place_root, root_of
from headgate.inspect.find import (
    EventSearch,
    FoundEvent,
    InspectedLog,
    KeptDeadLetter,
    LogPage,
    MatchRow,
    PullTrace,
    Records,
    SearchResult,
    find_event,
)
from headgate.objects.kinds.specs import retention_us
from headgate.objects.kinds.status import identity_of
from headgate.objects.store.store import Store
from headgate_api.limits import TREE_BYTES_MAX, TREE_EVENTS_MAX, TREE_SECONDS_MAX
from headgate_api.objects.kinds import Broker, Kind, ObjectKey

_EXTENSIONS: Final = EVENT_SCHEMA.get_field_index("extensions")
_PLACE: Final = re.compile(r"([0-9]{1,4})-([0-9]{1,19})-[0-9a-f]{8}")


@dataclass(frozen=True, slots=True)
class EventTree:
    """An event's relatives in its broker, the root first, then as they were stored; `complete`: all was searched."""

    events: tuple[FoundEvent, ...]
    complete: bool


def tree_of(log: InspectedLog, found: FoundEvent) -> EventTree:
    """The tree that an event belongs to: a bounded search, forward from its root."""
    event = found.stored.event
    root = root_of(event) or place_root(event, found.partition, found.offset)
    first = _root(log, root, found)
    since_us = found.append_time_us if first is None else first.append_time_us
    events = [] if first is None else [first]
    written = f'"{ROOT}":"{root}"'
    ends_s, left_bytes = time.monotonic() + TREE_SECONDS_MAX, TREE_BYTES_MAX
    complete = True
    for page in log.descendants(root, since_us):
        events += _related(page, written, found)
        left_bytes -= page.size_bytes
        if left_bytes <= 0 or len(events) >= TREE_EVENTS_MAX or time.monotonic() > ends_s:
            complete = False
            break
    events.sort(key=lambda one: (one is not first, one.append_time_us, one.partition, one.offset))
    return EventTree(tuple(events[:TREE_EVENTS_MAX]), complete)


def _root(log: InspectedLog, root: str, found: FoundEvent) -> FoundEvent | None:
    """The root, where it is another event than the one that is traced and still in the log of its broker."""
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
    """The events of a page that carry the root, but for the one that is traced."""
    extensions: pa.Array = page.batch.column(_EXTENSIONS)
    if extensions.null_count == len(extensions):
        return []
    related = map(page.event, pc.indices_nonzero(pc.match_substring(extensions, written)).to_pylist())
    itself, broker = (found.partition, found.offset), found.stored.broker
    return [one for one in related if (one.partition, one.offset) != itself and one.stored.broker == broker]


@dataclass(frozen=True, slots=True)
class MatchTrace:
    """A row of the outbox and what followed; the key is None for what is deleted.

    Attempts are those that are still known, the oldest first; ends, replays and dead letters among them.
    """

    row: MatchRow
    key: ObjectKey | None
    attempts: tuple[JournalEntry, ...]
    dead_letter: KeptDeadLetter | None
    pull: PullTrace | None


@dataclass(frozen=True, slots=True)
class EventTrace:
    """Everything that is known of one stored event; `evaluated` says whether the matcher has passed it.

    `others` are attempts without a row, the oldest first: replays to a URL, or to a trigger of today.
    """

    found: FoundEvent
    evaluated: bool
    matches: tuple[MatchTrace, ...]
    tree: EventTree
    others: tuple[JournalEntry, ...]


class Tracer:
    """Traces events. Blocking; any number of calls at the same time."""

    def __init__(self, records: Records, store: Store) -> None:
        self._records = records
        self._store = store

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
