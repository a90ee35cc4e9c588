"""Rows of control.db as records, without a Kafka: a list is the topic, and a cache is built of it."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest

from headgate.backend.kafka.objects import OBJECT_ROWS, empty, prepare
from headgate.backend.kafka.records import KafkaRecord
from headgate.backend.kafka.rows import CacheTables, RowCapture
from headgate.objects.api.admission import Admission
from headgate.objects.kinds.routing import TargetReport
from headgate.objects.store.store import Store
from headgate_api.objects.errors import AlreadyExistsError, ObjectNotFoundError
from headgate_api.objects.kinds import SUBSCRIBER_ANNOTATION, Kind
from tests.backend.objects_contract import create, dump, key, label
from tests.objects.support import broker

HEADERS = dict([OBJECT_ROWS.header])


class _Recorded:
    """A committer that keeps the records of each transaction."""

    def __init__(self) -> None:
        self.changes: list[list[KafkaRecord]] = []

    is_synced = True

    def detach(self, connection: sqlite3.Connection) -> None:
        connection.close()

    def attach(self, connection: sqlite3.Connection) -> None:
        self._capture = RowCapture(connection, OBJECT_ROWS)

    def begin(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")

    def commit(self, connection: sqlite3.Connection) -> None:
        if found := list(self._capture.records(connection)):
            self.changes.append(found)
        self._capture.clear(connection)
        connection.execute("COMMIT")


def prepared(path: Path) -> Path:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        prepare(connection, path)
    return path


def applied(path: Path, records: list[KafkaRecord], *, anew: bool = False) -> dict[str, list[tuple[object, ...]]]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        cache = CacheTables(connection, OBJECT_ROWS)
        if anew:
            empty(connection)
        for record in records:
            cache.apply(record.key, record.value, HEADERS)
    return dump(path)


@pytest.mark.parametrize("seed", range(3))
def test_a_cache_follows_change_by_change_and_is_built_of_the_last_records_alone(tmp_path: Path, seed: int) -> None:
    chance, committer = random.Random(seed), _Recorded()
    store = Store.open(prepared(tmp_path / "leader.db"), committer=committer)
    store.make_default_broker()
    follower = prepared(tmp_path / "follower.db")
    seen = 0
    for _ in range(40):
        name = f"t{chance.randrange(4)}"
        with suppress(AlreadyExistsError, ObjectNotFoundError):  # as chance has it
            match chance.randrange(5):
                case 0:
                    store.delete(key(name))
                case 1:
                    label(store, name, str(chance.random()))
                case 2:
                    Admission(store).apply(broker(f"b{chance.randrange(2)}"))
                case 3:
                    store.delete(key(f"b{chance.randrange(2)}", Kind.BROKER))
                case _:
                    create(store, name, broker=f"b{chance.randrange(2)}")
        new, seen = committer.changes[seen:], len(committer.changes)
        assert applied(follower, [record for change in new for record in change]) == dump(tmp_path / "leader.db")

    compacted: dict[bytes, KafkaRecord] = {}
    for change in committer.changes:
        assert len({record.key for record in change}) == len(change), "a row is in a change once"
        for record in change:
            compacted.pop(record.key, None)
            compacted[record.key] = record
    expected = dump(tmp_path / "leader.db")
    assert applied(prepared(tmp_path / "rebuilt.db"), [*compacted.values()]) == expected
    kept = [record for record in compacted.values() if record.value is not None]
    assert len(kept) < len(compacted)
    assert applied(prepared(tmp_path / "later.db"), kept) == expected
    with sqlite3.connect(follower) as connection:
        connection.execute("INSERT INTO settings VALUES ('junk', '')")
        connection.execute("DELETE FROM counters")
    connection.close()
    assert applied(follower, kept, anew=True) == expected
    store.close()


def test_a_row_that_is_written_again_by_an_upsert_is_a_change(tmp_path: Path) -> None:
    committer = _Recorded()
    store = Store.open(prepared(tmp_path / "leader.db"), committer=committer)
    create(store)
    target = store.targets.id_of(key("t1"))
    assert target is not None
    for turn in range(1, 3):
        store.public_url.set(f"http://{turn}.example.com")
        store.reports.report([TargetReport(target, turn, "e", "id")])
        changed = [record.key for change in committer.changes[-2:] for record in change]
        assert b'["settings","public_url"]' in changed
        assert b'["reports",1]' in changed
    # In one transaction, too: its row is noted once.
    store.reports.report([TargetReport(target, 1, "", ""), TargetReport(target, 2, "", "")])
    assert [record.key for record in committer.changes[-1]].count(b'["reports",1]') == 1
    store.close()


def test_what_is_taken_back_and_what_only_reads_is_no_change(tmp_path: Path) -> None:
    committer = _Recorded()
    store = Store.open(prepared(tmp_path / "leader.db"), committer=committer)
    store.make_default_broker()
    create(store)
    before = len(committer.changes)
    store.delete(key("t1"), dry_run=True)
    with pytest.raises(ObjectNotFoundError):
        store.delete(key("t2"))
    store.make_default_broker()
    store.page(Kind.TRIGGER)
    assert len(committer.changes) == before
    store.close()


def test_a_row_that_another_one_replaces_is_deleted_in_the_topic(tmp_path: Path) -> None:
    committer = _Recorded()
    store = Store.open(prepared(tmp_path / "leader.db"), committer=committer)
    create(store, "t1")
    create(store, "t2")
    with store._database.write() as connection:
        connection.execute("UPDATE OR REPLACE targets SET name = 't1' WHERE name = 't2'")
    assert {record.key: record.value is None for record in committer.changes[-1]} == {
        b'["targets",1]': True,
        b'["targets",2]': False,
    }
    store.close()


def test_a_ceiling_reaches_the_other_servers_at_once_and_its_filters_after_it(tmp_path: Path) -> None:
    """A narrower right holds everywhere by the first of the two changes: the last check before a delivery asks it."""
    committer = _Recorded()
    leader, follower = prepared(tmp_path / "leader.db"), prepared(tmp_path / "follower.db")
    store = Store.open(leader, committer=committer)
    store.make_default_broker()
    by, ceiling = '{"name":"blue","groups":[]}', 'data.tenant == "blue"'
    create(store, "t1")
    Admission(store).merge(key("t1"), {"metadata": {"annotations": {SUBSCRIBER_ANNOTATION: by}}})
    (taker,) = store.targets.takers()
    seen = 0
    for change in (lambda: store.targets.judge([(taker, taker._replace(ceiling=ceiling))]), store.plans.recompile):
        change()
        new, seen = committer.changes[seen:], len(committer.changes)
        assert applied(follower, [record for one in new for record in one]) == dump(leader)
        with closing(Store.open(follower)) as other:
            found = other.snapshot().trigger("default/t1")
            assert found is not None
            assert found.filter.ceiling == ceiling
    assert found.filter.cel.startswith(ceiling)
    store.close()
