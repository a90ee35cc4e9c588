"""`jms`: a selector of JMS (Jakarta Messaging 3.1, section 3.8.1), in CEL: what makes it true, and what makes it false.

JMS compares like with like: with unlike values every comparison is false, `<>` too, which is why the CEL asks for a
type there. Arithmetic is done in doubles (`jms.number`), and unknown for anything that is no number, as is division by
zero (`jms.divide`). A selector is unknown where a property is missing: neither it nor its negation matches.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, assert_never

from headgate.filter.cel.ast import INT64_MAX, INT64_MIN, And, Compare, In, ListOf, Literal, LiteralKind, Node, Not, Or
from headgate.filter.cel.ast import Comparison as Op
from headgate.filter.cel.build import attribute, call, has_type, literal, present
from headgate.filter.cel.errors import FilterError
from headgate.filter.cel.like import PatternError, Wildcard, like, parse_pattern, plain_text
from headgate.filter.cel.unparse import unparse
from headgate.filter.dialects.jms import parser as tree
from headgate.filter.dialects.jms.parser import LEXICON, parse
from headgate.filter.dialects.sql_tokens import Kind, fault, tokens
from headgate.filter.dialects.text_values import timestamp_of
from headgate.filter.dialects.three_valued import NEVER, Truth, When, both, compared, constant, either, required, truth
from headgate_api.event.attributes import TEXT_ATTRIBUTES

# --- names ----------------------------------------------------------------------------------------
# Attributes by the names that selectors use: headers of JMS and AMQP by table, any other name as it stands.


class Type(StrEnum):
    """What is known of a value before an event is seen, as errors call it."""

    ANY = "a property"  # a string, an integer or a boolean: what an extension may be
    TEXT = "a string"
    NUMBER = "a number"
    FLAG = "a boolean"
    TIME = "a time"


@dataclass(frozen=True, slots=True)
class Attribute:
    """A context attribute or extension, and what it is known to hold."""

    name: str
    type: Type


@dataclass(frozen=True, slots=True)
class Constant:
    """A header that has the same value in every event."""

    value: str | bool


@dataclass(frozen=True, slots=True)
class Unknown:
    """A header that events do not have; `hint` says what to do instead."""

    reason: str
    hint: str = ""


_TYPES: Final = {**dict.fromkeys(TEXT_ATTRIBUTES, Type.TEXT), "time": Type.TIME}
_HEADERS: Final[dict[str, Attribute | Constant | Unknown]] = {
    "JMSType": Attribute("type", Type.TEXT),
    "JMSMessageID": Attribute("id", Type.TEXT),
    "JMSTimestamp": Attribute("time", Type.TIME),
    "JMSCorrelationID": Attribute("correlationid", Type.ANY),
    "JMSPriority": Attribute("priority", Type.ANY),
    "JMSDeliveryMode": Constant("PERSISTENT"),
    **{
        name: Unknown(f"{name} may not stand in a selector", "Jakarta Messaging 3.1, section 3.8.1.1")
        for name in ("JMSDestination", "JMSReplyTo", "JMSRedelivered", "JMSExpiration", "JMSDeliveryTime")
    },
}
_AMQP_HEADERS: Final = {"priority": _HEADERS["JMSPriority"], "durable": Constant(True)}
_PROPERTIES: Final = {
    "message_id": "id",
    "subject": "subject",
    "content_type": "datacontenttype",
    "creation_time": "time",
    "correlation_id": "correlationid",
    "group_id": "partitionkey",
}
"""AMQP's message properties."""
_CLOUD_EVENTS: Final = "cloudEvents_"
"""The prefix of attributes in CloudEvents' AMQP binding, in the form for JMS selectors."""


def meaning(name: str) -> Attribute | Constant | Unknown:
    """What a name in a selector stands for. Upper and lower case differ, as in JMS."""
    section, dot, rest = name.partition(".")
    match section if dot else "":
        case "header" | "h":
            known = ", ".join(_AMQP_HEADERS)
            return _AMQP_HEADERS.get(rest, Unknown(f"events have no header {rest}", f"one of: {known}"))
        case "properties" | "p":
            if rest in _PROPERTIES:
                return _attribute(_PROPERTIES[rest])
            return Unknown(f"events have no property {rest}", f"one of: {', '.join(_PROPERTIES)}")
        case "application_properties" | "a":
            return _attribute(rest)
        case _ if name.startswith("JMS"):
            known = ", ".join(known for known, found in _HEADERS.items() if not isinstance(found, Unknown))
            return _HEADERS.get(name, Unknown(f"events have no {name}", f"an extension by its own name, or {known}"))
        case _:
            return _attribute(name.removeprefix(_CLOUD_EVENTS))


