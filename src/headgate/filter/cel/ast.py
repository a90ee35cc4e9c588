"""The syntax tree of CEL: a closed set of frozen nodes.

Macros, presence tests and comparisons are nodes of their own, so that a consumer matches on meaning, not on function
names. `And` and `Or` take any number of operands. Every consumer ends its `match` in `assert_never`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, assert_never, get_args

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1
UINT64_MAX: Final = 2**64 - 1
"""What CEL's int and uint can hold."""
TIMESTAMP_START_S: Final = -62_135_596_800
TIMESTAMP_END_S: Final = 253_402_300_800
"""CEL's timestamps, in seconds since 1970 UTC: years 1 to 9999, the end not included."""


class LiteralKind(StrEnum):
    """The CEL type of a constant; Python's own type would not tell an int from a uint."""

    NULL = "null"
    BOOL = "bool"
    INT = "int"
    UINT = "uint"
    DOUBLE = "double"
    STRING = "string"
    BYTES = "bytes"


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant."""

    kind: LiteralKind
    value: bool | int | float | str | bytes | None


@dataclass(frozen=True, slots=True)
class Name:
    """A variable: `ce`, `data`, one that a macro binds, or a type such as `int`."""

    name: str


@dataclass(frozen=True, slots=True)
class Select:
    """`operand.field`."""

    operand: Node
    field: str


@dataclass(frozen=True, slots=True)
class Has:
    """`has(operand.field)`."""

    operand: Node
    field: str


@dataclass(frozen=True, slots=True)
class Index:
    """`operand[key]`."""

    operand: Node
    key: Node


@dataclass(frozen=True, slots=True)
class Call:
    """A function or an arithmetic operator (`_+_`, `-_`, ...); `target` is the receiver of a method call."""

    function: str
    target: Node | None
    arguments: tuple[Node, ...]


class Comparison(StrEnum):
    """A comparison, by its CEL spelling."""

    EQ = "=="
    NE = "!="
    LT = "<"
    LE = "<="
    GT = ">"
    GE = ">="

    @property
    def mirrored(self) -> Comparison:
        """`a < b` is `b > a`."""
        return _RULES[self][0]

    @property
    def opposite(self) -> Comparison:
        """`!(a < b)` is `a >= b`, where neither side is NaN."""
        return _RULES[self][1]

    def holds(self, left: object, right: object) -> bool:
        """Whether it is true of two of Python's values."""
        return bool(_RULES[self][2](left, right))


_RULES: Final[dict[Comparison, tuple[Comparison, Comparison, Callable[[Any, Any], bool]]]] = {
    Comparison.EQ: (Comparison.EQ, Comparison.NE, operator.eq),
    Comparison.NE: (Comparison.NE, Comparison.EQ, operator.ne),
    Comparison.LT: (Comparison.GT, Comparison.GE, operator.lt),
    Comparison.LE: (Comparison.GE, Comparison.GT, operator.le),
    Comparison.GT: (Comparison.LT, Comparison.LE, operator.gt),
    Comparison.GE: (Comparison.LE, Comparison.LT, operator.ge),
}
"""The comparison with its sides exchanged, its negation, and the same of Python's values."""


@dataclass(frozen=True, slots=True)
class Compare:
    """`left operator right`."""

    operator: Comparison
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class In:
    """`element in container`."""

    element: Node
    container: Node


@dataclass(frozen=True, slots=True)
class Not:
    """`!operand`."""

    operand: Node


@dataclass(frozen=True, slots=True)
class And:
    """Two or more operands joined by `&&`: false wins over an error."""

    operands: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """Two or more operands joined by `||`: true wins over an error."""

    operands: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Conditional:
    """`condition ? then : otherwise`."""

    condition: Node
    then: Node
    otherwise: Node


@dataclass(frozen=True, slots=True)
class ListOf:
    """`[item, ...]`."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class MapOf:
    """`{key: value, ...}`."""

    entries: tuple[tuple[Node, Node], ...]


@dataclass(frozen=True, slots=True)
class Message:
    """`type_name{field: value, ...}`."""

    type_name: str
    fields: tuple[tuple[str, Node], ...]


class MacroKind(StrEnum):
    """A comprehension macro, by its CEL spelling."""

    ALL = "all"
    EXISTS = "exists"
    EXISTS_ONE = "exists_one"
    FILTER = "filter"
    MAP = "map"


@dataclass(frozen=True, slots=True)
class Macro:
    """`range.kind(variable, ...)`; `map` alone has a transform, and may do without a predicate."""

    kind: MacroKind
    range: Node
    variable: str
    predicate: Node | None
    transform: Node | None


Node = (
    Literal
    | Name
    | Select
    | Has
    | Index
    | Call
    | Compare
    | In
    | Not
    | And
    | Or
    | Conditional
    | ListOf
    | MapOf
    | Message
    | Macro
)

_KINDS: Final = frozenset(get_args(Node))

TYPE_NAMES: Final = frozenset({"bool", "bytes", "double", "int", "list", "map", "null_type", "string", "uint"})
"""Names that are types, as in `type(x) == string`."""
PUBLISH_TIME: Final = "publish_time"
"""The variable that is the time at which the broker stored the event: a timestamp, in milliseconds."""
TRUE = Literal(LiteralKind.BOOL, True)
FALSE = Literal(LiteralKind.BOOL, False)


def map_children(node: Node, change: Callable[[Node], Node]) -> Node:
    """`node` with `change` applied to each of its direct children (the bodies of macros among them)."""
    kind = type(node)
    if kind is Literal or kind is Name:
        return node
    return kind(*_changed([getattr(node, field) for field in kind.__match_args__], change))  # type: ignore[arg-type]


def _changed(parts: Iterable[object], change: Callable[[Node], Node]) -> list[object]:
    """`parts` with `change` applied to each node, also to those in tuples."""
    return [
        change(part)  # type: ignore[arg-type]
        if type(part) in _KINDS
        else tuple(_changed(part, change))
        if isinstance(part, tuple)
        else part
        for part in parts
    ]


def children(node: Node) -> tuple[Node, ...]:
    """The direct children of `node`, in the order in which they are written."""
    match node:
        case Literal() | Name():
            return ()
        case Compare(_, left, right) | In(left, right) | Index(left, right):
            return (left, right)
        case Select(operand, _) | Has(operand, _) | Not(operand):
            return (operand,)
        case And(operands) | Or(operands) | ListOf(operands):
            return operands
        case Call(_, target, arguments):
            return arguments if target is None else (target, *arguments)
        case Conditional(condition, then, otherwise):
            return (condition, then, otherwise)
        case MapOf(entries):
            return tuple(part for entry in entries for part in entry)
        case Message(_, fields):
            return tuple(value for _, value in fields)
        case Macro(_, source, _, predicate, transform):
            return tuple(part for part in (source, predicate, transform) if part is not None)
        case _:
            assert_never(node)


def root_of(node: Node) -> Node:
    """What a path of fields begins with: `data` of `data.a.b`."""
    while isinstance(node, Select):
        node = node.operand
    return node


def reads_publish_time(node: Node) -> bool:
    """Whether `publish_time` stands anywhere in an expression."""
    return node == Name(PUBLISH_TIME) or any(map(reads_publish_time, children(node)))
