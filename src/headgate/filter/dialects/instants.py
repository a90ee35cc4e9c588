"""Timestamps in CEL, from milliseconds since 1970 or a datetime."""

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
        instant = _EPOCH + timedelta(milliseconds=int(milliseconds))
    except OverflowError:
        return None
    return timestamp_text(instant)


def timestamp_text(instant: datetime) -> Node:
    """`timestamp("...")` of a datetime with a zone."""
    text = instant.astimezone(UTC).isoformat().removesuffix("+00:00")
    text = text.rstrip("0") if "." in text else text
    return call("timestamp", literal(f"{text}Z"))
