"""Parts of a CESQL expression in CEL, with when they fail: casts between its three types, comparisons, functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum, StrEnum, auto
from typing import Final, assert_never

from headgate.filter.cel.ast import Call, Compare, Comparison, Conditional, In, ListOf, Literal, Name, Node, Or, Select
from headgate.filter.cel.build import TIME_TEXT, attribute, call, literal
from headgate.filter.cel.build import one_of as one_of_constants
from headgate.filter.cel.functions import FunctionError, to_bool, to_int, to_string
from headgate.filter.cel.like import Pattern, Wildcard, like, pattern_of, plain_text
from headgate.filter.cel.rewrite import negated
from headgate.filter.dialects.text_values import others_written
from headgate_api.event.attributes import CONTEXT_ATTRIBUTES, INT32_MAX, INT32_MIN, REQUIRED_ATTRIBUTES


class Type(StrEnum):
    """CESQL's types; ANY is an extension's, which each event decides."""

    STRING = "String"
    INTEGER = "Integer"
    BOOLEAN = "Boolean"
    ANY = "Any"


class Aim(Enum):
    """What of a condition in CEL must be CESQL's."""

    EXACT = auto()  # true, false and error
    TRUE = auto()  # what is true; false and error may stand for each other
    FALSE = auto()  # what is false; true and error may stand for each other

    @property
    def opposite(self) -> Aim:
        """That of the operand of a NOT."""
        return {Aim.TRUE: Aim.FALSE, Aim.FALSE: Aim.TRUE, Aim.EXACT: Aim.EXACT}[self]


@dataclass(frozen=True, slots=True)
class Part:
    """A part of an expression."""

    node: Node  # its value in CEL; a CEL error where CESQL's value comes with an error
    type: Type
    fails: frozenset[str] | None = frozenset()  # attributes without which it is an error; None: for other reasons, too
    needs: frozenset[str] = frozenset()  # attributes without which there is an error in any case
    low: int = INT32_MIN  # an Integer lies between these
    high: int = INT32_MAX
    constant: str | int | bool | None = None


def constant(value: str | int | bool) -> Part:
    """A literal."""
    match value:
        case bool():
            return Part(literal(value), Type.BOOLEAN, constant=value)
        case int():
            return Part(literal(value), Type.INTEGER, low=value, high=value, constant=value)
        case str():
            return Part(literal(value), Type.STRING, constant=value)
        case _:
            assert_never(value)


def read(name: str) -> Part:
    """The value of an attribute; `time` as its text."""
    node = attribute(TIME_TEXT if name == "time" else name)
    missing = frozenset[str]() if name in REQUIRED_ATTRIBUTES else frozenset({name})
    # An extension may be an integer or a boolean, if it was sent in JSON.
    return Part(node, Type.STRING if name in CONTEXT_ATTRIBUTES else Type.ANY, missing, missing)


def cast(part: Part, wanted: Type) -> Part:
    """The part as another type (CloudEvents SQL, section 3.7); what is a constant stays one."""
    if part.type is wanted or wanted is Type.ANY:
        return part
    if part.constant is not None:
        try:
            return constant(_CASTS[wanted](part.constant))
        except FunctionError:
            pass  # an error on every event: cel-cpp says so
    if wanted is Type.STRING:
        return replace(part, node=call("string", part.node), type=wanted, constant=None)
    if wanted is Type.INTEGER and part.type is Type.BOOLEAN:
        return replace(part, node=Conditional(part.node, literal(1), literal(0)), type=wanted, low=0, high=1)
    if wanted is Type.BOOLEAN and part.type is Type.INTEGER:
        return replace(part, node=Compare(Comparison.NE, part.node, literal(0)), type=wanted, constant=None)
    function = "cesql.int" if wanted is Type.INTEGER else "cesql.bool"
    return Part(call(function, part.node), wanted, None, part.needs)


_CASTS: Final[Mapping[Type, Callable[[object], str | int | bool]]] = {
    Type.STRING: to_string,
    Type.INTEGER: to_int,
    Type.BOOLEAN: to_bool,
}


def within_32_bits(node: Node, low: int, high: int, *parts: Part) -> Part:
    """An Integer that was computed from parts; an error where it has more than 32 bits, as for ABS."""
    fails, needs = of_all(parts)
    if low >= INT32_MIN and high <= INT32_MAX:
        return Part(node, Type.INTEGER, fails, needs, low, high)
    return Part(call("cesql.int", node), Type.INTEGER, None, needs)


