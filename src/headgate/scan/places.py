"""Where does a reader begin? Offsets by partition for every way to say it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from headgate.event import rfc3339
from headgate.log import positions
from headgate.log.errors import PositionError
from headgate.log.reader import PartitionReader

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
NEXT: Final = "next"


def start(directory: Path, partitions: Sequence[int], said: str) -> dict[int, int]:
    """The first offset to look at, by partition.

    Args:
        directory: Directory of the partitions.
        partitions: Of the log.
        said: `earliest` (the first event kept), `next` (what is stored from now on), a time in RFC 3339 (the first
            chunk stored at or after it), or a position. Where `latest` is depends on whose event: `find.latest`.

    Raises:
        PositionError: It is none of them, or a position of another log.
    """
    if said in (EARLIEST, NEXT):
        return {partition: _bound(directory / str(partition), said) for partition in partitions}
    time_us = rfc3339.micros(said)
    if time_us is not None:
        return at_time(directory, partitions, time_us)
    if said[:1].isdigit():
        return positions.read(said, partitions)
    raise PositionError(
        f"{said[:64]!r} is no place in the log",
        hint=f"{EARLIEST}, {LATEST}, {NEXT}, a time such as 2026-03-04T05:06:07Z, or a position such as 0:123,1:456",
    )


def at_time(directory: Path, partitions: Sequence[int], time_us: int) -> dict[int, int]:
    """The first chunk of each partition stored at or after a time; its end when there is none."""
    found = {}
    for partition in partitions:
        with PartitionReader.open_at_time(directory / str(partition), time_us) as reader:
            found[partition] = reader.position
    return found


def _bound(directory: Path, said: str) -> int:
    with PartitionReader.open(directory, start=0) as reader:
        return reader.first_offset() if said == EARLIEST else reader.committed_offset()
