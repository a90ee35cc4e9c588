"""Positions of a reader: one offset per partition, as a token that clients hand back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from headgate_api.errors import InvalidInputError

_TOKEN: Final = re.compile(r"[0-9]{1,4}:[0-9]{1,19}(?:,[0-9]{1,4}:[0-9]{1,19})*", re.ASCII)
_OFFSET_MAX: Final = 2**63 - 1

Positions = Mapping[int, int]
"""Offset of the next event, by partition."""


class PositionError(InvalidInputError):
    """A position that this log cannot have given."""

    code = "position"


def write(positions: Positions) -> str:
    """`0:123,1:456`: what `read` takes back."""
    return ",".join(f"{partition}:{offset}" for partition, offset in sorted(positions.items()))


def parse(token: str) -> dict[int, int]:
    """The offsets that a token names; raises PositionError where it is none."""
    pairs = [part.split(":") for part in token.split(",")] if _TOKEN.fullmatch(token) else []
    found = {int(partition): int(offset) for partition, offset in pairs}
    if not found or len(found) < len(pairs) or max(found.values()) > _OFFSET_MAX:
        raise PositionError(f"{token[:64]!r} is no position", hint="give back what the server gave: 0:123,1:456")
    return found


def read(token: str, ends: Positions) -> dict[int, int]:
    """The positions of a token; partitions that it does not name, because they are newer, begin at their start.

    `ends` says where each partition of the log ends now: whoever began behind it would miss what comes there. Raises
    PositionError for no token, for one of another log, and for one behind the end of this one.
    """
    found = parse(token)
    if found.keys() - ends.keys():
        raise PositionError(f"{token[:64]!r} is no position of this log", hint=f"it has {len(ends)} partitions")
    for partition, offset in found.items():
        if offset > ends[partition]:
            raise PositionError(
                f"position {partition}:{offset} is behind the end of this log, {partition}:{ends[partition]}",
                hint="no such position was given for what is in it now: give earliest, a time, or a position of it",
            )
    return dict.fromkeys(ends, 0) | found