def of_all(parts: tuple[Part, ...]) -> tuple[frozenset[str] | None, frozenset[str]]:
    """`fails` and `needs` of what is computed from all of the parts."""
    known = [part.fails for part in parts if part.fails is not None]
    fails = frozenset[str]().union(*known) if len(known) == len(parts) else None
    return fails, frozenset[str]().union(*(part.needs for part in parts))


def condition(node: Node, *parts: Part) -> Part:
    """A condition that is computed from all of the parts."""
    return Part(node, Type.BOOLEAN, *of_all(parts))


# --- comparisons ----------------------------------------------------------------------------------
# `=`, IN and LIKE in CEL that the matcher knows, wherever that is exact.
#
# An extension may be an Integer or a Boolean, and equal to the text that is written so. Where the constants are no such
# texts, the comparison is plain: what is no string is then not equal in CESQL and not equal, or an error, in CEL.

_INTEGER_CHARACTERS: Final = frozenset("-0123456789")
_MAY_FAIL: Final = Part(literal(False), Type.BOOLEAN, fails=None)
"""Stands for a reason to fail beside those of the other parts of a condition."""


def equal(left: Part, right: Part, aim: Aim) -> Part:
    """`left = right`: the left one is cast to the type of the right one."""
    if right.type is Type.ANY:
        return condition(Call("cesql.equal", None, (left.node, right.node)), left, right, _MAY_FAIL)
    if right.type is Type.STRING and isinstance(right.constant, str):
        return _equal_text(left, right.constant, aim)
    left = cast(left, right.type)
    if right.constant is True:
        return left
    if right.constant is False:
        return replace(left, node=negated(left.node))
    return condition(Compare(Comparison.EQ, left.node, right.node), left, right)


def one_of(operand: Part, constants: list[str | int | bool], aim: Aim) -> Part:
    """`operand IN (constants)`: the constants are cast to the type of the operand."""
    if operand.type is Type.ANY:
        return _extension_one_of(operand, constants, aim)
    items = [cast(constant(value), operand.type) for value in constants]
    if any(item.constant is None for item in items):
        return condition(_call_one_of(operand, constants), operand, _MAY_FAIL)
    if operand.type is Type.STRING:
        return _in(operand, [str(item.constant) for item in items], aim)
    return condition(In(operand.node, ListOf(tuple(item.node for item in items))), operand)


def _equal_text(left: Part, text: str, aim: Aim) -> Part:
    if left.type is Type.ANY:
        return _in(left, [text], aim)
    left = cast(left, Type.STRING)
    return _affix(left, text, aim) or _in(left, [text], aim)


def _affix(left: Part, text: str, aim: Aim) -> Part | None:
    """`LEFT(s, 3) = 'abc'` is `s LIKE 'abc%'`, and `RIGHT` likewise; None for other lengths."""
    match left.node:
        case Call("cesql.left", None, (operand, Literal(_, int(length)))) if length == len(text) > 0:
            return _like(_read_by(operand, left), (text, Wildcard.ANY), aim)
        case Call("cesql.right", None, (operand, Literal(_, int(length)))) if length == len(text) > 0:
            return _like(_read_by(operand, left), (Wildcard.ANY, text), aim)
        # An empty text has no first place, which is an error: only what is true is the same.
        case Call("cesql.substring", None, (operand, Literal(_, 1), Literal(_, int(length)))) if (
            length == len(text) > 0 and aim is Aim.TRUE
        ):
            return _like(_read_by(operand, left), (text, Wildcard.ANY), aim)
        case _:
            return None


def _read_by(operand: Node, part: Part) -> Part:
    """The argument of a function whose call is `part`."""
    match operand:
        case Select(Name("ce"), name) | Call("string", None, (Select(Name("ce"), name),)):
            return read(name)
        case _:
            return Part(operand, Type.STRING, part.fails, part.needs)


def _in(operand: Part, texts: list[str], aim: Aim) -> Part:
    """Whether a value is one of some texts; an extension is equal to a text that its value is written as."""
    values: list[str | int | bool] = list(dict.fromkeys(texts))
    if operand.type is Type.ANY:
        values.extend(other for text in texts for other in others_written(text))
    operand = _in_one_case(operand, texts, aim, whole=True)
    return condition(_member(operand.node, values), operand)


