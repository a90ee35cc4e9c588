"""Sparse indexes of segments, in memory: offset, position and time of a chunk every INDEX_STRIDE_BYTES.

Whoever walks over the headers makes them. All readers of a log in a process share them, so only the first one walks the
whole way.
"""

from __future__ import annotations

import os
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from pathlib import Path

from headgate_api.limits import INDEX_STRIDE_BYTES, SEGMENT_INDEXES_MAX


class SegmentIndex:
    """Where some chunks of one segment are; for any thread. Durable chunks never move, so an entry stays true."""

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
