"""What a reader requests: the query string of `GET /{namespace}/{broker}/events`, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from headgate.filter.compile.compiler import compile_filter
from headgate.filter.compile.request import condition, filter_and_filters
from headgate.filter.tools.ceiling import joined
from headgate.objects.kinds.specs import ServedBroker
from headgate.scan.source import EARLIEST, Query
from headgate_api.errors import InvalidInputError
from headgate_api.limits import READ_EVENTS_MAX, READ_LAST_EVENTS_MAX, READ_VALUES_MAX, READ_WAIT_S_MAX, URL_CHARS_MAX


class QueryError(InvalidInputError):
    """A request to read that cannot be understood."""

    code = "query"


_KNOWN: Final = frozenset(
    {
        *("from", "to", "last", "first", "filter", "filters", "filterValue", "matchUnfiltered"),
        *("limit", "follow", "wait", "stored"),
    }
)
_FLAGS: Final = {"true": True, "false": False, "": True}


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """What a reader requests."""

    query: Query
    start: str = EARLIEST  # where it begins, see `scan/source.py: start_offsets`
    first: str | None = None  # at the first event from there on of which this CEL is true
    limit: int | None = None
    follow: bool = False  # at the end it waits for all that comes
    wait_s: float = 0.0  # else so long for a first event
    last: int | None = None  # at so many last events of each partition that are wanted
    end: str | None = None  # where it ends, exclusive, as `start`
    with_time: bool = False  # each event says when it was stored
    ceiling: str = ""  # CEL: of the broker's events the reader gets, and learns of, only those of which it is true


def read_request(
    broker: ServedBroker, parameters: Sequence[tuple[str, str]], *, follow: bool, ceiling: str = ""
) -> ReadRequest:
    """Reads the decoded parameters of a request; `follow` is whether following is the default.

    The ceiling of the reader's right, CEL, is joined to every condition of the request: each is a search in the log.
    """
    given: dict[str, str] = {}
    values: list[str] = []
    for name, value in parameters:
        if name == "filterValue":
            values.append(value)
        elif name in given:
            raise QueryError(f"{name} is given twice")
        elif name not in _KNOWN:
            raise QueryError(f"unknown parameter {name[:64]!r}", hint=f"known are {', '.join(sorted(_KNOWN))}")
        given[name] = value
    if len(values) > READ_VALUES_MAX:
        raise QueryError(f"{len(values)} filter values are over the limit of {READ_VALUES_MAX} (READ_VALUES_MAX)")
    unfiltered = _flag(given, "matchUnfiltered", False)
    other = next((name for name in ("from", "first") if name in given), None)
    if "last" in given and other:
        raise QueryError(f"last and {other} each say where to begin: give one of them")
    follows = _flag(given, "follow", follow)
    if "to" in given and follows:
        raise QueryError("to says where the answer ends, follow that it does not end", hint="leave out one of them")
    wanted = frozenset(values) if values or unfiltered else None
    cel = joined(_cel(given), ceiling) or None
    query = Query(broker.identity, broker.rule.value, wanted, unfiltered, cel)
    return ReadRequest(
        query,
        given.get("from", EARLIEST)[:URL_CHARS_MAX],
        joined(condition(given["first"], "first"), ceiling) if "first" in given else None,
        int(_number(given, "limit", 1, READ_EVENTS_MAX)) if "limit" in given else None,
        follows,
        _number(given, "wait", 0, READ_WAIT_S_MAX) if "wait" in given else 0.0,
        int(_number(given, "last", 1, READ_LAST_EVENTS_MAX)) if "last" in given else None,
        given["to"][:URL_CHARS_MAX] if "to" in given else None,
        _flag(given, "stored", False),
        ceiling,
    )


def _cel(given: Mapping[str, str]) -> str:
    """The filter as canonical CEL, empty for none; `filter` is CEL, or an object as in a trigger's `spec.filter`."""
    text, listed = given.get("filter"), given.get("filters")
    return "" if text is None and listed is None else compile_filter(*filter_and_filters(text, listed)).cel


def _flag(given: Mapping[str, str], name: str, default: bool) -> bool:
    value = given.get(name)
    if value is None:
        return default
    if value not in _FLAGS:
        raise QueryError(f"{name}={value[:16]!r} is neither true nor false")
    return _FLAGS[value]


def _number(given: Mapping[str, str], name: str, least: float, most: float) -> float:
    try:
        value = float(given[name])
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise QueryError(f"{name}={given[name][:16]!r} is no number between {least} and {most}")
    return value
