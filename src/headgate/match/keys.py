"""The hashes that join an event to its rows: `connector/.../keys/` computes them for events, this module for rows.

Each value has two digests: XXH64 under a seed and Murmur3 under a secret. The *key* is a chain of XXH64 over the
broker, a number for the kind of key and the first digests of its values; the join looks it up. The *check* is a chain
of Murmur3 over the second digests, compared after the join. XXH64 alone would not do: strings of 16 bytes that collide
under every seed are made in microseconds. Ninety-six bits of two unrelated functions leave neither chance nor craft a
way. (Comparing the constants themselves costs a third of the speed at 10,000 rows.)
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import xxhash

from headgate.filter.compile.plan import Constant

Digests = tuple[bytes, int]
"""Of one value: what a chain of XXH64 takes up, and what a chain of Murmur3 does."""
_PACK: Final = struct.Struct("<Q").pack
_SPARK_SEED: Final = 42
"""Where the chain that ends in a broker's state starts."""
_MASK: Final = 0xFFFF_FFFF
_DIGESTS_KEPT: Final = 1 << 17


def _chain(value: bytes, seed: int) -> int:
    return xxhash.xxh64_intdigest(value, seed)


def broker_state(seed: int, broker: str) -> int:
    """The chain after the table's seed and the broker, as Spark's signed 64 bits."""
    return _signed(_chain(broker.encode(), _chain(struct.pack("<q", seed), _SPARK_SEED)))


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


@dataclass(frozen=True, slots=True)
class Secrets:
    """What no client may know: where the chains of keys (int64) and of checks (int32) start; not negative."""

    seed: int
    check: int


@lru_cache(maxsize=_DIGESTS_KEPT, typed=True)  # True and 1 are equal, but not the same value
def digest(constant: Constant, secrets: Secrets) -> Digests:
    """The two hashes of one constant, as the chains take them up."""
    value = _bytes(constant)
    return _PACK(_chain(value, secrets.seed)), _murmur(value, secrets.check)


def key_state(broker: int, number: int) -> int:
    """The chain after the broker's state and the key's number."""
    return _chain(struct.pack("<q", number), broker & (1 << 64) - 1)


def row_key(state: int, digests: Iterable[Digests]) -> int:
    """The key of a row: `key_state` continued with the constants of its key parts; int64."""
    for value, _ in digests:
        state = _chain(value, state)
    return _signed(state)


def row_check(secrets: Secrets, digests: Iterable[Digests]) -> int:
    """The check of a row, not negative, below 2**32."""
    state = secrets.check
    for _, block in digests:
        state = _ended(_mixed(block, state), 4)
    return state


def _murmur(value: bytes, state: int) -> int:
    """Spark's Murmur3: four bytes at a time, then each byte left over as a number of its own, sign and all."""
    whole = len(value) & ~3
    blocks = [
        *struct.unpack_from(f"<{whole // 4}I", value),
        *struct.unpack_from(f"{len(value) - whole}b", value, whole),
    ]
    for block in blocks:
        state = _mixed(block, state)
    return _ended(state, len(value))


def _mixed(block: int, state: int) -> int:
    mixed = block * 0xCC9E2D51 & _MASK
    mixed = (mixed << 15 | mixed >> 17) * 0x1B873593 & _MASK
    state ^= mixed
    return (state << 13 & _MASK | state >> 19) * 5 + 0xE6546B64 & _MASK


def _ended(state: int, length: int) -> int:
    state ^= length
    state = (state ^ state >> 16) * 0x85EBCA6B & _MASK
    state = (state ^ state >> 13) * 0xC2B2AE35 & _MASK
    return state ^ state >> 16
