"""Opening after an accident: a torn tail is cut, damage before the end is refused and named, nothing good is lost."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import google_crc32c
import pyarrow as pa
import pytest

from headgate.log import directory
from headgate.log.bloom import build
from headgate.log.directory import Partition
from headgate.log.errors import CorruptChunkError, DamagedLogError, NewerLogError
from headgate.log.format import Codec, encode_body, pack_chunk, unpack_chunk_header
from headgate.log.reader import PartitionReader
from headgate.log.recovery import find_chunk, list_segments
from headgate.log.verify import inspect
from headgate.log.writer import Encoded, PartitionWriter
from headgate_api.errors import FatalError
from tests.log.support import (
    SCHEMA,
    FaultyFiles,
    NoSync,
    append,
    batch,
    forget_published,
    last_segment,
    open_writer,
    read_all,
)


def three_chunks(directory):
    """Records 0..5 in three chunks; returns the bytes of the segment and where its chunks start."""
    with open_writer(directory) as writer:
        starts = []
        for _ in range(3):
            append(writer, 2)
            starts.append(writer._end)
    path = last_segment(directory)
    data = path.read_bytes()
    size = unpack_chunk_header(data[starts[0] :]).chunk_bytes
    return path, data, [start - size for start in starts]


def reopen_and_append(directory, kept):
    with open_writer(directory) as writer:
        assert writer.next_offset == kept
        append(writer, 3)
        cut = writer.recovered.cut_bytes
    assert read_all(directory) == list(range(kept + 3))
    return cut


def test_tail_torn_at_every_byte_is_cut(tmp_path):
    path, data, starts = three_chunks(tmp_path)
    for size in range(starts[2], len(data)):
        forget_published(tmp_path)
        path.write_bytes(data[:size])
        assert reopen_and_append(tmp_path, 4) == size - starts[2]


def test_cut_is_durable_before_anybody_may_append(tmp_path):
    path, data, starts = three_chunks(tmp_path)
    forget_published(tmp_path)
    path.write_bytes(data[:-1])
    files = FaultyFiles()
    steps = []
    for operation in ("ftruncate", "fsync", "pwritev"):
        files.faults[operation] = lambda operation=operation: steps.append((operation, path.stat().st_size))
    open_writer(tmp_path, files=files).close()
    assert steps[:3] == [("ftruncate", len(data) - 1), ("fsync", starts[2]), ("pwritev", starts[2])]


def test_tail_of_zeros_is_cut(tmp_path):
    # What a power cut leaves where the size had reached the disk and the data had not.
    path, data, starts = three_chunks(tmp_path)
    for whole in (0, 8, 64, 200):
        forget_published(tmp_path)
        path.write_bytes(data[: starts[2] + whole].ljust(len(data) + 4096, b"\0"))
        assert reopen_and_append(tmp_path, 4) == len(data) + 4096 - starts[2]


def test_every_flipped_bit_of_the_last_chunk_is_cut(tmp_path):
    path, data, starts = three_chunks(tmp_path)
    for bit in range(starts[2] * 8, len(data) * 8, 7):
        forget_published(tmp_path)
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with open_writer(tmp_path) as writer:
            assert writer.next_offset == 4


@pytest.mark.parametrize("is_known", [True, False])
def test_every_flipped_bit_before_the_last_chunk_is_refused_with_its_place(tmp_path, is_known):
    """Also where it is not known what was published: a good chunk behind the damage says that it is no torn tail."""
    path, data, starts = three_chunks(tmp_path)
    if not is_known:
        forget_published(tmp_path)
    for bit in range(starts[0] * 8, starts[2] * 8, 7):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(CorruptChunkError) as refused:
            open_writer(tmp_path)
        assert refused.value.path == path
        assert refused.value.byte == (starts[0] if bit // 8 < starts[1] else starts[1])
        assert "headgate log verify" in refused.value.hint
    path.write_bytes(data)
    assert reopen_and_append(tmp_path, 6) == 0


def test_nothing_is_changed_by_a_refused_opening(tmp_path):
    path, data, starts = three_chunks(tmp_path)
    damaged = bytearray(data)
    damaged[starts[1] + 70] ^= 1
    path.write_bytes(damaged)
    committed = (tmp_path / "committed").read_bytes()
    with pytest.raises(CorruptChunkError):
        open_writer(tmp_path)
    assert path.read_bytes() == damaged
    assert (tmp_path / "committed").read_bytes() == committed


def test_damaged_segment_header_before_good_chunks_is_refused(tmp_path):
    path, data, _ = three_chunks(tmp_path)
    for byte in (0, 5, 9, 13, 100):
        damaged = bytearray(data)
        damaged[byte] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(CorruptChunkError) as refused:
            open_writer(tmp_path)
        assert refused.value.byte == 0


def test_segment_whose_header_is_not_whole_is_removed(tmp_path):
    with open_writer(tmp_path, segment_bytes_max=1) as writer:
        append(writer, 2)
        append(writer, 2)
    (_, first), (offset, last) = list_segments(tmp_path)
    header = last.read_bytes()[:300]
    for size in (0, 1, 15, 16, 17, 250):
        forget_published(tmp_path)
        last.write_bytes(header[:size])
        with open_writer(tmp_path) as writer:
            assert writer.next_offset == offset == 2
            assert not last.exists()
            assert writer.recovered.segment == first


def test_only_segment_without_header_keeps_its_offset(tmp_path):
    # Retention has removed everything before: the name is all that is left to know.
    (tmp_path / "00000000000000000007.seg").write_bytes(b"HG")
    with open_writer(tmp_path) as writer:
        assert writer.next_offset == 7
        assert writer.first_offset == 7
        assert append(writer, 1) == 7
    assert read_all(tmp_path) == [7]


def test_empty_last_segment_is_gone_on_with(tmp_path):
    times = iter([500, 10])
    with open_writer(tmp_path, segment_bytes_max=1, clock_us=lambda: next(times)) as writer:
        append(writer, 1)
        writer._roll()
    forget_published(tmp_path)
    with open_writer(tmp_path, clock_us=lambda: 20) as writer:
        assert writer.next_offset == 1
        append(writer, 1)
        assert writer._append_time_us == 500
    assert read_all(tmp_path) == [0, 1]


def test_chunk_of_another_offset_is_refused(tmp_path):
    path, data, starts = three_chunks(tmp_path)
    damaged = bytearray(data)
    damaged[starts[2] + 8] = 9
    head = bytes(damaged[starts[2] : starts[2] + 60])
    damaged[starts[2] + 60 : starts[2] + 64] = struct.pack("<I", google_crc32c.value(head))
    path.write_bytes(damaged)
    with pytest.raises(CorruptChunkError, match="record 9, not 4"):
        open_writer(tmp_path)


@pytest.mark.parametrize("cut", [1, 40])
def test_records_that_look_like_chunks_do_not_stop_recovery(tmp_path, cut):
    """A producer may send the bytes of a good chunk; torn, its own chunk must still be a torn tail."""
    body = encode_body(batch([0]), Codec.NONE)
    options = {"record_count": 1, "append_time_us": 0, "time_range_us": None, "codec": Codec.NONE}
    fake = b"".join(bytes(memoryview(p)) for p in pack_chunk(body, build(["v"], 16), first_offset=40, **options))
    schema = pa.schema([("data", pa.binary())])
    with PartitionWriter(Partition(tmp_path, "stop"), schema, files=NoSync()) as writer:
        writer.append(Encoded(pa.record_batch([[b"one"]], schema=schema), ["v"]))
        start = writer._end
        writer.append(Encoded(pa.record_batch([[fake.join(16 * [b"123456789"])]], schema=schema), ["v"]))
    path = last_segment(tmp_path)
    whole = path.read_bytes()
    fd = os.open(path, os.O_RDONLY)
    assert find_chunk(fd, start + 8, 2) is not None, "the bait does not look like a chunk"
    os.close(fd)
    forget_published(tmp_path)
    path.write_bytes(whole[:-cut])
    with PartitionWriter(Partition(tmp_path, "stop"), schema, files=NoSync()) as writer:
        assert writer.next_offset == 1
        assert writer.recovered.cut_bytes == len(whole) - cut - start


def flip_in_last_chunk(path, data, starts):
    path.write_bytes(data[:-3] + bytes([data[-3] ^ 1]) + data[-2:])


def cut_last_chunk(path, data, starts):
    path.write_bytes(data[: starts[2]])


def tear_last_chunk(path, data, starts):
    path.write_bytes(data[:-3])


def cut_everything(path, data, starts):
    path.write_bytes(data[:7])


def remove_segment(path, data, starts):
    path.unlink()


ACCIDENTS = [
    (flip_in_last_chunk, 4),
    (cut_last_chunk, 4),
    (tear_last_chunk, 4),
    (cut_everything, 0),
    (remove_segment, 0),
]


@pytest.mark.parametrize(("accident", "left"), ACCIDENTS)
def test_published_records_that_are_gone_are_damage(tmp_path, accident, left):
    path, data, starts = three_chunks(tmp_path)
    accident(path, data, starts)
    there = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    with pytest.raises(CorruptChunkError) as refused:
        open_writer(tmp_path)
    assert refused.value.first_offset == left
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == there


@pytest.mark.parametrize(("accident", "left"), ACCIDENTS)
def test_offsets_of_published_records_that_are_gone_are_not_given_out_again(tmp_path, monkeypatch, accident, left):
    path, data, starts = three_chunks(tmp_path)
    accident(path, data, starts)
    said = []
    monkeypatch.setattr(directory._log, "error", lambda *_, **facts: said.append(facts))
    partition = Partition(tmp_path, "skip")
    for _ in range(2):  # as long as nothing is added, the next opening finds the same
        PartitionWriter(partition, SCHEMA, files=NoSync()).close()
    with PartitionWriter(partition, SCHEMA, files=NoSync()) as writer:
        assert append(writer, 2) == 6
    with PartitionWriter(partition, SCHEMA, files=NoSync()) as writer:
        assert append(writer, 1) == 8
    (facts,) = said
    assert (facts["first_offset"], facts["next_offset"]) == (left, 6)
    assert read_all(tmp_path, on_corrupt="skip") == [*range(left), 6, 7, 8]


def test_a_torn_tail_behind_what_was_published_is_cut_without_a_word(tmp_path, monkeypatch):
    path, data, _ = three_chunks(tmp_path)
    monkeypatch.setattr(Partition, "pass_over", lambda *_: pytest.fail("no damage"))
    for tail in (b"HGC1 torn", bytes(4_096)):
        path.write_bytes(data + tail)
        with open_writer(tmp_path) as writer:
            assert (writer.next_offset, writer.recovered.cut_bytes) == (6, len(tail))


def test_an_honest_torn_tail_keeps_nothing_aside(tmp_path):
    path, data, _ = three_chunks(tmp_path)
    path.write_bytes(data + b"HGC1 torn")
    with open_writer(tmp_path) as writer:
        assert writer.recovered.cut_bytes == 9
    assert sorted(p.name for p in tmp_path.iterdir()) == [path.name, "committed", "lock"]


def newer(path: Path) -> None:
    """Makes a segment one of a version to come, whose header has a checksum of its own."""
    data = bytearray(path.read_bytes())
    data[:4] = b"HGS2"
    data[12:16] = google_crc32c.value(bytes(data[:12])).to_bytes(4, "little")
    path.write_bytes(data)


@pytest.mark.parametrize("on_corrupt", ["stop", "skip"])
def test_a_segment_of_a_newer_version_is_named_and_left(tmp_path, on_corrupt):
    with open_writer(tmp_path) as writer:
        append(writer, 3)
    path = last_segment(tmp_path)
    newer(path)
    before = path.read_bytes()
    with pytest.raises(NewerLogError, match=f"{path} cannot be read: a newer Headgate wrote it .*HGS2"):
        open_writer(tmp_path, on_corrupt)
    reader = PartitionReader(Partition(tmp_path, on_corrupt), start=0)
    with pytest.raises(NewerLogError, match="HGS2"), reader:
        reader.read()
    with pytest.raises(NewerLogError, match="HGS2"):
        inspect(tmp_path, bodies=True)
    assert path.read_bytes() == before


def test_a_bit_that_makes_another_version_is_damage(tmp_path):
    with open_writer(tmp_path) as writer:
        append(writer, 3)
    path = last_segment(tmp_path)
    data = bytearray(path.read_bytes())
    data[3] ^= 2  # "1" becomes "3"
    path.write_bytes(data)
    with pytest.raises(DamagedLogError) as failure:
        open_writer(tmp_path)
    assert isinstance(failure.value, FatalError)
    assert "--on-corrupt skip" in failure.value.hint
