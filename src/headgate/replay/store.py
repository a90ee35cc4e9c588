"""The store of replays, replays.db: what each is to do, and how far it is.

running --- reached its end --> done
|  `---- cannot go on -----> failed
+------- a person ---------> cancelled
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import msgspec

from headgate.delivery.cursors import Tried
from headgate.outbox.shards import WHOLE, Shard
from headgate.shares import FairPlaces, Shares
from headgate.storage.commit import Committer
from headgate.storage.sqlite import NumberedStore, decoding
from headgate_api.limits import REPLAYS_MAX

EXTENSION: Final = "headgatereplay"
"""The extension that every replayed event carries: the id of its replay."""

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS replays (
  id INTEGER PRIMARY KEY AUTOINCREMENT, namespace TEXT NOT NULL, state TEXT NOT NULL, spec BLOB NOT NULL,
  progress BLOB NOT NULL, problem TEXT NOT NULL) STRICT;
CREATE INDEX IF NOT EXISTS replays_state ON replays (state, id);
"""


class ReplayState(StrEnum):
    """What becomes of a replay."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class ReplaySpec(msgspec.Struct, frozen=True):
    """What is asked for: a trigger of the namespace, or a URL, gets the events."""

    namespace: str
    broker: str  # its identity: history of a broker made anew is another one
    trigger: str  # whose filter and delivery rules hold; empty for none
    url: str
    cel: str  # a filter beside the trigger's, below the ceiling; empty for none
    start: dict[int, int]  # the first offset by partition
    end: dict[int, int]  # the offset behind the last one
    rate_per_s: float
    dry_run: bool  # counts, and sends nothing
    created_us: int  # microseconds since 1970 UTC
    owner: str = ""  # who asked for it; empty where nobody is asked who he is
    groups: tuple[str, ...] = ()  # his, by which his right is judged later; empty where nobody is asked
    ceiling: str = ""  # of his right when he asked, CEL: what is counted is below it; empty for none


class _Owner(msgspec.Struct, frozen=True):
    """What of a `ReplaySpec` says whose it is."""

    owner: str = ""


class ReplayProgress(msgspec.Struct, frozen=True):
    """How far it is; what is counted has ended."""

    positions: dict[int, int]  # where it goes on, by partition
    matched: int = 0  # events that the filter takes
    delivered: int = 0
    dead_lettered: int = 0
    failed: int = 0  # given up without a dead-letter sink
    lost: int = 0  # removed by retention
    errors: int = 0  # events for which the filter is an error
    retries: tuple[Tried, ...] = ()  # tried in vain since the position, by positions of the replay's own


class Replay(msgspec.Struct, frozen=True):
    """A row."""

    id: int
    state: ReplayState
    spec: ReplaySpec
    progress: ReplayProgress
    problem: str = ""


_ENCODER: Final = msgspec.msgpack.Encoder()
_SPEC: Final = msgspec.msgpack.Decoder(ReplaySpec)
_OWNER: Final = msgspec.msgpack.Decoder(_Owner)
_PROGRESS: Final = msgspec.msgpack.Decoder(ReplayProgress)


class ReplayStore(NumberedStore):
    """The file. Blocking; one thread at a time. The shard is the dispatcher's, so that no other one gives its ids."""

    table = "replays"

    def __init__(self, path: Path, shard: Shard = WHOLE, committer: Committer | None = None) -> None:
        super().__init__(path, _SCHEMA, committer=committer)
        self._shard = shard

    def copy(self, source: ReplayStore, wants: Callable[[str, str], bool]) -> None:
        """Copy replays whose namespace and trigger (empty: to a URL) are wanted; their ids stay."""
        with self._transaction() as connection:
            for replay in source._all("TRUE ORDER BY id", ()):
                if wants(replay.spec.namespace, replay.spec.trigger):
                    row = (replay.id, replay.spec.namespace, replay.state.value)
                    contents = (_ENCODER.encode(replay.spec), _ENCODER.encode(replay.progress), replay.problem)
                    connection.execute("INSERT INTO replays VALUES (?, ?, ?, ?, ?, ?)", (*row, *contents))

    def create(self, spec: ReplaySpec) -> Replay:
        """A new one; those that have ended make room, the oldest of the namespace and user that have most of them."""
        run = self._connection.execute
        with self._transaction():
            ended, places = Shares[int](), FairPlaces("replays", "REPLAYS_MAX", REPLAYS_MAX)
            for id_, namespace, owner, is_running in self._owners():
                if is_running:
                    places.take(namespace, owner)
                else:
                    ended.add(namespace, owner, id_)
            places.check(spec.namespace, spec.owner)
            if len(places) + len(ended) >= REPLAYS_MAX:
                run("DELETE FROM replays WHERE id = ?", (ended.largest(),))
            progress = _ENCODER.encode(ReplayProgress(spec.start))
            row = run(
                "INSERT INTO replays (id, namespace, state, spec, progress, problem)"
                f" VALUES (?, ?, 'running', ?, ?, '') RETURNING {_FIELDS}",
                (self._shard.next_id(self.last_id), spec.namespace, _ENCODER.encode(spec), progress),
            ).fetchone()
        return _replay(row)

    def page(self, namespace: str) -> list[Replay]:
        """A namespace's, the newest first."""
        return self._all("namespace = ? ORDER BY id DESC", (namespace,))

    def get(self, namespace: str, id_: int) -> Replay | None:
        found = self._all("namespace = ? AND id = ?", (namespace, id_))
        return found[0] if found else None

    def running(self, count_max: int) -> list[Replay]:
        """Of those that have not ended the ones whose turn it is: by namespace, in each by user, the oldest first."""
        waiting = Shares[int]()
        for id_, namespace, owner, is_running in self._owners():
            if is_running:
                waiting.add(namespace, owner, id_)
        wanted = [waiting.pop_next() for _ in range(min(count_max, len(waiting)))]
        return self._all(f"id IN ({', '.join('?' * len(wanted))}) ORDER BY id", tuple(wanted))

    def advance(self, id_: int, progress: ReplayProgress) -> None:
        """It is so far; whoever ended it meanwhile is right all the same."""
        with self._transaction() as connection:
            connection.execute("UPDATE replays SET progress = ? WHERE id = ?", (_ENCODER.encode(progress), id_))

    def end(self, id_: int, state: ReplayState, problem: str = "") -> bool:
        """It ends, unless it has; whether it did."""
        with self._transaction() as connection:
            changed = connection.execute(
                "UPDATE replays SET state = ?, problem = ? WHERE id = ? AND state = 'running'", (state, problem, id_)
            )
        return changed.rowcount > 0

    def _owners(self) -> list[tuple[int, str, str, bool]]:
        """Id, namespace, user and whether it has not ended, of each; the oldest first."""
        rows = self._connection.execute("SELECT id, namespace, spec, state FROM replays ORDER BY id").fetchall()
        with decoding(self._path):
            return [
                (id_, namespace, _OWNER.decode(spec).owner, state == ReplayState.RUNNING)
                for id_, namespace, spec, state in rows
            ]

    def _all(self, condition: str, parameters: tuple[object, ...]) -> list[Replay]:
        rows = self._connection.execute(f"SELECT {_FIELDS} FROM replays WHERE {condition}", parameters).fetchall()
        with decoding(self._path):
            return [_replay(row) for row in rows]


_FIELDS: Final = "id, state, spec, progress, problem"


def _replay(row: tuple[Any, ...]) -> Replay:
    id_, state, spec, progress, problem = row
    return Replay(id_, ReplayState(state), _SPEC.decode(spec), _PROGRESS.decode(progress), problem)
