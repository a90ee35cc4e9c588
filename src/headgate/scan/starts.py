"""The offsets at which reading starts, by partition, for every way to name a start."""

from __future__ import annotations

from typing import Final

from headgate.event import rfc3339
from headgate.log import positions
from headgate.log.errors import PositionError
from headgate.scan.source import ReadableLog

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
NEXT: Final = "next"


def start_offsets(log: ReadableLog, start: str) -> dict[int, int]:
    """The first offset to read, by partition; blocking.

    Args:
        start: `earliest` (the first event kept), `next` (what is stored from now on), a time in RFC 3339 (the first
            chunk, of Kafka the first event, stored at or after it), or a position. `latest` depends on the broker: see
            `search.latest`.

    Raises:
        PositionError: It is none of them, or a position of another log or behind the end of this one.
        UnavailableError: The store does not answer.
    """
    if start == EARLIEST:
        return log.first_offsets()
    if start == NEXT:
        return log.end_offsets()
    time_us = rfc3339.micros(start)
    if time_us is not None:
        return log.offsets_at_time(log.partitions(), time_us)
    if start[:1].isdigit():
        return positions.read(start, log.end_offsets())
    raise PositionError(
        f"{start[:64]!r} is no place in the log",
        hint=f"{EARLIEST}, {LATEST}, {NEXT}, a time such as 2026-03-04T05:06:07Z, or a position such as 0:123,1:456",
    )
