"""Readers see exactly what is durable, skip what they may, and live with writers, retention and accidents."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from headgate.log import segments as segments_module
from headgate.log.bloom import build
from headgate.log.directory import Partition
from headgate.log.errors import CorruptChunkError
from headgate.log.files import read_at
from headgate.log.format import Codec, pack_chunk
from headgate.log.reader import PartitionReader
from headgate.log.recovery import list_segments
from headgate.log.retention import retain
from headgate.log.writer import Encoded
from tests.log.support import append, batch, last_segment, open_files, open_writer, read_all
from tests.support import REPOSITORY


def chunks(directory: Path, start: int = 0, **wanted):
    with PartitionReader(Partition(directory, "stop"), start=start) as reader:
        return [(chunk.first_offset, chunk.record_count) for chunk in iter(lambda: reader.read(**wanted), None)]


def test_reader_may_come_before_the_writer(tmp_path):
    with PartitionReader(Partition(tmp_path / "0", "stop"), start=0) as reader:
        assert reader.read() is None
        assert reader.committed_offset() == 0
        with open_writer(tmp_path / "0") as writer:
            assert reader.read() is None
            append(writer, 3)
            assert reader.read().record_count == 3
            assert reader.position == 3


def test_start_inside_a_chunk_begins_there(tmp_path):
    with open_writer(tmp_path) as writer:
        append(writer, 10)
        append(writer, 10)
    for start in range(21):
        assert read_all(tmp_path, start) == list(range(start, 20))
    with PartitionReader(Partition(tmp_path, "stop"), start=7) as reader:
        chunk = reader.read()
        assert (chunk.first_offset, chunk.record_count, chunk.batch.num_rows) == (7, 3, 3)
        assert chunk.header.first_offset == 0


def test_start_above_the_end_waits(tmp_path):
    with open_writer(tmp_path) as writer, PartitionReader(Partition(tmp_path, "stop"), start=3) as reader:
        append(writer, 2)
        assert reader.read() is None
        append(writer, 4)
        assert reader.read().batch.column("n").to_pylist() == [3, 4, 5]


def test_skipping_advances_and_reads_no_body(tmp_path, monkeypatch):
    with open_writer(tmp_path, segment_bytes_max=300_000) as writer:
        for value in ("a", "b", "a", "c", None, "b"):
            append(writer, 10, value=value, text="x" * 10_000)
    bodies = []
    monkeypatch.setattr(segments_module, "read_at", lambda *args: bodies.append(args) or read_at(*args))
    with PartitionReader(Partition(tmp_path, "stop"), start=0) as reader:
        wanted = frozenset(["b"])
        assert [c.first_offset for c in iter(lambda: reader.read(wanted=wanted), None)] == [10, 50]
        assert reader.position == 60
        assert reader.chunks_skipped == 4
    assert len(bodies) == 2
    assert chunks(tmp_path, wanted=["a"]) == [(0, 10), (20, 10)]
    assert chunks(tmp_path, wanted=["b"], match_unfiltered=True) == [(10, 10), (40, 10), (50, 10)]
    assert chunks(tmp_path, wanted=[]) == []
    assert chunks(tmp_path, wanted=[], match_unfiltered=True) == [(40, 10)]
    assert chunks(tmp_path, match_unfiltered=True) == chunks(tmp_path) == [(n, 10) for n in range(0, 60, 10)]


def test_wanted_values_may_change_between_calls(tmp_path):
    with open_writer(tmp_path) as writer:
        for value in "abab":
            append(writer, 1, value=value)
    with PartitionReader(Partition(tmp_path, "stop"), start=0) as reader:
        wanted = ["b"]
        assert reader.read(wanted=wanted).first_offset == 1
        wanted[:] = ["a"]
        assert reader.read(wanted=wanted).first_offset == 2
        assert reader.read(wanted=frozenset("b")).first_offset == 3


def test_batch_is_decoded_once(tmp_path):
    with open_writer(tmp_path) as writer:
        append(writer, 1)
    with PartitionReader(Partition(tmp_path, "stop"), start=0) as reader:
        chunk = reader.read()
        assert chunk.batch is chunk.batch


def test_chunk_outlives_its_reader_and_its_file(tmp_path):
    with open_writer(tmp_path) as writer:
        append(writer, 2)
    with PartitionReader(Partition(tmp_path, "stop"), start=0) as reader:
        chunk = reader.read()
    last_segment(tmp_path).unlink()
    assert chunk.batch.column("n").to_pylist() == [0, 1]


def test_nothing_behind_the_published_offset_is_read(tmp_path):
    with open_writer(tmp_path) as writer:
        append(writer, 2)
        append(writer, 2)
        append(writer, 2)
    committed = tmp_path / "committed"
    rest = committed.read_bytes()[8:]
    for published in (0, 2, 4, 6):
        committed.write_bytes(published.to_bytes(8, "little") + rest)
        assert read_all(tmp_path) == list(range(published))


def test_half_written_bytes_read_ahead_are_read_again(tmp_path):
    """The window that served one chunk also holds the next one, as it was before it was finished."""
    with open_writer(tmp_path) as writer, PartitionReader(Partition(tmp_path, "stop"), start=0) as reader:
        append(writer, 1)
        path = last_segment(tmp_path)
        good = path.stat().st_size
        with path.open("r+b") as file:
            file.seek(good)
            file.write(b"HGC1" + b"\xee" * 400)
        assert reader.read().first_offset == 0
        assert reader.read() is None
        append(writer, 1)
        assert reader.read().batch.column("n").to_pylist() == [1]


def test_damage_is_named_and_position_stays(tmp_path):
    with open_writer(tmp_path) as writer:
        append(writer, 2)
        place = writer._end
        append(writer, 2)
    path = last_segment(tmp_path)
    data = bytearray(path.read_bytes())
    for at, reason in ((place + 9, "checksum"), (place + 100, "checksum"), (place, "starts with")):
        damaged = bytearray(data)
        damaged[at] ^= 4
        path.write_bytes(damaged)
        with PartitionReader(Partition(tmp_path, "stop"), start=0) as reader:
            reader.read()
            for _ in range(2):
                with pytest.raises(CorruptChunkError, match=reason) as error:
                    reader.read()
                assert (error.value.path, error.value.byte) == (path, place)
                assert reader.position == 2


def test_segment_header_damage_is_named(tmp_path):
    with open_writer(tmp_path) as writer:
        append(writer, 2)
    path = last_segment(tmp_path)
    path.write_bytes(b"X" + path.read_bytes()[1:])
    with (
        PartitionReader(Partition(tmp_path, "stop"), start=0) as reader,
        pytest.raises(CorruptChunkError, match="byte 0"),
    ):
        reader.read()


def test_body_that_arrow_refuses_is_named(tmp_path):
    with open_writer(tmp_path) as writer:
        append(writer, 1)
    options = {"first_offset": 1, "record_count": 1, "append_time_us": 0, "time_range_us": None, "codec": Codec.NONE}
    head, body = pack_chunk(pa.py_buffer(bytes(64)), build(["v"], 16), **options)
    path = last_segment(tmp_path)
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + head + body.to_pybytes())
    committed = tmp_path / "committed"
    committed.write_bytes((2).to_bytes(8, "little") + committed.read_bytes()[8:])
    with PartitionReader(Partition(tmp_path, "stop"), start=1) as reader:
        chunk = reader.read()
        with pytest.raises(CorruptChunkError, match=f"byte {size}"):
            _ = chunk.batch


def test_file_cut_below_what_was_published_is_an_error_not_a_crash(tmp_path):
    with open_writer(tmp_path) as writer:
        for _ in range(100):
            append(writer, 20, text="x" * 100)
        path = last_segment(tmp_path)
        with PartitionReader(Partition(tmp_path, "stop"), start=0) as reader:
            reader.read()
            with path.open("r+b") as file:
                file.truncate(100_000)
            with pytest.raises(CorruptChunkError) as error:
                list(iter(reader.read, None))
            assert error.value.path == path
            assert 90_000 < error.value.byte <= 100_000


def test_missing_segment_is_an_error(tmp_path):
    with open_writer(tmp_path, segment_bytes_max=1) as writer:
        for _ in range(3):
            append(writer, 2)
    list_segments(tmp_path)[1][1].unlink()
    with PartitionReader(Partition(tmp_path, "stop"), start=0) as reader:
        assert reader.read().first_offset == 0
        with pytest.raises(CorruptChunkError, match="record 2"):
            reader.read()


def test_retention_moves_a_late_reader_on(tmp_path):
    with open_writer(tmp_path, segment_bytes_max=1) as writer:
        for _ in range(6):
            append(writer, 2)
        early = PartitionReader(Partition(tmp_path, "stop"), start=0)
        assert early.read().first_offset == 0
        retain(writer, now_us=0, floor_offset=8, bytes_max=0)
        assert early.first_offset() == 8
        assert early.read().first_offset == 8
        assert early.records_missed == 6
        early.close()
        assert read_all(tmp_path) == [8, 9, 10, 11]
        assert read_all(tmp_path, 3) == [8, 9, 10, 11]


def test_segment_removed_while_it_is_read_is_read_to_its_end(tmp_path):
    with open_writer(tmp_path) as writer:
        for _ in range(10):
            append(writer, 2)
        writer._roll()
        append(writer, 1)
        with PartitionReader(Partition(tmp_path, "stop"), start=0) as reader:
            reader.read()
            retain(writer, now_us=0, floor_offset=100, bytes_max=0)
            assert len(list_segments(tmp_path)) == 1
            assert [chunk.first_offset for chunk in iter(reader.read, None)] == list(range(2, 21, 2))
            assert reader.records_missed == 0


def test_start_by_time(tmp_path):
    clock = iter(range(100, 10_000, 10))
    with open_writer(tmp_path, segment_bytes_max=2_000, clock_us=lambda: next(clock)) as writer:
        for _ in range(40):
            append(writer, 3)
        assert len(list_segments(tmp_path)) > 5
        for time_us, offset in [(0, 0), (100, 0), (101, 3), (110, 3), (295, 60), (490, 117), (491, 120)]:
            with PartitionReader.open_at_time(Partition(tmp_path, "stop"), time_us) as reader:
                assert reader.position == offset
        writer._roll()  # an empty last segment has no time
        for time_us, offset in [(485, 117), (1_000, 120)]:
            with PartitionReader.open_at_time(Partition(tmp_path, "stop"), time_us) as reader:
                assert reader.position == offset
        retain(writer, now_us=0, floor_offset=50, bytes_max=0)
        with PartitionReader.open_at_time(Partition(tmp_path, "stop"), 0) as reader:
            assert reader.position == writer.first_offset > 0
    with PartitionReader.open_at_time(Partition(tmp_path / "absent", "stop"), 5) as reader:
        assert reader.position == 0


FOLLOW = """
import sys
from pathlib import Path
from headgate.log.directory import Partition
from headgate.log.reader import PartitionReader
reader = PartitionReader(Partition(Path(sys.argv[1]), "stop"), start=0)
print("ready", flush=True)
expected = 0
while expected < int(sys.argv[2]):
    chunk = reader.read()
    if chunk is None:
        continue
    assert chunk.next_offset <= reader.committed_offset()
    assert chunk.first_offset == expected
    assert chunk.batch.column("n").to_pylist() == list(range(expected, chunk.next_offset))
    expected = chunk.next_offset
