"""The tree of a filter expression: predicates with typed values, joined by and, or, not; checked when made."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from headgate.filter.cel.ast import INT64_MAX, INT64_MIN, TIMESTAMP_END_S, TIMESTAMP_START_S
from headgate.filter.cel.errors import FilterError, over_limit, unusable_character
from headgate.filter.cel.like import PatternError, parse_pattern
from headgate.filter.dialects.text_values import check_name
from headgate_api.event import rfc3339
from headgate_api.limits import FILTER_LIST_ITEMS_MAX

Value = str | int | float
"""A constant; of a time, an RFC 3339 text or milliseconds since 1970 UTC."""


class Type(StrEnum):
    """How a property is read: its text, or the number that its text says."""

    STRING = "string"
    LONG = "long"
    DOUBLE = "double"


class Operator(StrEnum):
    """What is asked of a property: the draft's operators in its order, and behind them three that it does not have."""

    EQUALS = "EQUALS"
    NOT_EQUALS = "NOT_EQUALS"
    IN = "IN"
    NOT_IN = "NOT_IN"
    GREATER_THAN = "GREATER_THAN"
    GREATER_THAN_EQUALS = "GREATER_THAN_EQUALS"
    LESS_THAN = "LESS_THAN"
    LESS_THAN_EQUALS = "LESS_THAN_EQUALS"
    STARTS_WITH = "STARTS_WITH"
    STARTS_WITH_IGNORE_CASE = "STARTS_WITH_IGNORE_CASE"
    CONTAINS = "CONTAINS"
    CONTAINS_IGNORE_CASE = "CONTAINS_IGNORE_CASE"
    DOES_NOT_CONTAIN = "DOES_NOT_CONTAIN"
    DOES_NOT_CONTAIN_IGNORE_CASE = "DOES_NOT_CONTAIN_IGNORE_CASE"
    CONTAINS_ANY = "CONTAINS_ANY"
    CONTAINS_NONE = "CONTAINS_NONE"
    BETWEEN = "BETWEEN"
    LIKE = "LIKE"
    CONTAINS_ALL = "CONTAINS_ALL"


LISTS: Final = frozenset(
    {Operator.IN, Operator.NOT_IN, Operator.CONTAINS_ALL, Operator.CONTAINS_ANY, Operator.CONTAINS_NONE}
)
"""Operators with one value or more; BETWEEN has two, any other has one."""
OF_STRINGS: Final = frozenset(
    {
        *(Operator.LIKE, Operator.STARTS_WITH, Operator.STARTS_WITH_IGNORE_CASE),
        *(Operator.CONTAINS, Operator.CONTAINS_IGNORE_CASE),
        *(Operator.DOES_NOT_CONTAIN, Operator.DOES_NOT_CONTAIN_IGNORE_CASE),
        *(Operator.CONTAINS_ALL, Operator.CONTAINS_ANY, Operator.CONTAINS_NONE),
    }
)


ESCAPE: Final = "\\"
"""In a pattern of LIKE, takes the meaning of `%`, `_` and itself away."""


@dataclass(frozen=True, slots=True)
class Property:
    """`property(name)`, read as a type."""

    name: str
    type: Type


class Time(StrEnum):
    """A time of an event, by its name in JSON."""

    EVENT = "eventTime"  # the attribute `time`
    PUBLISH = "publishTime"  # when the broker stored the event, to the millisecond


Subject = Property | Time


@dataclass(frozen=True, slots=True)
class Predicate:
    """One comparison; made by `predicate`, which checks it."""

    subject: Subject
    operator: Operator
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class AllOf:
    """`and`: one operand or more."""

    operands: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """`or`: one operand or more."""

    operands: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Negation:
    """`not`."""

    operand: Expr


Expr = Predicate | AllOf | AnyOf | Negation


@dataclass(frozen=True, slots=True)
class Spelling:
    """What a predicate's members are called where it was written, for errors; `single`: `values` is one and no list."""

    name: str
    operator: str
    type: str
    values: str = "values"
    single: bool = False

    def value(self, index: int) -> str:
        return self.values if self.single else f"{self.values}[{index}]"


_FINER_THAN_MICROSECONDS: Final = re.compile(r"\.[0-9]{6}0*[1-9]")


