"""Timestamps in CEL, from an instant since 1970."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from headgate.filter.cel.ast import Node
from headgate.filter.cel.build import call, literal

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def timestamp_of(milliseconds: float) -> Node | None:
    """`timestamp("...")` of an instant in milliseconds since 1970 UTC; None when there is none from year 1 to 9999."""
    if milliseconds != milliseconds or not float(milliseconds).is_integer():
        return None
    try:
        return timestamp_of_micros(int(milliseconds) * 1_000)
    except OverflowError:
        return None


def timestamp_of_micros(micros: int) -> Node:
    """`timestamp("...")` of an instant in microseconds since 1970 UTC, which lies from year 1 to 9999."""
    text = (_EPOCH + timedelta(microseconds=micros)).isoformat().removesuffix("+00:00")
    text = text.rstrip("0") if "." in text else text
    return call("timestamp", literal(f"{text}Z"))