def _member(node: Node, values: Iterable[str | int | bool]) -> Node:
    return one_of_constants(node, tuple(map(literal, values)))


def _extension_one_of(operand: Part, constants: list[str | int | bool], aim: Aim) -> Part:
    """`extension IN (constants)`: the constants are cast to the type that the extension has in the event."""
    integers, booleans = _cast_until_error(to_int, constants), _cast_until_error(to_bool, constants)
    texts = list(dict.fromkeys(map(to_string, constants)))
    member = _member(operand.node, [*texts, *integers, *booleans])
    if aim is Aim.TRUE:
        return condition(member, operand, _MAY_FAIL)
    if not integers and not booleans:
        # For what is no string every cast fails: `x < ""` is an error then, and false for every string.
        is_text = Compare(Comparison.LT, operand.node, literal(""))
        return condition(Or((is_text, member)), operand, _MAY_FAIL)
    return condition(_call_one_of(operand, constants), operand, _MAY_FAIL)


def _cast_until_error(to: Callable[[object], int], constants: list[str | int | bool]) -> list[int]:
    """What an Integer or Boolean is compared with before a cast fails, each once."""
    found: list[int] = []
    for value in constants:
        try:
            found.append(to(value))
        except FunctionError:
            break
    return list(dict.fromkeys(found))


def _call_one_of(operand: Part, constants: Iterable[str | int | bool]) -> Node:
    return Call("cesql.one_of", None, (operand.node, ListOf(tuple(map(literal, constants)))))


def _pieces(text: str) -> Iterator[str | Wildcard]:
    """A LIKE pattern taken apart; a backslash is itself unless it stands before `%` or `_`."""
    for found in re.finditer(r"\\([%_])|(%)|(_)|([^%_\\]+|\\)", text):
        escaped, many, one, plain = found.groups()
        yield Wildcard.ANY if many else Wildcard.ONE if one else escaped or plain


def is_like(operand: Part, pattern: str, aim: Aim) -> Part:
    """`operand LIKE pattern`: the operand is cast to String."""
    parts = pattern_of(_pieces(pattern))
    text = plain_text(parts)
    if text is not None:
        return _equal_text(operand, text, aim)
    return _like(operand, parts, aim)


def _like(operand: Part, parts: Pattern, aim: Aim) -> Part:
    others = _may_match_others(parts)
    if operand.type is Type.ANY and aim is Aim.TRUE and not others:
        return condition(like(operand.node, parts), operand)
    operand = cast(operand, Type.STRING)
    if Wildcard.ONE not in parts and not others:
        texts = [part for part in parts if isinstance(part, str)]
        operand = _in_one_case(operand, texts, aim, whole=False)
    return condition(like(operand.node, parts), operand)


def _may_match_others(pattern: Pattern) -> bool:
    """Whether the text of an Integer or Boolean may be like the pattern; when in doubt it may."""
    if all(isinstance(part, Wildcard) or set(part) <= _INTEGER_CHARACTERS for part in pattern):
        return True
    if sum(part is not Wildcard.ANY and len(part if isinstance(part, str) else "_") for part in pattern) > 5:
        return False  # longer than "false"
    written = {Wildcard.ANY: ".*", Wildcard.ONE: "."}
    parts = (written[part] if isinstance(part, Wildcard) else re.escape(part) for part in pattern)
    expression = re.compile("".join(parts))
    return any(expression.fullmatch(text) for text in ("true", "false"))


def _in_one_case(part: Part, texts: list[str], aim: Aim, *, whole: bool) -> Part:
    """`LOWER(s)` compared with texts is `s.lowerAscii()` where that makes no difference, for the matcher knows it.

    Not `whole`: the texts are compared with a part of it.
    """
    match part.node:
        case Call("cesql.lower", None, (operand,)) if all(_is_lower_case_of_ascii(text, whole=whole) for text in texts):
            function = "lowerAscii"
        case Call("cesql.upper", None, (operand,)) if whole and all(map(_is_upper_case_of_ascii, texts)):
            function = "upperAscii"
        case _:
            return part
    match operand:
        case Call("string", None, (Select(Name("ce")) as extension,)) if aim is Aim.TRUE and not any(
            others_written(text.lower()) for text in texts
        ):
            # What is no string is an error then, and could not be equal: no Integer or Boolean is written so.
            operand = extension
        case _:
            pass
    return replace(part, node=Call(function, operand, ()))


