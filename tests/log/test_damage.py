"""Is a flipped byte ever handed out? Every reader of the log, every byte of a segment, both policies."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.log import directory as log_directory
from headgate.log.directory import LogDirectory, Partition
from headgate.log.errors import CorruptChunkError
from headgate.log.format import CHUNK_HEADER_BYTES, Codec
from headgate.log.reader import Chunk, PartitionReader, RecordLookup, newest_first
from headgate.log.recovery import list_segments
from headgate.log.verify import inspect
from headgate.log.writer import Encoded, PartitionWriter
from tests.log.support import find
from tests.support import examples

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.utf8())])
CHUNKS = 9
ROWS = 3
RECORDS = CHUNKS * ROWS
SEGMENT_BYTES = 1_500
Row = tuple[int, int, str]


def value_of(record: int) -> str:
    return f"v{record // ROWS}"


def good(record: int) -> Row:
    return record, record, f"text {record} HGC1"


def batch(first: int) -> pa.RecordBatch:
    rows = [good(record) for record in range(first, first + ROWS)]
    return pa.record_batch([[n for _, n, _ in rows], [text for _, _, text in rows]], schema=SCHEMA)


def write(directory: Path, codec: Codec = Codec.NONE) -> None:
    """Three chunks a segment, each stored a second after the one before; the last segment has them too."""
    clock = iter(range(0, 1_000_000 * (CHUNKS + 1), 1_000_000))
    with PartitionWriter(
        Partition(directory, "stop"), SCHEMA, segment_bytes_max=SEGMENT_BYTES, codec=codec, clock_us=lambda: next(clock)
    ) as writer:
        for first in range(0, RECORDS, ROWS):
            writer.append(Encoded(batch(first), [value_of(first)] * ROWS))


def rows(first: int, data: pa.RecordBatch) -> list[Row]:
    columns = data.to_pydict()
    return [(first + index, n, columns["text"][index]) for index, n in enumerate(columns["n"])]


def read(partition: Partition, start: int = 0, wanted: frozenset[str] | None = None) -> tuple[list[Row], int]:
    found: list[Row] = []
    with PartitionReader(partition, start=start) as reader:
        while (chunk := reader.read(wanted=wanted)) is not None:
            found += rows(chunk.first_offset, chunk.batch)
        return found, reader.records_corrupt


def flip(directory: Path, index: int, bit: int) -> None:
    """Flips a bit of the partition's `index`-th byte, counted through its segments."""
    for _, path in list_segments(directory):
        data = bytearray(path.read_bytes())
        if index < len(data):
            data[index] ^= 1 << bit
            path.write_bytes(data)
            return
        index -= len(data)
    raise AssertionError("no such byte")


def size_of(directory: Path) -> int:
    return sum(path.stat().st_size for _, path in list_segments(directory))


@pytest.fixture(scope="module", params=[Codec.NONE, Codec.ZSTD])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory: Path = tmp_path_factory.mktemp("whole") / "0"
    write(directory, request.param)
    assert len(list_segments(directory)) >= 3
    return directory


def copied(whole: Path, folder: str) -> Path:
    directory = Path(folder) / "0"
    directory.mkdir()
    for path in whole.iterdir():
        (directory / path.name).write_bytes(path.read_bytes())
    return directory


@settings(max_examples=examples(150))
@given(data=st.data())
def test_no_reader_ever_hands_out_a_flipped_byte(whole: Path, data: st.DataObject) -> None:
    index, bit = data.draw(st.integers(0, size_of(whole) - 1)), data.draw(st.integers(0, 7))
    with tempfile.TemporaryDirectory() as folder:
        directory = copied(whole, folder)
        flip(directory, index, bit)
        problem, *_ = inspect(directory, bodies=True).problems
        check_stop(Partition(directory, "stop"), problem.path, problem.byte)
        check_skip(LogDirectory(directory.parent, "skip"))
        check_writer(Partition(directory, "skip"))


def whole_or_none(reader: PartitionReader) -> Chunk | None:
    try:
        return reader.read()
    except CorruptChunkError:
        return None


