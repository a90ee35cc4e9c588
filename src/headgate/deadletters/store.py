"""The store of dead letters, deadletters.db: the queue of the dead-letter sinks, and what no sink took.

    sending --- sink took it --> gone        redriving --- subscriber took it --> gone
       |                           ^             |    ^
       +-- retries used up --> kept <-----------+    |
                                 +---- redrive -------+
    pending --- its delivery has ended --> gone; given up: a dead letter takes its place

What is pending is no dead letter: it waits for its time, and then its delivery begins (`pending.py`). Events stand in a
table of their own: lists and changes of state neither read nor write them. Beside them stands of a dead letter what its
event was in the log: who may have it is decided by that, and the log may be gone by then, or another one. When the
store is full the deliveries that are to be given up, or are too early, stay in the outbox, nothing is lost. The two
have their own bounds.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import msgspec

from headgate.delivery.events import SharedEvent
from headgate.delivery.given_up import DeadLetter
from headgate.objects.kinds.routing import Target
from headgate.outbox.shards import WHOLE, Shard
from headgate.storage.commit import Committer
from headgate.storage.sqlite import NumberedStore, read_only
from headgate_api import limits
from headgate_api.event import rfc3339
from headgate_api.event.model import Event
from headgate_api.event.names import namespace_of, path_of

DEAD: Final = "state != 'pending'"
"""The condition for dead letters, which their indexes have."""
WAITING: Final = "state = 'pending'"
"""The same for events that wait for their time."""
_QUEUED: Final = "state IN ('sending', 'redriving')"


class DeadLetterCount(msgspec.Struct, frozen=True):
    """Dead letters of one trigger, of one reason, in one state, that died from `oldest` to `newest`, RFC 3339."""

    namespace: str
    trigger: str
    reason: str
    state: str
    count: int
    oldest: str
    newest: str


def counts_of(paths: Iterable[Path], namespace: str | None, where: str = DEAD) -> list[DeadLetterCount]:
    """The counts of several stores that may be there, most first; blocking. A `namespace` of None means all.

    Of dead letters; of events that wait for their time with WAITING, by the times that they wait for.
    """
    return most_first([one for path in paths if path.exists() for one in _counts(path, namespace, where)])


def counted(found: Iterable[DeadLetterSummary]) -> list[DeadLetterCount]:
    """The same of some dead letters, or pending events, that were read."""
    times = defaultdict[tuple[str, str, str], list[int]](list)
    for one in found:
        is_pending = one.state == DeadLetterState.PENDING
        times[one.trigger, one.reason, one.state].append(one.due_us if is_pending else one.died_us)
    return most_first(
        [
            _count(trigger, reason, state, len(all_), min(all_), max(all_))
            for (trigger, reason, state), all_ in times.items()
        ]
    )


def most_first(counts: Sequence[DeadLetterCount]) -> list[DeadLetterCount]:
    """In the order in which people look at them."""
    return sorted(counts, key=lambda one: (-one.count, one.namespace, one.trigger, one.reason, one.state))


def _counts(path: Path, namespace: str | None, where: str) -> list[DeadLetterCount]:
    parameters = tuple[str, ...]()
    if namespace is not None:
        where, parameters = f"{where} AND trigger >= ? AND trigger < ?", (f"{namespace}/", f"{namespace}0")
    with read_only(path) as connection:
        counts = _COUNTS if where.startswith(DEAD) else _PENDING_COUNTS
        rows = connection.execute(counts.format(where), parameters).fetchall()
    return [_count(*row) for row in rows]


def _count(trigger: str, reason: str, state: str, count: int, oldest_us: int, newest_us: int) -> DeadLetterCount:
    namespace, _, name = trigger.partition("/")
    return DeadLetterCount(namespace, name, reason, state, count, rfc3339.text(oldest_us), rfc3339.text(newest_us))


_COUNTS: Final = (
    "SELECT trigger, reason, state, count(*), min(died_us), max(died_us) FROM letters WHERE {}"
    " GROUP BY trigger, reason, state"
)
# There may be millions: they are counted in an index, and the first and the last of a target are looked up.
_PENDING_COUNTS: Final = f"""
WITH counted AS (SELECT trigger, count(*) AS number, min(id) AS first FROM letters WHERE {{}} GROUP BY trigger)
SELECT counted.trigger, '', state, number,
  (SELECT min(due_us) FROM letters WHERE {WAITING} AND target = one.target),
  (SELECT max(due_us) FROM letters WHERE {WAITING} AND target = one.target)
FROM counted JOIN letters AS one ON one.id = first
"""
_SCHEMA: Final = f"""
CREATE TABLE IF NOT EXISTS letters (
  id INTEGER PRIMARY KEY AUTOINCREMENT, target INTEGER NOT NULL, position INTEGER NOT NULL,
  partition INTEGER NOT NULL, event_offset INTEGER NOT NULL, trigger TEXT NOT NULL,
  broker TEXT NOT NULL, source TEXT NOT NULL, event_id TEXT NOT NULL, type TEXT NOT NULL, bytes INTEGER NOT NULL,
  died_us INTEGER NOT NULL, reason TEXT NOT NULL, destination TEXT NOT NULL, code INTEGER NOT NULL, data BLOB NOT NULL,
  attempts INTEGER NOT NULL, sink TEXT NOT NULL, state TEXT NOT NULL, failures INTEGER NOT NULL,
  since_us INTEGER NOT NULL, due_us INTEGER NOT NULL, pace_us INTEGER NOT NULL, problem TEXT NOT NULL,
  UNIQUE (target, position, source, event_id)) STRICT;
CREATE TABLE IF NOT EXISTS events (id INTEGER PRIMARY KEY, event BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS originals (
  id INTEGER PRIMARY KEY, stored_us INTEGER NOT NULL, original BLOB, is_shared INTEGER NOT NULL) STRICT;
CREATE INDEX IF NOT EXISTS letters_queue ON letters (target, state, due_us) WHERE {_QUEUED};
CREATE INDEX IF NOT EXISTS letters_paced ON letters (target, due_us) WHERE state = 'redriving' AND failures = 0;
CREATE INDEX IF NOT EXISTS letters_dead ON letters (trigger, id, bytes) WHERE {DEAD};
CREATE INDEX IF NOT EXISTS letters_dead_ids ON letters (id) WHERE {DEAD};
CREATE INDEX IF NOT EXISTS letters_numbers ON letters (trigger, reason, state, died_us) WHERE {DEAD};
CREATE INDEX IF NOT EXISTS pending_due ON letters (target, due_us) WHERE {WAITING};
CREATE INDEX IF NOT EXISTS pending_held ON letters (trigger, id, bytes) WHERE {WAITING};
CREATE INDEX IF NOT EXISTS pending_events ON letters (event_id) WHERE {WAITING};
CREATE TABLE IF NOT EXISTS totals (
  id INTEGER PRIMARY KEY CHECK (id = 0), count INTEGER NOT NULL, bytes INTEGER NOT NULL, kept INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS pending_totals (
  id INTEGER PRIMARY KEY CHECK (id = 0), count INTEGER NOT NULL, bytes INTEGER NOT NULL) STRICT;
INSERT OR IGNORE INTO totals VALUES (0, 0, 0, 0);
INSERT OR IGNORE INTO pending_totals VALUES (0, 0, 0);
CREATE TRIGGER IF NOT EXISTS dead_in AFTER INSERT ON letters WHEN NEW.{DEAD} BEGIN
  UPDATE totals SET count = count + 1, bytes = bytes + NEW.bytes, kept = kept + (NEW.state = 'kept'); END;
CREATE TRIGGER IF NOT EXISTS dead_gone AFTER DELETE ON letters WHEN OLD.{DEAD} BEGIN
  DELETE FROM events WHERE id = OLD.id;
  DELETE FROM originals WHERE id = OLD.id;
  UPDATE totals SET count = count - 1, bytes = bytes - OLD.bytes, kept = kept - (OLD.state = 'kept'); END;
CREATE TRIGGER IF NOT EXISTS pending_in AFTER INSERT ON letters WHEN NEW.{WAITING} BEGIN
  UPDATE pending_totals SET count = count + 1, bytes = bytes + NEW.bytes; END;
CREATE TRIGGER IF NOT EXISTS pending_out AFTER DELETE ON letters WHEN OLD.{WAITING} BEGIN
  DELETE FROM events WHERE id = OLD.id;
  UPDATE pending_totals SET count = count - 1, bytes = bytes - OLD.bytes; END;
CREATE TRIGGER IF NOT EXISTS letters_state AFTER UPDATE OF state ON letters BEGIN
  UPDATE totals SET kept = kept + (NEW.state = 'kept') - (OLD.state = 'kept'); END;
"""
# A walk from target to target over the index, where GROUP BY would read all of it.
_QUEUES: Final = f"""
WITH RECURSIVE walk(target) AS (
  SELECT min(target) FROM letters WHERE {_QUEUED}
  UNION ALL SELECT (SELECT min(target) FROM letters WHERE {_QUEUED} AND target > walk.target)
  FROM walk WHERE walk.target NOTNULL)
SELECT target, queue, (
  SELECT min(due_us) FROM letters WHERE {_QUEUED} AND target = walk.target AND state = queue) AS first_us
FROM walk, (SELECT 'sending' AS queue UNION ALL SELECT 'redriving') WHERE target NOTNULL AND first_us NOTNULL
"""
_FIRST_PENDING: Final = f"""
WITH RECURSIVE walk(target) AS (
  SELECT min(target) FROM letters WHERE {WAITING}
  UNION ALL SELECT (SELECT min(target) FROM letters WHERE {WAITING} AND target > walk.target)
  FROM walk WHERE walk.target NOTNULL)
SELECT target, (SELECT min(due_us) FROM letters WHERE {WAITING} AND target = walk.target)
FROM walk WHERE target NOTNULL
"""
_DUE: Final = f"""
SELECT id FROM letters WHERE target = ? AND state = ? AND {_QUEUED} AND due_us <= ? ORDER BY due_us, id LIMIT ?
"""
_LAST_PACED: Final = "SELECT max(due_us) FROM letters WHERE target = ? AND state = 'redriving' AND failures = 0"
_REDRIVABLE: Final = f"SELECT target FROM letters WHERE id = ? AND {DEAD} AND state != 'redriving'"
_TO_TRIGGER: Final = "UPDATE OR IGNORE letters SET target = ?, trigger = ? WHERE id = ?"
_DELETE: Final = "DELETE FROM letters WHERE id = ?"
_ORIGINAL: Final = "INSERT INTO originals VALUES (?, ?, ?, ?)"
_GONE: Final = "trigger, bytes, state"
# By trigger, in the order of an index: ten times as fast as by namespace.
_HELD: Final = "SELECT trigger, count(*), sum(bytes) FROM letters WHERE {} GROUP BY trigger"
_TOTALS: Final = (
    "SELECT dead.count, dead.bytes, kept, waiting.count, waiting.bytes FROM totals AS dead, pending_totals AS waiting"
)
_encode_event = msgspec.msgpack.Encoder().encode
_decode_event = msgspec.msgpack.Decoder(Event).decode


class DeadLetterState(StrEnum):
    """What is to become of a dead letter."""

    SENDING = "sending"
    KEPT = "kept"
    REDRIVING = "redriving"
    PENDING = "pending"  # no dead letter: it waits for its time, and what its trigger does not take then


class StorePart(StrEnum):
    """What the store has: two parts with their own bounds, so that neither takes the room of the other."""

    DEAD = "dead"
    PENDING = "pending"

    @classmethod
    def of(cls, state: str) -> StorePart:
        return cls.PENDING if state == DeadLetterState.PENDING else cls.DEAD

    @property
    def bounds(self) -> tuple[int, int]:
        """How many there may be, and the bytes of their events."""
        if self is StorePart.PENDING:
            return limits.PENDING_MAX, limits.PENDING_BYTES_MAX
        return limits.DEADLETTERS_MAX, limits.DEADLETTERS_BYTES_MAX


class SendQueue(NamedTuple):
    """Dead letters that wait behind each other: a target's (its id) for its sink, or for its subscriber again."""

    target: int
    state: DeadLetterState


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDeadLetter(DeadLetter):
    """A dead letter, and what is to become of it. Times are microseconds since 1970 UTC.

    Of one that is pending, `broker` is an identity, `died_us` when the event was stored, and `since_us` how long it was
    tried (`Delivery.tried_us`).
    """

    id: int = 0  # grows with time; 0 before it is stored
    state: DeadLetterState = DeadLetterState.SENDING
    failures: int = 0  # attempts to bring it to the sink, or to the subscriber again, that failed
    since_us: int = 0  # when the first of them ended; 0 before
    due_us: int = 0  # when the next one may start
    pace_us: int = 0  # in a redrive, between the dead letter before it and this one
    problem: str = ""  # why the last one failed

    @classmethod
    def new(cls, given_up: DeadLetter) -> StoredDeadLetter:
        """One that is to be stored, to be sent to its sink at once."""
        return cls(**{field.name: getattr(given_up, field.name) for field in fields(DeadLetter)})

    @property
    def as_stored(self) -> SharedEvent | None:
        """The event as the log had it; None where nobody has written that down."""
        if self.stored_us is None:
            return None
        return SharedEvent(self.broker, self.original or self.event, self.stored_us)


_ELSEWHERE: Final = ("id", "event", "pending", "original", "stored_us", "is_shared")
_ATTRIBUTES: Final = tuple(one.name for one in fields(StoredDeadLetter) if one.name not in _ELSEWHERE)
"""Each has a column of the table `letters`."""
_COLUMNS: Final = ", ".join("event_offset" if name == "offset" else name for name in _ATTRIBUTES)
_INSERT: Final = (
    f"INSERT OR IGNORE INTO letters (id, {_COLUMNS}, source, event_id, type, bytes)"
    f" VALUES ({', '.join('?' * (len(_ATTRIBUTES) + 5))})"
)
_IS_SHARED: Final = "ifnull(is_shared, 1)"
"""Also where nobody has written it down."""
_STORED: Final = (
    "SELECT id, event, original, iif(state = 'pending', died_us, stored_us),"
    f" {_IS_SHARED}, {_COLUMNS} FROM letters JOIN events USING (id) LEFT JOIN originals USING (id)"
)


@dataclass(frozen=True, slots=True)
class DeadLetterSummary:
    """A stored dead letter without its event, which has `bytes`; what is named as in `StoredDeadLetter` is the same."""

    id: int
    target: int
    trigger: str
    broker: str
    state: str
    reason: str
    died_us: int
    attempts: int
    code: int
    destination: str
    data: bytes
    sink: str
    problem: str
    source: str
    event_id: str
    type: str
    bytes: int
    failures: int
    due_us: int
    is_shared: bool

    @property
    def broker_path(self) -> str:
        """`namespace/name` of the broker whose event it is."""
        return path_of(self.broker) if self.state == DeadLetterState.PENDING else self.broker


_SUMMARIES: Final = (
    f"SELECT {', '.join(one.name for one in fields(DeadLetterSummary)[:-1])}, {_IS_SHARED}"
    " FROM letters LEFT JOIN originals USING (id)"
)


@dataclass(frozen=True, slots=True)
class Totals:
    """How full the store is; `kept` of the dead letters wait for a person, and `pending` events for their time."""

    count: int
    bytes: int
    kept: int
    pending: int = 0
    pending_bytes: int = 0

    def of(self, part: StorePart) -> tuple[int, int]:
        """How many there are in a part, and the bytes of their events."""
        return (self.pending, self.pending_bytes) if part is StorePart.PENDING else (self.count, self.bytes)

    def is_full(self, part: StorePart) -> bool:
        (count, size_bytes), (count_max, bytes_max) = self.of(part), part.bounds
        return count >= count_max or size_bytes >= bytes_max


@dataclass(frozen=True, slots=True)
class DuePending:
    """A row of an event that waits for its time, without the event; it was tried for so long (`Delivery.tried_us`)."""

    id: int
    position: int
    partition: int
    offset: int
    failures: int
    tried_us: int
    due_us: int


_PENDING: Final = f"""
SELECT id, position, partition, event_offset, failures, since_us, due_us FROM letters
WHERE target = ? AND {WAITING} ORDER BY due_us, id LIMIT ?
"""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A pending event that does not wait any more."""

    id: int
    target: int
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Ended:
    """An attempt after which a stored dead letter goes away; one that has left the state `began` stays as it is."""

    id: int
    began: DeadLetterState


@dataclass(frozen=True, slots=True)
class Reschedule(Ended):
    """Another state, or another attempt later, for a stored dead letter."""

    state: DeadLetterState
    failures: int
    since_us: int
    due_us: int
    problem: str


class DeadLetterReader:
    """What is read of the file. Blocking; one thread at a time."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    @classmethod
    @contextlib.contextmanager
    def open(cls, path: Path) -> Iterator[Self]:
        """A file that exists and that another thread or process writes. Raises OperationalError when it is busy."""
        with read_only(path) as connection:
            yield cls(connection)

    def summaries(
        self, where: str, parameters: tuple[object, ...], *, after: int, limit: int, newest: bool = False
    ) -> Iterator[DeadLetterSummary]:
        """Dead letters with ids above `after`, in order; `where` is a condition of ours, never a client's text.

        With `newest` the highest ids come first, those below `after`, where that is not 0.
        """
        found = (after, *parameters, limit)
        beyond, order = ("id < ifnull(nullif(?, 0), 1 << 62)", "id DESC") if newest else ("id > ?", "id")
        rows = self._connection.execute(f"{_SUMMARIES} WHERE {beyond} AND {where} ORDER BY {order} LIMIT ?", found)
        return map(_summary, rows)

    def event(self, id_: int) -> Event | None:
        """The event of a dead letter; None when it is gone."""
        found = self._connection.execute("SELECT event FROM events WHERE id = ?", (id_,)).fetchone()
        return _decode_event(found[0]) if found else None

    def newest(self) -> int:
        """The highest id there is; 0 in an empty store."""
        (found,) = self._connection.execute("SELECT max(id) FROM letters").fetchone()
        return int(found or 0)

    def first_pending(self) -> dict[int, int]:
        """When the first of the events is due that wait for their time, by target."""
        return dict(self._connection.execute(_FIRST_PENDING).fetchall())

    def pending(self, target: int, limit: int) -> list[DuePending]:
        """Those of a target, the first due first; among equals in the order in which they came."""
        return [DuePending(*row) for row in self._connection.execute(_PENDING, (target, limit))]

    def get(self, id_: int) -> StoredDeadLetter | None:
        found = self._connection.execute(f"{_STORED} WHERE id = ?", (id_,)).fetchone()
        return _stored(found) if found else None


class DeadLetterStore(NumberedStore):
    """The file, for its owner. Blocking; one thread at a time.

    `held` counts dead letters by namespace, `held_bytes` the bytes of their events, as the last transaction left them,
    and `pending_held` what waits for its time; other threads may read them. No other dispatcher's dead letters have an
    id of this `shard`.
    """

    table = "letters"

    def __init__(self, path: Path, shard: Shard = WHOLE, committer: Committer | None = None) -> None:
        super().__init__(path, _SCHEMA, committer=committer)
        self._shard = shard
        self.reader = DeadLetterReader(self._connection)
        self._count()

    def _count(self) -> None:
        self.held, self.held_bytes = self._held_of(DEAD)
        self.pending_held, self.pending_held_bytes = self._held_of(WAITING)

    def _held_of(self, where: str) -> tuple[Counter[str], Counter[str]]:
        held, held_bytes = Counter[str](), Counter[str]()
        for trigger, count, size_bytes in self._connection.execute(_HELD.format(where)):
            held[namespace_of(trigger)] += count
            held_bytes[namespace_of(trigger)] += size_bytes
        return held, held_bytes

    def held_of(self, part: StorePart, namespace: str) -> tuple[int, int]:
        """How many a namespace has in a part, and the bytes of their events. For any thread."""
        if part is StorePart.PENDING:
            return self.pending_held[namespace], self.pending_held_bytes[namespace]
        return self.held[namespace], self.held_bytes[namespace]

    def _add(self, state: str, trigger: str, count: int, size_bytes: int) -> None:
        is_pending, namespace = state == DeadLetterState.PENDING, namespace_of(trigger)
        (self.pending_held if is_pending else self.held)[namespace] += count
        (self.pending_held_bytes if is_pending else self.held_bytes)[namespace] += size_bytes

    def positions(self) -> set[int]:
        return {position for (position,) in self._connection.execute("SELECT position FROM letters")}

    def copy(
        self,
        source: DeadLetterStore,
        owns: Callable[[int], bool],
        place: Callable[[int, int, int], int],
        ids: range | None = None,
    ) -> None:
        """Copy dead letters with their ids, all or those in `ids`, in one transaction.

        `place` gives the position of one by its id, its target and the position that it had.
        """
        columns = [*_ATTRIBUTES, "source", "event_id", "type", "bytes"]
        target, position = columns.index("target") + 2, columns.index("position") + 2
        select = f"SELECT id, event, {_COLUMNS}, source, event_id, type, bytes FROM letters JOIN events USING (id)"
        if ids is not None:
            select += f" WHERE id >= {ids.start} AND id < {ids.stop} ORDER BY id"
        with self._transaction() as connection:
            for id_, event, *row in source._connection.execute(select):
                found = [id_, event, *row]
                if owns(found[target]):
                    found[position] = place(id_, found[target], found[position])
                    connection.execute(_INSERT, (id_, *found[2:]))
                    connection.execute("INSERT INTO events VALUES (?, ?)", (id_, event))
                    original = source._connection.execute("SELECT * FROM originals WHERE id = ?", (id_,)).fetchone()
                    if original is not None:
                        connection.execute(_ORIGINAL, original)
        self._count()

    def totals(self) -> Totals:
        return Totals(*self._connection.execute(_TOTALS).fetchone())

    def apply(self, new: Sequence[StoredDeadLetter], gone: Sequence[Ended], changed: Sequence[Reschedule]) -> int:
        """One transaction: dead letters that go away, that are tried again, and as many new ones as there is room for.

        Returns how many of the new ones are on disk now, from the first on. What a person decided while an attempt was
        under way holds, whatever came of the attempt.
        """
        run, many = self._connection.execute, self._connection.executemany
        held: list[tuple[str, str, int, int]] = []
        with self._transaction():
            for one in gone:
                held += _taken_off(run(f"{_DELETE} AND state = ? RETURNING {_GONE}", (one.id, one.began)))
            many(
                "UPDATE letters SET state = ?, failures = ?, since_us = ?, due_us = ?, problem = ?"
                " WHERE id = ? AND state = ?",
                [(c.state, c.failures, c.since_us, c.due_us, c.problem, c.id, c.began) for c in changed],
            )
            taken = 0
            for dead_letter in new:
                if self.totals().is_full(StorePart.of(dead_letter.state)):
                    break
                if dead_letter.pending:  # it takes the place of what waited, its row of the outbox too
                    before = run(f"{_DELETE} AND state = 'pending' RETURNING {_GONE}, position", (dead_letter.pending,))
                    for *row, position in before.fetchall():
                        held += _taken_off([tuple(row)])
                        dead_letter = replace(dead_letter, position=position)
                raw, original = _encode_event(dead_letter.event), dead_letter.original
                kept = _encode_event(original) if original is not None else None
                size_bytes = len(raw) + len(kept or b"")
                row = run(_INSERT, (self._shard.next_id(self.last_id), *_row(dead_letter, size_bytes)))
                if row.rowcount:  # else: it was there already
                    run("INSERT INTO events VALUES (?, ?)", (row.lastrowid, raw))
                    if dead_letter.stored_us is not None:
                        run(_ORIGINAL, (row.lastrowid, dead_letter.stored_us, kept, dead_letter.is_shared))
                    held.append((dead_letter.state, dead_letter.trigger, 1, size_bytes))
                taken += 1
        for change in held:
            self._add(*change)
        return taken

    def resume(self, now_us: int) -> None:
        """After a start: redrives that should have gone while nothing ran keep their pace from now on.

        A dead letter stands `pace_us` behind the one before it, whatever pace that one has.
        """
        with self._transaction() as connection:
            connection.execute(
                "UPDATE letters SET due_us = ?1 + behind_us FROM ("
                " SELECT id AS one, sum(pace_us) OVER queue - first_value(pace_us) OVER queue AS behind_us FROM letters"
                " WHERE state = 'redriving' AND failures = 0"
                " WINDOW queue AS (PARTITION BY target ORDER BY due_us, id ROWS UNBOUNDED PRECEDING)"
                ") WHERE id = one AND due_us < ?1 + behind_us",
                (now_us,),
            )

    def waiting(self) -> dict[SendQueue, int]:
        """Queues with dead letters to send, and when the first one of each is due."""
        rows = self._connection.execute(_QUEUES).fetchall()
        return {SendQueue(target, DeadLetterState(state)): due_us for target, state, due_us in rows}

    def due(self, queue: SendQueue, now_us: int, limit: int, *, but: Collection[int] = ()) -> list[StoredDeadLetter]:
        """A queue's dead letters that are due, the longest due first, without those with the ids in `but`."""
        rows = self._connection.execute(_DUE, (queue.target, queue.state, now_us, limit + len(but)))
        found = map(self.reader.get, [id_ for (id_,) in rows if id_ not in but][:limit])
        return [dead_letter for dead_letter in found if dead_letter is not None and dead_letter.state is queue.state]

    def redrive(self, ids: Sequence[int], *, now_us: int, pace_us: int, to: Target | None = None) -> int:
        """Send dead letters to their subscribers again, of each target one every `pace_us`; returns how many.

        With `to` they are this trigger's from now on, a trigger of their namespace. One that the trigger has itself, of
        the same match, stays as it is. They stand behind those of their target that have not been tried again yet; not
        behind one in back-off, which may wait for a day.
        """
        run = self._connection.execute
        count, last_us = 0, dict[int, int]()
        with self._transaction():
            for id_ in ids:
                found = run(_REDRIVABLE, (id_,)).fetchone()
                if found is None:
                    continue
                target = found[0] if to is None else to.id
                if to is not None and not run(_TO_TRIGGER, (to.id, to.name, id_)).rowcount:
                    continue
                if target not in last_us:
                    (end_us,) = run(_LAST_PACED, (target,)).fetchone()
                    last_us[target] = end_us or 0
                last_us[target] = due_us = max(now_us, last_us[target] + pace_us)
                run(
                    "UPDATE letters SET state = 'redriving', failures = 0, since_us = 0, due_us = ?, pace_us = ?,"
                    " problem = '' WHERE id = ?",
                    (due_us, pace_us, id_),
                )
                count += 1
        return count

    def discard(self, ids: Iterable[int]) -> int:
        """Forget dead letters; returns how many there were."""
        return len(self._forget(ids, DEAD))

    def cancel(self, ids: Iterable[int]) -> list[Cancelled]:
        """Forget events that wait for their time; returns those that there were."""
        return [Cancelled(*row) for row in self._forget(ids, WAITING)]

    def _forget(self, ids: Iterable[int], where: str) -> list[tuple[Any, ...]]:
        run, held, gone = self._connection.execute, list[tuple[str, str, int, int]](), list[tuple[Any, ...]]()
        with self._transaction():
            for id_ in ids:
                found = run(f"{_DELETE} AND {where} RETURNING id, target, partition, event_offset, {_GONE}", (id_,))
                for id_, target, partition, offset, *row in found.fetchall():
                    gone.append((id_, target, partition, offset))
                    held += _taken_off([tuple(row)])
        for change in held:
            self._add(*change)
        return gone


def _taken_off(gone: Iterable[tuple[Any, ...]]) -> list[tuple[str, str, int, int]]:
    """What rows of _GONE take off what namespaces have."""
    return [(state, trigger, -1, -size_bytes) for trigger, size_bytes, state in gone]


def _row(dead_letter: StoredDeadLetter, size_bytes: int) -> tuple[object, ...]:
    event = dead_letter.event
    values = (getattr(dead_letter, name) for name in _ATTRIBUTES)
    return (*values, event.source, event.id, event.type, size_bytes)


def _summary(row: tuple[Any, ...]) -> DeadLetterSummary:
    values = *row[:-1], bool(row[-1])  # `is_shared`
    return DeadLetterSummary(*values)


def _stored(row: tuple[Any, ...]) -> StoredDeadLetter:
    id_, event, original, stored_us, is_shared, *values = row
    found = dict(zip(_ATTRIBUTES, values, strict=True))
    found["state"] = DeadLetterState(found["state"])
    if original is not None:
        found["original"] = _decode_event(original)
    return StoredDeadLetter(id=id_, event=_decode_event(event), stored_us=stored_us, is_shared=bool(is_shared), **found)