def _is_lower_case_of_ascii(text: str, *, whole: bool) -> bool:
    """Only two other characters become ASCII in lower case: the Kelvin sign `k`, I with a dot `i` and a mark."""
    return text.isascii() and "k" not in text and (whole or not text.endswith("i"))


def _is_upper_case_of_ascii(text: str) -> bool:
    """Other characters that become ASCII alone in upper case become I, S, SS, ST, FF, FI, FL and the like."""
    return text.isascii() and not set(text) & {"F", "I", "S"}


# --- functions ------------------------------------------------------------------------------------
# CESQL's functions in CEL, one row each (CloudEvents SQL 1.0, section 3.5).

_S, _I, _B, _A = Type.STRING, Type.INTEGER, Type.BOOLEAN, Type.ANY


@dataclass(frozen=True, slots=True)
class Signature:
    """A function of one number of arguments."""

    parameters: tuple[Type, ...]
    result: Type
    build: Callable[[tuple[Node, ...]], Node]  # the CEL of the invoked, from the CEL of the arguments
    more: Type | None = None  # type of any number of further arguments; None when there are none
    total: bool = True  # it has a value for all values of its parameters
    low: int = INT32_MIN  # an Integer result lies between these
    high: int = INT32_MAX


def _named(function: str) -> Callable[[tuple[Node, ...]], Node]:
    return lambda arguments: Call(function, None, arguments)


def _concat(arguments: tuple[Node, ...]) -> Node:
    if len(arguments) == 2:
        return Call("_+_", None, arguments)
    return Call("join", ListOf(arguments), ()) if len(arguments) > 1 else arguments[0] if arguments else literal("")


def _concat_with(arguments: tuple[Node, ...]) -> Node:
    delimiter, texts = arguments[0], arguments[1:]
    if not texts:
        return Call("substring", delimiter, (literal(0), literal(0)))  # empty, and an error without a delimiter
    return Call("join", ListOf(texts), (delimiter,))


def _same(arguments: tuple[Node, ...]) -> Node:
    return arguments[0]


_SUBSTRING: Final = _named("cesql.substring")

FUNCTIONS: Final[Mapping[str, tuple[Signature, ...]]] = {
    "LENGTH": (Signature((_S,), _I, _named("size"), low=0, high=INT32_MAX),),
    "CONCAT": (Signature((), _S, _concat, more=_S),),
    "CONCAT_WS": (Signature((_S,), _S, _concat_with, more=_S),),
    "LOWER": (Signature((_S,), _S, _named("cesql.lower")),),
    "UPPER": (Signature((_S,), _S, _named("cesql.upper")),),
    "TRIM": (Signature((_S,), _S, lambda arguments: Call("trim", arguments[0], ())),),
    "LEFT": (Signature((_S, _I), _S, _named("cesql.left"), total=False),),
    "RIGHT": (Signature((_S, _I), _S, _named("cesql.right"), total=False),),
    "SUBSTRING": (
        Signature((_S, _I), _S, _SUBSTRING, total=False),
        Signature((_S, _I, _I), _S, _SUBSTRING, total=False),
    ),
    "ABS": (Signature((_I,), _I, _named("cesql.abs"), total=False, low=0),),
    "INT": (Signature((_I,), _I, _same),),
    "BOOL": (Signature((_B,), _B, _same),),
    "STRING": (Signature((_S,), _S, _same),),
    "IS_INT": (Signature((_A,), _B, _named("cesql.is_int")),),
    "IS_BOOL": (Signature((_A,), _B, _named("cesql.is_bool")),),
}
"""By name: one signature for each number of arguments. INT, BOOL and STRING are their parameter's cast alone."""


def arguments_of(found: Signature, parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """The arguments, each cast to its parameter's type."""
    types = (*found.parameters, *(found.more or _S for _ in parts[len(found.parameters) :]))
    return tuple(cast(part, wanted) for part, wanted in zip(parts, types, strict=True))


def invoked(found: Signature, arguments: tuple[Part, ...]) -> Part:
    """The invoked in CEL, of arguments that are cast already."""
    if found.build is _same:
        return arguments[0]
    fails, needs = of_all(arguments)
    node = found.build(tuple(argument.node for argument in arguments))
    return Part(node, found.result, fails if found.total else None, needs, found.low, found.high)