def _attribute(name: str) -> Attribute:
    return Attribute(name, _TYPES.get(name, Type.ANY))


# --- conditions -----------------------------------------------------------------------------------

_OPS: Final = {"=": Op.EQ, "<>": Op.NE, "<": Op.LT, "<=": Op.LE, ">": Op.GT, ">=": Op.GE}
_FOLDED: Final[dict[str, Any]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}


@dataclass(frozen=True, slots=True)
class _Value:
    """A value in CEL; `needs` are attributes that it reads, `literal` is its value where every event has the same."""

    type: Type
    node: Node
    needs: tuple[str, ...] = ()
    literal: str | int | float | bool | None = None


def translate(text: str, condition: tree.Condition) -> Node:
    """The CEL expression that is true exactly where the selector is; FilterError for what JMS does not allow."""
    return _Translator(text).condition(condition).holds.cel()


class _Translator:
    def __init__(self, text: str) -> None:
        self._text = text

    def condition(self, node: tree.Condition) -> Truth:
        match node:
            case tree.Truth(value):
                return constant(value)
            case tree.Identifier():
                return self._flag(node)
            case tree.Negation(operand):
                return self.condition(operand).negated()
            case tree.Logic(operator, operands):
                return (both if operator == "AND" else either)(map(self.condition, operands))
            case tree.Comparison(sign, left, right, position):
                return self._compare(_OPS[sign], self._value(left), self._value(right), position)
            case tree.Between():
                return self._between(node)
            case tree.OneOf():
                return self._one_of(node)
            case tree.Like():
                return self._like(node)
            case tree.IsNull(operand):
                return self._is_null(self._value(operand))
            case _:
                assert_never(node)

    # --- values ---

    def _value(self, node: tree.Value) -> _Value:
        match node:
            case tree.Number(value) | tree.Text(value) | tree.Truth(value):
                return _constant(value)
            case tree.Identifier(name, position):
                return self._named(name, position)
            case tree.Signed(sign, operand, position):
                return _signed(sign, self._numeric(self._value(operand), position))
            case tree.Arithmetic(sign, left, right, position):
                first, second = (self._numeric(self._value(side), position) for side in (left, right))
                return _folded(sign, first.literal, second.literal) or _arithmetic(sign, first, second)
            case _:
                assert_never(node)

    def _named(self, name: str, position: int) -> _Value:
        match meaning(name):
            case Attribute(name, type_):
                return _Value(type_, attribute(name), required(name))
            case Constant(value):
                return _constant(value)
            case Unknown(reason, hint):
                raise fault(self._text, position, reason, hint)

    def _numeric(self, value: _Value, position: int) -> _Value:
        """A value as an operand of arithmetic: a literal, or a double."""
        if value.type is Type.NUMBER:
            return value
        if value.type is Type.ANY:
            return _computed(call("jms.number", value.node), value)
        raise fault(self._text, position, f"arithmetic is for numbers, not for {value.type}")

    # --- conditions ---

    def _flag(self, node: tree.Identifier) -> Truth:
        value = self._value(node)
        if isinstance(value.literal, bool):
            return constant(value.literal)
        if value.type is not Type.ANY:
            reason = f"{node.name} is {value.type}, no condition"
            raise fault(self._text, node.position, reason, "compare it with something")
        return compared(value.needs, value.node)

    def _between(self, node: tree.Between) -> Truth:
        value, low, high = (self._value(part) for part in (node.operand, node.low, node.high))
        if node.negated:
            outside = ((Op.LT, low), (Op.GT, high))
            return either(self._compare(op, value, bound, node.position) for op, bound in outside)
        inside = ((Op.GE, low), (Op.LE, high))
        return both(self._compare(op, value, bound, node.position) for op, bound in inside)

    def _is_null(self, value: _Value) -> Truth:
        if not value.needs:
            return constant(False)
        has = present(value.needs[0])
        return truth(When((), Not(has)), When((), has))

    def _one_of(self, node: tree.OneOf) -> Truth:
        value = self._texts(node.operand, "IN")
        if isinstance(value.literal, str):
            return constant(value.literal in node.values)
        items = tuple(literal(item) for item in dict.fromkeys(node.values))
        return compared(value.needs, In(value.node, ListOf(items)))

    def _like(self, node: tree.Like) -> Truth:
        value = self._texts(node.operand, "LIKE")
        if value.literal is not None:
            raise fault(self._text, node.position, f"{node.operand.name} has one value", "compare it with =")
        try:
            pattern = parse_pattern(node.pattern.value, node.escape)
        except PatternError as error:
            raise fault(self._text, node.pattern.position, str(error)) from None
        text = plain_text(pattern)
        if text is not None:
            # What is no string is neither like a text nor unlike it.
            same = self._compare(Op.EQ, value, _constant(text), node.position)
            return truth(same.holds, self._compare(Op.NE, value, _constant(text), node.position).holds)
        if pattern == (Wildcard.ANY,):
            return truth(When(value.needs, _is_text(value)), NEVER)
        return compared(value.needs, like(value.node, pattern))

    def _texts(self, node: tree.Identifier, word: str) -> _Value:
        value = self._value(node)
        if value.type not in {Type.ANY, Type.TEXT}:
            raise fault(self._text, node.position, f"{word} is for strings, {node.name} is {value.type}")
        return value

    def _compare(self, op: Op, left: _Value, right: _Value, position: int) -> Truth:
        if left.literal is not None and right.literal is None:
            return self._compare(op.mirrored, right, left, position)
        if Type.TIME in {left.type, right.type}:
            return self._compare_time(op, left, right, position)
        if op not in {Op.EQ, Op.NE} and (types := {left.type, right.type} & {Type.TEXT, Type.FLAG}):
            reason = f"{op} compares numbers, not {' and '.join(sorted(types))}"
            raise fault(self._text, position, reason, "strings and booleans are compared with = and <>")
        if left.literal is not None and right.literal is not None:
            return constant(left.type is right.type and op.holds(left.literal, right.literal))
        if left.type is Type.NUMBER and right.type is Type.NUMBER:
            right = replace(right, node=_double(right))  # what was computed is a double, and CEL checks types
        if op not in {Op.EQ, Op.NE}:
            return _ordered(op, left, right)
        if left.type is not right.type and Type.ANY not in {left.type, right.type}:
            return _unlike(left, right)
        if op is Op.NE:
            return _unequal(left, right)
        return compared((*left.needs, *right.needs), Compare(op, left.node, right.node))

    def _compare_time(self, op: Op, left: _Value, right: _Value, position: int) -> Truth:
        if left.type is not Type.TIME or not isinstance(right.literal, int | float) or right.type is not Type.NUMBER:
            hint = "for instance JMSTimestamp > 1700000000000; for more, write CEL in `expression`"
            raise fault(self._text, position, "a time is compared with a number of milliseconds since 1970", hint)
        instant = timestamp_of(right.literal)
        if instant is None:
            raise fault(self._text, position, "no whole number of milliseconds from year 1 to year 9999")
        return compared(left.needs, Compare(op, left.node, instant))


