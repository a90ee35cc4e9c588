"""The one writer of a partition: append, sync, publish.

Order: chunk bytes -> fdatasync -> publish the next offset -> return. An append either returns the first offset of its
records, which are then durable, or raises and leaves nothing behind. After a failure the writer needs no help: every
later append first brings the files back in order.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

import pyarrow as pa

from headgate.log.bloom import build
from headgate.log.directory import Partition
from headgate.log.errors import CorruptChunkError, DamagedLogError, LogLockedError, LogSchemaError, LogUnavailableError
from headgate.log.files import Committed, FileOps, sync_directory, write_all
from headgate.log.format import (
    LOCK_NAME,
    Codec,
    check_schema,
    encode_body,
    pack_chunk,
    pack_segment_header,
    segment_name,
)
from headgate.log.recovery import recover, walk
from headgate_api.errors import TooLargeError
from headgate_api.limits import BLOOM_BYTES_MIN, CHUNK_BODY_BYTES_MAX, LOG_PROBE_BYTES, SEGMENT_BYTES_MAX


def wall_clock_us() -> int:
    """Microseconds since 1970 UTC."""
    return time.time_ns() // 1000


_NONE: Final[Mapping[str, int]] = MappingProxyType({})


class Numbers(NamedTuple):
    """Which events of a producer that numbers them a submit has for one partition, for owners on Kafka.

    Those above `after`, the newest one that is there as far as the producer's `stream` knows, up to `last`. Where both
    are the same, the stream begins: from then on the partition takes nothing of those before it, of smaller numbers.
    """

    broker: str
    producer: str
    stream: int
    after: int
    last: int

    def follow(self, newest: int, stream: int) -> bool:
        """Whether they come next where a stream has stored the newest number."""
        begins = self.last == self.after and self.stream > stream
        return self.after == newest and (self.stream == stream or begins)


class Encoded(NamedTuple):
    """A chunk to be written: records of the writer's schema, at least one where it does not only say `numbers`."""

    batch: pa.RecordBatch
    filter_values: Sequence[str | None]  # one per record; None or "" for a record without
    time_range_us: tuple[int, int] | None = None  # smallest and largest event time, None when no record has one
    also: Sequence[str | None] = ()  # more values for the filter, no record's own; None and "": a record has none
    bloom_bytes: int | None = None  # size of the chunk's filter, 16..255; None: the writer's
    codec: Codec | None = None
    sizes: Mapping[str, int] = _NONE  # about the records' bytes, by whose they are: whoever counts them says that
    windows: Mapping[str, int] = _NONE  # by broker, within how many microseconds an event is stored once
    numbers: Sequence[Numbers] = ()  # of numbered producers, in order


