"""Checkpoints of one outbox partition: the places from which its rows can be decided again, and the next commit.

Which records of the outbox count depends on all that stand before them (`outbox_takeover.py`). So whoever looks for the
rows of a target that lags begins at a place of which the takeover's state is known: the newest one at which nothing is
handed over yet that it looks for. They are kept with the cursors, as far back as a target has rows to read, and as the
outbox has records: a seek of a subscription may go there.
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

    def newest(self, fits: Callable[[OutboxState], bool] = lambda _: True) -> KnownPlace | None:
        """The newest place whose state fits."""
        with self._lock:
            return next((place for place in reversed(self._places) if fits(place.state)), None)

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
        first: The first position that retention has kept; places before it are forgotten where nobody needs them.
    """

    def __init__(self, path: Path, checkpoints: Checkpoints, committer: Committer | None = None) -> None:
        super().__init__(path, _SCHEMA, committer)
        self._checkpoints = checkpoints
        self.first = 0
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
        if not stored or place.position >= stored[-1] + _spacing(stored):
            new = [place] if stored else [self._checkpoints.before(0), place]  # a row may be needed from before it
            rows = [(each.position, each.offset, encode_state(each.state)) for each in new]
            connection.executemany("REPLACE INTO checkpoints VALUES (?, ?, ?)", rows)
            stored = sorted({*stored, *(each.position for each in new)})
            stored = _thinned(stored, min(self.first, self.oldest_needed(change.position)))
            gone = [(position,) for position in {*self._stored} - {*stored}]
            connection.executemany("DELETE FROM checkpoints WHERE position = ?", gone)
        self._stored = stored  # after a rollback, what is stored again and what is deleted again is the same
        self._checkpoints.keep(frozenset(stored), place.position)


def _spacing(stored: list[int]) -> int:
    """How far the next place is behind the last one at least: half of those that may be kept cover what they span."""
    return max(limits.OUTBOX_CHECKPOINT_RECORDS, 2 * (stored[-1] - stored[0]) // limits.OUTBOX_CHECKPOINTS_MAX)


def _thinned(stored: list[int], needed: int) -> list[int]:
    """Without those before what is needed, and without every second one where there are too many."""
    first = max(0, bisect_right(stored, needed) - 1)
    stored = stored[first:]
    return stored if len(stored) <= limits.OUTBOX_CHECKPOINTS_MAX else [*stored[:-1:2], stored[-1]]
