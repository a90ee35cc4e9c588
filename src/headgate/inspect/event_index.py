"""An index of stored events by their id and by their root: offsets that may be the ones, found without reading the log.

Of each event 32 bits of each hash are kept, at the place of its offset in a block. A search goes through the blocks as
through one text, some 4 ms for a million events. It may name an event that is another one, and never leaves one out:
who asks reads what it names. So it needs no care for what anybody made up.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Final

import xxhash

_BLOCK: Final = 1 << 16
"""Events of a block."""
_WIDTH: Final = 4
"""Bytes of a hash."""


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

    def find(self, text: str) -> Iterator[int]:
        needle = array("I", [_hash(text)]).tobytes()
        for number, block in sorted(self.blocks.items()):
            at = block.find(needle)
            while at >= 0:
                if at % _WIDTH == 0:
                    yield number * _BLOCK + at // _WIDTH
                at = block.find(needle, at + 1)


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
            partition: Theirs.
            first: The offset of the first one.
            ids: Theirs, in order.
            roots: What they descend from, in order; empty when none descends from another one.
        """
        self._ids.setdefault(partition, _Column()).put(first, array("I", map(_hash, ids)))
        if roots:
            hashes = array("I", (0 if root is None else _hash(root) for root in roots))
            self._roots.setdefault(partition, _Column()).put(first, hashes)
        self._make_room()

    def low(self, partition: int) -> int:
        """Events below this offset were given up."""
        return self._low.get(partition, 0)

    def with_id(self, partition: int, id_: str) -> list[int]:
        """Offsets of events that may have an id, in order."""
        column = self._ids.get(partition)
        return [] if column is None else list(column.find(id_))

    def with_root(self, partition: int, root: str) -> list[int]:
        """Offsets of events that may descend from an event, in order."""
        column = self._roots.get(partition)
        return [] if column is None else list(column.find(root))

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
