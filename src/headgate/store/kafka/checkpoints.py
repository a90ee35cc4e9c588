"""Checkpoints of one outbox partition: the places from which its rows can be decided again, and the next commit.

Which records of the outbox count depends on all that stand before them (`outbox_takeover.py`). So whoever looks for the
rows of a target that lags begins at a place of which the takeover's state is known: the newest one at which nothing is
handed over yet that it looks for. They are kept with the cursors, as far back as a target has rows to read; some older
ones are for seeks of subscriptions, and for people, who ask what became of an event.
"""

from __future__ import annotations

import sqlite3
import threading
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from headgate import limits
from headgate.delivery.cursors import CursorChange, CursorStore
from headgate.storage.commit import Committer
from headgate.store.kafka.outbox_state import OutboxState, decode_state, encode_state

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS checkpoints (position INTEGER PRIMARY KEY, next_offset INTEGER NOT NULL, state TEXT NOT NULL)
STRICT;
CREATE TABLE IF NOT EXISTS routing (id INTEGER PRIMARY KEY CHECK (id = 0), generation INTEGER NOT NULL) STRICT;
"""


@dataclass(frozen=True, slots=True)
class KnownPlace:
    """A place, and what is decided there.

    Attributes:
        position: Every row below it has been handed over.
        offset: Of the first record to read; below `position` where an event is incomplete there.
        state: Of the takeover at `offset`; rows below `position` do not come again.
    """

    position: int = 0
    offset: int = 0
    state: OutboxState = field(default_factory=OutboxState)


class Checkpoints:
    """The known places of one partition, by position. For several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: list[KnownPlace] = [KnownPlace()]

    def add(self, place: KnownPlace) -> None:
        """A place behind all others, or at the last one's position, whose place it takes."""
        with self._lock:
            if self._places and self._places[-1].position >= place.position:
                self._places.pop()
            self._places.append(place)

    def before(self, position: int) -> KnownPlace:
        """The newest place at or before a position."""
        with self._lock:
            index = bisect_right(self._places, position, key=lambda place: place.position)
            return self._places[max(0, index - 1)]

    def of_event(self, source: int, offset: int) -> KnownPlace | None:
        """The newest place at which an event has no row yet; None where no place that is kept is so old.

        Args:
            source: The event's partition of the topic `events`.
            offset: In that partition.
        """

        def is_before(state: OutboxState) -> bool:
            known = state.takeover.partitions.get(source)
            return known is None or known.watermark <= offset

        return self.newest(is_before)

    def newest(self, fits: Callable[[OutboxState], bool] = lambda _: True) -> KnownPlace | None:
        """The newest place whose state fits."""
        with self._lock:
            places = list(self._places)
        return next((place for place in reversed(places) if fits(place.state)), None)

    def keep(self, positions: frozenset[int], from_: int) -> None:
        """Forgets the places below a position, but for the newest of them and those at some positions."""
        with self._lock:
            newest = max((each.position for each in self._places if each.position <= from_), default=from_)
            kept = [each for each in self._places if each.position >= newest or each.position in positions]
            self._places = kept or self._places[-1:]


class CheckpointedCursors(CursorStore):
    """The cursors of one outbox partition, with checkpoints. Blocking; one thread at a time.

    Args:
        path: `dispatch.db`, made when absent.
        checkpoints: Of the partition; those of the file are added.
        committer: Ends its transactions; None for SQLite alone.

    Attributes:
        place: What the group is to commit: the newest place at which everything is in the file.
        generation: Of the newest filters by which rows were handed over: who goes on needs their targets.
    """

    def __init__(self, path: Path, checkpoints: Checkpoints, committer: Committer | None = None) -> None:
        super().__init__(path, _SCHEMA, committer)
        self._checkpoints = checkpoints
        self._spacing = limits.OUTBOX_CHECKPOINT_RECORDS
        found = self._connection.execute("SELECT position, next_offset, state FROM checkpoints ORDER BY position")
        stored = [KnownPlace(position, offset, decode_state(state)) for position, offset, state in found]
        self._stored = [each.position for each in stored]
        for each in stored:
            checkpoints.add(each)
        row = self._connection.execute("SELECT generation FROM routing").fetchone()
        self.generation = self._stored_generation = int(row[0]) if row else 0
        self.place: KnownPlace | None = None

    def _write(self, connection: sqlite3.Connection, change: CursorChange) -> None:
        super()._write(connection, change)
        if self.generation != self._stored_generation:
            connection.execute("REPLACE INTO routing VALUES (0, ?)", (self.generation,))
            self._stored_generation = self.generation
        place = self.place = self._checkpoints.before(change.position)
        stored = list(self._stored)
        if not stored or place.position >= stored[-1] + self._spacing:
            new = [place] if stored else [self._checkpoints.before(0), place]  # a row may be needed from before it
            rows = [(each.position, each.offset, encode_state(each.state)) for each in new]
            connection.executemany("REPLACE INTO checkpoints VALUES (?, ?, ?)", rows)
            stored = sorted({*stored, *(each.position for each in new)})
            stored = self._thinned(stored, self.oldest_needed(change.position))
            gone = [(position,) for position in {*self._stored} - {*stored}]
            connection.executemany("DELETE FROM checkpoints WHERE position = ?", gone)
        self._stored = stored  # after a rollback, what is stored again and what is deleted again is the same
        self._checkpoints.keep(frozenset(stored), place.position)

    def _thinned(self, stored: list[int], needed: int) -> list[int]:
        """Without every second one where there are too many, of those that are needed and of the others.

        From the others on `why` and `trace` look for rows that have ended (`partition_records.py`): the older they are,
        the fewer.
        """
        first = max(0, bisect_right(stored, needed) - 1)
        past, stored = stored[:first], stored[first:]
        if len(past) > limits.OUTBOX_CHECKPOINTS_PAST:
            past = past[::2]
        if len(stored) > limits.OUTBOX_CHECKPOINTS_MAX:
            self._spacing *= 2
            stored = [*stored[:-1:2], stored[-1]]
        return past + stored
