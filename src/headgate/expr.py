"""A fluent builder of filter expressions, which prints CEL, JSON and protobuf.

    from headgate.expr import event_time, property, publish_time

    wanted = property("region").in_("eu", "us") & (event_time() >= datetime(2026, 1, 31, tzinfo=UTC))
    wanted.cel()       # has(ce.region) && has(ce.time) && ce.region in ["eu", "us"] && ce.time >= timestamp("...")
    wanted.json()      # the value of `pulsar` in `spec.filter`
    wanted.protobuf()  # an `Expr` message of `headgate_api/rpc/pulsar.proto`

Expressions are joined by `&`, `|` and `~` (Python's `and`, `or`, `not` cannot be), comparisons stand in parentheses. A
property is a string, a long or a double, as what it is compared with; `.string()`, `.long()` and `.double()` say it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import NoReturn

from headgate.filter.cel.errors import FilterError
from headgate.filter.cel.unparse import unparse
from headgate.filter.dialects.pulsar import protobuf
from headgate.filter.dialects.pulsar.to_cel import translate
from headgate.filter.dialects.pulsar.tree import (
    AllOf,
    AnyOf,
    Expr,
    JsonObject,
    Negation,
    Operator,
    Spelling,
    Time,
    Type,
    Value,
    from_json,
    to_json,
)
from headgate.filter.dialects.pulsar.tree import predicate as checked

__all__ = ["FilterExpression", "Term", "event_time", "property", "publish_time"]

_FIELD = "filter.pulsar"
_SPELLING = Spelling("property", "operator", "type")


@dataclass(frozen=True, slots=True)
class FilterExpression:
    """What is true, false or unknown of an event; make one from a `Term`."""

    tree: Expr

    def __and__(self, other: FilterExpression) -> FilterExpression:
        return FilterExpression(AllOf((*_operands(AllOf, self.tree), *_operands(AllOf, other.tree))))

    def __or__(self, other: FilterExpression) -> FilterExpression:
        return FilterExpression(AnyOf((*_operands(AnyOf, self.tree), *_operands(AnyOf, other.tree))))

    def __invert__(self) -> FilterExpression:
        return FilterExpression(Negation(self.tree))

    def __bool__(self) -> NoReturn:
        raise TypeError("expressions are joined by &, | and ~, with comparisons in parentheses")

    def __str__(self) -> str:
        return self.cel()

    def cel(self) -> str:
        """CEL text, which is what the expression means."""
        return unparse(translate(self.tree))

    def json(self) -> JsonObject:
        """The value of the field `pulsar` of `spec.filter`."""
        return to_json(self.tree)

    def protobuf(self) -> bytes:
        """An `Expr` message of `headgate_api/rpc/pulsar.proto`."""
        return protobuf.encode(self.tree)

    @classmethod
    def from_json(cls, value: object) -> FilterExpression:
        """The expression of a decoded JSON object; raises FilterError where it is none."""
        return cls(from_json(value, _FIELD))

    @classmethod
    def from_protobuf(cls, message: bytes) -> FilterExpression:
        """The expression of an `Expr` message; raises FilterError where it is none."""
        return cls(protobuf.decode(message, _FIELD))


class Term:
    """A property or a time of the event; every method makes an expression, and raises FilterError for a wrong value.

    Those that ignore case ignore it for the letters A to Z.
    """

    __slots__ = ("_subject", "_type")

    def __init__(self, subject: str | Time, type_: Type | None = None) -> None:
        self._subject = subject
        self._type = type_

    def string(self) -> Term:
        """The property as text."""
        return Term(self._subject, Type.STRING)

    def long(self) -> Term:
        """The property as an integer of 64 bits; unknown where its text is none."""
        return Term(self._subject, Type.LONG)

    def double(self) -> Term:
        """The property as a number; unknown where its text is none."""
        return Term(self._subject, Type.DOUBLE)

    def __eq__(self, value: Value | datetime) -> FilterExpression:  # type: ignore[override]
        return self._ask(Operator.EQUALS, value)

    def __ne__(self, value: Value | datetime) -> FilterExpression:  # type: ignore[override]
        return self._ask(Operator.NOT_EQUALS, value)

    __hash__ = None  # type: ignore[assignment]

    def __gt__(self, value: Value | datetime) -> FilterExpression:
        return self._ask(Operator.GREATER_THAN, value)

    def __ge__(self, value: Value | datetime) -> FilterExpression:
        return self._ask(Operator.GREATER_THAN_EQUALS, value)

    def __lt__(self, value: Value | datetime) -> FilterExpression:
        return self._ask(Operator.LESS_THAN, value)

    def __le__(self, value: Value | datetime) -> FilterExpression:
        return self._ask(Operator.LESS_THAN_EQUALS, value)

    def in_(self, *values: Value | datetime) -> FilterExpression:
        return self._ask(Operator.IN, *values)

    def not_in(self, *values: Value | datetime) -> FilterExpression:
        return self._ask(Operator.NOT_IN, *values)

    def between(self, low: Value | datetime, high: Value | datetime) -> FilterExpression:
        """From `low` to `high`, both included."""
        return self._ask(Operator.BETWEEN, low, high)

    def like(self, pattern: str) -> FilterExpression:
        r"""SQL's LIKE: `%` any text, `_` one code point, `\` before one of the three for the character itself."""
        return self._ask(Operator.LIKE, pattern)

    def starts_with(self, prefix: str) -> FilterExpression:
        return self._ask(Operator.STARTS_WITH, prefix)

    def starts_with_ignore_case(self, prefix: str) -> FilterExpression:
        return self._ask(Operator.STARTS_WITH_IGNORE_CASE, prefix)

    def contains(self, text: str) -> FilterExpression:
        return self._ask(Operator.CONTAINS, text)

    def contains_ignore_case(self, text: str) -> FilterExpression:
        return self._ask(Operator.CONTAINS_IGNORE_CASE, text)

    def does_not_contain(self, text: str) -> FilterExpression:
        return self._ask(Operator.DOES_NOT_CONTAIN, text)

    def does_not_contain_ignore_case(self, text: str) -> FilterExpression:
        return self._ask(Operator.DOES_NOT_CONTAIN_IGNORE_CASE, text)

    def contains_all(self, *texts: str) -> FilterExpression:
        return self._ask(Operator.CONTAINS_ALL, *texts)

    def contains_any(self, *texts: str) -> FilterExpression:
        return self._ask(Operator.CONTAINS_ANY, *texts)

    def contains_none(self, *texts: str) -> FilterExpression:
        return self._ask(Operator.CONTAINS_NONE, *texts)

    def _ask(self, operator: Operator, *values: Value | datetime) -> FilterExpression:
        constants = tuple(map(_constant, values))
        return FilterExpression(checked(self._subject, operator, constants, self._type, _FIELD, _SPELLING))


def property(name: str) -> Term:
    """A context attribute or extension, by its name."""
    return Term(name)


def event_time() -> Term:
    """The attribute `time`; compare it with a datetime, an RFC 3339 text or milliseconds since 1970 UTC."""
    return Term(Time.EVENT)


def publish_time() -> Term:
    """When the broker stored the event, to the millisecond; compare it as `event_time`."""
    return Term(Time.PUBLISH)


def _operands(join: type[AllOf] | type[AnyOf], tree: Expr) -> tuple[Expr, ...]:
    return tree.operands if isinstance(tree, join) else (tree,)


def _constant(value: Value | datetime) -> Value:
    if not isinstance(value, datetime):
        return value
    if value.tzinfo is None:
        raise FilterError("a datetime needs a time zone", field=_FIELD, hint="datetime(2026, 1, 31, tzinfo=UTC)")
    return value.isoformat()
