"""ISO 8601 durations, as `spec.delivery` has them."""

from __future__ import annotations

import re

# Years and months have no length in seconds, so they are not accepted.
_DURATION = re.compile(
    r"P(?=[\dT])(?:(?P<weeks>\d{1,9})W)?(?:(?P<days>\d{1,9})D)?"
    r"(?:T(?=\d)(?:(?P<hours>\d{1,9})H)?(?:(?P<minutes>\d{1,9})M)?(?:(?P<seconds>\d{1,9}(?:[.,]\d{1,9})?)S)?)?",
    re.ASCII,
)
_SECONDS = {"weeks": 604_800, "days": 86_400, "hours": 3_600, "minutes": 60, "seconds": 1}


def duration_s(text: str) -> float:
    """Seconds of an ISO 8601 duration made of weeks, days, hours, minutes and seconds.

    Args:
        text: For example `PT0.2S`, `PT1M30S`, `P1D`.

    Returns:
        Seconds, not negative.

    Raises:
        ValueError: It is no such duration; the message has an example.
    """
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError("must be an ISO 8601 duration of weeks, days, hours, minutes or seconds, such as PT0.2S")
    return sum(float(count.replace(",", ".")) * _SECONDS[unit] for unit, count in found.groupdict("0").items())
