"""Where does a reader stand? One offset a partition, as a token that clients hand back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from headgate.stream.errors import PositionError

_TOKEN: Final = re.compile(r"[0-9]{1,4}:[0-9]{1,19}(?:,[0-9]{1,4}:[0-9]{1,19})*", re.ASCII)
_OFFSET_MAX: Final = 2**63 - 1

Positions = Mapping[int, int]
"""Offset of the next event, by partition."""


def write(positions: Positions) -> str:
    """`0:123,1:456`: what `read` takes back."""
    return ",".join(f"{partition}:{offset}" for partition, offset in sorted(positions.items()))


def read(token: str, partitions: Iterable[int]) -> dict[int, int]:
    """The positions of a token; partitions that it does not name, because they are newer, begin at their start.

    Raises:
        PositionError: No token, or of another log.
    """
    if not _TOKEN.fullmatch(token):
        raise PositionError(f"{token[:64]!r} is no position", hint="give back what the server gave: 0:123,1:456")
    found: dict[int, int] = {}
    known = dict.fromkeys(partitions, 0)
    for part in token.split(","):
        partition, offset = map(int, part.split(":"))
        if partition not in known or partition in found or offset > _OFFSET_MAX:
            raise PositionError(f"{token[:64]!r} is no position of this log", hint=f"it has {len(known)} partitions")
        found[partition] = offset
    return known | found
