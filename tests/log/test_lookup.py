"""Random access by partition and offset, within its memory."""

from __future__ import annotations

import random

import pytest

from headgate.log import segments as segments_module
from headgate.log.directory import LogDirectory
from headgate.log.errors import CorruptChunkError, OffsetNotKeptError
from headgate.log.files import read_at
from headgate.log.reader import RecordLookup
from headgate.log.retention import retain
from headgate_api.limits import LOOKUP_CHUNK_OVERHEAD_BYTES
from tests.log.support import append, find, last_segment, open_writer


def n_of(found) -> int:
    return found.batch.column("n")[found.row].as_py()


@pytest.fixture
def lookup(tmp_path):
    lookup = RecordLookup(LogDirectory(tmp_path, "stop"), cache_bytes_max=60_000)
    yield lookup
    lookup.close()


def test_every_order_finds_the_record(tmp_path, lookup):
    with open_writer(tmp_path / "0", segment_bytes_max=200_000) as writer:
        while writer.next_offset < 30_000:
            append(writer, 1 + writer.next_offset % 37)
        end = writer.next_offset
    chance = random.Random(7)
    offsets = [*range(2_000), *range(end - 1, end - 500, -1), *(chance.randrange(end) for _ in range(2_000))]
    for offset in offsets:
        assert n_of(find(lookup, 0, offset)) == offset


def test_partitions_are_apart(tmp_path, lookup):
    for partition in (0, 1):
        with open_writer(tmp_path / str(partition)) as writer:
            append(writer, 3, text=f"p{partition}")
    for partition in (0, 1, 0):
        found = find(lookup, partition, 1)
        assert found.batch.column("text")[found.row].as_py() == f"p{partition}"
        assert found.first_offset == 0


def test_records_just_written_are_found(tmp_path, lookup):
    with open_writer(tmp_path / "0") as writer:
        for number in range(500):
            with pytest.raises(OffsetNotKeptError):
                find(lookup, 0, number)
            append(writer, 1)
            assert n_of(find(lookup, 0, number)) == number


def test_cache_is_bounded_and_used(tmp_path, monkeypatch):
    reads = []
    real = segments_module.SegmentFile.body
    monkeypatch.setattr(segments_module.SegmentFile, "body", lambda *args: reads.append(args[1]) or real(*args))
    with open_writer(tmp_path / "0") as writer:
        for _ in range(10):
            append(writer, 10, text="x" * 100)
    size = 64 + 16 + 10 * 100 + LOOKUP_CHUNK_OVERHEAD_BYTES
    lookup = RecordLookup(LogDirectory(tmp_path, "stop"), cache_bytes_max=4 * size)
    for _ in range(5):
        find(lookup, 0, 5)
        find(lookup, 0, 15)
        find(lookup, 0, 7)
    assert len(reads) == 2
    for offset in range(100):
        assert n_of(find(lookup, 0, offset)) == offset
        assert lookup._cache_bytes <= 4 * size
    assert len(reads) == 10
    assert list(lookup._recent) == [(0, first) for first in (70, 80, 90)]
    lookup.close()


def test_one_chunk_above_the_cache_is_kept(tmp_path):
    with open_writer(tmp_path / "0") as writer:
        append(writer, 100)
        append(writer, 100)
    lookup = RecordLookup(LogDirectory(tmp_path, "stop"), cache_bytes_max=1)
    assert lookup.chunk(0, 3) is lookup.chunk(0, 99)
    lookup.chunk(0, 100)
    assert len(lookup._recent) == 1
    lookup.close()


def test_near_the_end_no_bodies_or_headers_are_walked_twice(tmp_path, lookup, monkeypatch):
    with open_writer(tmp_path / "0") as writer:
        for _ in range(300):
            append(writer, 1, text="x" * 50)
    calls = []
    real = segments_module.unpack_chunk_header
    monkeypatch.setattr(segments_module, "unpack_chunk_header", lambda data: calls.append(1) or real(data))
    for offset in range(300):
        find(lookup, 0, offset)
    assert len(calls) == 300


def test_a_seek_walks_no_further_than_the_stride(tmp_path, lookup, monkeypatch):
    with open_writer(tmp_path / "0") as writer:
        for _ in range(2_000):
            append(writer, 1, text="x" * 500)
    find(lookup, 0, 1_999)
    calls = []
    real = segments_module.unpack_chunk_header
    monkeypatch.setattr(segments_module, "unpack_chunk_header", lambda data: calls.append(1) or real(data))
    find(lookup, 0, 1_000)
    assert 0 < len(calls) < 120


def test_removed_and_absent_records(tmp_path, lookup):
    with open_writer(tmp_path / "0", segment_bytes_max=1) as writer:
        for _ in range(4):
            append(writer, 2)
        assert n_of(find(lookup, 0, 1)) == 1
        retain(writer, now_us=0, floor_offset=4, bytes_max=0)
        assert n_of(find(lookup, 0, 5)) == 5
        for partition, offset in ((0, 2), (0, 8), (0, -1), (7, 0)):
            with pytest.raises(OffsetNotKeptError, match=str(offset)):
                find(lookup, partition, offset)


def test_damage_is_named(tmp_path, lookup):
    with open_writer(tmp_path / "0") as writer:
        append(writer, 2)
    path = last_segment(tmp_path / "0")
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptChunkError, match=path.name):
        find(lookup, 0, 0)


def test_read_at_reads_large_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr("headgate.log.files._READ_PIECE_BYTES", 10)
    path = tmp_path / "file"
    path.write_bytes(bytes(range(100)))
    with path.open("rb") as file:
        assert read_at(file.fileno(), 50, 30) == bytes(range(30, 80))
        assert read_at(file.fileno(), 50, 80) == bytes(range(80, 100))
        assert read_at(file.fileno(), 50, 100) == b""
