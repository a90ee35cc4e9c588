"""What is asked of a backtest and what it answers, page by page."""

from __future__ import annotations

import msgspec

from headgate.control.objects import OWN_API_VERSION
from headgate.scan.window_count import WindowCount


class BacktestRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """What a person asks for.

    Attributes:
        filter: CEL, or an object as in a trigger's spec.filter.
        against: A second filter; empty for none.
        from_: Where it begins: earliest, a time, or a position.
        to: Where it ends, exclusive: next (now), a time, or a position.
        share: Of the stored events that are looked at, BACKTEST_SHARE_MIN to 1.
        triggers: Whether to compare with the broker's triggers.
        next: Of the last answer; empty to begin.
    """

    filter: str | dict[str, object] = ""
    against: str | dict[str, object] = ""
    from_: str = msgspec.field(name="from", default="earliest")
    to: str = "next"
    share: float = 1.0
    triggers: bool = True
    next: str = ""


class HourCount(msgspec.Struct, frozen=True):
    """Events that were stored within an hour and taken."""

    hour: str
    taken: int


class TriggerOverlap(msgspec.Struct, frozen=True):
    """Events taken that a trigger takes too; an estimate where fewer were compared than taken."""

    name: str
    both: float


class BacktestPage(msgspec.Struct, frozen=True, rename="camel"):
    """One answer.

    Attributes:
        api_version: headgate.dev/v1.
        kind: FilterBacktest.
        of: Which filter this page counted: `filter` or `against`.
        stored: Stored events, of all brokers, from the beginning to the end.
        passed: How many of them have been passed for `of`.
        scanned: In this page: those looked at, or ruled out by the headers of their chunks.
        taken: Of these, the broker's events of which the filter is true.
        errors: Those for which it is an error.
        hours: Events taken by the hour in which they were stored.
        both: Events taken that `against` takes too, in pages of `filter`.
        compared: Events taken that were compared with the triggers.
        triggers: For each trigger, in pages of `filter`.
        triggers_left_out: Triggers beyond BACKTEST_TRIGGERS_MAX, which are not compared.
        chunks_read: Whose bodies were read.
        chunks_skipped: Passed over by their headers.
        windows: Of a sample: what each window counted, for the margin of error (`backtest_margin.py`). The first and
            the last may be parts of windows.
        next: Where to go on; empty at the end.
    """

    of: str
    stored: int
    passed: int
    scanned: int
    taken: int
    errors: int
    hours: list[HourCount]
    both: int
    compared: int
    triggers: list[TriggerOverlap]
    chunks_read: int
    chunks_skipped: int
    api_version: str = msgspec.field(default=OWN_API_VERSION)
    kind: str = "FilterBacktest"
    triggers_left_out: int = 0
    windows: list[WindowCount] = []
    next: str = ""
