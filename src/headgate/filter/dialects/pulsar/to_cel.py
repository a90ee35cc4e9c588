"""`pulsar`: filter expressions as drafted for Pulsar, predicates over properties, the event's time and its storing.

An expression comes as JSON (`tree.py`) or as a protobuf message, in Base64 (`rpc/pulsar.proto`); from Python:
`headgate.expr`. In CEL each predicate is what makes it true and what makes it false.

A property is text, as in Pulsar: `string(ce.x)`, which is written `ce.x` where that is the same. A long is
`int(ce.x)`, a double `double(ce.x)`. Where the property is missing, or no such number, the predicate is unknown
(see `three_valued.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, assert_never

from headgate.filter.cel.ast import PUBLISH_TIME, Call, Compare, Comparison, Literal, LiteralKind, Name, Node, Not, Or
from headgate.filter.cel.build import LOWER_ASCII, attribute, call, has_type, literal, one_of
from headgate.filter.cel.like import Pattern, like, plain_text
from headgate.filter.cel.like import parse_pattern as parse_like
from headgate.filter.cel.unparse import unparse
from headgate.filter.dialects.pulsar import tree
from headgate.filter.dialects.pulsar.protobuf import decode_text
from headgate.filter.dialects.pulsar.tree import Operator, Time, Type
from headgate.filter.dialects.text_values import text_is_one_of, timestamp_of_micros
from headgate.filter.dialects.three_valued import Truth, both, compared, either, required
from headgate_api.event import rfc3339
from headgate_api.event.attributes import TEXT_ATTRIBUTES

_ORDERS: Final = {
    Operator.GREATER_THAN: Comparison.GT,
    Operator.GREATER_THAN_EQUALS: Comparison.GE,
    Operator.LESS_THAN: Comparison.LT,
    Operator.LESS_THAN_EQUALS: Comparison.LE,
}
_NUMERIC: Final = re.compile(r"-?[0-9]*")


def pulsar(value: object, field: str) -> str:
    """CEL text of a filter expression's JSON, or of its message in Base64; FilterError names the offending part."""
    read = decode_text(value, field) if isinstance(value, str) else tree.from_json(value, field)
    return unparse(translate(read))


def translate(expression: tree.Expr) -> Node:
    """The CEL expression that is true exactly where the filter expression is."""
    return _truth(expression).holds.cel()


def _truth(expression: tree.Expr) -> Truth:
    match expression:
        case tree.AllOf(operands):
            return both(map(_truth, operands))
        case tree.AnyOf(operands):
            return either(map(_truth, operands))
        case tree.Negation(operand):
            return _truth(operand).negated()
        case tree.Predicate(subject, operator, values):
            return _predicate(subject, operator, values)
        case _:
            assert_never(expression)


def _predicate(subject: tree.Subject, operator: Operator, values: tuple[tree.Value, ...]) -> Truth:
    match subject:
        case Time.EVENT:
            return _compare(operator, ("time",), attribute("time"), list(map(_instant, values)))
        case Time.PUBLISH:
            return _compare(operator, (), Name(PUBLISH_TIME), list(map(_instant, values)))
    match subject.type:
        case Type.STRING:
            return _text(operator, subject.name, [str(value) for value in values])
        case Type.LONG:
            read, kind = "int", LiteralKind.INT
        case Type.DOUBLE:
            read, kind = "double", LiteralKind.DOUBLE
        case _:
            assert_never(subject.type)
    number = call(read, attribute(subject.name))
    return _compare(operator, required(subject.name), number, [Literal(kind, value) for value in values])


def _compare(operator: Operator, needs: tuple[str, ...], read: Node, values: list[Node]) -> Truth:
    match operator:
        case Operator.EQUALS:
            return compared(needs, Compare(Comparison.EQ, read, values[0]))
        case Operator.IN:
            if all(isinstance(value, Literal) for value in values):
                return compared(needs, _in(read, values))
            return either(_compare(Operator.EQUALS, needs, read, [value]) for value in values)
        case Operator.NOT_EQUALS | Operator.NOT_IN:
            return _compare(Operator.IN, needs, read, values).negated()
        case Operator.BETWEEN:
            low = compared(needs, Compare(Comparison.GE, read, values[0]))
            return both((low, compared(needs, Compare(Comparison.LE, read, values[1]))))
        case _:
            return compared(needs, Compare(_ORDERS[operator], read, values[0]))