print("end", reader.records_missed, flush=True)
"""


def test_a_start_by_time_that_meets_damage_leaves_no_file_open(tmp_path):
    times = iter([0, 1, 2])
    with open_writer(tmp_path, clock_us=lambda: next(times)) as writer:
        for _ in range(3):
            append(writer, 1)
    path = last_segment(tmp_path)
    data = bytearray(path.read_bytes())
    data[data.index(b"HGC1", data.index(b"HGC1") + 4) + 10] ^= 1
    path.write_bytes(data)
    for _ in range(3):
        with pytest.raises(CorruptChunkError):
            PartitionReader.open_at_time(Partition(tmp_path, "stop"), 2)
    assert open_files(tmp_path) == []


def test_another_process_reads_while_this_one_writes(tmp_path):
    total = 20_000
    with subprocess.Popen(
        [sys.executable, "-c", FOLLOW, str(tmp_path), str(total)], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    ) as follower:
        assert follower.stdout.readline() == "ready\n"
        with open_writer(tmp_path, segment_bytes_max=60_000) as writer:
            for number in range(total):
                size = min(1 + number * 7919 % 40, total - writer.next_offset)
                if not size:
                    break
                append(writer, size)
        assert len(list_segments(tmp_path)) > 5
        assert follower.stdout.readline() == "end 0\n"
    assert follower.returncode == 0


def test_batches_of_many_chunks_are_read_ahead(tmp_path):
    with open_writer(tmp_path) as writer:
        for first in range(0, 3_000, 3):
            writer.append(Encoded(batch(range(first, first + 3)), ["v"] * 3))
    assert read_all(tmp_path) == list(range(3_000))
    assert read_all(tmp_path, 2_998) == [2_998, 2_999]