def predicate(
    subject: str | Time,
    operator: Operator,
    values: tuple[Value, ...],
    type_: Type | None,
    field: str,
    spelling: Spelling,
) -> Predicate:
    """A checked predicate; without `type_` the property is read as what its values are. Raises FilterError."""
    _check_count(operator, len(values), f"{field}.{spelling.values}")
    if isinstance(subject, Time):
        return _of_time(subject, operator, values, type_, field, spelling)
    check_name(subject, f"{field}.{spelling.name}")
    if subject == "time":
        raise FilterError("time is no text", field=f"{field}.{spelling.name}", hint="ask eventTime")
    kind = type_ or _type_of(values, f"{field}.{spelling.values}")
    if operator in OF_STRINGS and kind is not Type.STRING:
        raise FilterError(f"{operator} is for strings, not for {kind}s", field=f"{field}.{spelling.operator}")
    checked = tuple(_typed(value, kind, f"{field}.{spelling.value(index)}") for index, value in enumerate(values))
    if operator is Operator.LIKE:
        try:
            parse_pattern(str(checked[0]), ESCAPE)
        except PatternError as error:
            raise FilterError(str(error), field=f"{field}.{spelling.value(0)}", position=error.position) from None
    return Predicate(Property(subject, kind), operator, checked)


def _check_count(operator: Operator, count: int, field: str) -> None:
    if count > FILTER_LIST_ITEMS_MAX:
        raise over_limit("FILTER_LIST_ITEMS_MAX", f"{count} values", field=field)
    if operator in LISTS:
        if not count:
            raise FilterError(f"{operator} takes one value or more", field=field)
    elif count != (wanted := 2 if operator is Operator.BETWEEN else 1):
        plural = "" if wanted == 1 else "s"
        raise FilterError(f"{operator} takes {wanted} value{plural}, not {count}", field=field)


def _of_time(
    subject: Time, operator: Operator, values: tuple[Value, ...], type_: Type | None, field: str, spelling: Spelling
) -> Predicate:
    if type_ is not None:
        raise FilterError("a time has no other type", field=f"{field}.{spelling.type}")
    if operator in OF_STRINGS:
        raise FilterError(f"{operator} is for strings, not for times", field=f"{field}.{spelling.operator}")
    for index, value in enumerate(values):
        _check_time(value, f"{field}.{spelling.value(index)}")
    return Predicate(subject, operator, values)


def _check_time(value: Value, field: str) -> None:
    match value:
        case bool() | float():
            known = False
        case int():
            known = milliseconds_known(value)
        case str():
            micros = rfc3339.micros(value)
            if micros is not None and _FINER_THAN_MICROSECONDS.search(value):
                raise FilterError("a time is known to the microsecond", field=field)
            known = micros is not None and milliseconds_known(micros // 1000)
    if not known:
        hint = "2026-01-31T09:30:00Z, or milliseconds since 1970, from year 1 to 9999"
        raise FilterError("is no time", field=field, hint=hint)


def milliseconds_known(milliseconds: int) -> bool:
    """Whether an instant lies in the years that CEL has."""
    return TIMESTAMP_START_S * 1000 <= milliseconds < TIMESTAMP_END_S * 1000


def _type_of(values: tuple[Value, ...], field: str) -> Type:
    texts = sum(isinstance(value, str) for value in values)
    if texts == len(values):
        return Type.STRING
    if texts:
        raise FilterError("strings and numbers are mixed", field=field)
    return Type.LONG if all(isinstance(value, int) for value in values) else Type.DOUBLE


def _typed(value: Value, kind: Type, field: str) -> Value:
    match kind, value:
        case _, bool():
            pass
        case Type.STRING, str():
            if unusable_character(value) is not None:
                raise FilterError("a NUL character or half of a surrogate pair in a string", field=field)
            return value
        case Type.LONG, int() if INT64_MIN <= value <= INT64_MAX:
            return value
        case Type.LONG, int():
            raise FilterError("a long has 64 bits", field=field)
        case Type.DOUBLE, int() | float():
            try:
                number = float(value)
            except OverflowError:
                number = math.inf
            if math.isfinite(number):
                return number
            raise FilterError("must be a finite number", field=field)
    raise FilterError(f"must be a {kind}", field=field)