def _in(read: Node, values: list[Node]) -> Node:
    return one_of(read, tuple(dict.fromkeys(values)))


def _text(operator: Operator, name: str, texts: list[str]) -> Truth:
    match operator:
        case Operator.EQUALS | Operator.IN:
            return _equal(name, texts)
        case Operator.NOT_EQUALS | Operator.NOT_IN:
            return _equal(name, texts).negated()
        case Operator.LIKE:
            return _like(name, parse_like(texts[0], tree.ESCAPE))
        case Operator.STARTS_WITH:
            return _called(name, "startsWith", texts[0], str.startswith)
        case Operator.STARTS_WITH_IGNORE_CASE:
            return _called(name, "startsWith", texts[0].translate(LOWER_ASCII), str.startswith, _lower_call)
        case Operator.CONTAINS_IGNORE_CASE:
            return _called(name, "contains", texts[0].translate(LOWER_ASCII), str.__contains__, _lower_call)
        case Operator.DOES_NOT_CONTAIN:
            return _text(Operator.CONTAINS, name, texts).negated()
        case Operator.DOES_NOT_CONTAIN_IGNORE_CASE:
            return _text(Operator.CONTAINS_IGNORE_CASE, name, texts).negated()
        case Operator.CONTAINS | Operator.CONTAINS_ALL:
            return both(_called(name, "contains", text, str.__contains__) for text in texts)
        case Operator.CONTAINS_ANY:
            return either(_called(name, "contains", text, str.__contains__) for text in texts)
        case Operator.CONTAINS_NONE:
            return _text(Operator.CONTAINS_ANY, name, texts).negated()
        case _:
            return _compare(operator, required(name), _as_text(name), [literal(text) for text in texts])


def _equal(name: str, texts: list[str]) -> Truth:
    value = attribute(name)
    same = _in(value, [literal(text) for text in texts]) if name in TEXT_ATTRIBUTES else text_is_one_of(value, texts)
    return compared(required(name), same)


def _like(name: str, pattern: Pattern) -> Truth:
    text = plain_text(pattern)
    if text is not None:
        return _equal(name, [text])
    parts = [part for part in pattern if isinstance(part, str)]
    plain = name in TEXT_ATTRIBUTES or any(not _in_a_number_or_flag(part) for part in parts)
    return compared(
        required(name), like(attribute(name) if plain else _as_text(name), pattern), Not(like(_as_text(name), pattern))
    )


def _called(
    name: str,
    function: str,
    text: str,
    says: Callable[[str, str], bool],
    change: Callable[[Node], Node] = lambda node: node,
) -> Truth:
    """A method of strings: of the attribute as it is where the text of no integer and no boolean can pass."""
    plain = name in TEXT_ATTRIBUTES or not (_NUMERIC.fullmatch(text) or says("true", text) or says("false", text))
    arguments = (literal(text),)
    asked = Call(function, change(attribute(name) if plain else _as_text(name)), arguments)
    if plain and change is _lower_call and name not in TEXT_ATTRIBUTES:
        # The matcher cannot say lowerAscii of string(x); no text of an integer or a boolean passes.
        no_text = has_type(attribute(name), "int", "bool")
        return compared(required(name), asked, Or((no_text, Not(asked))))
    return compared(required(name), asked, Not(Call(function, change(_as_text(name)), arguments)))


def _in_a_number_or_flag(text: str) -> bool:
    return _NUMERIC.fullmatch(text) is not None or text in "true" or text in "false"


def _as_text(name: str) -> Node:
    return attribute(name) if name in TEXT_ATTRIBUTES else call("string", attribute(name))


def _lower_call(node: Node) -> Node:
    return Call("lowerAscii", node, ())


def _instant(value: tree.Value) -> Node:
    micros = rfc3339.micros(value) if isinstance(value, str) else int(value) * 1000
    assert micros is not None, value
    return timestamp_of_micros(micros)
