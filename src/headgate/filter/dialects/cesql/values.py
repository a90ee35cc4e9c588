"""Parts of a CESQL expression in CEL, with when they fail, and casts between CESQL's three types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum, StrEnum, auto
from typing import Final, assert_never

from headgate.filter.cel.ast import Call, Compare, Comparison, Conditional, ListOf, Node, Not
from headgate.filter.cel.build import TIME_TEXT, attribute, call, literal
from headgate.filter.cel.functions import FunctionError, to_bool, to_int, to_string
from headgate.filter.cel.rewrite import push_not
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


def negated(node: Node) -> Node:
    """`!node`, with the `!` moved inside as far as that is exact."""
    return push_not(Not(node))


# --- functions ------------------------------------------------------------------------------------
# CESQL's functions in CEL, one row each (CloudEvents SQL 1.0, section 3.5).

_S, _I, _B, _A = Type.STRING, Type.INTEGER, Type.BOOLEAN, Type.ANY
_LENGTH_MAX: Final = INT32_MAX


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


def _method(function: str) -> Callable[[tuple[Node, ...]], Node]:
    return lambda arguments: Call(function, arguments[0], arguments[1:])


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
    "LENGTH": (Signature((_S,), _I, _named("size"), low=0, high=_LENGTH_MAX),),
    "CONCAT": (Signature((), _S, _concat, more=_S),),
    "CONCAT_WS": (Signature((_S,), _S, _concat_with, more=_S),),
    "LOWER": (Signature((_S,), _S, _named("cesql.lower")),),
    "UPPER": (Signature((_S,), _S, _named("cesql.upper")),),
    "TRIM": (Signature((_S,), _S, _method("trim")),),
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
