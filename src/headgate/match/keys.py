"""Which bits join an event to the rows of a shape? The same, computed by Spark for events and here for rows.

The *key* is a chain of XXH64 over the table's seed, the broker, a number for the key parts and the values at their
places; the join looks it up. Shapes with the same key parts share a key, and so one look into the table.

The *check* is a chain of Murmur3 over a secret and the same values, compared after the join. XXH64 alone would not do:
strings of 16 bytes that collide under every seed are made in microseconds. Ninety-six bits of two unrelated functions
leave neither chance nor craft a way. (Comparing the constants themselves costs a third of the speed at 10,000 rows.)
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import and_
from typing import Final

import xxhash
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from headgate.filter.plan import Constant, KeyKind, KeyPart, Place
from headgate.match.reads import PlaceColumns, Want

_SPARK_SEED: Final = 42
"""Where Spark's `xxhash64` and `hash` start their chains."""
_MASK: Final = 0xFFFF_FFFF

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


def parts_state(broker: int, number: int) -> int:
    """The chain after the broker's state and the number of the key parts: where a row's constants continue."""
    return _chain(struct.pack("<q", number), _chain(struct.pack("<q", broker), _SPARK_SEED))


def key_of(state: int, constants: Sequence[Constant]) -> int:
    """The key of a row: `parts_state` continued with the constants of its key parts."""
    for constant in constants:
        state = _chain(_bytes(constant), state)
    return _signed(state)


def _bytes(constant: Constant) -> bytes:
    """What Spark hashes for a value: text as UTF-8, numbers as doubles (-0.0 is 0.0), booleans as int."""
    match constant:
        case str():
            return constant.encode()
        case bool():
            return struct.pack("<i", constant)
        case int() | float():
            return struct.pack("<d", float(constant) or 0.0)
        case None:
            raise TypeError("null is no key")


def _signed(state: int) -> int:
    return state - (1 << 64) if state >= 1 << 63 else state


def check_of(secret: int, constants: Sequence[Constant]) -> int:
    """The check of a row, as Spark's signed 32 bits."""
    state = _murmur(secret.to_bytes(4, "little", signed=True), _SPARK_SEED)
    for constant in constants:
        state = _murmur(_bytes(constant), state)
    return state - (1 << 32) if state >= 1 << 31 else state


def _murmur(value: bytes, state: int) -> int:
    """Spark's Murmur3: four bytes at a time, then each byte left over as a number of its own, sign and all."""
    whole = len(value) & ~3
    blocks = [
        *struct.unpack_from(f"<{whole // 4}I", value),
        *struct.unpack_from(f"{len(value) - whole}b", value, whole),
    ]
    for block in blocks:
        mixed = block * 0xCC9E2D51 & _MASK
        mixed = (mixed << 15 | mixed >> 17) * 0x1B873593 & _MASK
        state ^= mixed
        state = (state << 13 & _MASK | state >> 19) * 5 + 0xE6546B64 & _MASK
    state ^= len(value)
    state = (state ^ state >> 16) * 0x85EBCA6B & _MASK
    state = (state ^ state >> 13) * 0xC2B2AE35 & _MASK
    return state ^ state >> 16


def with_parts(
    events: DataFrame, parts: Iterable[KeyPart], places: Mapping[Place, PlaceColumns]
) -> tuple[DataFrame, dict[KeyPart, str]]:
    """Adds the columns that key parts are made of, and names them: each prefix and suffix is cut once an event.

    A string shorter than a prefix or suffix stays whole and meets no constant.
    """
    names: dict[KeyPart, str] = {}
    cut: list[Column] = []
    for part in dict.fromkeys(parts):
        source = _source(part, places[part.place])
        names[part] = source
        if part.length:
            names[part] = f"{source}_{part.kind}_{part.length}"
            start = 1 if part.kind is KeyKind.PREFIX else -part.length
            cut.append(F.substring(source, start, part.length).alias(names[part]))
    return events.select("*", *cut), names


def _source(part: KeyPart, place: PlaceColumns) -> str:
    match part.kind:
        case KeyKind.STRING | KeyKind.PREFIX | KeyKind.SUFFIX:
            return place.text
        case KeyKind.NUMBER:
            return place.number
        case KeyKind.BOOL:
            return place.flag


def broker_column(seed: int) -> Column:
    """`broker_state` of the column `broker`."""
    return F.xxhash64(F.lit(seed).cast("bigint"), F.col("broker"))


def key_column(broker: str, number: int, columns: Sequence[str]) -> Column:
    """The event's key for the key parts `number`, NULL when one of their places holds no value of the right kind."""
    key = F.xxhash64(F.col(broker), F.lit(number).cast("bigint"), *columns)
    there = [F.col(column).isNotNull() for column in columns]
    return F.when(reduce(and_, there), key) if there else key


def check_column(secret: int, columns: Sequence[str]) -> Column:
    """The event's check; meaningless, but never NULL, where the key is NULL."""
    return F.hash(F.lit(secret), *columns)
