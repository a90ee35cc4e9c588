"""Bytes that namespaces have in the log: counted as chunks are written, by segment, until retention removes it.

A request counts by its body and headers. What is counted is written down now and then; a start takes that up, and
counts what the log has behind it by its size there.
"""

from __future__ import annotations

import asyncio
import threading
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
import structlog

from headgate.log.directory import LogDirectory
from headgate.log.errors import CorruptChunkError
from headgate.log.files import FileOps, replace_file
from headgate.log.reader import PartitionReader
from headgate.log.recovery import list_segments
from headgate.log.writer import Encoded, PartitionWriter
from headgate.observe.logs import Recurring
from headgate_api.event.names import namespace_of
from headgate_api.limits import QUOTA_USAGE_S, STORED_BYTES_SNAPSHOT_S

FILE: Final = "stored-bytes"
"""Names of the snapshots begin so, in the directory of the partitions; the number of their front follows."""
_log = structlog.get_logger(__name__)


class _Counted(msgspec.Struct, array_like=True):
    """One partition: what is counted below an offset, by the first offset of its segment, and namespace."""

    position: int
    segments: dict[int, dict[str, int]]


_decode: Final = msgspec.msgpack.Decoder(dict[int, _Counted]).decode


class CountingWriter:
    """A partition's writer for group commit, whose chunks are counted."""

    def __init__(self, writer: PartitionWriter, stored: StoredBytes, partition: int) -> None:
        self._writer = writer
        self._stored = stored
        self._partition = partition

    @property
    def append_time_us(self) -> int:
        return self._writer.append_time_us

    def append(self, chunk: Encoded) -> int:
        first = self._writer.append(chunk)
        self._stored.add(self._partition, self._writer.segment_offset, chunk.sizes, self._writer.next_offset)
        return first

    def probe(self) -> None:
        self._writer.probe()


class StoredBytes:
    """What namespaces have in the partitions that one front writes; the log's directory holds the snapshots.

    Made before anything is appended. Threads that write partitions add; everything else is the event loop's.
    """

    def __init__(self, log: LogDirectory, front: int, writers: Mapping[int, PartitionWriter]) -> None:
        self._log = log
        self._file = log.directory / f"{FILE}-{front}"
        self._writers = writers
        self._ends = {partition: writer.next_offset for partition, writer in writers.items()}
        self._counted = self._load()
        self._starts = {partition: counted.position for partition, counted in self._counted.items()}
        self._total = Counter[str]()
        for counted in self._counted.values():
            for sizes in counted.segments.values():
                self._total.update(sizes)
        self._adding = threading.Lock()
        """Held while counts change: partitions have threads of their own."""
        self._is_whole = False  # what the log holds behind the snapshot is counted, too
        self._has_changed = False
        self._is_ended = False

    def of(self, namespace: str) -> int:
        return self._total[namespace]

    def add(self, partition: int, segment: int, sizes: Mapping[str, int], position: int) -> None:
        """A chunk is stored, in the segment of that first offset; it ends at `position`."""
        with self._adding:
            counted = self._counted[partition]
            into = counted.segments.setdefault(segment, {})
            for namespace, size_bytes in sizes.items():
                into[namespace] = into.get(namespace, 0) + size_bytes
                self._total[namespace] += size_bytes
            counted.position = max(counted.position, position)
            self._has_changed = True

    async def keep(self) -> None:
        """Counts what the log holds already, then forgets what retention removes, until it is cancelled."""
        try:
            await asyncio.to_thread(self._recover)
        finally:
            self._is_ended = True  # a thread is not cancelled: the process would not end before all of it is counted
        looks = Recurring(_log, "what namespaces store cannot be written down", OSError)
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while True:
            self._trim()
            if self._has_changed and loop.time() >= due_s:
                due_s = loop.time() + STORED_BYTES_SNAPSHOT_S
                with looks.attempt():
                    await asyncio.to_thread(self._snapshot)
            await asyncio.sleep(QUOTA_USAGE_S)

    def close(self) -> None:
        """Writes everything down; blocking. Nothing is appended any more."""
        try:
            self._snapshot()
        except OSError as error:  # the next start counts what it lacks
            _log.error("what namespaces store cannot be written down", error=str(error))

    def _trim(self) -> None:
        with self._adding:
            for partition, counted in self._counted.items():
                first = self._writers[partition].first_offset
                for segment in [one for one in counted.segments if one < first]:
                    self._total.subtract(counted.segments.pop(segment))
                    self._has_changed = True
            for namespace in [one for one, size_bytes in self._total.items() if size_bytes <= 0]:
                del self._total[namespace]

    def _snapshot(self) -> None:
        if not self._is_whole:
            return  # the last one and the log say more
        with self._adding:
            data = msgspec.msgpack.encode(self._counted)
            self._has_changed = False
        try:
            replace_file(FileOps(), self._file, data)
        except OSError:
            self._has_changed = True
            raise

    # --- what the log holds at the start ---------------------------------------------------------------

    def _load(self) -> dict[int, _Counted]:
        """The newest snapshot of each partition, whichever front wrote it; empty ones where there is none."""
        best = {partition: _Counted(0, {}) for partition in self._writers}
        for path in sorted(self._log.directory.glob(f"{FILE}-*")):
            for partition, counted in _read(path).items():
                if partition in best and best[partition].position < counted.position <= self._ends[partition]:
                    best[partition] = counted
        return best

    def _recover(self) -> None:
        """Counts what lies between the snapshots and where the log ended at the start; blocking.

        Where it is broken off, the next start counts all of it.
        """
        for partition, start in self._starts.items():
            end, log = self._ends[partition], self._log.partition(partition)
            segments = [first for first, _ in list_segments(log.directory)]
            with PartitionReader(log, start=start) as reader:
                try:
                    while not self._is_ended and reader.position < end and (chunk := reader.read()) is not None:
                        segment = segments[max(0, bisect_right(segments, chunk.first_offset) - 1)] if segments else 0
                        self.add(partition, segment, sizes_of(chunk.batch), 0)
                except CorruptChunkError as error:
                    # Readers of that place get the error; that a namespace has more than is counted stops nothing.
                    _log.error("what namespaces store cannot be counted", partition=partition, error=error.message)
        if self._is_ended:
            return
        with self._adding:
            for partition, counted in self._counted.items():
                counted.position = max(counted.position, self._ends[partition])
        self._is_whole = True


def sizes_of(batch: pa.RecordBatch) -> dict[str, int]:
    """The bytes of events in memory, by namespace."""
    sizes = Counter[str]()
    at = 0
    for broker, run in groupby(batch.column("broker").to_pylist()):
        count = sum(1 for _ in run)
        sizes[namespace_of(broker)] += int(batch.slice(at, count).nbytes)
        at += count
    return sizes


def _read(path: Path) -> dict[int, _Counted]:
    try:
        return _decode(path.read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        _log.error("a snapshot of stored bytes cannot be read, the log is", file=str(path), error=str(error))
        return {}
