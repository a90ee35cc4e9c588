"""Appends: dense offsets, durable and published in order; one writer; segments roll; the schema may change."""

from __future__ import annotations

import mmap
import os

import pyarrow as pa
import pytest

from headgate.log import writer as writer_module
from headgate.log.directory import Partition
from headgate.log.errors import LogLockedError, LogSchemaError, LogUnavailableError
from headgate.log.reader import PartitionReader
from headgate.log.recovery import list_segments
from headgate.log.writer import Encoded, PartitionWriter
from headgate_api.errors import ConflictError, TooLargeError
from tests.log.support import CODECS, SCHEMA, FaultyFiles, NoSync, append, batch, open_writer, read_all


def test_offsets_are_dense_and_survive_reopening(tmp_path):
    with open_writer(tmp_path / "a" / "0") as writer:
        assert writer.next_offset == 0
        assert [append(writer, n) for n in (1, 5, 2)] == [0, 1, 6]
        assert writer.next_offset == 8
    with open_writer(tmp_path / "a" / "0") as writer:
        assert append(writer, 3) == 8
        assert writer.recovered.cut_bytes == 0
    assert read_all(tmp_path / "a" / "0") == list(range(11))


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_reads_back(tmp_path, codec):
    with open_writer(tmp_path, codec=codec) as writer:
        append(writer, 1, text=None)
        append(writer, 500, text="abc" * 50)
    assert read_all(tmp_path) == list(range(501))
    with PartitionReader(Partition(tmp_path, "stop"), start=1) as reader:
        assert reader.read().header.codec == codec


def test_order_is_write_sync_publish(tmp_path):
    files = FaultyFiles()
    steps: list[tuple[str, int]] = []
    with open_writer(tmp_path, files=files) as writer:
        append(writer, 1)
        reader = PartitionReader(Partition(tmp_path, "stop"), start=0)
        for operation in ("pwritev", "fdatasync"):
            files.faults[operation] = lambda operation=operation: steps.append((operation, reader.committed_offset()))
        append(writer, 1)
        assert steps == [("pwritev", 1), ("fdatasync", 1)]
        assert reader.committed_offset() == 2
        reader.close()


def test_new_segment_is_durable_before_its_first_chunk(tmp_path):
    files = FaultyFiles()
    with open_writer(tmp_path, files=files) as writer:
        steps: list[str] = []
        for operation in ("open", "pwritev", "fsync", "fdatasync"):
            files.faults[operation] = lambda operation=operation: steps.append(operation)
        append(writer, 1)
    assert steps == ["open", "pwritev", "fsync", "open", "fsync", "pwritev", "fdatasync"]


def test_committed_is_one_word_in_a_mapped_file_of_64_bytes(tmp_path):
    with open_writer(tmp_path) as writer:
        append(writer, 300)
        path = tmp_path / "committed"
        assert path.stat().st_size == 64
        with path.open("rb") as file, mmap.mmap(file.fileno(), 64, prot=mmap.PROT_READ) as words:
            assert words[:8] == (300).to_bytes(8, "little")
            assert words[8:] == bytes(56)
            append(writer, 1)
            assert words[:8] == (301).to_bytes(8, "little")


def test_reopening_keeps_the_mappings_of_readers(tmp_path):
    with open_writer(tmp_path) as writer:
        append(writer, 1)
        reader = PartitionReader(Partition(tmp_path, "stop"), start=0)
        assert reader.committed_offset() == 1
    with open_writer(tmp_path) as writer:
        append(writer, 2)
        assert reader.committed_offset() == 3
    reader.close()


def test_segments_roll_at_their_size(tmp_path):
    with open_writer(tmp_path, segment_bytes_max=2_000) as writer:
        for _ in range(20):
            append(writer, 3)
    segments = list_segments(tmp_path)
    assert len(segments) > 3
    assert all(path.stat().st_size >= 2_000 for _, path in segments[:-1])
    assert read_all(tmp_path) == list(range(60))


def test_schema_change_starts_a_segment(tmp_path):
    with open_writer(tmp_path) as writer:
        append(writer, 2)
    wider = SCHEMA.append(pa.field("more", pa.bool_()))
    with PartitionWriter(Partition(tmp_path, "stop"), wider, files=NoSync()) as writer:
        assert len(list_segments(tmp_path)) == 1
        writer.append(Encoded(pa.record_batch([[2], ["x"], [True]], schema=wider), [None]))
        writer.append(Encoded(pa.record_batch([[3], ["x"], [None]], schema=wider), [None]))
    assert [first for first, _ in list_segments(tmp_path)] == [0, 2]
    with PartitionReader(Partition(tmp_path, "stop"), start=0) as reader:
        assert [chunk.schema for chunk in iter(reader.read, None)] == [SCHEMA, wider, wider]
    assert read_all(tmp_path) == [0, 1, 2, 3]


