"""Members of the dispatchers' group on a real Kafka: kill -9 of one, restore, backpressure."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from clusters.kafka import Kafka
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from headgate.backend.config import KafkaConfig
from headgate.backend.kafka.outbox_reader import OutboxMember
from headgate.backend.kafka.outbox_records import HEADER, Checkpoint, OutboxPage, OutboxState
from headgate.backend.kafka.records import RecordError
from tests.backend.outbox_stream import OUTBOX_PARTITIONS, Record, Run, commit, outbox_config
from tests.backend.stores import deployed
from tests.support import eventually

pytestmark = pytest.mark.kafka
SOURCES = 2
WAIT_S_MAX = 60.0
EVENTS = 1_200
"""Of each source partition."""
BATCH = 50
FOLLOWS_AT, KILLED_AT, OVER_AT, ZOMBIE_ENDS_AT = 400, 500, 700, 900


class Writer:
    """An idempotent producer to the outbox of one deployment."""

    def __init__(self, config: KafkaConfig) -> None:
        self._topic = config.topic("outbox")
        self._producer = Producer({"bootstrap.servers": config.bootstrap, "enable.idempotence": True})

    def store(self, records: Iterable[Record]) -> None:
        """All of them are acknowledged when it returns."""
        for each in records:
            self._producer.produce(self._topic, each.value, headers=each.headers, partition=each.partition)
            self._producer.poll(0)
        assert self._producer.flush(WAIT_S_MAX) == 0


class Member:
    """A member of the group in a process of its own, and the lines that it has printed."""

    def __init__(self, config: KafkaConfig) -> None:
        self.lines: list[dict[str, Any]] = []
        command = [sys.executable, "-m", "tests.backend.outbox_member", config.bootstrap, config.topic_prefix]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._thread = threading.Thread(target=self._collect)
        self._thread.start()

    def _collect(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith("\n"):
                self.lines.append(json.loads(line))

    def said(self, name: str) -> list[Any]:
        return [line[name] for line in list(self.lines) if name in line]

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


def deployment(kafka: Kafka) -> KafkaConfig:
    return deployed(kafka, "events", "outbox", like=outbox_config)


@pytest.mark.slow  # a dispatcher is killed under load in test_kafka_dispatch.py
def test_kill_of_a_member_loses_nothing_and_repeats_only_what_was_not_committed(kafka: Kafka) -> None:
    config = deployment(kafka)
    writer = Writer(config)
    members = [Member(config), Member(config)]
    try:
        eventually(lambda: all(member.said("assigned") for member in members), "both have partitions")
        first, second = (Run(number, number, SOURCES, OUTBOX_PARTITIONS) for number in (1, 2))
        writer.store(first.hello([0] * SOURCES))
        for at in range(0, EVENTS, BATCH):
            if at == FOLLOWS_AT:
                writer.store(second.hello([at - BATCH] * SOURCES))
            if at == KILLED_AT:
                eventually(lambda: all(member.said("committed") for member in members), "both have committed")
                members[0].kill()
            if at == OVER_AT:
                writer.store(first.over())
            runs = [*([first] if at < ZOMBIE_ENDS_AT else []), *([second] if at >= FOLLOWS_AT else [])]
            for run in runs:
                begins = at - BATCH if run is second and at == FOLLOWS_AT else at
                for source in range(SOURCES):
                    offsets = range(begins, at + BATCH)
                    writer.store(each for offset in offsets for each in run.events(source, offset))
                    writer.store(run.passed(source, at + BATCH))
        eventually(lambda: _complete(members, [first, second]), "everything has counted")
    finally:
        for member in members:
            member.kill()
    repeated = _repeats(members)
    print(f"{len(_times(members))} rows, {repeated} of them again")
    taken = {line["partition"] for line in members[0].lines if "partition" in line}
    assert taken & set(members[1].said("assigned")), "partitions of the one that was killed moved"
    assert not any(member.said(name) for member in members for name in ("passed_over", "removed"))
    _check_generations(members, [first, second])


def _times(members: Sequence[Member]) -> dict[tuple[int, int, int, int], list[int]]:
    """When each row (source, offset, generation, target) was taken."""
    times: dict[tuple[int, int, int, int], list[int]] = defaultdict(list)
    for member in members:
        for line in list(member.lines):
            for row in line.get("rows", ()):
                times[tuple(row)].append(line["at"])
    return times


def _generations(members: Sequence[Member]) -> dict[tuple[int, int, int], set[int]]:
    """By which generations each event counted: outbox partition, source, offset."""
    found: dict[tuple[int, int, int], set[int]] = defaultdict(set)
    for member in members:
        for line in list(member.lines):
            for source, offset, generation, _ in line.get("rows", ()):
                found[line["partition"], source, offset].add(generation)
    return found


def _complete(members: Sequence[Member], runs: Sequence[Run]) -> bool:
    found = _generations(members)
    return all(
        (partition, source, offset) in found
        for partition in range(OUTBOX_PARTITIONS)
        for source in range(SOURCES)
        for offset in range(EVENTS)
        if all(run.targets(source, offset, partition) for run in runs)
    )


def _check_generations(members: Sequence[Member], runs: Sequence[Run]) -> None:
    """One generation an event, all its targets, and never an older one behind a newer one."""
    found, rows = _generations(members), set(_times(members))
    for partition in range(OUTBOX_PARTITIONS):
        for source in range(SOURCES):
            newest = 1
            for offset in range(EVENTS):
                counted = found.get((partition, source, offset), set())
                assert len(counted) <= 1
                for generation in counted:
                    assert generation >= newest, f"{source}/{offset} in {partition}"
                    newest = generation
                    for target, _ in runs[generation - 1].targets(source, offset, partition):
                        assert (source, offset, generation, target) in rows
                if offset >= OVER_AT:
                    assert counted <= {2}
            assert newest == 2


def _repeats(members: Sequence[Member]) -> int:
    """How many rows came again; none may that was committed."""
    times = _times(members)
    for member in members:
        waiting: dict[int, list[tuple[int, int, int, int]]] = defaultdict(list)
        for line in member.lines:
            if "rows" in line:
                waiting[line["partition"]] += [tuple(row) for row in line["rows"]]
            for partition in line.get("revoked", ()):
                waiting[partition].clear()
            for row in waiting.pop(line.get("committed", -1), ()):
                late = [at for at in times[row] if at > line["at"]]
                assert not late, f"{row} came after it was committed"
    return sum(len(each) > 1 for each in times.values())


class Owner:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.states: dict[int, OutboxState] = {}
        self.gone: list[int] = []
        self.passed: list[tuple[int, str]] = []
        self.lost: list[tuple[int, int, int]] = []
        self.on_revoke: Callable[[], object] = lambda: None

    def taking(self, partitions: Sequence[int]) -> None:
        pass

    def assigned(self, partition: int, state: OutboxState) -> None:
        self.states[partition] = state

    def revoked(self, partitions: Sequence[int], *, is_lost: bool) -> None:
        assert not is_lost
        self.gone += partitions
        self.on_revoke()

    def passed_over(self, partition: int, offset: int, error: RecordError) -> None:
        self.passed.append((partition, error.message))

    def removed(self, partition: int, first: int, end: int) -> None:
        self.lost.append((partition, first, end))


def read_until(reader: OutboxMember, done: Callable[[list[OutboxPage]], bool]) -> list[OutboxPage]:
    pages: list[OutboxPage] = []
    deadline = time.monotonic() + WAIT_S_MAX
    while not done(pages):
        assert time.monotonic() < deadline
        pages += reader.read(0.2)
    return pages


def read_to(reader: OutboxMember, partition: int, offset: int) -> list[OutboxPage]:
    """Reads until a page of a partition ends at an offset; those of other partitions come in any order."""
    return read_until(
        reader,
        lambda pages: any((page.checkpoint.partition, page.checkpoint.offset) == (partition, offset) for page in pages),
    )


def rows_of(pages: Iterable[OutboxPage]) -> list[tuple[int, int, int]]:
    return [(each.source, each.offset, t) for page in pages for each in page.events for t, _ in each.targets]


def test_a_reader_goes_on_where_the_one_before_committed(kafka: Kafka) -> None:
    """State and place come back whole; what is paused does not come; what is not ours is told."""
    config = deployment(kafka)
    writer, owner = Writer(config), Owner()
    run = Run(5, 3, SOURCES, OUTBOX_PARTITIONS)
    expected = [
        (source, offset, target)
        for source in range(SOURCES)
        for offset in range(40)
        for partition in range(OUTBOX_PARTITIONS)
        for target, _ in run.targets(source, offset, partition)
    ]
    half = [row for row in expected if row[1] < 20]
    writer.store(run.hello([0] * SOURCES))
    writer.store([Record(1, [(HEADER, b"\x09")])])
    for source in range(SOURCES):
        writer.store(each for offset in range(20) for each in run.events(source, offset))
    reader = OutboxMember(config, owner)
    pages = read_until(reader, lambda pages: len(rows_of(pages)) >= len(half))
    assert sorted(rows_of(pages)) == sorted(half)
    assert all(each.stored.event.id == f"{each.source}-{each.offset}" for page in pages for each in page.events)
    assert [partition for partition, _ in owner.passed] == [1]
    assert HEADER in owner.passed[0][1]

    reader.pause(range(OUTBOX_PARTITIONS))
    for source in range(SOURCES):
        writer.store(each for offset in range(20, 40) for each in run.events(source, offset))
    newest: dict[int, Checkpoint] = {page.checkpoint.partition: page.checkpoint for page in pages}
    assert reader.read(1.0) == []
    owner.on_revoke = lambda: committed.append(commit(reader, newest.values()))
    committed: list[bool] = []
    reader.close()
    assert (sorted(owner.gone), committed) == (list(range(OUTBOX_PARTITIONS)), [True])

    after = Owner()
    reader = OutboxMember(config, after)
    again = read_until(reader, lambda pages: len(rows_of(pages)) >= len(expected) - len(half))
    assert sorted(rows_of([*pages, *again])) == sorted(expected)
    assert (owner.lost, after.lost) == ([], [])
    assert after.states == {partition: each.state for partition, each in newest.items()}
    reader.close()


def test_records_that_retention_took_are_told_and_reading_goes_on(kafka: Kafka) -> None:
    config = deployment(kafka)
    writer, owner = Writer(config), Owner()
    run = Run(1, 1, 1, OUTBOX_PARTITIONS)
    partition = next(p for p in range(OUTBOX_PARTITIONS) if run.targets(0, 0, p))
    of_partition = [each for offset in range(400) for each in run.events(0, offset) if each.partition == partition]
    writer.store(run.hello([0]))
    writer.store(of_partition[:10])
    remove_records(config, partition, 1)  # the hello: nothing that follows can count before the next run
    reader = OutboxMember(config, owner)
    pages = read_to(reader, partition, 11)
    assert owner.lost == [(partition, 0, 1)]
    assert rows_of(pages) == []
    second = Run(2, 1, 1, OUTBOX_PARTITIONS)
    writer.store(second.hello([0]))
    stored = [each for offset in range(20) for each in second.events(0, offset)]
    writer.store(stored)
    end = 12 + sum(each.partition == partition for each in stored)  # behind ten of the first run, and both hellos
    assert rows_of(read_to(reader, partition, end))

    event, deadline = 20, time.monotonic() + WAIT_S_MAX
    while len(owner.lost) == 1:  # what the library has fetched before it was removed is read all the same
        assert time.monotonic() < deadline
        more = [each for offset in range(event, event + 40) for each in second.events(0, offset)]
        records = [each for each in more if each.partition == partition]
        reader.pause([partition])
        writer.store(records)
        remove_records(config, partition, end + len(records) // 2)
        reader.resume([partition])
        place, event, end = end, event + 40, end + len(records)
        pages = read_to(reader, partition, end)
    assert owner.lost[1:] == [(partition, place, place + len(records) // 2)]
    assert len(rows_of(pages)) > 0
    reader.close()


def remove_records(config: KafkaConfig, partition: int, end: int) -> None:
    """What retention does, at once."""
    place = TopicPartition(config.topic("outbox"), partition, end)
    admin = AdminClient({"bootstrap.servers": config.bootstrap})  # kept: without it nothing completes the futures
    for done in admin.delete_records([place]).values():
        done.result()
