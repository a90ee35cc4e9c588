"""The header of records of the topic `outbox`: its numbers, and the records that a driver writes.

docs/spec/outbox-topic.md has every byte. Events and their progress are written in Java (`kafka/OutboxHeader.java`).
Pure.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

HEADER: Final = "headgate_outbox"
HEAD: Final = struct.Struct("<BBqqiq")
"""OutboxKind, flag, run, generation, source partition, offset: every record begins with them."""
EVENT: Final = struct.Struct("<q")
"""What follows in the record of an event: when it was stored, in microseconds since 1970 UTC. Then TARGETs."""
TARGET: Final = struct.Struct("<iB")
"""A target and its verdict."""
HELLO: Final = struct.Struct("<ii")
"""What follows in a hello: source partitions of the run, partitions of the outbox."""


class OutboxKind(IntEnum):
    """What a record is."""

    EVENT = 1
    PASSED = 2
    HELLO = 3
    OVER = 4


def encode_hello(
    *, run: int, generation: int, partition: int, start: int, partitions: int, outbox_partitions: int
) -> bytes:
    """The header of a run's first record about a source partition.

    Args:
        run: The run's number, at least 1.
        generation: Version of the filters that it evaluates.
        partition: The source partition.
        start: The first offset that the run reads of it.
        partitions: How many source partitions the run reads.
        outbox_partitions: How many partitions the outbox has.
    """
    return HEAD.pack(OutboxKind.HELLO, 0, run, generation, partition, start) + HELLO.pack(partitions, outbox_partitions)


def encode_passed(*, run: int, generation: int, partition: int, passed: int) -> bytes:
    """The header that says: every event below `passed` is matched, and everywhere in the outbox."""
    return HEAD.pack(OutboxKind.PASSED, 0, run, generation, partition, passed)


def encode_over(*, run: int, generation: int, and_lower: bool = False) -> bytes:
    """The header that ends a run, and every run with a lower number where `and_lower` is true."""
    return HEAD.pack(OutboxKind.OVER, and_lower, run, generation, -1, 0)
