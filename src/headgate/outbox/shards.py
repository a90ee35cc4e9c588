"""Shards: which dispatcher owns which targets. Pure.

A target belongs to one dispatcher, by a hash of its number, so that what must keep its order meets in one queue. The
match link's writer in Java routes rows by the same hash (`LinkAddress.dispatcherOf`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

_MULTIPLIER: Final = 0x9E3779B1  # of Fibonacci hashing: neighbours are spread evenly
_MASK: Final = (1 << 32) - 1


def dispatcher_of(target: int, dispatchers: int) -> int:
    """The number, from 0 on, of the dispatcher that owns a target; targets have numbers from 0 to 2^31 - 1."""
    return ((target * _MULTIPLIER & _MASK) * dispatchers) >> 32


def dispatchers_of(targets: pa.Array, dispatchers: int) -> pa.Array:
    """The same for many targets."""
    hashed = pc.bit_wise_and(pc.multiply(targets.cast(pa.int64()), _MULTIPLIER), _MASK)
    return pc.shift_right(pc.multiply(hashed, dispatchers), 32)


@dataclass(frozen=True, slots=True)
class Shard:
    """The targets of one dispatcher, whose number is `index`, from 0 on."""

    index: int = 0
    count: int = 1

    def owns(self, target: int) -> bool:
        return dispatcher_of(target, self.count) == self.index

    def next_id(self, last_id: int) -> int:
        """The next id above `last_id`, whichever dispatcher gave it, from 0 on; no two dispatchers give the same."""
        return last_id + 1 + (self.index - last_id) % self.count


WHOLE: Final = Shard()
"""All targets: of the only dispatcher."""
