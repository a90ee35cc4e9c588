"""Other numbers for ids that are given in order: who sees those of some dead letters must not count the others by them.

A Feistel network over 52 bits, which JSON and every client hold exactly: each id has one such number, each number is
that of one id, and without the key nobody tells which. Source: https://doi.org/10.6028/NIST.SP.800-38G (ten rounds).
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

_HALF_BITS: Final = 26
_HALF: Final = (1 << _HALF_BITS) - 1
_ROUNDS: Final = range(10)
NOBODYS: Final = 0
"""No dead letter has this id, and none is shown by it."""


class OpaqueIds:
    """What ids from 1 on are shown as, and mean; any thread."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def shown(self, id_: int) -> int:
        return self._other(id_, _ROUNDS)

    def meant(self, shown: int) -> int:
        """The id that is shown so; NOBODYS for a number that none is shown by."""
        return self._other(shown, _ROUNDS[::-1]) if 0 < shown < 1 << 2 * _HALF_BITS else NOBODYS

    def _other(self, number: int, rounds: range) -> int:
        # What 0 stands for takes the place of what would stand for 0.
        return self._permuted(number, rounds) or self._permuted(NOBODYS, rounds)

    def _permuted(self, number: int, rounds: range) -> int:
        left, right = number >> _HALF_BITS, number & _HALF
        for one in rounds:
            left, right = right, left ^ self._mixed(one, right)
        return right << _HALF_BITS | left  # so that the rounds in the other order lead back

    def _mixed(self, number: int, half: int) -> int:
        mixed = blake2b(half.to_bytes(4) + bytes([number]), digest_size=4, key=self._key)
        return int.from_bytes(mixed.digest()) & _HALF
