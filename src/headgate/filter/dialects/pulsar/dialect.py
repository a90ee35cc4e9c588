"""`pulsar`: filter expressions as drafted for Pulsar, predicates over properties, the event's time and its storing.

    {"and": [{"property": "region", "operator": "IN", "values": ["eu", "us"]},
             {"eventTime": {}, "operator": "GREATER_THAN", "value": "2026-01-31T09:30:00Z"}]}

An object is `{"and": [...]}`, `{"or": [...]}`, `{"not": {...}}` or a predicate: `property` (a name), `eventTime` or
`publishTime` (`{}`), `operator`, and `value` or `values`. `type` says how a property is read: "string", "long" or
"double"; without it as its values are. The same as a protobuf message, here in Base64: `rpc/pulsar.proto`; from Python:
`headgate.expr`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

from headgate.filter.cel.errors import FilterError, over_limit
from headgate.filter.cel.unparse import unparse
from headgate.filter.dialects.pulsar.protobuf import decode_text
from headgate.filter.dialects.pulsar.to_cel import translate
from headgate.filter.dialects.pulsar.tree import (
    LISTS,
    AllOf,
    AnyOf,
    Expr,
    Negation,
    Operator,
    Predicate,
    Property,
    Spelling,
    Time,
    Type,
    Value,
    predicate,
)
from headgate_api.limits import FILTER_CHARACTERS_MAX, FILTER_DEPTH_MAX, FILTER_LIST_ITEMS_MAX, FILTER_TOKENS_MAX

JsonObject = dict[str, object]
_Kind = TypeVar("_Kind", Operator, Type)

_SUBJECTS: Final = ("property", *Time)
_LIST: Final = Spelling("property", "operator", "type")
_ONE: Final = Spelling("property", "operator", "type", "value", single=True)
_MEMBERS: Final = frozenset({*_SUBJECTS, "operator", "value", "values", "type"})
_HINT: Final = '{"property": "region", "operator": "IN", "values": ["eu", "us"]}'


def pulsar(value: object, field: str) -> str:
    """CEL text of a filter expression's JSON, or of its message in Base64; FilterError names the offending part."""
    tree = decode_text(value, field) if isinstance(value, str) else from_json(value, field)
    return unparse(translate(tree))


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
            hint = f"one of: and, or, not, {', '.join(_SUBJECTS)}, operator, value, values, type"
            raise FilterError("unknown field", field=f"{field}.{name}", hint=hint)
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
        raise FilterError(f"is no {name}", field=f"{field}.{name}", hint=f"one of: {', '.join(kind)}")
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
