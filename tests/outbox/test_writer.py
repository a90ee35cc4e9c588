"""The outbox: group commit, order of rows and progress, a disk that refuses."""

from __future__ import annotations

import asyncio
import threading

from hypothesis import given
from hypothesis import strategies as st

from headgate.log.errors import LogUnavailableError
from headgate.log.writer import Encoded
from headgate.outbox.takeover import Accepted
from headgate.outbox.writer import OUTBOX_SCHEMA, Outbox, OutboxChunk, RowGroup, decode_chunk, encode_chunk
from headgate_api import limits
from tests.delivery.harness import run
from tests.support import until


class Disk:
    """A writer whose appends wait until they are let through, or fail."""

    def __init__(self) -> None:
        self.chunks: list[OutboxChunk] = []
        self.filter_values: list[list[str | None]] = []
        self.next_offset = 0
        self.gate = threading.Semaphore(1_000_000)
        self.failures = 0

    def append(self, chunk: Encoded) -> int:
        self.gate.acquire()
        if self.failures:
            self.failures -= 1
            raise LogUnavailableError("disk full")
        first = self.next_offset
        self.chunks.append(decode_chunk(first, chunk.batch))
        self.filter_values.append(list(chunk.filter_values))
        self.next_offset += chunk.batch.num_rows
        return first


def accepted(first: int, count: int, *, partition: int = 0, generation: int = 1) -> Accepted:
    rows = [(offset, target, 3) for offset in range(first, first + count) for target in (1, 2)]
    return Accepted(partition, generation, rows, first + count)


def plain(chunks: list[OutboxChunk]) -> list[object]:
    """Chunks without the borders of their row groups, which the disk does not keep."""
    return [
        (
            chunk.first_position,
            [(group.partition, group.generation, *row) for group in chunk.row_groups for row in group.rows],
            chunk.next_position,
            chunk.watermarks,
        )
        for chunk in chunks
    ]


def test_a_chunk_holds_everything_that_waited_and_ends_with_progress():
    async def work() -> None:
        disk, handed = Disk(), []
        durable = disk.chunks
        disk.gate = threading.Semaphore(0)
        outbox = Outbox(disk, handed.append)
        for first in range(0, 10, 2):
            outbox.add(accepted(first, 2))
        outbox.add(accepted(0, 1, partition=1, generation=2))
        disk.gate.release(2)
        await until(lambda: len(durable) == 2)
        assert plain(handed) == plain(durable)
        assert [chunk.first_position for chunk in durable] == [0, 5]
        assert durable[0].watermarks == {0: 2}
        assert durable[1].watermarks == {0: 10, 1: 1}
        assert sum(len(row_group.rows) for row_group in durable[1].row_groups) == 18
        assert disk.filter_values[0] == ["1", "2", "1", "2", "-1"]
        await outbox.close()

    run(work())


def test_progress_alone_waits_and_goes_with_rows(monkeypatch):
    monkeypatch.setattr(limits, "OUTBOX_PROGRESS_S_MAX", 0.05)

    async def work() -> None:
        disk, handed = Disk(), []
        outbox = Outbox(disk, handed.append)
        for passed in range(1, 100):
            outbox.add(Accepted(0, 1, [], passed))
        assert disk.chunks == []
        outbox.add(Accepted(1, 1, [(0, 7, 3)], 1))
        await until(lambda: len(handed) == 1)
        assert handed[0].watermarks == {0: 99, 1: 1}
        outbox.add(Accepted(0, 1, [], 200))
        await until(lambda: len(handed) == 2)
        assert handed[1].watermarks == {0: 200}
        assert handed[1].row_groups == []
        await outbox.close()

    run(work())


def test_closing_writes_what_waits():
    async def work() -> None:
        disk, handed = Disk(), []
        outbox = Outbox(disk, handed.append)
        outbox.add(Accepted(0, 1, [], 5))
        await outbox.close()
        assert handed[0].watermarks == {0: 5}

    run(work())


