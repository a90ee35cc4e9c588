"""Whole segments go, oldest first; never the last, never what somebody still has to read."""

from __future__ import annotations

import threading

import pytest

from headgate.log.directory import Partition
from headgate.log.reader import PartitionReader
from headgate.log.recovery import list_segments
from headgate.log.retention import Retained, retain
from tests.log.support import FaultyFiles, append, open_writer, read_all

HOUR_US = 3_600_000_000


@pytest.fixture
def writer(tmp_path):
    """Five segments of two records, appended at hours 1, 2, 3, 4, 5."""
    hours = iter(range(1, 100))
    with open_writer(tmp_path, segment_bytes_max=1, clock_us=lambda: next(hours) * HOUR_US) as writer:
        for _ in range(5):
            append(writer, 2)
        yield writer


def firsts(writer) -> list[int]:
    return [first for first, _ in list_segments(writer.directory)]


@pytest.mark.parametrize(("now_hours", "first"), [(4, 0), (5.01, 2), (6.01, 4), (8.01, 8), (100, 8)])
def test_age(writer, now_hours, first):
    done = retain(writer, now_us=int(now_hours * HOUR_US), floor_offset=100, age_us_max=3 * HOUR_US)
    assert done.first_offset == writer.first_offset == first
    assert firsts(writer) == list(range(first, 10, 2))
    assert read_all(writer.directory) == list(range(first, 10))


def test_bytes(writer):
    size = list_segments(writer.directory)[0][1].stat().st_size
    assert retain(writer, now_us=0, floor_offset=100, bytes_max=5 * size) == Retained(0, 0, 0)
    assert retain(writer, now_us=0, floor_offset=100, bytes_max=5 * size - 1) == Retained(2, 1, size)
    assert retain(writer, now_us=0, floor_offset=100, bytes_max=2 * size) == Retained(6, 2, 2 * size)
    assert retain(writer, now_us=0, floor_offset=100, bytes_max=0) == Retained(8, 1, size)
    assert firsts(writer) == [8]


@pytest.mark.parametrize(("floor", "first"), [(0, 0), (1, 0), (2, 2), (5, 4), (8, 8), (9, 8)])
def test_floor(writer, floor, first):
    retain(writer, now_us=100 * HOUR_US, floor_offset=floor, bytes_max=0, age_us_max=0)
    assert firsts(writer)[0] == first


def test_nothing_asked_nothing_done(writer):
    assert retain(writer, now_us=100 * HOUR_US, floor_offset=100) == Retained(0, 0, 0)


def test_empty_partition(tmp_path):
    with open_writer(tmp_path) as writer:
        assert retain(writer, now_us=0, floor_offset=100, bytes_max=0) == Retained(0, 0, 0)


def test_segment_before_an_empty_one_has_no_known_age(writer):
    writer._roll()
    retain(writer, now_us=100 * HOUR_US, floor_offset=100, age_us_max=HOUR_US)
    assert firsts(writer) == [8, 10]


def test_readers_are_told_before_files_go(writer):
    files = FaultyFiles()
    seen = []
    files.faults["unlink"] = lambda: seen.append((writer.first_offset, firsts(writer)))
    retain(writer, now_us=0, floor_offset=4, bytes_max=0, files=files)
    assert seen == [(4, [0, 2, 4, 6, 8]), (4, [2, 4, 6, 8])]


def test_a_failed_removal_is_finished_later_and_survives_reopening(writer):
    files = FaultyFiles()
    files.fail("unlink")
    with pytest.raises(OSError, match="error"):
        retain(writer, now_us=0, floor_offset=4, bytes_max=0, files=files)
    retain(writer, now_us=0, floor_offset=4, bytes_max=0)
    assert firsts(writer) == [4, 6, 8]
    writer.close()
    with open_writer(writer.directory) as again:
        assert (again.first_offset, again.next_offset) == (4, 10)


def test_beside_a_writing_thread(tmp_path):
    with (
        open_writer(tmp_path, segment_bytes_max=4_000) as writer,
        PartitionReader(Partition(tmp_path, "stop"), start=0) as reader,
    ):
        thread = threading.Thread(target=lambda: [append(writer, 5) for _ in range(2_000)])
        thread.start()
        while thread.is_alive():
            retain(writer, now_us=0, floor_offset=reader.position, bytes_max=10_000)
            while (chunk := reader.read()) is not None:
                assert chunk.batch.column("n")[0].as_py() == chunk.first_offset
        thread.join()
        list(iter(reader.read, None))
        assert (reader.position, reader.records_missed) == (10_000, 0)
