"""The filter value of an event: the one string that its chunk's Bloom filter holds, by its broker's rule.

A rule is an attribute's name or CEL text. Its producer may give an event another one, in the extension `filtervalue`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from headgate.filter.cel.ast import reads_publish_time
from headgate.filter.cel.cost import check_limits
from headgate.filter.cel.engine import Expression, compile_expression
from headgate.filter.cel.errors import FilterError
from headgate.filter.cel.evaluate import EventView
from headgate.filter.cel.unparse import is_plain_field
from headgate_api.event.attributes import CONTEXT_ATTRIBUTES, is_name
from headgate_api.event.http import canonical
from headgate_api.event.model import Event
from headgate_api.limits import FILTERS_CACHED_MAX

EXTENSION: Final = "filtervalue"
"""The extension by which a producer gives an event's filter value; empty: the event has none."""
DEFAULT: Final = "type"


@dataclass(frozen=True, slots=True)
class FilterValueRule:
    """How a broker's events get their filter values."""

    cel: str  # the rule as CEL text: what a filter must pin for `prune` to skip by it
    attribute: str  # the attribute that it reads; "" when it is an expression

    def of(self, event: Event) -> str | None:
        """The rule's value for an event; None without one: absent, empty, no string, or an error."""
        name = self.attribute
        if name in CONTEXT_ATTRIBUTES:
            return getattr(event, name) or None
        if name:
            value = event.extensions.get(name)
            return None if value is None or type(value) is dict else canonical(value) or None
        return _expression(self.cel).text(EventView(event).activation) or None


def filter_value_rule(text: str) -> FilterValueRule:
    """Reads a rule: an attribute's name, or CEL whose value is a string; FilterError for neither, or over a limit."""
    if is_name(text) and text != "data":
        return FilterValueRule(f"ce.{text}" if is_plain_field(text) else f'ce["{text}"]', text)
    expression = _expression(text)
    result = expression.result_type()
    if result not in {"STRING", "DYN"}:
        raise FilterError(
            f"a filter value is a string, this expression is of type {result.lower()}", hint="string(...) converts"
        )
    tree = expression.tree()
    if reads_publish_time(tree):
        raise FilterError(
            "a filter value cannot depend on publish_time: it is made before the event is stored",
            hint="readers skip chunks by publish_time anyway",
        )
    check_limits(tree)
    return FilterValueRule(text, "")


@lru_cache(maxsize=FILTERS_CACHED_MAX)
def _expression(cel: str) -> Expression:
    return compile_expression(cel)
