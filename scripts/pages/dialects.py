"""The page of operators: every operator of every dialect, what it is in CEL, and who decides it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from headgate.filter.cel.evaluate import OutcomeKind, program
from headgate.filter.compile.compiler import compile_filter
from headgate.filter.dialects import to_cel
from headgate.filter.tools.explain import explain
from headgate_api.event.model import DataKind, Event

HEAD: Final = """# Operators

<!-- Written by `make pages` from scripts/pages/dialects.py: edit that. -->

Every way to write a filter becomes CEL, which the third column shows.

* *Decided by* says who decides on an event: `matcher` (Catalyst expressions inside the Spark query), or `cel-cpp` (the matcher finds candidates, the dispatcher evaluates them). A matcher that cannot tell one event's value hands that event to cel-cpp.
* *Found by* is the index: an equality, a prefix, a suffix, or `scan` when every event of the broker is compared. A filter with an equality is never a scan.
* *Error on* lists the odd events on which the filter's value is an error and not false. It matches in neither case. An attribute or member is *absent*, is *null*, is of *another type* or *no number*, or the event has *no JSON data*.

`headgate filter explain` says the same of a filter of yours. [Filters](index.md) says what dialects refuse.
"""


_STORED_US: Final = 1_769_851_800_000_000


def _pulsar(operator: str, *values: object) -> dict[str, object]:
    argument = {"value": values[0]} if len(values) == 1 else {"values": list(values)}
    return {"property": "region", "operator": operator, **argument}


def _detail(*matchers: object) -> dict[str, object]:
    return {"detail": {"state": list(matchers)}}


OPERATORS: Final[Mapping[str, Mapping[str, Any]]] = {
    "attributes": {"value": {"region": "eu"}, "any value": {"region": ""}, "time": {"time": "2026-01-31T09:30:00Z"}},
    "sourceAndType": {"both": {"source": "/shop", "type": "order"}, "any": {"source": "", "type": "order"}},
    "exact": {"one": {"type": "order"}, "extension": {"region": "eu"}, "several": {"type": "order", "region": "eu"}},
    "prefix": {"one": {"type": "order."}, "extension": {"region": "eu-"}},
    "suffix": {"one": {"type": ".paid"}, "extension": {"region": "-1"}},
    "all": {"list": [{"exact": {"type": "order"}}, {"prefix": {"source": "/shop/"}}]},
    "any": {"list": [{"exact": {"type": "order"}}, {"prefix": {"source": "/shop/"}}]},
    "not": {"filter": {"exact": {"region": "eu"}}},
    "expression": {
        "==": 'ce.region == "eu"',
        "!=": 'data.state != "on"',
        "< <= > >=": "data.n >= 5",
        "in": 'ce.region in ["eu", "us"]',
        "in data": '"a" in data.tags',
        "has": "has(data.state)",
        "&&": 'ce.type == "order" && data.n > 5',
        "||": 'ce.type == "order" || ce.type == "refund"',
        "!": '!(ce.region == "eu")',
        "? :": 'has(data.state) ? data.state == "on" : ce.type == "order"',
        "bare boolean": "data.flag",
        "startsWith": 'ce.type.startsWith("order.")',
        "endsWith": 'ce.type.endsWith(".paid")',
        "contains": 'data.state.contains("x")',
        "lowerAscii": 'ce.region.lowerAscii() == "eu"',
        "matches, plain": 'ce.type.matches("^order\\\\.")',
        "matches": 'ce.type.matches("^order\\\\.(paid|sent)$")',
        "size": "size(ce.region) > 0",
        "arithmetic": "data.n + 10 > 100",
        "int()": "int(ce.region) > 5",
        "timestamp": 'ce.time >= timestamp("2026-01-01T00:00:00Z")',
        "publish_time": 'publish_time >= timestamp("2026-01-01T00:00:00Z")',
        "exists": 'data.tags.exists(t, t == "a")',
        "all": 'data.tags.all(t, t != "a")',
        "filter, map": "size(data.items.filter(i, i.n > 5)) > 1",
        "two paths": "data.n > data.m",
        "list index": 'data.tags[0] == "a"',
    },
    "cesql": {
        "=": "region = 'eu'",
        "!= <>": "region <> 'eu'",
        "< <= > >=": "prio > 5",
        "AND": "type = 'order' AND region = 'eu'",
        "OR": "type = 'order' OR region = 'eu'",
        "XOR": "EXISTS region XOR type = 'order'",
        "NOT": "NOT (region = 'eu')",
        "IN": "region IN ('eu', 'us')",
        "NOT IN": "region NOT IN ('eu', 'us')",
        "LIKE %": "region LIKE 'eu-%'",
        "LIKE _": "region LIKE 'eu_1'",
        "NOT LIKE": "region NOT LIKE 'eu-%'",
        "EXISTS": "EXISTS region",
        "+ - * / %": "prio + 1 = 6",
        "- (sign)": "-prio = 5",
        "LENGTH": "LENGTH(region) = 2",
        "CONCAT": "CONCAT(type, region) = 'ordereu'",
        "CONCAT_WS": "CONCAT_WS('-', type, region) = 'order-eu'",
        "LOWER": "LOWER(region) = 'eu'",
        "UPPER": "UPPER(region) = 'EU'",
        "TRIM": "TRIM(region) = 'eu'",
        "LEFT": "LEFT(region, 2) = 'eu'",
        "RIGHT": "RIGHT(region, 2) = '-1'",
        "SUBSTRING": "SUBSTRING(region, 2) = 'u'",
        "ABS": "ABS(prio) = 5",
        "INT": "INT(region) = 5",
        "BOOL": "BOOL(flag)",
        "STRING": "STRING(prio) = '5'",
        "IS_INT": "IS_INT(region)",
        "IS_BOOL": "IS_BOOL(flag)",
    },
    "jms": {
        "=": "region = 'eu'",
        "<>": "region <> 'eu'",
        "< <= > >=": "prio > 5",
        "AND": "JMSType = 'order' AND region = 'eu'",
        "OR": "JMSType = 'order' OR region = 'eu'",
        "NOT": "NOT region = 'eu'",
        "IN": "region IN ('eu', 'us')",
        "NOT IN": "region NOT IN ('eu', 'us')",
        "BETWEEN": "prio BETWEEN 1 AND 5",
        "NOT BETWEEN": "prio NOT BETWEEN 1 AND 5",
        "LIKE %": "region LIKE 'eu-%'",
        "LIKE _": "region LIKE 'eu_1'",
        "LIKE ESCAPE": "region LIKE 'eu!_%' ESCAPE '!'",
        "NOT LIKE": "region NOT LIKE 'eu-%'",
        "IS NULL": "region IS NULL",
        "IS NOT NULL": "region IS NOT NULL",
        "arithmetic": "prio * 2 > 10",
        "boolean": "flag = TRUE",
    },
    "pulsar": {
        "EQUALS": _pulsar("EQUALS", "eu"),
        "NOT_EQUALS": _pulsar("NOT_EQUALS", "eu"),
        "IN": _pulsar("IN", "eu", "us"),
        "NOT_IN": _pulsar("NOT_IN", "eu", "us"),
        "GREATER_THAN": _pulsar("GREATER_THAN", 5),
        "GREATER_THAN_EQUALS": _pulsar("GREATER_THAN_EQUALS", 5),
        "LESS_THAN": _pulsar("LESS_THAN", 5),
        "LESS_THAN_EQUALS": _pulsar("LESS_THAN_EQUALS", 2.5),
        "STARTS_WITH": _pulsar("STARTS_WITH", "eu"),
        "STARTS_WITH_IGNORE_CASE": _pulsar("STARTS_WITH_IGNORE_CASE", "EU"),
        "CONTAINS": _pulsar("CONTAINS", "u"),
        "CONTAINS_IGNORE_CASE": _pulsar("CONTAINS_IGNORE_CASE", "EU"),
        "DOES_NOT_CONTAIN": _pulsar("DOES_NOT_CONTAIN", "eu"),
        "DOES_NOT_CONTAIN_IGNORE_CASE": _pulsar("DOES_NOT_CONTAIN_IGNORE_CASE", "EU"),
        "CONTAINS_ANY": _pulsar("CONTAINS_ANY", "a", "b"),
        "CONTAINS_NONE": _pulsar("CONTAINS_NONE", "a", "b"),
        "BETWEEN": _pulsar("BETWEEN", 1, 5),
        "LIKE": _pulsar("LIKE", "eu%"),
        "CONTAINS_ALL": _pulsar("CONTAINS_ALL", "a", "b"),
        "publishTime": {"publishTime": {}, "operator": "GREATER_THAN", "value": "2026-01-31T09:30:00Z"},
        "eventTime": {"eventTime": {}, "operator": "GREATER_THAN", "value": "2026-01-31T09:30:00Z"},
        "and": {"and": [_pulsar("EQUALS", "eu"), _pulsar("NOT_EQUALS", "us")]},
        "or": {"or": [_pulsar("EQUALS", "eu"), _pulsar("EQUALS", "us")]},
        "not": {"not": _pulsar("EQUALS", "eu")},
    },
    "tags": {"any": {"anytag1": "red", "anytag2": "blue"}, "all": {"alltag1": "red", "alltag2": "blue"}},
    "eventPattern": {
        "value": _detail("on"),
        "values": _detail("on", 5, True, None),
        "attribute": {"region": ["eu", "us"]},
        "exactly": _detail({"exactly": "on"}),
        "prefix": _detail({"prefix": "o"}),
        "prefix of an attribute": {"region": [{"prefix": "eu-"}]},
        "prefix of time": {"time": [{"prefix": "2026-03"}]},
        "prefix, equals-ignore-case": _detail({"prefix": {"equals-ignore-case": "O"}}),
        "suffix": _detail({"suffix": "n"}),
        "suffix, equals-ignore-case": _detail({"suffix": {"equals-ignore-case": "N"}}),
        "equals-ignore-case": _detail({"equals-ignore-case": "ON"}),
        "equals-ignore-case, not ASCII": _detail({"equals-ignore-case": "GRÜN"}),
        "wildcard x*": _detail({"wildcard": "o*"}),
        "wildcard *x*": _detail({"wildcard": "*n*"}),
        "wildcard x*y": _detail({"wildcard": "a*b"}),
        "wildcard x*y*z": _detail({"wildcard": "a*b*c"}),
        "numeric =": _detail({"numeric": ["=", 5]}),
        "numeric range": _detail({"numeric": [">", 0, "<=", 5]}),
        "cidr": _detail({"cidr": "10.0.0.0/24"}),
        "cidr, IPv6": _detail({"cidr": "2001:db8::/32"}),
        "exists true": _detail({"exists": True}),
        "exists false": _detail({"exists": False}),
        "anything-but": _detail({"anything-but": ["on", "off"]}),
        "anything-but prefix": _detail({"anything-but": {"prefix": "o"}}),
        "anything-but suffix": _detail({"anything-but": {"suffix": "n"}}),
        "anything-but equals-ignore-case": _detail({"anything-but": {"equals-ignore-case": "ON"}}),
        "anything-but wildcard": _detail({"anything-but": {"wildcard": "*n*"}}),
        "anything-but of an attribute": {"region": [{"anything-but": "eu"}]},
        "$or": {"$or": [{"source": ["/shop"]}, _detail("on")]},
        "fields of one object": {"detail": {"items": {"sku": ["A"], "n": [2]}}},
        "name with dots": {"detail": {"service.name": ["cart"]}},
    },
}
"""An example of every operator. `cel` is another name of `expression`."""

_IN_LISTS_ONLY: Final = ("exact", "prefix", "suffix", "all", "any", "not")
_MEMBERS: Final = ("state", "n", "m", "flag", "tags", "items")


def _event(data: object, **more: object) -> Event:
    body: dict[str, Any] = {"data": b"x", "data_kind": DataKind.TEXT} if data is None else _json(data)
    return Event(**{"specversion": "1.0", "id": "1", "source": "/s", "type": "t", **body, **more})


def _json(data: object) -> dict[str, Any]:
    return {"data": json.dumps(data).encode(), "data_kind": DataKind.JSON}


_THERE: Final = {
    "extensions": {"region": "5", "prio": 5, "flag": True},
    "time": "2026-01-01T00:00:00Z",
}
ODD_EVENTS: Final = {
    "absent": _event({}),
    "null": _event(dict.fromkeys(_MEMBERS), **_THERE),
    "another type": _event({name: {} for name in _MEMBERS}, extensions={"region": 7, "prio": True, "flag": 7}),
    "no number": _event({}, extensions={"region": "eu", "prio": "x", "flag": "x"}, time="2026-01-01T00:00:00Z"),
    "no JSON data": _event(None, **_THERE),
}


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *_sections()])


def _sections() -> Iterator[str]:
    for dialect, operators in OPERATORS.items():
        where = "element of `spec.filters`" if dialect in _IN_LISTS_ONLY else "`spec.filter`, element of `spec.filters`"
        yield f"## {dialect}\n\n{where}\n"
        yield "| operator | example | CEL | decided by | found by | error on |"
        yield "|---|---|---|---|---|---|"
        for operator, value in operators.items():
            yield f"| {' | '.join(_cell(part) for part in _row(dialect, operator, value))} |"
        yield ""


def _row(dialect: str, operator: str, value: object) -> tuple[str, ...]:
    given: tuple[dict[str, object] | None, list[object]] = (
        (None, [{dialect: value}]) if dialect in _IN_LISTS_ONLY else ({dialect: value}, [])
    )
    compiled = compile_filter(*given)
    explanation = explain(compiled)
    found = {
        _kind(" && ".join(shown.index))
        for row, shown in zip(compiled.rows, explanation.rows, strict=True)
        if not row.is_of_doubt
    }
    who = {"matcher": "matcher", "cel": "cel-cpp", "both": "matcher, cel-cpp", "nobody": "-"}[explanation.decided_by]
    evaluated = program(compiled.cel)
    errors = [
        name for name, event in ODD_EVENTS.items() if evaluated.evaluate(event, _STORED_US).kind is OutcomeKind.ERROR
    ]
    shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return (operator, f"`{shown}`", f"`{to_cel(*given)}`", who, ", ".join(sorted(found)), ", ".join(errors) or "-")


def _kind(index: str) -> str:
    if not index:
        return "scan"
    return "prefix" if "startsWith" in index else "suffix" if "endsWith" in index else "equality"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
