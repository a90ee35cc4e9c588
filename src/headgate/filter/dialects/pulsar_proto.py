"""How does a filter expression travel as protobuf? Messages of `pulsar.proto`, decoded with the checks of the JSON."""

from __future__ import annotations

from typing import Final

from google.protobuf.message import DecodeError

from headgate.filter.dialects import pulsar_pb2 as wire
from headgate.filter.dialects.pulsar_tree import (
    AllOf,
    AnyOf,
    EventTime,
    Expr,
    Negation,
    Operator,
    Predicate,
    Property,
    Type,
    Value,
    not_asked,
    predicate,
)
from headgate.filter.errors import FilterError
from headgate.limits import FILTER_CHARACTERS_MAX, FILTER_DEPTH_MAX

_TYPES: Final = {Type.STRING: wire.Predicate.STRING, Type.LONG: wire.Predicate.LONG, Type.DOUBLE: wire.Predicate.DOUBLE}
_TYPES_READ: Final = {number: type_ for type_, number in _TYPES.items()}


def encode(expression: Expr) -> bytes:
    """The `Expr` message of a filter expression, the same bytes whenever it is the same expression."""
    return bytes(_message(expression).SerializeToString(deterministic=True))


def decode(message: bytes, field: str = "filter.pulsar") -> Expr:
    """The filter expression of an `Expr` message.

    Raises:
        FilterError: No such message, no filter expression, or over a limit.
    """
    if len(message) > FILTER_CHARACTERS_MAX:
        reason = f"the message has {len(message)} bytes: the limit is {FILTER_CHARACTERS_MAX} (FILTER_CHARACTERS_MAX)"
        raise FilterError(reason, field=field, limit="FILTER_CHARACTERS_MAX")
    try:
        parsed = wire.Expr.FromString(message)
    except DecodeError:
        raise FilterError("is no Expr message", field=field, hint="see pulsar.proto") from None
    return _expression(parsed, field, 1)


def _message(expression: Expr) -> wire.Expr:
    match expression:
        case AllOf(operands):
            return wire.Expr(**{"and": wire.Exprs(operands=map(_message, operands))})
        case AnyOf(operands):
            return wire.Expr(**{"or": wire.Exprs(operands=map(_message, operands))})
        case Negation(operand):
            return wire.Expr(**{"not": _message(operand)})
        case Predicate(subject, operator, values):
            made = wire.Predicate(operator=wire.Predicate.Operator.Value(operator.value))
            if isinstance(subject, Property):
                made.property, made.type = subject.name, _TYPES[subject.type]
            else:
                made.event_time.SetInParent()
            made.values.extend(map(_value, values))
            return wire.Expr(predicate=made)


def _value(value: Value) -> wire.Value:
    match value:
        case str():
            return wire.Value(string_value=value)
        case int():
            return wire.Value(long_value=value)
        case float():
            return wire.Value(double_value=value)


def _expression(message: wire.Expr, field: str, depth: int) -> Expr:
    if depth > FILTER_DEPTH_MAX:
        reason = f"the expression is nested too deeply: the limit is {FILTER_DEPTH_MAX} (FILTER_DEPTH_MAX)"
        raise FilterError(reason, field=field, limit="FILTER_DEPTH_MAX")
    match message.WhichOneof("of"):
        case "predicate":
            return _predicate(message.predicate, field)
        case "not":
            return Negation(_expression(getattr(message, "not"), f"{field}.not", depth + 1))
        case "and" | "or" as name:
            listed = enumerate(getattr(message, name).operands)
            operands = tuple(_expression(item, f"{field}.{name}[{index}]", depth + 1) for index, item in listed)
            if not operands:
                raise FilterError("must be a list of one expression or more", field=f"{field}.{name}")
            return AllOf(operands) if name == "and" else AnyOf(operands)
        case _:
            raise FilterError("must have one of: predicate, and, or, not", field=field)


def _predicate(message: wire.Predicate, field: str) -> Predicate:
    match message.WhichOneof("subject"):
        case "property":
            subject: str | EventTime = message.property
        case "event_time":
            subject = EventTime()
        case "publish_time":
            raise not_asked(field)
        case _:
            raise FilterError("must have one of: property, event_time", field=field)
    names = wire.Predicate.Operator.Name
    known = message.operator in wire.Predicate.Operator.values() and message.operator != 0
    if not known:
        raise FilterError("is no operator", field=f"{field}.operator", hint=f"one of: {', '.join(Operator)}")
    if message.type not in wire.Predicate.Type.values():
        raise FilterError("is no type", field=f"{field}.type", hint=f"one of: {', '.join(Type)}")
    values = tuple(_constant(value, f"{field}.values[{index}]") for index, value in enumerate(message.values))
    return predicate(subject, Operator(names(message.operator)), values, _TYPES_READ.get(message.type), field)


def _constant(message: wire.Value, field: str) -> Value:
    match message.WhichOneof("value"):
        case "string_value":
            return str(message.string_value)
        case "long_value":
            return int(message.long_value)
        case "double_value":
            return float(message.double_value)
        case _:
            raise FilterError("must have a value", field=field)
