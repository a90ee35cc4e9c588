"""CESQL's functions in CEL, one row each (CloudEvents SQL 1.0, section 3.5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from headgate.filter.cel.ast import Call, Compare, Comparison, Conditional, ListOf, Node
from headgate.filter.cel.build import literal
from headgate.filter.dialects.cesql.values import Part, Type, cast, of_all
from headgate_api.event.attributes import INT32_MAX, INT32_MIN

_S, _I, _B, _A = Type.STRING, Type.INTEGER, Type.BOOLEAN, Type.ANY
_LENGTH_MAX: Final = INT32_MAX


@dataclass(frozen=True, slots=True)
class Signature:
    """A function of one number of arguments."""

    parameters: tuple[Type, ...]
    result: Type
    build: Callable[[tuple[Node, ...]], Node]  # the CEL of the call, from the CEL of the arguments
    more: Type | None = None  # type of any number of further arguments; None when there are none
    total: bool = True  # it has a value for all values of its parameters
    low: int = INT32_MIN  # an Integer result lies between these
    high: int = INT32_MAX
    otherwise: Callable[[tuple[Node, ...]], Node] | None = None  # CESQL's value beside an error; None: zero


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


def _all_if_negative(arguments: tuple[Node, ...]) -> Node:
    return Conditional(Compare(Comparison.LT, arguments[1], literal(0)), arguments[0], literal(""))


def _most_if_least(arguments: tuple[Node, ...]) -> Node:
    is_least = Compare(Comparison.EQ, arguments[0], literal(INT32_MIN))
    return Conditional(is_least, literal(INT32_MAX), literal(0))


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
    "LEFT": (Signature((_S, _I), _S, _named("cesql.left"), total=False, otherwise=_all_if_negative),),
    "RIGHT": (Signature((_S, _I), _S, _named("cesql.right"), total=False, otherwise=_all_if_negative),),
    "SUBSTRING": (
        Signature((_S, _I), _S, _SUBSTRING, total=False),
        Signature((_S, _I, _I), _S, _SUBSTRING, total=False),
    ),
    "ABS": (Signature((_I,), _I, _named("cesql.abs"), total=False, low=0, otherwise=_most_if_least),),
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


def call(found: Signature, arguments: tuple[Part, ...]) -> Part:
    """The call in CEL, of arguments that are cast already."""
    if found.build is _same:
        return arguments[0]
    fails, needs = of_all(arguments)
    node = found.build(tuple(argument.node for argument in arguments))
    return Part(node, found.result, fails if found.total else None, needs, found.low, found.high)