def _unequal(left: _Value, right: _Value) -> Truth:
    needs = (*left.needs, *right.needs)
    differ = Compare(Op.NE, left.node, right.node)
    if right.type is Type.FLAG:
        return compared(needs, Compare(Op.EQ, left.node, literal(not right.literal)))
    known = {left.type, right.type} - {Type.ANY}
    if Type.ANY not in {left.type, right.type}:
        return compared(needs, differ)
    unsure = left if left.type is Type.ANY else right
    if Type.TEXT in known:
        alike = _is_text(unsure)
    elif Type.NUMBER in known:
        alike = _is_number(unsure)
    else:
        same = Compare(Op.EQ, call("type", left.node), call("type", right.node))
        alike = Or((same, And((_is_number(left), _is_number(right)))))
    return _checked(left, right, And((alike, differ)), (alike,), differ)


def _ordered(op: Op, left: _Value, right: _Value) -> Truth:
    """`<` and the like of numbers: what is no number makes it false."""
    unsure = [value for value in (left, right) if value.type is Type.ANY]
    if right.literal is not None:
        holds: Node = Compare(op, left.node, right.node)
    else:
        first, second = (_double(value) for value in (left, right))
        holds = Compare(op, first, second)
    return _checked(left, right, holds, tuple(map(_is_number, unsure)), holds)


def _checked(left: _Value, right: _Value, holds: Node, alike: tuple[Node, ...], comparison: Node) -> Truth:
    """A comparison that is false where types are not `alike`, and unknown where something cannot be computed."""
    if not alike:
        return compared((*left.needs, *right.needs), holds)
    computed = [value.node for value in (left, right) if value.type is Type.NUMBER and value.literal is None]
    differs = Not(And((*alike, comparison)))
    # Types that differ would hide the error of what cannot be computed.
    fails = And((differs, *(Compare(Op.EQ, node, node) for node in computed))) if computed else differs
    return compared((*left.needs, *right.needs), holds, fails)


def _unlike(left: _Value, right: _Value) -> Truth:
    """A comparison of two types that cannot be equal: false, or unknown where one is missing or cannot be computed."""
    computed = Type.NUMBER in {value.type for value in (left, right) if value.literal is None}
    return truth(NEVER, NEVER if computed else When((*left.needs, *right.needs), literal(True)))


# --- CEL ---


def _constant(value: str | int | float | bool) -> _Value:
    if isinstance(value, int) and not isinstance(value, bool):
        # Of more than 64 bits it stays an int, which CEL refuses: a selector has no unsigned numbers.
        return _Value(Type.NUMBER, Literal(LiteralKind.INT, value), literal=value)
    type_ = Type.TEXT if isinstance(value, str) else Type.FLAG if isinstance(value, bool) else Type.NUMBER
    return _Value(type_, literal(value), literal=value)


def _computed(node: Node, *operands: _Value) -> _Value:
    return _Value(Type.NUMBER, node, tuple(name for operand in operands for name in operand.needs))


def _double(value: _Value) -> Node:
    if value.literal is not None:
        return literal(float(value.literal))
    return value.node if value.type is Type.NUMBER else call("jms.number", value.node)


def _signed(sign: str, value: _Value) -> _Value:
    if sign == "+":
        return value
    if isinstance(value.literal, int | float):
        return _constant(-value.literal)
    return _computed(call("-_", value.node), value)


def _arithmetic(sign: str, left: _Value, right: _Value) -> _Value:
    function = "jms.divide" if sign == "/" else f"_{sign}_"
    return _computed(call(function, _double(left), _double(right)), left, right)


def _folded(sign: str, left: object, right: object) -> _Value | None:
    """Arithmetic of two literals: exact for integers within 64 bits; None when an event's value or zero is in it."""
    if not isinstance(left, int | float) or not isinstance(right, int | float):
        return None
    if sign == "/":
        return _constant(float(left) / float(right)) if right else None
    value = _FOLDED[sign](left, right)
    if isinstance(value, int) and not INT64_MIN <= value <= INT64_MAX:
        value = float(value)
    return _constant(value) if abs(value) != float("inf") and value == value else None


def _is_text(value: _Value) -> Node:
    return literal(True) if value.type is Type.TEXT else has_type(value.node, "string")


def _is_number(value: _Value) -> Node:
    return has_type(value.node, "int", "double")


# --- dialect --------------------------------------------------------------------------------------


def jms(value: object, field: str) -> str:
    """CEL text of a selector of strict JMS; the FilterError for any other has its place."""
    if not isinstance(value, str):
        raise FilterError("must be a string", field=field)
    try:
        return unparse(translate(value, parse(value)))
    except FilterError as error:
        raise error.at_field(field) from None


def names_in(selector: str) -> tuple[str, ...]:
    """Names of the attributes that a valid selector reads, each once."""
    found = (meaning(token.text) for token in tokens(selector, LEXICON) if token.kind is Kind.NAME)
    return tuple(dict.fromkeys(one.name for one in found if isinstance(one, Attribute)))
