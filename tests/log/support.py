"""What the log's tests share: a small schema, batches of known records, a disk that fails on command."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from headgate.log.directory import OnCorrupt, Partition
from headgate.log.files import FileOps
from headgate.log.format import Codec
from headgate.log.reader import PartitionReader, RecordLookup
from headgate.log.recovery import list_segments
from headgate.log.writer import Encoded, PartitionWriter

SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("text", pa.utf8())])


def batch(numbers: Sequence[int], text: str | None = "text") -> pa.RecordBatch:
    return pa.record_batch([list(numbers), [text] * len(numbers)], schema=SCHEMA)


def append(writer: PartitionWriter, count: int, *, value: str | None = "v", text: str | None = "text") -> int:
    """Append `count` records whose `n` is their offset."""
    first = writer.next_offset
    assert writer.append(Encoded(batch(range(first, first + count), text), [value] * count)) == first
    return first


def open_writer(directory: Path, on_corrupt: OnCorrupt = "stop", **options: Any) -> PartitionWriter:
    return PartitionWriter(Partition(directory, on_corrupt), SCHEMA, **{"files": NoSync(), **options})


def read_all(directory: Path, start: int = 0, on_corrupt: OnCorrupt = "stop", **wanted: Any) -> list[int]:
    """`n` of every record, which must be its offset."""
    numbers: list[int] = []
    with PartitionReader(Partition(directory, on_corrupt), start=start) as reader:
        while (chunk := reader.read(**wanted)) is not None:
            column = chunk.batch.column("n").to_pylist()
            assert column == list(range(chunk.first_offset, chunk.first_offset + chunk.record_count))
            numbers += column
    return numbers


class Found(NamedTuple):
    """A record: row `row` of `batch`, of the chunk that starts at `first_offset`."""

    batch: pa.RecordBatch
    row: int
    first_offset: int


def find(lookup: RecordLookup, partition: int, offset: int) -> Found:
    chunk = lookup.chunk(partition, offset)
    return Found(chunk.batch, offset - chunk.first_offset, chunk.first_offset)


def last_segment(directory: Path) -> Path:
    return list_segments(directory)[-1][1]


def forget_published(directory: Path) -> None:
    """As after a power cut: nobody knows what had been published."""
    (directory / "committed").unlink()


def open_files(directory: Path) -> list[str]:
    """What this process has open below a directory."""
    links = [os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()]
    return [path for path in links if path.startswith(f"{directory}/")]


CODECS = list(Codec)


class NoSync(FileOps):
    """Everything but the waiting."""

    def fdatasync(self, fd: int) -> None:
        pass

    def fsync(self, fd: int) -> None:
        pass


class FaultyFiles(FileOps):
    """Real files; each operation named in `faults` calls its fault first, which may raise. Counts calls."""

    def __init__(self) -> None:
        self.faults: dict[str, Callable[[], None]] = {}
        self.calls: dict[str, int] = {}
        self.write_bytes_max: int | None = None
        """A call of pwritev writes no more than this, then the disk is full."""

    def fail(self, *operations: str, code: int = errno.EIO) -> None:
        def fault() -> None:
            raise OSError(code, os.strerror(code))

        for operation in operations:
            self.faults[operation] = fault

    def heal(self) -> None:
        self.faults.clear()
        self.write_bytes_max = None

    def _call(self, operation: str) -> None:
        self.calls[operation] = self.calls.get(operation, 0) + 1
        if operation in self.faults:
            self.faults[operation]()

    def open(self, path: Path, flags: int) -> int:
        self._call("open")
        return super().open(path, flags)

    def pwritev(self, fd: int, parts: Sequence[Any], position: int) -> int:
        self._call("pwritev")
        if self.write_bytes_max is not None:
            data = b"".join(bytes(memoryview(part)) for part in parts)[: self.write_bytes_max]
            if not data:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.write_bytes_max -= len(data)
            parts = [data]
        return super().pwritev(fd, parts, position)

    def fdatasync(self, fd: int) -> None:
        self._call("fdatasync")
        super().fdatasync(fd)

    def fsync(self, fd: int) -> None:
        self._call("fsync")
        super().fsync(fd)

    def ftruncate(self, fd: int, size_bytes: int) -> None:
        self._call("ftruncate")
        super().ftruncate(fd, size_bytes)

    def unlink(self, path: Path) -> None:
        self._call("unlink")
        super().unlink(path)

    def close(self, fd: int) -> None:
        super().close(fd)
        self._call("close")
