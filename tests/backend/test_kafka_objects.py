"""The contract of the store of objects on Kafka, and what is Kafka's own: followers, the lead, rebuilt caches."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from clusters.kafka import Kafka
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from headgate.backend.config import KafkaConfig
from headgate.backend.kafka.client import KafkaUnreachableError
from headgate.backend.kafka.objects import OBJECT_ROWS, KafkaObjects, leader_of
from headgate.backend.kafka.records import KafkaRecord
from headgate.backend.kafka.rows import RowRecordError
from headgate.backend.kafka.state_topic import StateTopicReader, TopicLostError
from headgate.backend.kafka.transactions import FencedName, FencedWriter
from headgate.objects.store.database import NotLeaderError
from headgate.objects.store.store import Store
from headgate.testing.server import free_port
from headgate_api.errors import HeadgateError, InvalidInputError, TooLargeError
from headgate_api.limits import OBJECT_CACHE_AGE_S_MAX
from headgate_api.objects.errors import ObjectNotFoundError
from tests.backend.object_stores import ControlProcess
from tests.backend.objects_contract import (
    ObjectStoreContract,
    OpenObjects,
    create,
    dump,
    key,
    label,
    names,
    version,
    watched,
)
from tests.backend.objects_writer import POINTS, WRITES
from tests.backend.stores import deployed, kafka_config, make_topics
from tests.support import eventually

pytestmark = pytest.mark.kafka
Start = Callable[..., ControlProcess]


@pytest.fixture
def config(kafka: Kafka) -> KafkaConfig:
    return deployed(kafka, "objects")


@pytest.fixture
def start(config: KafkaConfig, tmp_path: Path) -> Iterator[Start]:
    """Starts a control process by its name, with a cache of its own."""
    started: list[ControlProcess] = []

    def start(name: str, *, leads: bool = True, now_s: float | None = None) -> ControlProcess:
        process = ControlProcess(config, tmp_path / f"{name}.db", name, leads=leads, now_s=now_s)
        started.append(process)
        return process

    yield start
    for process in started:
        process.close()


class TestKafka(ObjectStoreContract):
    @pytest.fixture
    def objects(self, start: Start) -> OpenObjects:
        return start("a")


def caught_up(process: ControlProcess, leader: ControlProcess) -> None:
    """Waits until a process has what the leader has: the end of a transaction is in the topic soon after its answer."""

    def same() -> bool:
        process.catch_up()
        return dump(process.path) == dump(leader.path)

    eventually(same)


# --- followers -----------------------------------------------------------------------------------------


def test_followers_tell_the_same_changes_with_the_same_versions(start: Start) -> None:
    leader, one, two = start("a"), start("b", leads=False), start("c", leads=False)
    since = leader.store.counters.version()
    for process in (leader, one, two):
        process.follow()
    with ThreadPoolExecutor(2) as pool:
        told = [pool.submit(watched, process.store, since, 31) for process in (one, two)]
        for number in range(10):
            create(leader.store, f"t{number}")
            label(leader.store, f"t{number}", "x")
            leader.store.delete(key(f"t{number}"))
        last = create(leader.store, "last")
        expected = watched(leader.store, since, 31)
        assert expected[-1] == ("ADDED", "last", version(last))
        assert [each.result() for each in told] == [expected, expected]
    assert dump(one.path) == dump(two.path) == dump(leader.path)
    assert one.store.snapshot() == leader.store.snapshot()
    assert leader_of(one.path) == "a"
    assert not leader.lost.is_set(), "it has taken its own writes for another's"


def test_a_change_under_way_is_seen_by_nobody(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    leader, follower = start("a"), start("b", leads=False)
    caught_up(follower, leader)
    before = dump(leader.path)
    writer = leader.objects._writer
    assert writer is not None
    commit = writer.commit

    def looked_at() -> None:  # every record is in the topic, and the transaction is open
        follower.catch_up()
        assert dump(follower.path) == dump(leader.path) == before
        commit()

    monkeypatch.setattr(writer, "commit", looked_at)
    create(leader.store)
    assert dump(leader.path) != before
    caught_up(follower, leader)


def test_a_follower_refuses_to_write_and_names_the_leader(start: Start) -> None:
    leader, follower = start("a"), start("b", leads=False)
    caught_up(follower, leader)
    with pytest.raises(NotLeaderError) as caught:
        create(follower.store)
    assert (caught.value.http_status, caught.value.hint) == (503, "a leads")
    create(leader.store)


# --- the lead ------------------------------------------------------------------------------------------


def test_a_newer_leader_fences_an_older_one(start: Start) -> None:
    old = start("a")
    create(old.store, "t1")
    new = start("b")
    assert names(new.store) == ["t1"]
    before = dump(old.path)
    with pytest.raises(NotLeaderError, match="another control process has taken the lead"):
        create(old.store, "t2")
    assert (old.lost.is_set(), old.objects.is_leading) == (True, False)
    assert dump(old.path) == before
    with pytest.raises(NotLeaderError, match="does not lead"):
        create(old.store, "t3")
    create(new.store, "t4")
    caught_up(old, new)
    assert names(old.store) == ["t1", "t4"]
    old.objects.lead()
    create(old.store, "t5")
    caught_up(new, old)
    assert (new.lost.is_set(), new.objects.is_leading) == (True, False)


def test_a_fence_has_its_name_also_where_it_is_known_before_a_record_is_sent(config: KafkaConfig) -> None:
    def fenced(hint: str) -> HeadgateError:
        return NotLeaderError("fenced", hint=hint)

    def records() -> Iterator[KafkaRecord]:
        while True:  # until the library, which hears of the fence behind the first one, refuses a record
            yield KafkaRecord(b"k", b"v")
            time.sleep(0.01)

    name = FencedName("objects", "fenced", "it fails", "unsure", fenced)
    with closing(FencedWriter(config, name)) as old, closing(FencedWriter(config, name)):
        with pytest.raises(NotLeaderError, match="fenced"):
            old.send(records())
        assert old.is_failed


def test_a_leader_that_writes_nothing_learns_that_it_is_none(start: Start) -> None:
    old = start("a")
    old.follow()
    start("b")
    assert old.lost.wait(30)
    eventually(lambda: leader_of(old.path) == "b")
    assert not old.objects.is_leading


@pytest.mark.parametrize("is_stored", [False, True])
def test_a_write_that_a_newer_leader_meets_is_there_for_both_or_for_none(
    start: Start, monkeypatch: pytest.MonkeyPatch, *, is_stored: bool
) -> None:
    """The newer one comes before the older one's transaction is committed, or before its answer has come."""
    old, new = start("a"), start("b", leads=False)
    create(old.store, "before")
    writer = old.objects._writer
    assert writer is not None
    commit = writer.commit

    def met() -> None:
        if is_stored:
            commit()
        new.objects.lead()
        create(new.store, "other")
        commit()

    monkeypatch.setattr(writer, "commit", met)
    with pytest.raises(NotLeaderError if not is_stored else Exception) as caught:
        create(old.store, "met")
    if not is_stored:
        assert isinstance(caught.value, NotLeaderError)
        assert "read the object" in caught.value.hint
    assert names(old.store) == ["before"]
    create(new.store, "after")
    caught_up(old, new)
    assert names(old.store) == names(new.store) == sorted(["before", "other", "after", *(["met"] if is_stored else [])])


def test_a_row_that_is_too_large_is_refused_and_the_lead_remains(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    leader, follower = start("a"), start("b", leads=False)
    before = dump(leader.path)
    with monkeypatch.context() as small:
        small.setattr("headgate.backend.kafka.rows.KAFKA_RECORD_BYTES_MAX", 900)
        with pytest.raises(TooLargeError):
            create(leader.store, "t1", filter={"expression": f"ce.type == '{'x' * 2_000}'"})
    assert dump(leader.path) == before
    assert leader.objects.is_leading
    create(leader.store, "t2")
    caught_up(follower, leader)
    assert names(follower.store) == ["t2"]


# --- crashes and caches --------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_killed_leader_loses_nothing_acknowledged_and_leaves_no_half_change(
    kafka: Kafka, config: KafkaConfig, start: Start, tmp_path: Path
) -> None:
    """One after the other on one cache, so that each starts with what the one before it has left."""
    cache = tmp_path / "killed.db"
    expected = set()
    for point in POINTS:
        line = [sys.executable, "-m", "tests.backend.objects_writer", kafka.bootstrap, config.topic_prefix]
        done = subprocess.run([*line, str(cache), point, point], capture_output=True, text=True, check=False)
        assert done.returncode == -9, done.stderr
        acknowledged = [line for line in done.stdout.splitlines() if line.startswith(f"{point}-")]
        assert len(acknowledged) == WRITES
        expected |= {*acknowledged}
        if point in ("before-cache", "before-answer"):
            expected.add(f"{point}-{WRITES}")
    rebuilt = start("rebuilt")
    assert set(names(rebuilt.store)) == expected
    survivor = ControlProcess(config, cache, "survivor", leads=False)
    caught_up(survivor, rebuilt)
    survivor.close()


