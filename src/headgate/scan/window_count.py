"""Counts of one window of a sample, as they are sent."""

from __future__ import annotations

import msgspec


class WindowCount(msgspec.Struct, frozen=True):
    """What a window of a sample, or a part of it, counted; by the same names as `counting.CountPage`.

    The windows of a partition have numbers from 0 on.
    """

    partition: int
    number: int
    scanned: int
    taken: int
    errors: int
    both: int
