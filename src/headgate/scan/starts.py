"""The offsets at which reading starts, by partition, for every way to name a start."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Final

from headgate.event import rfc3339
from headgate.log import positions
from headgate.log.directory import LogDirectory
from headgate.log.ends import LogEnds
from headgate.log.errors import PositionError
from headgate.log.reader import PartitionReader

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
NEXT: Final = "next"


def start_offsets(log: LogDirectory, start: str) -> dict[int, int]:
    """The first offset to read, by partition; blocking.

    Args:
        log: What is read.
        start: `earliest` (the first event kept), `next` (what is stored from now on), a time in RFC 3339 (the first
            chunk stored at or after it), or a position. `latest` depends on the broker: see `find.latest`.

    Raises:
        PositionError: It is none of them, or a position of another log.
    """
    partitions = log.partitions()
    if start in (EARLIEST, NEXT):
        with closing(LogEnds(log)) as ends:
            bound = ends.first_offset if start == EARLIEST else ends.end_offset
            return {partition: bound(partition) for partition in partitions}
    time_us = rfc3339.micros(start)
    if time_us is not None:
        return offsets_at_time(log, partitions, time_us)
    if start[:1].isdigit():
        return positions.read(start, partitions)
    raise PositionError(
        f"{start[:64]!r} is no place in the log",
        hint=f"{EARLIEST}, {LATEST}, {NEXT}, a time such as 2026-03-04T05:06:07Z, or a position such as 0:123,1:456",
    )


def offsets_at_time(log: LogDirectory, partitions: Sequence[int], time_us: int) -> dict[int, int]:
    """The first chunk of each partition stored at or after a time; its end when there is none."""
    found = {}
    for partition in partitions:
        with PartitionReader.open_at_time(log.partition(partition), time_us) as reader:
            found[partition] = reader.position
    return found