def test_schema_change_before_any_record_replaces_the_empty_segment(tmp_path):
    files = FaultyFiles()
    with open_writer(tmp_path, files=files) as writer:
        files.fail("fdatasync")
        with pytest.raises(LogUnavailableError):
            append(writer, 1)
    wider = SCHEMA.append(pa.field("more", pa.bool_()))
    with PartitionWriter(Partition(tmp_path, "stop"), wider, files=NoSync()) as writer:
        writer.append(Encoded(pa.record_batch([[0], ["x"], [True]], schema=wider), [None]))
    assert [first for first, _ in list_segments(tmp_path)] == [0]
    assert read_all(tmp_path) == [0]


def test_second_writer_is_refused_and_named(tmp_path):
    with open_writer(tmp_path):
        with pytest.raises(LogLockedError, match=f"process {os.getpid()}") as refused:
            open_writer(tmp_path)
        assert isinstance(refused.value, ConflictError)
        assert refused.value.hint
    open_writer(tmp_path).close()


def test_failed_open_releases_the_lock(tmp_path):
    files = FaultyFiles()
    files.fail("fsync")
    with pytest.raises(LogUnavailableError):
        open_writer(tmp_path, files=files)
    open_writer(tmp_path).close()


def test_append_time_never_decreases(tmp_path):
    times = iter([100, 50, 120])
    with open_writer(tmp_path, clock_us=lambda: next(times)) as writer:
        append(writer, 1)
        append(writer, 1)
    with open_writer(tmp_path, clock_us=lambda: 10) as writer:
        append(writer, 1)
    with open_writer(tmp_path, clock_us=lambda: next(times)) as writer:
        append(writer, 1)
    with PartitionReader(Partition(tmp_path, "stop"), start=0) as reader:
        assert [chunk.append_time_us for chunk in iter(reader.read, None)] == [100, 100, 100, 120]


def test_event_times_are_kept(tmp_path):
    with open_writer(tmp_path) as writer:
        writer.append(Encoded(batch([0]), ["v"], time_range_us=(-5, 7)))
        append(writer, 1)
    with PartitionReader(Partition(tmp_path, "stop"), start=0) as reader:
        assert [chunk.header.time_range_us for chunk in iter(reader.read, None)] == [(-5, 7), None]


def test_unfit_batches_are_refused_and_leave_nothing(tmp_path, monkeypatch):
    with open_writer(tmp_path) as writer:
        with pytest.raises(LogSchemaError, match="0 records"):
            writer.append(Encoded(batch([]), []))
        with pytest.raises(LogSchemaError, match="2 filter values for a batch of 1"):
            writer.append(Encoded(batch([1]), ["a", "b"]))
        with pytest.raises(LogSchemaError, match="columns"):
            writer.append(Encoded(pa.record_batch([[1]], names=["n"]), ["a"]))
        monkeypatch.setattr(writer_module, "CHUNK_BODY_BYTES_MAX", 10_000)
        with pytest.raises(TooLargeError):
            writer.append(Encoded(batch([1], "x" * 10_000), ["a"]))
        assert append(writer, 1) == 0
    assert read_all(tmp_path) == [0]


def test_schema_with_dictionary_is_refused(tmp_path):
    with pytest.raises(LogSchemaError):
        PartitionWriter(Partition(tmp_path, "stop"), pa.schema([("a", pa.dictionary(pa.int8(), pa.utf8()))]))


def test_closed_writer_refuses(tmp_path):
    writer = open_writer(tmp_path)
    writer.close()
    writer.close()
    with pytest.raises(LogUnavailableError, match="closed"):
        append(writer, 1)


def test_short_writes_are_finished(tmp_path):
    class Drops(NoSync):
        def pwritev(self, fd, parts, position):
            return os.pwritev(fd, [b"".join(bytes(memoryview(part)) for part in parts)[:100]], position)

    with open_writer(tmp_path, files=Drops()) as writer:
        append(writer, 50)
        append(writer, 1)
    assert read_all(tmp_path) == list(range(51))
