"""The tree of a filter expression: predicates with typed values, joined by and, or, not, and its JSON.

    {"and": [{"property": "region", "operator": "IN", "values": ["eu", "us"]},
             {"eventTime": {}, "operator": "GREATER_THAN", "value": "2026-01-31T09:30:00Z"}]}

An object is `{"and": [...]}`, `{"or": [...]}`, `{"not": {...}}` or a predicate: `property` (a name), `eventTime` or
`publishTime` (`{}`), `operator`, and `value` or `values`. `type` says how a property is read: "string", "long" or
"double"; without it as its values are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar

from headgate.filter.cel.ast import INT64_MAX, INT64_MIN, in_cel_years
from headgate.filter.cel.errors import FilterError, known_names, over_limit, unusable_character
from headgate.filter.cel.like import PatternError, parse_pattern
from headgate.filter.dialects.text_values import check_name
from headgate_api.event import rfc3339
from headgate_api.limits import FILTER_CHARACTERS_MAX, FILTER_DEPTH_MAX, FILTER_LIST_ITEMS_MAX, FILTER_TOKENS_MAX

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
            seconds = None
        case int():
            seconds = value // 1_000
        case str():
            micros = rfc3339.micros(value)
            if micros is not None and _FINER_THAN_MICROSECONDS.search(value):
                raise FilterError("a time is known to the microsecond", field=field)
            seconds = None if micros is None else micros // 1_000_000
    if seconds is None or not in_cel_years(seconds):
        hint = "2026-01-31T09:30:00Z, or milliseconds since 1970, from year 1 to 9999"
        raise FilterError("is no time", field=field, hint=hint)


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


# --- json -----------------------------------------------------------------------------------------

JsonObject = dict[str, object]
_Kind = TypeVar("_Kind", Operator, Type)

_SUBJECTS: Final = ("property", *Time)
_LIST: Final = Spelling("property", "operator", "type")
_ONE: Final = Spelling("property", "operator", "type", "value", single=True)
_MEMBERS: Final = frozenset({*_SUBJECTS, "operator", "value", "values", "type"})
_HINT: Final = '{"property": "region", "operator": "IN", "values": ["eu", "us"]}'


def from_json(value: object, field: str) -> Expr:
    """The filter expression that a decoded JSON object is."""
    _check_size(value, field)
    return _expression(value, field, 1)


def _check_size(value: object, field: str) -> None:
    """Refuses what is too large before anything is made of it."""
    values, characters = 0, 0
    waiting = [value]
    while waiting:
        match waiting.pop():
            case Mapping() as members:
                values += len(members)
                waiting.extend(members.values())
            case list() | tuple() as items:
                values += len(items)
                waiting.extend(items)
            case str() as text:
                characters += len(text)
        if values > FILTER_TOKENS_MAX:
            reason = f"the expression has more than {FILTER_TOKENS_MAX} values (FILTER_TOKENS_MAX)"
            raise FilterError(reason, field=field, limit="FILTER_TOKENS_MAX")
    if characters > FILTER_CHARACTERS_MAX:
        raise over_limit("FILTER_CHARACTERS_MAX", f"the texts have {characters} characters", field=field)


def to_json(expression: Expr) -> JsonObject:
    """A filter expression as JSON; `from_json` gives it back."""
    match expression:
        case AllOf(operands):
            return {"and": [to_json(operand) for operand in operands]}
        case AnyOf(operands):
            return {"or": [to_json(operand) for operand in operands]}
        case Negation(operand):
            return {"not": to_json(operand)}
        case Predicate(subject, operator, values):
            written: JsonObject = {"operator": operator.value}
            if operator in LISTS or operator is Operator.BETWEEN:
                written["values"] = list(values)
            else:
                written["value"] = values[0]
            if isinstance(subject, Property):
                return {"property": subject.name, "type": subject.type.value, **written}
            return {subject.value: {}, **written}


def _expression(value: object, field: str, depth: int) -> Expr:
    if not isinstance(value, Mapping):
        raise FilterError("must be an object", field=field, hint=_HINT)
    if depth > FILTER_DEPTH_MAX:
        raise over_limit("FILTER_DEPTH_MAX", "the expression is nested too deeply", field=field)
    joins = [name for name in ("and", "or", "not") if name in value]
    if not joins:
        return _predicate(value, field)
    if len(value) > 1:
        others = ", ".join(str(name) for name in value if name != joins[0])
        raise FilterError(f"{joins[0]} stands alone, without {others}", field=field)
    name, inner = joins[0], value[joins[0]]
    if name == "not":
        return Negation(_expression(inner, f"{field}.not", depth + 1))
    if not isinstance(inner, list | tuple) or not inner:
        raise FilterError("must be a list of one expression or more", field=f"{field}.{name}", hint=_HINT)
    if len(inner) > FILTER_LIST_ITEMS_MAX:
        raise over_limit("FILTER_LIST_ITEMS_MAX", f"{len(inner)} expressions", field=f"{field}.{name}")
    operands = tuple(_expression(item, f"{field}.{name}[{index}]", depth + 1) for index, item in enumerate(inner))
    return AllOf(operands) if name == "and" else AnyOf(operands)


def _predicate(value: Mapping[object, object], field: str) -> Predicate:
    for name in value:
        if name not in _MEMBERS:
            known = ("and", "or", "not", *_SUBJECTS, "operator", "value", "values", "type")
            raise FilterError("unknown field", field=f"{field}.{name}", hint=known_names(known, name))
    asked = [name for name in _SUBJECTS if name in value]
    if len(asked) != 1:
        raise FilterError("must have one of property, eventTime and publishTime", field=field, hint=_HINT)
    subject = value[asked[0]]
    if asked[0] != "property":
        if subject != {}:
            raise FilterError("must be {}", field=f"{field}.{asked[0]}")
        subject = Time(asked[0])
    elif not isinstance(subject, str):
        raise FilterError("must be a string", field=f"{field}.property")
    values = _values(value, field)
    spelling = _ONE if "value" in value else _LIST
    operator = _named(Operator, "operator", value, field)
    type_ = _named(Type, "type", value, field) if "type" in value else None
    return predicate(subject, operator, values, type_, field, spelling)


def _named(kind: type[_Kind], name: str, value: Mapping[object, object], field: str) -> _Kind:
    named = value.get(name)
    if not isinstance(named, str) or named not in set(kind):
        raise FilterError(f"is no {name}", field=f"{field}.{name}", hint=known_names(kind, named))
    return kind(named)


def _values(value: Mapping[object, object], field: str) -> tuple[Value, ...]:
    if ("value" in value) == ("values" in value):
        raise FilterError("must have either value or values", field=field, hint=_HINT)
    if "value" in value:
        return (_constant(value["value"], f"{field}.value"),)
    listed = value["values"]
    if not isinstance(listed, list | tuple):
        raise FilterError("must be a list", field=f"{field}.values")
    return tuple(_constant(item, f"{field}.values[{index}]") for index, item in enumerate(listed))


def _constant(value: object, field: str) -> Value:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise FilterError("must be a string or a number", field=field)
    return value
