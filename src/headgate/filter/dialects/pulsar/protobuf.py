"""Filter expressions as protobuf: the draft's messages (`rpc/pulsar.proto`), decoded with the checks of the JSON.

Errors name the place by the draft's field names: `filter.pulsar.op1.predicate.values[0]`.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from typing import Final

from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from headgate.filter.cel.errors import FilterError, over_limit
from headgate.filter.dialects.pulsar import tree
from headgate.filter.dialects.pulsar.tree import Operator, Time, Type
from headgate_api.limits import FILTER_CHARACTERS_MAX, FILTER_DEPTH_MAX, FILTER_LIST_ITEMS_MAX
from headgate_api.rpc import pulsar_pb2 as wire

_SPELLING: Final = tree.Spelling(name="name", operator="op", type="ty")
_TYPES: Final = {Type.STRING: wire.Predicate.STRING, Type.LONG: wire.Predicate.LONG, Type.DOUBLE: wire.Predicate.DOUBLE}
_TIMES: Final = {Time.EVENT: wire.Predicate.EVENT_TIME, Time.PUBLISH: wire.Predicate.PUBLISH_TIME}
_TIMES_READ: Final = {number: time for time, number in _TIMES.items()}
_TYPES_READ: Final = {number: type_ for type_, number in _TYPES.items()}
_LONG: Final = re.compile(r"[+-]?[0-9]{1,19}")
_DOUBLE: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_NEEDED: Final[dict[int, frozenset[str]]] = {
    wire.Expr.PREDICATE: frozenset({"predicate"}),
    wire.Expr.AND: frozenset({"op1", "op2"}),
    wire.Expr.OR: frozenset({"op1", "op2"}),
    wire.Expr.NOT: frozenset({"op1"}),
}
_PARTS: Final = ("predicate", "op1", "op2")
_NESTED_MAX: Final = 100
"""Messages in one another that protobuf reads."""


def encode(expression: tree.Expr) -> bytes:
    """The `Expr` message of a filter expression, the same bytes whenever it is the same expression."""
    return bytes(_message(expression).SerializeToString(deterministic=True))


def decode(message: bytes, field: str = "filter.pulsar") -> tree.Expr:
    """The filter expression of an `Expr` message; FilterError for what is none, or is over a limit."""
    if len(message) > FILTER_CHARACTERS_MAX:
        raise over_limit("FILTER_CHARACTERS_MAX", f"the message has {len(message)} bytes", field=field)
    try:
        parsed = wire.Expr.FromString(message)
    except DecodeError:
        hint = f"see pulsar.proto; messages nest up to {_NESTED_MAX} levels"
        raise FilterError("is no Expr message", field=field, hint=hint) from None
    return _expression(parsed, field, 1)


def decode_text(text: str, field: str) -> tree.Expr:
    """The filter expression of an `Expr` message in Base64, as JSON carries bytes; FilterError as `decode`."""
    if len(text) > 2 * FILTER_CHARACTERS_MAX:
        reason = f"the message has {len(text)} characters of Base64: it may have {FILTER_CHARACTERS_MAX} bytes"
        raise FilterError(f"{reason} (FILTER_CHARACTERS_MAX)", field=field, limit="FILTER_CHARACTERS_MAX")
    try:
        message = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        hint = "an object, or an Expr message of pulsar.proto in Base64"
        raise FilterError("is no Base64", field=field, hint=hint) from None
    return decode(message, field)


# --- to messages ----------------------------------------------------------------------------------------------------


def _message(expression: tree.Expr) -> wire.Expr:
    match expression:
        case tree.AllOf(operands):
            return _joined(wire.Expr.AND, operands)
        case tree.AnyOf(operands):
            return _joined(wire.Expr.OR, operands)
        case tree.Negation(operand):
            return wire.Expr(tp=wire.Expr.NOT, op1=_message(operand))
        case tree.Predicate(subject, operator, values):
            texts = [repr(value) if isinstance(value, float) else str(value) for value in values]
            made = wire.Predicate(op=wire.Predicate.Operator.Value(operator.value), values=texts)
            match subject:
                case tree.Property(name, type_):
                    made.ref, made.name, made.ty = wire.Predicate.PROPERTY, name, _TYPES[type_]
                case Time():
                    made.ref = _TIMES[subject]
                    is_text = any(isinstance(value, str) for value in values)
                    made.ty = wire.Predicate.STRING if is_text else wire.Predicate.LONG
            return wire.Expr(tp=wire.Expr.PREDICATE, predicate=made)


def _joined(join: wire.Expr.ExprType, operands: Sequence[tree.Expr]) -> wire.Expr:
    """Pairs of pairs: a chain would nest as deep as it is long."""
    if len(operands) == 1:
        return _message(operands[0])
    half = len(operands) // 2
    return wire.Expr(tp=join, op1=_joined(join, operands[:half]), op2=_joined(join, operands[half:]))


# --- from messages --------------------------------------------------------------------------------------------------


def _expression(message: wire.Expr, field: str, depth: int) -> tree.Expr:
    if depth > FILTER_DEPTH_MAX:
        raise over_limit("FILTER_DEPTH_MAX", "the expression is nested too deeply", field=field)
    _check_fields(message, field)
    match message.tp:
        case wire.Expr.PREDICATE:
            return _predicate(message.predicate, f"{field}.predicate")
        case wire.Expr.NOT:
            return tree.Negation(_expression(message.op1, f"{field}.op1", depth + 1))
        case join:
            operands = tuple(_operands(message, join, field, depth))
            if len(operands) > FILTER_LIST_ITEMS_MAX:
                raise over_limit("FILTER_LIST_ITEMS_MAX", f"{len(operands)} expressions", field=field)
            return tree.AllOf(operands) if join == wire.Expr.AND else tree.AnyOf(operands)


def _operands(message: wire.Expr, join: int, field: str, depth: int) -> list[tree.Expr]:
    """What a tree of one and the same join joins: the draft has no join of three, and a chain is no depth."""
    found: list[tree.Expr] = []
    for name, operand in (("op1", message.op1), ("op2", message.op2)):
        at = f"{field}.{name}"
        if operand.HasField("tp") and operand.tp == join:
            _check_fields(operand, at)
            found += _operands(operand, join, at, depth)
        else:
            found.append(_expression(operand, at, depth + 1))
    return found


def _check_fields(message: wire.Expr, field: str) -> None:
    _refuse_unknown(message, field)
    if not message.HasField("tp"):
        raise FilterError("is missing", field=f"{field}.tp", hint=_names(wire.Expr.ExprType.keys()))
    needed = _NEEDED.get(message.tp)
    if needed is None:
        hint = _names(wire.Expr.ExprType.keys())
        raise FilterError(f"{message.tp} is no type of an expression", field=f"{field}.tp", hint=hint)
    kind = wire.Expr.ExprType.Name(message.tp)
    for name in _PARTS:
        if message.HasField(name) != (name in needed):
            reason = f"is missing: {kind} needs it" if name in needed else f"{kind} takes none"
            raise FilterError(reason, field=f"{field}.{name}")


def _refuse_unknown(message: Message, field: str) -> None:
    """A filter that is not understood must never match."""
    for unknown in UnknownFieldSet(message):
        raise FilterError(f"unknown field number {unknown.field_number}", field=field, hint="see pulsar.proto")


def _predicate(message: wire.Predicate, field: str) -> tree.Predicate:
    _refuse_unknown(message, field)
    for name in ("ref", "op"):
        if not message.HasField(name):
            raise FilterError("is missing", field=f"{field}.{name}")
    if message.op not in wire.Predicate.Operator.values():
        raise FilterError(f"{message.op} is no operator", field=f"{field}.op", hint=_names(Operator))
    type_ = _TYPES_READ.get(message.ty)
    if type_ is None:
        raise FilterError(f"{message.ty} is no type", field=f"{field}.ty", hint=_names(wire.Predicate.ValueType.keys()))
    operator = Operator(wire.Predicate.Operator.Name(message.op))
    time = _TIMES_READ.get(message.ref)
    if time is not None:
        if message.HasField("name"):
            raise FilterError("a time has no name", field=f"{field}.name")
        if type_ is Type.DOUBLE:
            raise FilterError("a time is no DOUBLE", field=f"{field}.ty", hint="LONG: milliseconds; STRING: RFC 3339")
    elif message.ref != wire.Predicate.PROPERTY:
        hint = _names(wire.Predicate.MessageRef.keys())
        raise FilterError(f"{message.ref} is nothing of an event", field=f"{field}.ref", hint=hint)
    elif not message.HasField("name"):
        raise FilterError("is missing: PROPERTY needs it", field=f"{field}.name")
    read = _value if time is None else _time
    values = tuple(read(text, type_, f"{field}.values[{index}]") for index, text in enumerate(message.values))
    return tree.predicate(time or message.name, operator, values, None if time else type_, field, _SPELLING)


def _time(text: str, type_: Type, field: str) -> tree.Value:
    return int(text) if type_ is Type.STRING and _LONG.fullmatch(text) else _value(text, type_, field)


def _value(text: str, type_: Type, field: str) -> tree.Value:
    match type_:
        case Type.LONG if _LONG.fullmatch(text):
            return int(text)
        case Type.DOUBLE if _DOUBLE.fullmatch(text):
            return float(text)
        case Type.STRING:
            return text
        case _:
            raise FilterError(f"{text[:40]!r} is no {type_.name}", field=field)


def _names(names: Sequence[str] | type[Operator]) -> str:
    return f"one of: {', '.join(names)}"
