"""Timestamps of RFC 3339, section 5.6: parsing and writing.

`datetime` knows neither year 0 nor leap seconds nor nanoseconds and accepts ISO 8601 forms that RFC 3339 does not
have, so the rule is written out here.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

_SHAPE: Final = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]+))?"
    r"(?:[Zz]|([+-])([0-9]{2}):([0-9]{2}))"
)
_DAYS: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_DAYS_FROM_YEAR_0: Final = 719_468  # from 0000-03-01 to 1970-01-01
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def micros(text: str) -> int | None:
    """The instant in microseconds since 1970 UTC, or None when `text` is not an RFC 3339 timestamp.

    Digits below the microsecond are cut, never rounded. A leap second is the first instant of the next minute.
    """
    match = _SHAPE.fullmatch(text)
    if match is None:
        return None
    year, month, day, hour, minute, second = map(int, match.group(1, 2, 3, 4, 5, 6))
    if not 1 <= month <= 12 or not 1 <= day <= _DAYS[month - 1] or hour > 23 or minute > 59 or second > 60:
        return None
    if day == 29 and month == 2 and not _is_leap(year):
        return None
    fraction, sign, offset_hours, offset_minutes = match.group(7, 8, 9, 10)
    offset_s = 0
    if sign is not None:
        if offset_hours > "23" or offset_minutes > "59":
            return None
        offset_s = int(offset_hours) * 3600 + int(offset_minutes) * 60
        if sign == "-":
            offset_s = -offset_s
    seconds = _days(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second - offset_s
    return seconds * 1_000_000 + (int(fraction[:6].ljust(6, "0")) if fraction else 0)


def text(time_us: int, timespec: Literal["milliseconds", "microseconds"] = "microseconds") -> str:
    """The timestamp of microseconds since 1970 UTC, cut to `timespec`; where there is none (a wrong clock), these."""
    try:
        return (_EPOCH + timedelta(microseconds=time_us)).isoformat(timespec=timespec).replace("+00:00", "Z")
    except OverflowError:
        return f"{time_us}us"


def _is_leap(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def _days(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01 in the proleptic Gregorian calendar; years start in March so that leap days come last."""
    if month <= 2:
        year -= 1
        month += 12
    era, year_of_era = divmod(year, 400)
    day_of_year = (153 * (month - 3) + 2) // 5 + day - 1
    return era * 146_097 + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year - _DAYS_FROM_YEAR_0
