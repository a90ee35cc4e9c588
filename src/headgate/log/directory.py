"""A log and its partitions for reading: where they are, and what all readers of one in a process share.

Damaged bytes are never handed out. What readers do at damaged chunks goes with the directory and is no reader's own, so
that no two readers of one log disagree about what is in it.
"""

from __future__ import annotations

import os
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import structlog

from headgate.log.errors import CorruptChunkError
from headgate.observe import metrics
from headgate_api.limits import DAMAGES_KEPT, INDEX_STRIDE_BYTES, SEGMENT_INDEXES_MAX

OnCorrupt = Literal["stop", "skip"]
_log = structlog.get_logger(__name__)


class SegmentIndex:
    """Offset, position and time of a chunk of one segment every INDEX_STRIDE_BYTES; for any thread.

    Whoever walks over the headers makes it. Durable chunks never move, so an entry stays true.
    """

    def __init__(self, first_offset: int, data_start: int) -> None:
        self._lock = threading.Lock()
        self._offsets = array("q", [first_offset])
        self._positions = array("q", [data_start])
        self._times_us = array("q", [0])  # the first chunk's is not known, and not needed

    def note(self, offset: int, position: int, time_us: int) -> None:
        """Remember a durable chunk, if it is far enough behind the last one that is remembered."""
        if position - self._positions[-1] < INDEX_STRIDE_BYTES:
            return
        with self._lock:
            if position - self._positions[-1] >= INDEX_STRIDE_BYTES:
                self._times_us.append(time_us)
                self._positions.append(position)
                self._offsets.append(offset)  # the last one: who looks it up finds the others

    def at_offset(self, offset: int) -> tuple[int, int]:
        """Offset and position of the last remembered chunk that begins at or below an offset."""
        at = max(0, bisect_right(self._offsets, offset) - 1)
        return self._offsets[at], self._positions[at]

    def before_time(self, time_us: int) -> int:
        """First offset of the last remembered chunk that was appended before a time; else of the first chunk."""
        return self._offsets[max(0, bisect_left(self._times_us, time_us, 0, len(self._offsets)) - 1)]


class SegmentIndexes:
    """The indexes of the segments that were used last, for all readers of a log in this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._indexes: OrderedDict[tuple[Path, int], SegmentIndex] = OrderedDict()

    def of(self, path: Path, fd: int, first_offset: int, data_start: int) -> SegmentIndex:
        """The index of a segment that is open as `fd`: one that was removed and made anew has another index."""
        key = path, os.fstat(fd).st_ino
        with self._lock:
            index = self._indexes.get(key)
            if index is None:
                index = self._indexes[key] = SegmentIndex(first_offset, data_start)
                if len(self._indexes) > SEGMENT_INDEXES_MAX:
                    self._indexes.popitem(last=False)
            else:
                self._indexes.move_to_end(key)
            return index


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition; it need not exist. By `on_corrupt` readers stop at damaged chunks, or skip and log them."""

    directory: Path
    on_corrupt: OnCorrupt
    reported: OrderedDict[tuple[Path, int], None] = field(default_factory=OrderedDict, repr=False, compare=False)
    indexes: SegmentIndexes = field(default_factory=SegmentIndexes, repr=False, compare=False)

    @property
    def skips(self) -> bool:
        return self.on_corrupt == "skip"

    def pass_over(self, error: CorruptChunkError, first_offset: int, next_offset: int) -> None:
        """Logs, once for each place, which records are skipped; raises the error where readers stop."""
        if not self.skips:
            raise error
        place = error.path, error.byte
        if place in self.reported:
            return
        self.reported[place] = None
        while len(self.reported) > DAMAGES_KEPT:
            self.reported.popitem(last=False)
        metrics.LOG_DAMAGES.inc()
        _log.error(
            "damaged chunk passed over",
            file=str(error.path),
            byte=error.byte,
            reason=error.reason,
            first_offset=first_offset,
            next_offset=next_offset,
        )


@dataclass(frozen=True, slots=True)
class LogDirectory:
    """A directory of partitions; attributes as of `Partition`."""

    directory: Path
    on_corrupt: OnCorrupt
    reported: OrderedDict[tuple[Path, int], None] = field(default_factory=OrderedDict, repr=False, compare=False)
    indexes: SegmentIndexes = field(default_factory=SegmentIndexes, repr=False, compare=False)

    def partition(self, number: int) -> Partition:
        return Partition(self.directory / str(number), self.on_corrupt, self.reported, self.indexes)

    def partitions(self) -> list[int]:
        """Numbers of the partitions there are; none of a log that is not written yet."""
        if not self.directory.is_dir():
            return []
        return sorted(int(path.name) for path in self.directory.iterdir() if path.name.isdecimal())
