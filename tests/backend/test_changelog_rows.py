"""What a dispatcher keeps, as rows, without a Kafka: a list is the changelog, and new files are built of it."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from headgate.backend.kafka.changelog import CHANGELOG_ROWS, rows_alone
from headgate.backend.kafka.outbox_records import OutboxState
from headgate.backend.kafka.outbox_walk import CheckpointedCursors, Checkpoints, KnownPlace
from headgate.backend.kafka.records import KafkaRecord
from headgate.backend.kafka.rows import CacheTables, RowCapture, table_of
from headgate.deadletters.store import DeadLetterState, DeadLetterStore, Ended, Reschedule, StoredDeadLetter
from headgate.delivery.cursors import CursorChange, TargetCursor, Tried
from headgate.outbox.shards import Shard
from headgate_api import limits
from tests.delivery.harness import event

SHARD = Shard(1, 4)


class Recorded:
    """A committer that keeps the newest record of each key, as compaction does, in the order of the last writes."""

    def __init__(self) -> None:
        self.records: dict[bytes, KafkaRecord] = {}

    is_synced = True

    def detach(self, connection: sqlite3.Connection) -> None:
        connection.close()

    def attach(self, connection: sqlite3.Connection) -> None:
        self._capture = RowCapture(connection, CHANGELOG_ROWS)

    def begin(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")

    def commit(self, connection: sqlite3.Connection) -> None:
        for record in self._capture.records(connection):
            self.records.pop(record.key, None)
            self.records[record.key] = record
        self._capture.clear(connection)
        connection.execute("COMMIT")


def rebuilt(path: Path, records: list[KafkaRecord]) -> None:
    """Puts rows into a file that has its tables."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection, rows_alone(connection):
        cache = CacheTables(connection, CHANGELOG_ROWS)
        for record in records:
            assert table_of(record.key) in cache.tables
            cache.apply(record.key, record.value, dict([CHANGELOG_ROWS.header]))


def dumped(path: Path) -> dict[str, list[tuple[object, ...]]]:
    with closing(sqlite3.connect(path)) as connection:
        names = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND name != 'commits'")
        return {name: sorted(connection.execute(f"SELECT * FROM {name}").fetchall()) for (name,) in names}


def letter(target: int, position: int) -> StoredDeadLetter:
    return StoredDeadLetter(
        target=target,
        position=position,
        partition=0,
        offset=position,
        trigger=f"default/t{target}",
        broker="default/default",
        event=event(position),
        died_us=position,
        reason="500",
        destination="http://x/",
        code=500,
        data=b"",
        attempts=1,
    )


@pytest.mark.parametrize("seed", range(5))
def test_dead_letters_come_back_with_their_sums_and_their_numbers(tmp_path: Path, seed: int) -> None:
    chance, topic = random.Random(seed), Recorded()
    store = DeadLetterStore(tmp_path / "a.db", SHARD, topic)
    for number in range(60):
        ids = [row[0] for row in store._connection.execute("SELECT id FROM letters")]
        one = chance.choice(ids) if ids else 0
        match chance.randrange(5):
            case 0:
                store.apply([], [Ended(one, DeadLetterState.SENDING)], [])
            case 1:
                kept = Reschedule(one, DeadLetterState.SENDING, DeadLetterState.KEPT, 0, 0, 0, "no")
                store.apply([], [], [kept])
            case 2:
                store.redrive([one], now_us=number, pace_us=7)
                store.resume(number + 5)
            case 3:
                store.discard([one])
            case _:
                store.apply([letter(chance.randrange(5), chance.randrange(20)) for _ in range(3)], [], [])
    store.discard([store.last_id])  # its number must not be given again
    last_id, totals = store.last_id, store.totals()
    store.close()
    DeadLetterStore(tmp_path / "b.db", SHARD).close()
    rebuilt(tmp_path / "b.db", [*topic.records.values()])
    assert dumped(tmp_path / "b.db") == dumped(tmp_path / "a.db")
    again = DeadLetterStore(tmp_path / "b.db", SHARD)
    assert (again.last_id, again.totals()) == (last_id, totals)
    again.apply([replace(letter(1, 99), target=9)], [], [])
    assert again.totals().count == totals.count + 1, "its triggers work again"
    again.close()


def place(position: int) -> KnownPlace:
    return KnownPlace(position, position - 1, OutboxState(newest_run=position))


@pytest.mark.parametrize("seed", range(5))
def test_a_new_owner_knows_a_place_before_every_row_that_it_needs(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Targets fall behind and catch up as chance has it; at any moment the files may be built anew."""
    monkeypatch.setattr(limits, "OUTBOX_CHECKPOINTS_MAX", 8)
    monkeypatch.setattr(limits, "OUTBOX_CHECKPOINTS_PAST", 8)
    chance, topic = random.Random(seed), Recorded()
    places = Checkpoints()
    cursors = CheckpointedCursors(tmp_path / "a.db", places, topic)
    behind: dict[int, int] = {}
    position = handed = 0
    for number in range(200):
        position += chance.randrange(1, 900)
        places.add(place(position))
        cursors.generation = number
        caught_up = [target for target in behind if chance.random() < 0.1]
        for target in caught_up:
            del behind[target]
        if chance.random() < 0.3:
            behind.setdefault(chance.randrange(5), chance.randrange(handed, position + 1))
        handed = position + chance.randrange(2)
        lags = [
            TargetCursor(target, None, (at,), (Tried(at, 1, 2, 3),)) if target % 2 else TargetCursor(target, at, ())
            for target, at in behind.items()
        ]
        cursors.flush(CursorChange(handed, {}, lags, [each for each in caught_up if each not in behind]))
        needed = min([handed, *behind.values()])
        assert cursors.load().oldest_needed == cursors.oldest_needed(handed) == needed
        assert cursors.place == place(position)
        assert len(topic.records) < 100
        if number % 20 == 0:
            file = tmp_path / f"{number}.db"
            CheckpointedCursors(file, Checkpoints()).close()
            rebuilt(file, [*topic.records.values()])
            assert dumped(file) == dumped(tmp_path / "a.db")
            found = Checkpoints()
            again = CheckpointedCursors(file, found)
            assert again.generation == number
            assert again.load().position == handed
            before = found.before(needed)
            assert before.position <= needed
            assert len(again._stored) <= limits.OUTBOX_CHECKPOINTS_MAX + limits.OUTBOX_CHECKPOINTS_PAST + 1
            assert before in (KnownPlace(), place(before.position)), "with the state that was there"
            again.close()
        assert places.before(needed).position <= needed
    cursors.close()