class PartitionWriter:
    """Appends chunks to one partition. Call it from one thread at a time.

    Making one locks the partition, recovers it (a torn tail is cut) and publishes its end. Raises LogLockedError,
    DamagedLogError, NewerLogError, LogSchemaError, or LogUnavailableError when the disk refuses.

    Args:
        partition: Its directory is made when absent.
        schema: Columns of every batch to come; another one than before starts a new segment.
        segment_bytes_max: A segment that has reached it is followed by a new one.
        bloom_bytes: Size of each chunk's filter, 16..255.
        on_growth: Called in the writing thread, once a new end is published.
    """

    def __init__(
        self,
        partition: Partition,
        schema: pa.Schema,
        *,
        segment_bytes_max: int = SEGMENT_BYTES_MAX,
        bloom_bytes: int = BLOOM_BYTES_MIN,
        codec: Codec = Codec.NONE,
        clock_us: Callable[[], int] = wall_clock_us,
        files: FileOps | None = None,
        on_growth: Callable[[], None] = lambda: None,
    ) -> None:
        check_schema(schema)
        build((), bloom_bytes)
        files, directory = files or FileOps(), partition.directory
        try:
            with contextlib.ExitStack() as opening:
                directory.mkdir(parents=True, exist_ok=True)
                lock = _lock(directory)
                opening.callback(os.close, lock)
                known = Committed(directory)
                published = known.next_offset()
                known.close()
                found = recover(partition, files, published)
                committed = Committed.create(directory, files, found.next_offset, found.first_offset)
                sync_directory(files, directory)
                sync_directory(files, directory.parent)
                opening.pop_all()
        except OSError as error:
            raise LogUnavailableError(f"{directory} cannot be opened for writing: {error}") from error
        except CorruptChunkError as error:
            raise DamagedLogError(error.path, error.byte, error.reason, error.first_offset) from error
        self.partition = partition
        self.recovered = found
        self._schema = schema
        self._files = files
        self._lock = lock
        self._committed = committed
        self._next_offset = found.next_offset
        self._append_time_us = found.append_time_us
        self._segment = found.segment
        self._data_start = found.data_start
        self._end = found.end
        self._fd = -1  # opened by the first append: then a failure to open is a failure like any other
        self._doubt = False  # the end of the segment on disk is not known to be `_end`
        self._roll_next = found.schema is None or not found.schema.equals(schema, check_metadata=True)
        self._broken = ""
        self._closed = False
        self._segment_bytes_max = segment_bytes_max
        self._bloom_bytes = bloom_bytes
        self._codec = codec
        self._clock_us = clock_us
        self._on_growth = on_growth

    @property
    def directory(self) -> Path:
        return self.partition.directory

    @property
    def next_offset(self) -> int:
        """Offset that the next record gets; everything below is durable."""
        return self._next_offset

    @property
    def first_offset(self) -> int:
        return self._committed.first_offset()

    @property
    def append_time_us(self) -> int:
        """Of the newest chunk, microseconds since 1970 UTC."""
        return self._append_time_us

    @property
    def segment_offset(self) -> int:
        """Offset of the first record of the segment that the last chunk went into; 0 before any."""
        return int(self._segment.stem) if self._segment is not None else 0

    def append(self, chunk: Encoded) -> int:
        """Writes one chunk, and returns the offset of its first record; blocks until it is durable and published.

        After LogUnavailableError nothing was stored, and a later call may work. LogSchemaError: the batch does not fit.
        TooLargeError: it is over CHUNK_BODY_BYTES_MAX.
        """
        if self._closed:
            raise LogUnavailableError("the log is closed", detail=f"the writer of {self.directory}")
        batch = chunk.batch
        count = batch.num_rows
        if not count or len(chunk.filter_values) != count:
            raise LogSchemaError(f"{len(chunk.filter_values)} filter values for a batch of {count} records")
        if batch.schema is not self._schema and not batch.schema.equals(self._schema):
            raise LogSchemaError(f"the batch's columns are not those of {self.directory}: {batch.schema.names}")
        codec = self._codec if chunk.codec is None else chunk.codec
        bloom_bytes = self._bloom_bytes if chunk.bloom_bytes is None else chunk.bloom_bytes
        bloom = build(chain(chunk.filter_values, chunk.also), bloom_bytes)
        body = encode_body(batch, codec)
        if body.size > CHUNK_BODY_BYTES_MAX:
            raise TooLargeError(f"a chunk of {body.size} bytes is over {CHUNK_BODY_BYTES_MAX}")
        append_time_us = max(self._append_time_us, self._clock_us())
        first = self._next_offset
        parts = pack_chunk(
            body,
            bloom,
            first_offset=first,
            record_count=count,
            append_time_us=append_time_us,
            time_range_us=chunk.time_range_us,
            codec=codec,
        )
        self._write(parts)
        self._append_time_us = append_time_us
        self._next_offset = first + count
        self._committed.publish(self._next_offset)
        self._on_growth()
        return first

    def probe(self) -> None:
        """Prove that the disk takes records, by bytes behind the last chunk that are cut off again; blocks.

        A process that dies meanwhile leaves a torn tail as any other. Raises LogUnavailableError.
        """
        if self._closed:
            raise LogUnavailableError(f"the writer of {self.directory} is closed")
        self._write([bytes(LOG_PROBE_BYTES)], keep=False)

    def publish_first_offset(self, first_offset: int) -> None:
        """Tell readers that records below are going away; the segments are removed afterwards."""
        self._committed.publish_first(first_offset)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._close_fd()
        self._committed.close()
        os.close(self._lock)

    def __enter__(self) -> PartitionWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- from here on: what may fail -----------------------------------------------------------------
    # A write failed (disk full): the file is cut back to the end of its last good chunk, and that is all.
    # A sync failed: the kernel may have dropped the pages and call them clean, so see `_repair`.

    def _write(self, parts: Sequence[bytes | pa.Buffer], *, keep: bool = True) -> None:
        files = self._files
        try:
            self._make_ready()
        except OSError as error:
            raise LogUnavailableError.of(error, self.directory) from error
        self._doubt = True  # until proven otherwise, also when something else than the disk interrupts
        try:
            size = write_all(files, self._fd, parts, self._end)
        except OSError as error:
            self._doubt = not self._cut_back()
            raise LogUnavailableError.of(error, self._segment or self.directory) from error
        try:
            files.fdatasync(self._fd)
        except OSError as error:
            self._cut_back()
            raise LogUnavailableError.of(error, self._segment or self.directory) from error
        if keep:
            self._end += size
            self._doubt = False
        else:
            self._doubt = not self._cut_back()

    def _make_ready(self) -> None:
        if self._broken:
            raise self._damaged()
        if self._doubt:
            self._repair()
        if self._roll_next or (self._end >= self._segment_bytes_max and self._end > self._data_start):
            self._roll()
        elif self._fd < 0:
            assert self._segment is not None
            self._fd = self._files.open(self._segment, os.O_RDWR)

    def _cut_back(self) -> bool:
        try:
            self._files.ftruncate(self._fd, self._end)
        except OSError:
            return False
        return True

    def _repair(self) -> None:
        """Bring the last segment to its last good chunk and prove, from the disk itself, that it is whole."""
        assert self._segment is not None
        self._close_fd()
        self._fd = self._files.open(self._segment, os.O_RDWR)
        self._files.ftruncate(self._fd, self._end)
        self._files.fsync(self._fd)
        os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)
        first = int(self._segment.stem)
        try:
            good = walk(self._segment, self._fd, self._data_start, first)
        except CorruptChunkError as error:
            self._broken = error.message
            raise self._damaged() from error
        if good.end != self._end:
            self._broken = f"{self._segment} lost records from {good.next_offset} on: {good.problem or 'it is cut off'}"
            raise self._damaged()
        self._doubt = False
        self._roll_next = True

    def _damaged(self) -> LogUnavailableError:
        return LogUnavailableError(
            "the log is damaged and takes nothing",
            hint="its operator finds the place in the server's log",
            detail=f"{self._broken}; headgate log verify {self.directory} lists every damaged place",
        )

    def _roll(self) -> None:
        """Start a new segment; on failure the old one stays the last."""
        files = self._files
        path = self.directory / segment_name(self._next_offset)
        header = pack_segment_header(self._schema)
        fd = files.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            write_all(files, fd, [header], 0)
            files.fsync(fd)
            sync_directory(files, self.directory)
        except OSError:
            # Left behind it would do no harm (recovery removes it, the next try starts it again), but take space.
            with contextlib.suppress(OSError):
                files.close(fd)
            with contextlib.suppress(OSError):
                files.unlink(path)
            self._roll_next = True
            raise
        self._close_fd()
        self._fd = fd
        self._segment = path
        self._data_start = self._end = len(header)
        self._roll_next = False

    def _close_fd(self) -> None:
        # Everything acknowledged has been synced: an error of close() loses nothing.
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                self._files.close(self._fd)
            self._fd = -1


def _lock(directory: Path) -> int:
    fd = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(fd)
        raise LogLockedError(
            f"{directory} has a writer already (process {holder})",
            hint="a partition has one writer: stop the other headgate, or give this one another data directory",
        ) from error
    with contextlib.suppress(OSError):  # a full disk must not keep a writer from opening: the name is for people
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd
