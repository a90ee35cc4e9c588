"""The syntax tree of CEL: a closed set of frozen nodes.

Macros, presence tests and comparisons are nodes of their own, so that a consumer matches on meaning, not on function
names. `And` and `Or` take any number of operands. Every consumer ends its `match` in `assert_never`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Any, Final, TypeVar, get_args

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1
UINT64_MAX: Final = 2**64 - 1
"""What CEL's int and uint can hold."""
TIMESTAMP_END_S: Final = 253_402_300_800
"""The first second, since 1970 UTC, behind CEL's timestamps: of year 10000."""


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
_Parts = TypeVar("_Parts", list[object], tuple[object, ...])

TYPE_NAMES: Final = frozenset({"bool", "bytes", "double", "int", "list", "map", "null_type", "string", "uint"})
"""Names that are types, as in `type(x) == string`."""
PUBLISH_TIME: Final = "publish_time"
"""The variable that is the time at which the broker stored the event: a timestamp, in milliseconds."""
TRUE = Literal(LiteralKind.BOOL, True)
FALSE = Literal(LiteralKind.BOOL, False)


def map_children(node: Node, change: Callable[[Node], Node]) -> Node:
    """`node` with `change` applied to each direct child, also bodies of macros; itself where none changes."""
    kind = type(node)
    if kind is Literal or kind is Name:
        return node
    parts = [getattr(node, field) for field in kind.__match_args__]
    changed = _changed(parts, change)
    return node if changed is parts else kind(*changed)  # type: ignore[arg-type]


def _changed(parts: _Parts, change: Callable[[Node], Node]) -> _Parts:
    """`parts` with `change` applied to each node, also to those in tuples; `parts` itself when none becomes another."""
    made: list[object] = []
    is_other = False
    for part in parts:
        new: object = part
        if type(part) in _KINDS:
            new = change(part)  # type: ignore[arg-type]
        elif type(part) is tuple:
            new = _changed(part, change)
        is_other = is_other or new is not part
        made.append(new)
    if not is_other:
        return parts
    return tuple(made) if isinstance(parts, tuple) else made


def children(node: Node) -> tuple[Node, ...]:
    """The direct children of `node`, in the order in which they are written."""
    return _CHILDREN[type(node)](node)


_CHILDREN: Final[dict[type, Callable[[Any], tuple[Node, ...]]]] = {
    Literal: lambda _: (),
    Name: lambda _: (),
    Select: lambda node: (node.operand,),
    Has: lambda node: (node.operand,),
    Not: lambda node: (node.operand,),
    Index: lambda node: (node.operand, node.key),
    Compare: lambda node: (node.left, node.right),
    In: lambda node: (node.element, node.container),
    And: lambda node: node.operands,
    Or: lambda node: node.operands,
    ListOf: lambda node: node.items,
    Call: lambda node: node.arguments if node.target is None else (node.target, *node.arguments),
    Conditional: lambda node: (node.condition, node.then, node.otherwise),
    MapOf: lambda node: tuple(part for entry in node.entries for part in entry),
    Message: lambda node: tuple(value for _, value in node.fields),
    Macro: lambda node: tuple(part for part in (node.range, node.predicate, node.transform) if part is not None),
}
"""By the kind of the node: looking up is faster than matching one kind after the other, and walks ask all the time."""


def root_of(node: Node) -> Node:
    """What a path of fields begins with: `data` of `data.a.b`."""
    while isinstance(node, Select):
        node = node.operand
    return node


def in_cel_years(seconds: float | Fraction) -> bool:
    """Whether CEL has timestamps at this second since 1970 UTC: in the years 1 to 9999."""
    return -62_135_596_800 <= seconds < TIMESTAMP_END_S


def reads_publish_time(node: Node) -> bool:
    """Whether `publish_time` stands anywhere in an expression."""
    return node == Name(PUBLISH_TIME) or any(map(reads_publish_time, children(node)))
