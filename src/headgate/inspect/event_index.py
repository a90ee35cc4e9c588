"""An index of stored events by their id and by their root: offsets that may be the ones, found without reading the log.

Of each event 32 bits of each hash are kept, at the place of its offset in a block. A search goes through the blocks as
through one text, some 4 ms for a million events. It may name an event that is another one, and never leaves one out:
who asks reads what it names. So it needs no care for what anybody made up.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final

import xxhash

_BLOCK: Final = 1 << 16
"""Events of a block."""
_WIDTH: Final = 4
"""Bytes of a hash."""
_ALL: Final = 1 << 63
"""Behind every offset."""


def _hash(text: str) -> int:
    """Never 0, which stands for no text."""
    return xxhash.xxh32_intdigest(text.encode()) or 1


class _Column:
    """Hashes of one partition by offset; a block without any has no memory."""

    def __init__(self) -> None:
        self.blocks: dict[int, bytearray] = {}

    def put(self, first: int, hashes: array[int]) -> None:
        done = 0
        while done < len(hashes):
            number, at = divmod(first + done, _BLOCK)
            piece = hashes[done : done + _BLOCK - at]
            if any(piece):
                block = self.blocks.get(number)
                if block is None:
                    block = self.blocks[number] = bytearray(_BLOCK * _WIDTH)
                block[at * _WIDTH : (at + len(piece)) * _WIDTH] = piece.tobytes()
            done += len(piece)

    def find(self, text: str, low: int, high: int, *, newest_first: bool) -> Iterator[int]:
        """Offsets from `low` on and below `high`, of the blocks of now; one block at a time: an id may be frequent."""
        needle = array("I", [_hash(text)]).tobytes()
        blocks = [one for one in self.blocks.items() if low < (one[0] + 1) * _BLOCK and one[0] * _BLOCK < high]
        blocks.sort(reverse=newest_first)
        found = (_places(number, block, needle) for number, block in blocks)
        pieces = map(reversed, found) if newest_first else found
        return (at for at in chain.from_iterable(pieces) if low <= at < high)


def _places(number: int, block: bytearray, needle: bytes) -> list[int]:
    """Offsets of one block, in order."""
    found = []
    at = block.find(needle)
    while at >= 0:
        if at % _WIDTH == 0:
            found.append(number * _BLOCK + at // _WIDTH)
        at = block.find(needle, at + 1)
    return found


class EventIndex:
    """The index of the newest events of all partitions. One thread puts, any number of threads find.

    Args:
        events_max: How many events it holds at most, rounded to blocks; the oldest ones of the partition that has most
            make room.
    """

    def __init__(self, events_max: int) -> None:
        self._blocks_max = max(1, events_max // _BLOCK)
        self._ids: dict[int, _Column] = {}
        self._roots: dict[int, _Column] = {}
        self._low: dict[int, int] = {}

    def put(self, partition: int, first: int, ids: Sequence[str], roots: Sequence[str | None] = ()) -> None:
        """Take up events that were stored one behind the other.

        Args:
            first: The offset of the first one.
            ids: Theirs, in order.
            roots: What they descend from, in order; empty when none descends from another one.
        """
        given_up = max(0, self.low(partition) - first)
        first, ids, roots = first + given_up, ids[given_up:], roots[given_up:]
        if not ids:
            return
        self._ids.setdefault(partition, _Column()).put(first, array("I", map(_hash, ids)))
        if roots:
            hashes = array("I", (0 if root is None else _hash(root) for root in roots))
            self._roots.setdefault(partition, _Column()).put(first, hashes)
        self._make_room()

    def low(self, partition: int) -> int:
        """Events below this offset were given up; it never falls. Ask after a search: what it left out is below."""
        return self._low.get(partition, 0)

    def with_id(self, partition: int, id_: str, low: int = 0, high: int = _ALL) -> Iterator[int]:
        """Offsets of events that may have an id, from `low` on and below `high`; the newest first."""
        column = self._ids.get(partition)
        return iter(()) if column is None else column.find(id_, low, high, newest_first=True)

    def with_root(self, partition: int, root: str, low: int = 0, high: int = _ALL) -> Iterator[int]:
        """Offsets of events that may descend from an event, from `low` on and below `high`; in order."""
        column = self._roots.get(partition)
        return iter(()) if column is None else column.find(root, low, high, newest_first=False)

    def _make_room(self) -> None:
        while sum(len(column.blocks) for column in self._ids.values()) > self._blocks_max:
            partition, column = max(self._ids.items(), key=lambda one: len(one[1].blocks))
            oldest = min(column.blocks)
            self._low[partition] = (oldest + 1) * _BLOCK
            # New dictionaries: another thread may go through the old ones.
            for columns in (self._ids, self._roots):
                if partition in columns:
                    kept = {number: one for number, one in columns[partition].blocks.items() if number != oldest}
                    columns[partition].blocks = kept
