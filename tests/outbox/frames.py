"""Frames of the match link, as Spark's tasks send them in Java (docs/spec/match-link.md)."""

from __future__ import annotations

import struct
from typing import Final

from headgate.outbox.link_format import FRAME_GENERATION, FRAME_PASSED, FRAME_ROW

_FRAME: Final = struct.Struct("<BBiq")


def encode_row(verdict: int, target: int, offset: int) -> bytes:
    return _FRAME.pack(FRAME_ROW, verdict, target, offset)


def encode_passed(offset: int) -> bytes:
    """Every event below `offset` has been matched and all its rows stand before this frame."""
    return _FRAME.pack(FRAME_PASSED, 0, 0, offset)


def encode_generation(generation: int) -> bytes:
    """Events from the last `passed` on are matched by this generation of filters."""
    return _FRAME.pack(FRAME_GENERATION, 0, 0, generation)