def test_a_deleted_cache_is_rebuilt_equal_also_from_a_compacted_topic(
    kafka: Kafka, config: KafkaConfig, start: Start
) -> None:
    leader = start("a")
    settings = {"min.compaction.lag.ms": 0, "delete.retention.ms": 0, "segment.ms": 100, "min.cleanable.dirty.ratio": 0}
    entries = [
        ConfigEntry(name, str(value), incremental_operation=AlterConfigOpType.SET) for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, config.topic("objects"), incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for done in admin.incremental_alter_configs([resource]).values():
        done.result()
    create(leader.store, "kept")
    for number in range(20):
        create(leader.store, "gone", filter={"expression": f"ce.type == '{number}'"})
        label(leader.store, "kept", f"{number}")
        leader.store.delete(key("gone"))
    written, turn = keys(config), iter(range(10_000))

    def is_compacted() -> bool:
        label(leader.store, "kept", f"again-{next(turn)}")  # a write begins the next segment
        found = keys(config)
        # Of every row that changed again and again, few records are left of many.
        return max(found.count(name) for name in set(found)) < max(written.count(name) for name in set(written)) / 2

    eventually(is_compacted)
    one, two = start("b", leads=False), start("c", leads=False)
    caught_up(one, leader)
    caught_up(two, leader)
    assert one.store.counters.version() == leader.store.counters.version()
    assert len(names(one.store)) == 1
    with pytest.raises(ObjectNotFoundError):
        one.store.get(key("gone"))


def keys(config: KafkaConfig) -> list[bytes | None]:
    """The key of every record that the topic has."""
    place = TopicPartition(config.topic("objects"), 0, 0)
    consumer = Consumer({"bootstrap.servers": config.bootstrap, "group.id": "t", "enable.partition.eof": True})
    consumer.assign([place])
    found: list[bytes | None] = []
    while (message := consumer.poll(30)) is not None and message.error() is None:
        found.append(message.key())  # type: ignore[arg-type]
    consumer.close()
    return found


def test_a_cache_that_was_not_read_on_for_long_is_built_anew(start: Start, tmp_path: Path) -> None:
    """Kafka may have forgotten the deletion of a row by then."""
    leader = start("a")
    create(leader.store)
    stale = start("b", leads=False)
    caught_up(stale, leader)
    for days_old in ("new", "old"):
        with closing(sqlite3.connect(tmp_path / f"{days_old}.db")) as copy:
            with closing(sqlite3.connect(stale.path)) as connection:
                connection.backup(copy)
            with copy:
                copy.execute("INSERT INTO settings VALUES ('deleted', 'long ago')")
    assert dump(start("new", leads=False).path)["settings"] == [("deleted", "long ago")]
    old = start("old", leads=False, now_s=time.time() + OBJECT_CACHE_AGE_S_MAX + 60)
    assert dump(old.path) == dump(leader.path)


def test_a_transaction_that_kafka_is_still_ending_is_no_loss(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka answers to a commit before readers of committed records can see behind it."""
    process, end = start("a"), StateTopicReader.end
    create(process.store)
    behind = iter([2])
    monkeypatch.setattr(StateTopicReader, "end", lambda reader: end(reader) - next(behind, 0))
    process.reopen()
    assert names(process.store) == ["t1"]


def test_another_topic_of_the_name_is_not_mixed_into_a_cache(
    kafka: Kafka, config: KafkaConfig, start: Start, tmp_path: Path
) -> None:
    process = start("a")
    create(process.store)
    before = dump(process.path)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for done in admin.delete_topics([config.topic("objects")]).values():
        done.result()
    eventually(lambda: config.topic("objects") not in admin.list_topics(timeout=10).topics)
    make_topics(config, "objects")
    with pytest.raises(TopicLostError, match="another topic of this name") as caught:
        KafkaObjects(process.path, config, "b")
    assert "Move control.db away" in caught.value.hint
    assert dump(process.path) == before
    assert names(start("new").store) == []


def test_objects_of_a_server_without_kafka_are_not_taken_for_a_cache(config: KafkaConfig, tmp_path: Path) -> None:
    Store.open(tmp_path / "control.db").close()
    before = dump(tmp_path / "control.db")
    with pytest.raises(InvalidInputError, match="objects of a server without Kafka"):
        KafkaObjects(tmp_path / "control.db", config, "a")
    assert dump(tmp_path / "control.db") == before


@pytest.mark.parametrize(
    ("name", "value", "header", "reason"),
    [
        (b"?", b"", OBJECT_ROWS.header[1], "no row that Headgate stored"),
        (b'["objects","a"]', None, OBJECT_ROWS.header[1], "its columns are not those of objects"),
        (b'["counters","version"]', b"\x81\xa1x\x01", OBJECT_ROWS.header[1], "its columns are not those of counters"),
        (b'["nothing",1]', None, OBJECT_ROWS.header[1], "no row that Headgate stored"),
        (b'["counters","version"]', b"\x81\xa5value\xc0", OBJECT_ROWS.header[1], "NOT NULL"),
        (b'["counters","version"]', b"\x81\xa5value\x01", b"99", "its tables have version '99'"),
        (b'["counters","version"]', b"\x81\xa5value\x01", None, "its tables have version none"),
    ],
)
def test_a_record_that_is_no_row_stops_a_reader_at_its_place(
    config: KafkaConfig, tmp_path: Path, name: bytes, value: bytes | None, header: bytes | None, reason: str
) -> None:
    foreign = Producer({"bootstrap.servers": config.bootstrap})
    foreign.produce(
        config.topic("objects"), value, name, 0, headers=[] if header is None else [("headgate_tables", header)]
    )
    assert foreign.flush(30) == 0
    with pytest.raises(RowRecordError, match="objects at offset 0: ") as caught:
        KafkaObjects(tmp_path / "control.db", config, "a")
    assert reason in caught.value.message


def test_a_cluster_that_does_not_answer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.backend.kafka.client.KAFKA_ADMIN_S_MAX", 2.0)
    config = kafka_config(f"127.0.0.1:{free_port()}", "x.")
    with pytest.raises(KafkaUnreachableError, match=config.bootstrap):
        KafkaObjects(tmp_path / "control.db", config, "a")
