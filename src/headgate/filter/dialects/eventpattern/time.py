"""Matchers of an event pattern as tests of `ce.time`, which is an instant and no text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

from headgate.event import rfc3339
from headgate.filter.cel.ast import FALSE, TRUE, Compare, Comparison, Node, Not
from headgate.filter.cel.build import all_of, any_of, attribute, call, literal
from headgate.filter.dialects.eventpattern.matchers import tests
from headgate.filter.dialects.eventpattern.rules import Affix, AnythingBut, Exact, Matcher, Numeric

_TIME: Final = attribute("time")
_BEGINNING: Final = re.compile(r"([0-9]{4})(?:-|-([0-9]{2})(?:-|-([0-9]{2})(?:T|T([0-9]{2})(?::|:([0-9]{2}):?)?)?)?)?")
_STEPS: Final = (None, None, timedelta(days=1), timedelta(hours=1), timedelta(minutes=1))


def time_tests(matchers: Iterable[Matcher]) -> Node:
    """Whether one of the matchers takes the event's time.

    A whole timestamp is equal as an instant, and the beginning of one is a range of instants in UTC; everything else
    is asked of the time's canonical text in UTC.
    """
    return any_of(_test(matcher) for matcher in matchers)


def _test(matcher: Matcher) -> Node:
    match matcher:
        case Exact(value) if not isinstance(value, str):
            return FALSE
        case Numeric():
            return FALSE
        case AnythingBut((Exact(value), *_)) if not isinstance(value, str):
            return TRUE
        case Exact(str(text)) if rfc3339.micros(text) is not None:
            return _compared(Comparison.EQ, text)
        case Affix("startsWith", text, False):
            return _beginning(text) or _as_text(matcher)
        case AnythingBut(unwanted) if all(_is_instant(item) for item in unwanted):
            return Not(time_tests(unwanted))
        case AnythingBut((Affix("startsWith", text, False),)):
            within = _beginning(text)
            return _as_text(matcher) if within is None else Not(within)
        case _:
            return _as_text(matcher)


def _is_instant(matcher: Matcher) -> bool:
    return isinstance(matcher, Exact) and isinstance(matcher.value, str) and rfc3339.micros(matcher.value) is not None


def _as_text(matcher: Matcher) -> Node:
    return tests(call("string", _TIME), (matcher,), is_string=True)


def _compared(comparison: Comparison, text: str) -> Node:
    return Compare(comparison, _TIME, call("timestamp", literal(text)))


def _beginning(text: str) -> Node | None:
    """The range of instants whose text begins so; None when it is no plain range."""
    found = _BEGINNING.fullmatch(text)
    if found is None:
        return None
    given = [int(part) for part in found.groups() if part is not None]
    year, month, day, hour, minute = given + [0, 1, 1, 0, 0][len(given) :]
    try:
        start = datetime(year, month, day, hour, minute, tzinfo=UTC)
        step = _STEPS[len(given) - 1]
        if step is not None:
            end = start + step
        else:
            end = start.replace(year=year + 1) if len(given) == 1 or month == 12 else start.replace(month=month + 1)
            end = end.replace(month=1) if len(given) == 2 and month == 12 else end
    except (ValueError, OverflowError):
        return None
    return all_of((_compared(Comparison.GE, _text(start)), _compared(Comparison.LT, _text(end))))


def _text(instant: datetime) -> str:
    return instant.strftime("%Y-%m-%dT%H:%M:%SZ").rjust(20, "0")
