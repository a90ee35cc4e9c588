"""What one reader has walked over, the next one finds; wherever it looks, it finds the same."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from headgate.log import directory
from headgate.log.directory import LogDirectory, Partition, SegmentIndex, SegmentIndexes
from headgate.log.reader import PartitionReader, newest_first
from headgate.log.segments import SegmentFile
from tests.log.test_search import write

CHUNKS = 300


@pytest.fixture(autouse=True)
def dense(monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry for every few chunks."""
    monkeypatch.setattr(directory, "INDEX_STRIDE_BYTES", 500)


def headers_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The positions of all headers that are read from now on."""
    positions: list[int] = []
    header = SegmentFile.header

    def counted(self: SegmentFile, position: int, offset: int, committed: int) -> object:
        positions.append(position)
        return header(self, position, offset, committed)

    monkeypatch.setattr(SegmentFile, "header", counted)
    return positions


def test_a_second_reader_walks_a_few_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "0", [1] * CHUNKS)
    log = LogDirectory(tmp_path, "stop")
    with PartitionReader(log.partition(0), start=0) as reader:
        times = [chunk.append_time_us for chunk in iter(reader.read, None)]
    read = headers_read(monkeypatch)
    for offset in range(0, CHUNKS, 7):
        read.clear()
        with PartitionReader(log.partition(0), start=offset) as reader:
            chunk = reader.read()
        assert chunk is not None
        assert chunk.first_offset == offset
        assert len(read) <= 4
    for offset in range(0, CHUNKS, 7):
        read.clear()
        with PartitionReader.open_at_time(log.partition(0), times[offset]) as reader:
            assert reader.position == offset
        assert len(read) <= 14  # by halves through the first headers of the segments
    with PartitionReader.open_at_time(log.partition(0), times[-1] + 1) as reader:
        assert reader.position == CHUNKS


@pytest.mark.parametrize("seed", range(5))
def test_finds_the_same_whatever_was_read_before(tmp_path: Path, seed: int) -> None:
    write(tmp_path / "0", [1 + (7 * n + seed) % 3 for n in range(CHUNKS)])
    known = LogDirectory(tmp_path, "stop")
    for start in ((seed * 97) % CHUNKS, 0, (seed * 31) % CHUNKS):
        with PartitionReader(known.partition(0), start=start) as reader:
            for _ in range(40):
                reader.read()
    list(newest_first(known.partition(0)))
    for at in range(0, CHUNKS, 3):
        found = []
        for log in (known, LogDirectory(tmp_path, "stop")):
            with PartitionReader(log.partition(0), start=at) as reader:
                chunk = reader.read()
                assert chunk is not None
            with PartitionReader.open_at_time(log.partition(0), 1_000 + 10 * at) as reader:
                found.append((chunk.first_offset, chunk.next_offset, reader.position))
        assert found[0] == found[1]


def test_a_segment_that_is_made_anew_has_another_index(tmp_path: Path) -> None:
    write(tmp_path / "0", [1] * CHUNKS)
    partition = Partition(tmp_path / "0", "stop")
    with PartitionReader(partition, start=CHUNKS - 1) as reader:
        assert reader.read() is not None
    kept = [path.rename(path.with_suffix(".old")) for path in (tmp_path / "0").iterdir()]  # so no inode is used again
    write(tmp_path / "0", [3] * CHUNKS)
    with PartitionReader(partition, start=CHUNKS - 1) as reader:
        chunk = reader.read()
    assert chunk is not None
    assert chunk.next_offset == CHUNKS
    assert kept


def test_indexes_used_longest_ago_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "SEGMENT_INDEXES_MAX", 2)
    indexes = SegmentIndexes()
    files = [(tmp_path / str(number)).open("w") for number in range(3)]
    first, second, _ = (indexes.of(Path(file.name), file.fileno(), 0, 64) for file in files)
    assert indexes.of(Path(files[1].name), files[1].fileno(), 0, 64) is second
    assert indexes.of(Path(files[0].name), files[0].fileno(), 0, 64) is not first
    for file in files:
        file.close()


def test_threads_that_walk_the_same_segment_leave_it_in_order() -> None:
    index = SegmentIndex(0, 0)

    def walk(step: int) -> None:
        for at in range(0, 20_000, step):
            index.note(at, at * 100, at)

    threads = [threading.Thread(target=walk, args=(step,)) for step in (1, 2, 3, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for offset in range(0, 20_000, 501):
        at, position = index.at_offset(offset)
        assert position == at * 100
        assert offset - 10 <= at <= offset
        assert index.before_time(offset) <= offset
