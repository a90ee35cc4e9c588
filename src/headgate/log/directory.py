"""A log and its partitions for reading: where they are, and what readers do at damaged chunks.

Damaged bytes are never handed out, either way. The policy goes with the directory and is no reader's own, so that no
two readers of one log disagree about what is in it.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import structlog

from headgate.log.errors import CorruptChunkError
from headgate.log.segment_index import SegmentIndexes
from headgate.observe import metrics
from headgate_api.limits import DAMAGES_KEPT

OnCorrupt = Literal["stop", "skip"]
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition; it need not exist. By `on_corrupt` readers stop at damaged chunks, or skip and log them."""

    directory: Path
    on_corrupt: OnCorrupt
    reported: OrderedDict[tuple[Path, int], None] = field(default_factory=OrderedDict, repr=False, compare=False)
    indexes: SegmentIndexes = field(default_factory=SegmentIndexes, repr=False, compare=False)

    @property
    def skips(self) -> bool:
        """Whether damage is passed over."""
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
