"""Which 64 bits join an event to the rows of a shape? The same number, computed by Spark for events and here for rows.

A key is a chain of XXH64 over the table's seed, the broker, the shape's number and the values at its key places.
The chain only finds rows: XXH64 is no cryptographic hash, and two strings of 16 bytes that collide under every seed are
made in microseconds. So the joined row carries its constants and is compared with the event before it counts.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final

import xxhash
from pyspark.sql import Column
from pyspark.sql import functions as F

from headgate.filter.plan import Constant, KeyKind, KeyPart, Place
from headgate.match.places import PlaceColumns, Want

_SPARK_SEED: Final = 42
"""Where Spark's `xxhash64` starts its chain."""

WANTED: Final = {
    KeyKind.STRING: Want.TEXT,
    KeyKind.PREFIX: Want.TEXT,
    KeyKind.SUFFIX: Want.TEXT,
    KeyKind.NUMBER: Want.NUMBER,
    KeyKind.BOOL: Want.FLAG,
}


def _chain(value: bytes, seed: int) -> int:
    return xxhash.xxh64_intdigest(value, seed)


def broker_state(seed: int, broker: str) -> int:
    """The chain after the table's seed and the broker, as Spark's signed 64 bits."""
    return _signed(_chain(broker.encode(), _chain(struct.pack("<q", seed), _SPARK_SEED)))


def shape_state(broker: int, shape: int) -> int:
    """The chain after the broker's state and the number of the shape, unsigned: where a row's constants continue."""
    return _chain(struct.pack("<q", shape), _chain(struct.pack("<q", broker), _SPARK_SEED))


def key_of(state: int, constants: Sequence[Constant]) -> int:
    """The key of a row: `shape_state` continued with the constants of its key parts."""
    for constant in constants:
        match constant:
            case str():
                state = _chain(constant.encode(), state)
            case bool():
                state = _chain(struct.pack("<i", constant), state)
            case int() | float():
                state = _chain(struct.pack("<d", float(constant) or 0.0), state)
            case None:
                raise TypeError("null is no key")
    return _signed(state)


def _signed(state: int) -> int:
    return state - (1 << 64) if state >= 1 << 63 else state


def broker_column(seed: int) -> Column:
    """`broker_state` of the column `broker`."""
    return F.xxhash64(F.lit(seed).cast("bigint"), F.col("broker"))


def key_column(broker: Column, shape: int, parts: Sequence[KeyPart], places: Mapping[Place, PlaceColumns]) -> Column:
    """The event's key for a shape, NULL when one of its places holds no value of the right kind."""
    values = [part_column(part, places[part.place]) for part in parts]
    key = F.xxhash64(broker, F.lit(shape).cast("bigint"), *values)
    if not values:
        return key
    there = values[0].isNotNull()
    for value in values[1:]:
        there = there & value.isNotNull()
    return F.when(there, key)


def part_column(part: KeyPart, place: PlaceColumns) -> Column:
    """The event's side of one key part. A string shorter than a prefix or suffix stays whole and meets no constant."""
    match part.kind:
        case KeyKind.STRING:
            return F.col(place.text)
        case KeyKind.PREFIX:
            return F.substring(F.col(place.text), 1, part.length)
        case KeyKind.SUFFIX:
            return F.substring(F.col(place.text), -part.length, part.length)
        case KeyKind.NUMBER:
            return F.col(place.number)
        case KeyKind.BOOL:
            return F.col(place.flag)