def test_a_disk_that_refuses_loses_nothing_and_keeps_the_order(monkeypatch):
    monkeypatch.setattr(limits, "OUTBOX_RETRY_S", 0.01)

    async def work() -> None:
        disk, handed = Disk(), []
        disk.failures = 3
        room: list[int] = []
        outbox = Outbox(disk, handed.append, lambda: room.append(outbox.rows_pending))
        for first in range(0, 100, 10):
            outbox.add(accepted(first, 10))
        assert outbox.rows_pending == 200
        await until(lambda: sum(len(s.rows) for chunk in handed for s in chunk.row_groups) == 200)
        await until(lambda: not outbox.rows_pending)
        assert plain(handed) == plain(disk.chunks)
        offsets = [offset for chunk in handed for row_group in chunk.row_groups for offset, _, _ in row_group.rows]
        assert offsets == sorted(offsets)
        assert room[-1] == outbox.rows_pending == 0
        await outbox.close()

    run(work())


def test_closing_on_a_disk_that_refuses_ends():
    async def work() -> None:
        disk, handed = Disk(), []
        disk.failures = 1_000_000
        outbox = Outbox(disk, handed.append)
        outbox.add(accepted(0, 1))
        await outbox.close()
        assert (outbox.durable, outbox.end, disk.chunks) == (0, 3, [])

    run(work())


def test_rows_are_handed_on_once_while_they_are_written_and_what_needs_them_on_disk_waits(monkeypatch):
    monkeypatch.setattr(limits, "OUTBOX_RETRY_S", 0.01)

    async def work() -> None:
        disk, handed = Disk(), []
        disk.gate = threading.Semaphore(0)
        disk.failures = 2
        outbox = Outbox(disk, handed.append)
        told: list[tuple[str, int]] = []
        outbox.when_durable(0, lambda: told.append(("nothing", outbox.durable)))
        outbox.add(accepted(0, 1))
        assert [chunk.next_position for chunk in handed] == [outbox.end] == [3]
        outbox.when_durable(3, lambda: told.append(("first", outbox.durable)))
        outbox.add(accepted(1, 1))
        disk.gate.release(2)
        await until(lambda: not disk.failures)
        await asyncio.sleep(0.03)
        assert (told, outbox.durable, len(handed)) == ([("nothing", 0)], 0, 1)
        disk.gate.release(1)
        await until(lambda: len(handed) == 2)
        assert told[1:] == [("first", 3)]
        outbox.when_durable(2, lambda: told.append(("read", outbox.durable)))
        outbox.when_durable(6, lambda: told.append(("second", outbox.durable)))
        disk.gate.release(1)
        await until(lambda: not outbox.rows_pending)
        assert told[2:] == [("read", 3), ("second", 6)]
        assert plain(handed) == plain(disk.chunks)
        await outbox.close()

    run(work())


def test_large_chunks_are_cut_between_events_with_the_right_progress(monkeypatch):
    monkeypatch.setattr(limits, "OUTBOX_CHUNK_ROWS_MAX", 10)

    async def work() -> None:
        disk, handed = Disk(), []
        disk.gate = threading.Semaphore(0)
        outbox = Outbox(disk, handed.append)
        for first in range(0, 30, 3):
            outbox.add(accepted(first, 3))
        disk.gate.release(1_000)
        await until(lambda: bool(handed) and handed[-1].watermarks == {0: 30})
        for chunk in handed:
            last = chunk.row_groups[-1].rows[-1][0] if chunk.row_groups else 29
            assert chunk.watermarks == {0: last + 1}
            assert sum(len(row_group.rows) for row_group in chunk.row_groups) <= 10
        await outbox.close()

    run(work())


SEGMENTS = st.lists(
    st.builds(
        RowGroup,
        st.integers(0, 3),
        st.integers(0, 2**62),
        st.lists(st.tuples(st.integers(0, 2**62), st.integers(0, 2**31 - 1), st.integers(1, 3)), min_size=1),
    ),
    max_size=4,
)


@given(SEGMENTS, st.dictionaries(st.integers(0, 3), st.tuples(st.integers(0, 2**62), st.integers(0, 9)), min_size=1))
def test_what_is_written_is_read_again(row_groups: list[RowGroup], progress: dict[int, tuple[int, int]]):
    encoded = encode_chunk(row_groups, progress)
    assert encoded.batch.schema == OUTBOX_SCHEMA
    chunk = decode_chunk(77, encoded.batch)
    flat = [(s.partition, s.generation, row) for s in row_groups for row in s.rows]
    assert [(s.partition, s.generation, row) for s in chunk.row_groups for row in s.rows] == flat
    assert chunk.watermarks == {partition: watermark for partition, (watermark, _) in progress.items()}
    assert chunk.next_position == 77 + len(flat) + len(progress)
    assert encoded.filter_values == [str(row[1]) for _, _, row in flat] + ["-1"] * len(progress)
