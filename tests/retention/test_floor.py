"""What retention must keep: never more is allowed to go than a restart could do without."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from headgate.delivery.cursors import CursorChange, CursorStore, TargetCursor
from headgate.log.directory import Partition
from headgate.log.reader import PartitionReader
from headgate.log.writer import PartitionWriter
from headgate.outbox.writer import OUTBOX_SCHEMA, RowGroup, encode_chunk
from headgate.retention.floor import KEEP_EVERYTHING, REPORT, FloorFinder, RetentionFloor
from headgate.storage.files import DispatcherDirectory
from headgate.subscriptions.store import SavedCursor, SubscriptionStore, UnackedEvent
from tests.delivery.harness import EventLog, Request, Routes, Subscriber, event, matcher, run, running, target
from tests.support import until


def floor_of(directory: Path) -> RetentionFloor:
    """What somebody sees who looks for the first time."""
    return FloorFinder(DispatcherDirectory(directory), Partition(directory / "outbox", "stop")).find()


def outbox(directory: Path) -> None:
    """Positions 0..9: chunks (p0: 3, 4; progress), (p1: 7; progress), (progress of p0 only), (p0: 9, progress)."""
    with PartitionWriter(Partition(directory, "stop"), OUTBOX_SCHEMA) as writer:
        for segments, progress in (
            ([RowGroup(0, 1, [(3, 1, 3), (4, 2, 3)])], {0: (5, 1)}),
            ([RowGroup(1, 1, [(7, 1, 3)])], {1: (8, 1)}),
            ([], {0: (9, 1)}),
            ([RowGroup(0, 1, [(9, 1, 3)])], {0: (20, 1), 1: (30, 1)}),
        ):
            writer.append(encode_chunk(segments, progress))


def cursors(path: Path, position: int, *behind: TargetCursor) -> None:
    store = CursorStore(path)
    store.flush(CursorChange(position, {0: 20, 1: 30}, list(behind), []))
    store.close()


def test_without_cursors_everything_is_floor_of(tmp_path: Path):
    assert floor_of(tmp_path) == KEEP_EVERYTHING


def test_with_nothing_unfinished_the_watermarks_are_the_floor(tmp_path: Path):
    outbox(tmp_path / "outbox")
    cursors(tmp_path / "dispatch.db", 9)
    assert floor_of(tmp_path) == RetentionFloor(9, {0: 20, 1: 30})


def test_the_oldest_delivery_of_anyone_is_the_floor(tmp_path: Path):
    outbox(tmp_path / "outbox")
    cursors(tmp_path / "dispatch.db", 9, TargetCursor(1, None, (3, 6)), TargetCursor(2, 4, ()))
    # Position 3 is the row of event 7 of partition 1; partition 0 goes on at its progress, 9.
    assert floor_of(tmp_path) == RetentionFloor(3, {0: 9, 1: 7})


def test_a_partition_without_rows_from_there_on_is_needed_from_its_progress(tmp_path: Path):
    outbox(tmp_path / "outbox")
    cursors(tmp_path / "dispatch.db", 9, TargetCursor(1, 6, ()))
    assert floor_of(tmp_path) == RetentionFloor(6, {0: 9, 1: 30})


def test_what_a_hanging_subscriber_has_not_answered_is_floor_of(tmp_path: Path):
    log = EventLog(tmp_path)

    async def choose(request: Request) -> tuple[int, bytes]:
        if request.id == "e40":
            await asyncio.sleep(3_600)
        return 202, b""

    async def work() -> None:
        async with Subscriber(choose) as subscriber:
            routes = Routes(target(1, subscriber.url, timeout_s=60.0))
            async with running(tmp_path, routes, drain_s=0.1) as work:
                log.append([event(number) for number in range(100)])
                async with matcher(work) as peer:
                    peer.match(*((offset, 1) for offset in range(100)))
                    await until(lambda: len(subscriber.requests) == 100)
                    own = tmp_path / "dispatcher" / "0"
                    await until(lambda: floor_of(own).offsets.get(0) == 40)

    try:
        run(work())
    finally:
        log.close()


def test_the_backlog_of_a_subscription_and_what_consumers_have_are_floor_of(tmp_path: Path):
    outbox(tmp_path / "outbox")
    cursors(tmp_path / "dispatch.db", 9)
    store = SubscriptionStore(tmp_path / "subscriptions.db")
    store.write({5: SavedCursor(next=9), 6: SavedCursor(next=6, unacked=[UnackedEvent(0, 0, 3, 0)])})
    assert floor_of(tmp_path) == RetentionFloor(6, {0: 3, 1: 30})
    store.write({5: SavedCursor(next=3)}, gone=[6])
    assert floor_of(tmp_path) == RetentionFloor(3, {0: 9, 1: 7})
    store.close()


QUIET_CHUNKS = 12


def a_quiet_partition(directory: Path, monkeypatch: pytest.MonkeyPatch) -> FloorFinder:
    """Partition 1 has rows in the first and the last chunk; each has two positions, and a look reads five."""
    monkeypatch.setattr("headgate.retention.floor.FLOOR_CHUNKS_MAX", 5)
    with PartitionWriter(Partition(directory / "outbox", "stop"), OUTBOX_SCHEMA) as writer:
        writer.append(encode_chunk([RowGroup(1, 1, [(4, 1, 3)])], {1: (5, 1)}))
        for number in range(QUIET_CHUNKS):
            writer.append(encode_chunk([RowGroup(0, 1, [(number, 1, 3)])], {0: (number + 1, 1)}))
        writer.append(encode_chunk([RowGroup(1, 1, [(77, 1, 3)])], {1: (78, 1)}))
    return FloorFinder(DispatcherDirectory(directory), Partition(directory / "outbox", "stop"))


def says(finder: FloorFinder, directory: Path, position: int, handed: int, watermark: int) -> dict[int, int]:
    """What is needed with everything from `position` on unfinished."""
    store = CursorStore(directory / "dispatch.db")
    store.flush(CursorChange(handed, {0: QUIET_CHUNKS, 1: watermark}, [TargetCursor(1, position, ())], []))
    store.close()
    found = finder.find()
    assert found.position == position
    return found.offsets


def test_a_quiet_partition_is_named_when_the_look_has_come_to_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    finder = a_quiet_partition(tmp_path, monkeypatch)
    before_last = 2 + 2 * QUIET_CHUNKS
    assert [says(finder, tmp_path, 2, before_last, 5) for _ in range(3)] == [{0: 0}, {0: 0}, {0: 0, 1: 5}]
    assert says(finder, tmp_path, 6, before_last + 2, 78) == {0: 2, 1: 77}, "its next row"
    assert says(finder, tmp_path, 8, before_last + 2, 78) == {0: 3, 1: 77}
    assert says(finder, tmp_path, 4, before_last + 2, 78) == {0: 1}, "somebody went back"


def test_until_a_look_has_come_to_the_end_what_was_said_before_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    finder = a_quiet_partition(tmp_path, monkeypatch)
    end = 4 + 2 * QUIET_CHUNKS
    assert says(finder, tmp_path, 0, end, 78) == {0: 0, 1: 4}
    assert says(finder, tmp_path, 2, end, 78) == {0: 0, 1: 4}, "its next row is not found yet"
    assert says(finder, tmp_path, 4, end, 78) == {0: 1, 1: 4}
    assert says(finder, tmp_path, 4, end, 78) == {0: 1, 1: 77}
    assert says(finder, tmp_path, 4, 26, 5) == {0: 1}, "another outbox: nothing of what was seen is true"


def test_what_has_been_read_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    finder = a_quiet_partition(tmp_path, monkeypatch)
    end = 4 + 2 * QUIET_CHUNKS
    for _ in range(3):
        found = says(finder, tmp_path, 2, end, 78)
    for segment in (tmp_path / "outbox").glob("*.seg"):
        segment.unlink()
    assert says(finder, tmp_path, 2, end, 78) == found == {0: 0, 1: 77}


def test_events_behind_a_damaged_chunk_are_kept_and_others_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    finder = a_quiet_partition(tmp_path, monkeypatch)
    (path,) = (tmp_path / "outbox").glob("*.seg")
    with PartitionReader(Partition(tmp_path / "outbox", "stop"), start=8) as reader:
        chunk = reader.read()
    assert chunk is not None
    text = bytearray(path.read_bytes())
    text[chunk.byte + chunk.size_bytes - 1] ^= 1
    path.write_bytes(text)
    end = 4 + 2 * QUIET_CHUNKS
    with capture_logs() as told:
        assert says(finder, tmp_path, 0, end, 78) == {0: 0, 1: 4}
        assert [says(finder, tmp_path, 4, end, 78) for _ in range(3)] == [{0: 1, 1: 4}] * 3
    assert [line["event"] for line in told] == ["the outbox cannot be read on, events behind are kept"]


def test_a_report_is_read_as_it_was_written_and_without_one_everything_is_kept(tmp_path: Path):
    assert RetentionFloor.reported(tmp_path, 1) == KEEP_EVERYTHING
    for floor in (RetentionFloor(3, {0: 9, 1: 7}), RetentionFloor(1 << 40, {})):
        floor.report(tmp_path, 1)
        assert RetentionFloor.reported(tmp_path, 1) == floor
    assert [path.name for path in tmp_path.iterdir()] == [REPORT.format(1)]
