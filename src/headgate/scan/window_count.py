"""Counts of one window of a sample, as they are sent."""

from __future__ import annotations

import msgspec


class WindowCount(msgspec.Struct, frozen=True):
    """What a window of a sample, or a part of it, counted.

    Attributes:
        number: Of the window in the partition, from 0.
        scanned: Stored events of all brokers that were looked at, or passed over because the filter rules them out.
        taken: Of these, events of the broker of which the filter is true.
        errors: Those for which it is an error.
        both: Events taken that `beside` takes too.
    """

    partition: int
    number: int
    scanned: int
    taken: int
    errors: int
    both: int
