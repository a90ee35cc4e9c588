"""The limit of different keys per broker, and what becomes of rows over it.

Every kind of key that a broker's filters are looked up by is made of each of its events, so there may be only so many.
However many clients send, every row finds a key: rows over the limit are looked up by less (one part of their key, or
the broker alone) and are candidates. Fewer conditions let more events through, never fewer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from headgate.filter.compile.plan import KeyKind, KeyPart, Root

_COARSE_SHARE: Final = 4
"""One in so many keys is a coarse one, once there are more than fit."""
_USEFULNESS: Final = (KeyKind.STRING, KeyKind.NUMBER, KeyKind.PREFIX, KeyKind.SUFFIX, KeyKind.BOOL)
"""Kinds of key parts, the one that lets the fewest events through first."""

Key = tuple[KeyPart, ...]
"""The parts of one kind of key."""
SCAN: Final[Key] = ()
"""Every event of the broker."""


def choose(rows_by_key: Mapping[Key, int], *, keys_max: int) -> dict[Key, Key]:
    """For every key the one that its rows are looked up by; at most `keys_max` different ones.

    The keys with the most rows stay themselves. For the others, the coarse keys that most of their rows could use are
    kept, and each row takes the most useful of those.
    """
    ranked = sorted(rows_by_key, key=lambda key: (-rows_by_key[key], key))
    if len(ranked) <= keys_max:
        return {key: key for key in ranked}
    coarse_max = max(1, keys_max // _COARSE_SHARE)
    whole, rest = ranked[: keys_max - coarse_max], ranked[keys_max - coarse_max :]
    chosen = {key: key for key in whole}
    uses: Counter[Key] = Counter()
    for key in rest:
        uses.update(dict.fromkeys(_coarser(key), rows_by_key[key]))
    by_use = sorted(uses.keys() - chosen.keys(), key=lambda key: (-uses[key], key))
    kept = {*whole, *by_use[: coarse_max - 1], SCAN}
    for key in rest:
        chosen[key] = next((coarse for coarse in _coarser(key) if coarse in kept), SCAN)
    return chosen


def _coarser(key: Key) -> tuple[Key, ...]:
    """The key and its parts one by one, the most useful first; the scan is not among them."""
    singles = [(part,) for part in sorted(key, key=_rank)]
    return tuple(dict.fromkeys([key, *singles])) if key else ()


def _rank(part: KeyPart) -> tuple[int, int, bool, KeyPart]:
    return _USEFULNESS.index(part.kind), -part.length, part.operand.root is not Root.CE, part
