"""Cursors and backlog: what a restart reads is what was not ended, exactly."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.delivery.cursors import CursorChange, Cursors, CursorStore, Flusher, TargetCursor, Tried
from headgate.delivery.permits import PermitCounts
from headgate.delivery.targets import Lag
from headgate.log.directory import Partition
from headgate.log.writer import PartitionWriter
from headgate.outbox.reader import OutboxReader
from headgate.outbox.writer import OUTBOX_SCHEMA, RowGroup, encode_chunk
from headgate_api import limits
from tests.delivery.harness import EventLog, Request, Routes, Subscriber, event, matcher, run, running, target
from tests.support import until


@pytest.fixture
def store(tmp_path: Path):
    store = CursorStore(tmp_path / "dispatch.db")
    yield store
    store.close()


def test_the_beginning_of_everything(store: CursorStore):
    assert store.load() == Cursors()


def test_a_flush_replaces_what_it_names_and_leaves_the_rest(store: CursorStore, tmp_path: Path):
    retries = (Tried(1, 4, 1_790_000_000_000_000, 86_400_000_000), Tried(0, 1, 7, 8))
    first = [TargetCursor(1, None, (3, 5)), TargetCursor(2, 9, ()), TargetCursor(3, 2, (0, 1), retries)]
    store.flush(CursorChange(10, {0: 100, 1: 7}, first, []))
    store.flush(CursorChange(20, {1: 8}, [TargetCursor(2, 15, (2**60,))], [1]))
    again = CursorStore(tmp_path / "dispatch.db")
    assert again.load() == Cursors(20, {0: 100, 1: 8}, (TargetCursor(2, 15, (2**60,)), first[2]))
    again.clear()
    assert store.load() == Cursors()
    again.close()


CHANGES = st.lists(
    st.builds(
        CursorChange,
        st.integers(0, 99),
        st.dictionaries(st.integers(0, 2), st.integers(0, 99)),
        st.lists(
            st.builds(TargetCursor, st.integers(0, 4), st.none() | st.integers(0, 9), st.just(())),
            unique_by=lambda cursor: cursor.target,
        ),
        st.lists(st.integers(5, 6), unique=True),
    ),
    max_size=6,
)


@given(CHANGES, st.lists(st.booleans(), min_size=6, max_size=6))
def test_flushes_that_fail_are_made_up_for(tmp_path_factory, changes: list[CursorChange], fails: list[bool]):
    """Whatever flushes fail, in the end the file says what it would say had none failed."""
    directory = tmp_path_factory.mktemp("cursors")
    plain, shaky = CursorStore(directory / "a.db"), Shaky(directory / "b.db", fails)
    for change in changes:
        plain.flush(change)

    async def work() -> None:
        flusher = Flusher(shaky, iter([*changes, *changes[-1:], CursorChange(99, {}, [], [])]).__next__, lambda: None)
        for _ in changes:
            flusher._flush()
            await until(lambda: not flusher._writing)
        shaky.fails.clear()
        await flusher.close()

    run(work())
    expected, found = plain.load(), shaky.load()
    if changes:
        assert (found.watermarks, found.targets) == (expected.watermarks, expected.targets)
    plain.close()
    shaky.close()


def test_a_stop_goes_on_when_the_disk_takes_no_cursors(tmp_path: Path):
    store = Shaky(tmp_path / "dispatch.db", [True])

    async def work() -> None:
        flusher = Flusher(store, lambda: CursorChange(7, {}, [], []), lambda: None)
        await flusher.close()
        with pytest.raises(RuntimeError):  # its thread has ended
            await flusher._thread.run(lambda: None)

    run(work())
    assert store.load() == Cursors()
    store.close()


class Shaky(CursorStore):
    def __init__(self, path: Path, fails: list[bool]) -> None:
        super().__init__(path)
        self.fails = list(fails)

    def flush(self, change: CursorChange) -> None:
        if self.fails and self.fails.pop(0):
            raise sqlite3.OperationalError("disk is full")
        super().flush(change)


@given(
    rows=st.lists(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=6), max_size=8),
    data=st.data(),
)
def test_a_backlog_is_every_wanted_row_once_in_pieces_of_any_size(tmp_path_factory, rows, data):
    """rows: per chunk (target, verdict)."""
    directory = tmp_path_factory.mktemp("outbox") / "0"
    flat: list[tuple[int, int] | None] = []
    with PartitionWriter(Partition(directory, "stop"), OUTBOX_SCHEMA) as writer:
        for chunk in rows:
            start = len(flat)
            row_group = RowGroup(0, 1, [(start + index, t, v) for index, (t, v) in enumerate(chunk)])
            writer.append(encode_chunk([row_group], {0: (start + len(chunk), 1)}))
            flat += [*chunk, None]  # None: the progress row
    end = len(flat)
    upto = data.draw(st.integers(0, end))
    floor = data.draw(st.integers(0, upto))
    unread = data.draw(st.sets(st.integers(0, max(floor - 1, 0)), max_size=5)) if floor else set()
    lag = Lag(min(unread, default=floor), floor, set(unread))
    expected = [
        position
        for position in range(upto)
        if (row := flat[position]) is not None and row[0] == 2 and (position >= floor or position in unread)
    ]

    async def work() -> None:
        backlog = OutboxReader(Partition(directory, "stop"))
        found: list[int] = []
        while lag.next < upto:
            page = await backlog.read(2, lag.next, upto, data.draw(st.integers(1, 4)), lag.wants)
            assert page.reached > lag.next
            found += [row.position for row in page.rows]
            lag.next = page.reached
        backlog.close()
        assert found == expected

    run(work())


def test_permits_of_a_target_that_hangs_are_given_to_the_others(monkeypatch):
    monkeypatch.setattr(limits, "ATTEMPTS_HEALTHY_MAX", 4)
    monkeypatch.setattr(limits, "ATTEMPTS_SLOW_MAX", 3)
    monkeypatch.setattr(limits, "ATTEMPTS_MAX", 6)
    permits = PermitCounts()
    for _ in range(4):
        assert permits.available(False)
        permits.acquire(False)
    assert not permits.available(False)
    permits.move(4, 0, True)
    assert permits.available(False), "the healthy ones go on"
    assert not permits.available(True), "and no slow one starts"
    permits.acquire(False)
    permits.acquire(False)
    assert not permits.available(False), "all together are bounded"
    permits.release(True, 0)
    assert permits.available(False)
    permits.charge(False, limits.ATTEMPT_BYTES_MAX)
    assert not permits.available(False), "and so are their bytes"
    permits.move(0, limits.ATTEMPT_BYTES_MAX, True)
    assert permits.available(False), "large events that hang do not take the memory of those that do not"


def test_many_targets_that_hang_do_not_take_all_places(tmp_path: Path, monkeypatch):
    """64 hanging targets want more places than there are; one that works is served all the same."""
    monkeypatch.setattr(limits, "ATTEMPTS_HEALTHY_MAX", 32)
    monkeypatch.setattr(limits, "ATTEMPTS_SLOW_MAX", 32)
    monkeypatch.setattr(limits, "ATTEMPTS_MAX", 160)
    monkeypatch.setattr(limits, "SLOW_AFTER_S", 0.05)

    async def hang(request: Request) -> tuple[int, bytes]:
        if request.path != "/works":
            await asyncio.sleep(3_600)
        return 202, b""

    async def work() -> None:
        log = EventLog(tmp_path)
        async with Subscriber(hang) as subscriber:
            hanging = [target(n, f"{subscriber.url}{n}", timeout_s=60.0) for n in range(2, 66)]
            routes = Routes(target(1, subscriber.url + "works"), *hanging)
            async with running(tmp_path, routes, drain_s=0.1) as work, matcher(work) as peer:
                for offset in range(20):
                    log.append([event(offset)])
                    peer.match(*((offset, n) for n in range(2, 66)), (offset, 1))
                await until(lambda: sum(request.path == "/works" for request in subscriber.requests) == 20)
                assert len(subscriber.open) <= 160
        log.close()

    run(work())