def check_stop(partition: Partition, path: Path, byte: int) -> None:
    """Everything before it comes, then its place is named; nothing behind it passes for the next."""
    found: list[Row] = []
    with PartitionReader(partition, start=0) as reader:
        for chunk in iter(lambda: whole_or_none(reader), None):
            found += rows(chunk.first_offset, chunk.batch)
        with pytest.raises(CorruptChunkError) as error:
            reader.read()
    assert (error.value.path, error.value.byte) == (path, byte)
    assert str(path) in str(error.value)
    assert found == [good(record) for record in range(reader.position)]
    assert error.value.first_offset == reader.position
    with pytest.raises(CorruptChunkError):  # backwards too
        list(newest_first(partition))


def check_skip(log: LogDirectory) -> None:
    """Whole chunks are missing and no more than a segment's; every reader agrees on which."""
    partition = log.partition(0)
    found, corrupt = read(partition)
    assert found == sorted(set(found))
    assert set(found) <= {good(record) for record in range(RECORDS)}
    missing = sorted(set(range(RECORDS)) - {offset for offset, _, _ in found})
    assert len(missing) == corrupt
    assert 0 < corrupt <= RECORDS - 2 * ROWS
    assert missing == list(range(missing[0], missing[-1] + 1))
    assert len(missing) % ROWS == 0
    there = {offset for offset, _, _ in found}
    backwards = [row for chunk in newest_first(partition) for row in rows(chunk.first_offset, chunk.batch)]
    assert sorted(backwards) == found
    for start in range(0, RECORDS, 2):
        assert read(partition, start)[0] == [row for row in found if row[0] >= start]
    for chunk in range(CHUNKS):
        first = chunk * ROWS
        value = value_of(first)
        by_value, _ = read(partition, 0, frozenset({value}))
        assert [row for row in by_value if value_of(row[0]) == value] == [
            row for row in found if value_of(row[0]) == value
        ]
        with PartitionReader.open_at_time(partition, chunk * 1_000_000) as reader:
            assert reader.position <= min((record for record in there if record >= first), default=RECORDS)
            assert not [record for record in there if reader.position <= record < first]
    lookup = RecordLookup(log)
    for record in range(RECORDS):
        try:
            hit = find(lookup, 0, record)
        except CorruptChunkError:
            assert record not in there
        else:
            assert rows(record, hit.batch.slice(hit.row, 1)) == [good(record)]
            assert record in there
    lookup.close()


def check_writer(partition: Partition) -> None:
    """The writer opens behind the damage, and what it adds is read."""
    before, _ = read(partition)
    with PartitionWriter(partition, SCHEMA, segment_bytes_max=SEGMENT_BYTES) as writer:
        first = writer.append(Encoded(batch(RECORDS), ["late"] * ROWS))
    added = [row for row in read(partition)[0] if row not in before]
    assert first <= RECORDS
    assert [row[1:] for row in added if row[0] >= first] == [good(RECORDS + index)[1:] for index in range(ROWS)]


def test_a_flipped_filter_excludes_nothing_unseen(tmp_path: Path) -> None:
    """Whoever skips a chunk by its filter has compared the filter's own checksum."""
    write(tmp_path / "0")
    (_, path), *_ = list_segments(tmp_path / "0")
    data = bytearray(path.read_bytes())
    at = data.index(b"HGC1") + CHUNK_HEADER_BYTES
    data[at : at + 16] = bytes(16)
    path.write_bytes(data)
    with pytest.raises(CorruptChunkError, match="filter"):
        read(Partition(tmp_path / "0", "stop"), 0, frozenset({"v0"}))
    found, corrupt = read(Partition(tmp_path / "0", "skip"), 0, frozenset({"v0", "v1"}))
    assert corrupt == ROWS
    assert {value_of(offset) for offset, _, _ in found} == {"v1"}


def test_each_damaged_place_is_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "0")
    flip(tmp_path / "0", size_of(tmp_path / "0") // 2, 3)
    said = []
    monkeypatch.setattr(log_directory._log, "error", lambda *words, **facts: said.append(facts))
    partition = Partition(tmp_path / "0", "skip")
    for _ in range(3):
        read(partition)
    (facts,) = said
    assert Path(facts["file"]).parent == tmp_path / "0"
    assert facts["next_offset"] > facts["first_offset"]
