"""Newest first: every chunk once, in reverse, with the same bounds as reading forward."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from headgate.log.directory import LogDirectory, Partition
from headgate.log.reader import PartitionReader, newest_first
from headgate.log.writer import Encoded, PartitionWriter
from headgate.scan.chunks import ChunkLog

SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False)])


def write(directory: Path, sizes: list[int], *, start_us: int = 1_000, step_us: int = 10) -> None:
    clock = iter(range(start_us, 10**9, step_us))
    writer = PartitionWriter(
        Partition(directory, "stop"), SCHEMA, segment_bytes_max=2_000, clock_us=lambda: next(clock)
    )
    for size in sizes:
        first = writer.next_offset
        batch = pa.record_batch({"n": pa.array(range(first, first + size), pa.int64())}, schema=SCHEMA)
        writer.append(Encoded(batch, [f"v{first % 5}"] * size))
    writer.close()


def test_reads_what_a_forward_reader_reads_in_reverse(tmp_path: Path) -> None:
    write(tmp_path / "0", [1, 3, 2] * 40)
    with PartitionReader(Partition(tmp_path / "0", "stop"), start=0) as reader:
        forward = []
        while (chunk := reader.read()) is not None:
            forward.append((chunk.first_offset, chunk.batch.column(0).to_pylist()))
    backward = [
        (chunk.first_offset, chunk.batch.column(0).to_pylist())
        for chunk in newest_first(Partition(tmp_path / "0", "stop"))
    ]
    assert backward == forward[::-1]
    assert len(list((tmp_path / "0").glob("*.seg"))) > 3


def test_stops_where_it_is_told(tmp_path: Path) -> None:
    write(tmp_path / "0", [2] * 50)
    chunks = list(newest_first(Partition(tmp_path / "0", "stop")))
    later = list(newest_first(Partition(tmp_path / "0", "stop"), before=chunks[9].first_offset))
    assert [chunk.first_offset for chunk in later] == [chunk.first_offset for chunk in chunks[10:]]
    young = list(newest_first(Partition(tmp_path / "0", "stop"), not_before_us=chunks[4].append_time_us))
    assert [chunk.first_offset for chunk in young] == [chunk.first_offset for chunk in chunks[:5]]
    some = [chunk.first_offset for chunk in newest_first(Partition(tmp_path / "0", "stop"), wanted=["v0"])]
    assert set(some) >= {chunk.first_offset for chunk in chunks if chunk.first_offset % 5 == 0}
    assert len(some) < len(chunks)


def test_merges_partitions_by_time(tmp_path: Path) -> None:
    write(tmp_path / "0", [1] * 10, start_us=1_000)
    write(tmp_path / "1", [1] * 10, start_us=1_005)
    log = ChunkLog(LogDirectory(tmp_path, "stop"))
    found = [(page.append_times_us[0], partition) for partition, page in log.newest(log.end_offsets())]
    assert found == sorted(found, reverse=True)
    assert len(found) == 20
    assert len(list(log.newest({0: 4, 1: 0}))) == 4


def test_a_log_that_is_not_there(tmp_path: Path) -> None:
    assert list(newest_first(Partition(tmp_path / "0", "stop"))) == []
    log = ChunkLog(LogDirectory(tmp_path / "nosuch", "stop"))
    assert list(log.newest(log.end_offsets())) == []
