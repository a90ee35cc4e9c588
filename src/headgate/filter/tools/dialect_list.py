"""The list of dialects, for people who choose one: where each may stand, what its value is, and an example."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from headgate.filter.dialects import CUSTOM, DIALECTS
from headgate.filter.dialects.subscriptions import NAMES

EXAMPLES: Final[Mapping[str, object]] = {
    "cel": 'ce.type == "order.paid" && data.total > 100',
    "expression": 'ce.type.startsWith("order.") && has(data.total)',
    "attributes": {"type": "order.paid", "source": "/shop"},
    "sourceAndType": {"type": "order.paid", "source": "/shop"},
    "cesql": "type = 'order.paid' AND subject LIKE 'shop/%'",
    "jms": "type = 'order.paid' AND subject IN ('a', 'b')",
    "pulsar": {"property": "type", "operator": "EQUALS", "value": "order.paid"},
    "tags": {"anytag1": "gold"},
    "eventPattern": {"detail-type": ["order.paid"], "detail": {"total": [{"numeric": [">", 100]}]}},
    "exact": {"type": "order.paid"},
    "prefix": {"type": "order."},
    "suffix": {"type": ".paid"},
    "all": [{"exact": {"type": "order.paid"}}, {"cesql": "subject LIKE 'shop/%'"}],
    "any": [{"exact": {"type": "order.paid"}}, {"exact": {"type": "order.sent"}}],
    "not": {"prefix": {"type": "test."}},
}
"""A value of each of Headgate's dialects; each compiles."""


class DialectView(msgspec.Struct, frozen=True, omit_defaults=True, rename={"places": "in"}):
    """A dialect.

    Attributes:
        name: The field in which it stands.
        package: Which brings it.
        places: `filter` and `filters`, or `filters` alone.
        value: `text` or `json`; empty where its package alone knows.
        example: A value; None without one.
        fault: Why it cannot be used; empty when it can.
        schema: JSON schema of its values, as its package has it.
    """

    name: str
    package: str
    places: tuple[str, ...]
    value: str = ""
    example: object = None
    fault: str = ""
    schema: Mapping[str, object] | None = None


class DialectList(msgspec.Struct, frozen=True):
    """All of them."""

    dialects: list[DialectView]


def dialect_list() -> DialectList:
    """Headgate's dialects and those of installed packages, which it imports: may block."""
    found = []
    for name in (*DIALECTS, *NAMES):
        if name not in CUSTOM or CUSTOM[name].taken:
            example = EXAMPLES[name]
            value = "text" if isinstance(example, str) else "json"
            places = ("filters",) if name in NAMES else ("filter", "filters")
            found.append(DialectView(name, "headgate", places, value, example))
    for name, custom in CUSTOM.items():
        fault = custom.fault()
        schema = None if fault else custom.load().schema
        found.append(DialectView(name, custom.package, ("filter", "filters"), fault=fault, schema=schema))
    return DialectList(found)
