"""Constructors of expressions: literals, calls, and conditions joined by `&&` and `||`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from string import ascii_lowercase, ascii_uppercase
from typing import Final, assert_never

from headgate.filter.cel.ast import (
    FALSE,
    INT64_MAX,
    TRUE,
    And,
    Call,
    Compare,
    Comparison,
    Has,
    In,
    ListOf,
    Literal,
    LiteralKind,
    Macro,
    MacroKind,
    Name,
    Node,
    Or,
    Select,
)
from headgate_api.event.attributes import REQUIRED_ATTRIBUTES, is_name
from headgate_api.event.model import ExtensionValue

CE: Final = Name("ce")


LOWER_ASCII: Final = str.maketrans(ascii_uppercase, ascii_lowercase)
"""`text.translate` with it is CEL's lowerAscii: the case of other letters than A to Z counts."""
UPPER_ASCII: Final = str.maketrans(ascii_lowercase, ascii_uppercase)


def literal(value: str | int | float | bool | None) -> Literal:
    """A constant; an integer above int64 is a uint."""
    match value:
        case None:
            return Literal(LiteralKind.NULL, None)
        case bool():
            return TRUE if value else FALSE
        case int():
            return Literal(LiteralKind.INT if value <= INT64_MAX else LiteralKind.UINT, value)
        case float():
            return Literal(LiteralKind.DOUBLE, value)
        case str():
            return Literal(LiteralKind.STRING, value)
        case _:
            assert_never(value)


def attribute(name: str) -> Select:
    """`ce.name`."""
    return Select(CE, name)


def method(target: Node, function: str, *texts: str) -> Call:
    """`target.function("text")`."""
    return Call(function, target, tuple(map(literal, texts)))


def call(function: str, *arguments: Node) -> Call:
    """`function(argument, ...)`."""
    return Call(function, None, arguments)


def one_of(value: Node, constants: Sequence[Node]) -> Node:
    """`value in [constants]`, and `value == constant` of a single one."""
    if len(constants) == 1:
        return Compare(Comparison.EQ, value, constants[0])
    return In(value, ListOf(tuple(constants)))


def has_type(value: Node, *names: str) -> Node:
    """`type(value) == string`, or `type(value) in [int, bool]` of several."""
    return one_of(call("type", value), tuple(map(Name, names)))


def exists(source: Node, variable: str, condition: Node) -> Macro:
    """`source.exists(variable, condition)`."""
    return Macro(MacroKind.EXISTS, source, variable, condition, None)


def operands_of(join: type[And] | type[Or], node: Node) -> tuple[Node, ...]:
    """What `node` joins by `&&` or `||`; itself when it does not."""
    return node.operands if isinstance(node, join) else (node,)


def joined(join: type[And] | type[Or], operands: Sequence[Node]) -> Node:
    """Conditions joined by `&&` or `||`, as they are; true or false without any, one alone is itself."""
    if not operands:
        return TRUE if join is And else FALSE
    return operands[0] if len(operands) == 1 else join(tuple(operands))


def flattened(join: type[And] | type[Or], conditions: Iterable[Node]) -> tuple[Node, ...]:
    """Conditions and, in their place, the operands of those that are joined in the same way."""
    return tuple(operand for condition in conditions for operand in operands_of(join, condition))


def all_of(conditions: Iterable[Node]) -> Node:
    """Conditions joined by `&&`, each once, without those that are always true."""
    return _simplified(And, TRUE, FALSE, conditions)


def any_of(conditions: Iterable[Node]) -> Node:
    """Conditions joined by `||`, each once, without those that are never true."""
    return _simplified(Or, FALSE, TRUE, conditions)


def _simplified(join: type[And] | type[Or], neutral: Node, decides: Node, conditions: Iterable[Node]) -> Node:
    kept = dict.fromkeys(flattened(join, conditions))
    kept.pop(neutral, None)
    return decides if decides in kept else joined(join, tuple(kept))


# --- attribute names ------------------------------------------------------------------------------
# CloudEvents 0.3 has extensions that are maps. A member's name is that of its map, a dot and its own name:
# `github.repository`; a dot or a backslash of its own name has a backslash before it:
# `labels.app\.kubernetes\.io/name`. So a member is one more attribute, whose presence is never an error, and the names
# of no two of them are equal.

TIME_TEXT: Final = "@time"
"""The text of `ce.time` as it was sent, under a name that no attribute has: `ce["@time"]`."""
NO_ATTRIBUTES: Final = frozenset({"data", "data_base64"})
_BACKTICKED: Final = re.compile(r"[A-Za-z0-9_.\-/ ]+")
_SPECIAL: Final = re.compile(r"[.\\]")
_PLAIN_MEMBERS: Final = re.compile(r"(?:\.[A-Za-z0-9_\-/]+)*")


def of_member(name: str, member: str) -> str:
    """The name of a member of the map `name`."""
    escaped = _SPECIAL.sub(r"\\\g<0>", member)
    return f"{name}.{escaped}"


def members(name: str, value: ExtensionValue) -> Iterator[tuple[str, ExtensionValue]]:
    """All members of an extension, those of its maps among them, with their names; none where it is no map."""
    if not isinstance(value, dict):
        return
    for member, inner in value.items():
        below = of_member(name, member)
        yield below, inner
        yield from members(below, inner)


def may_exist(name: str) -> bool:
    """Whether some event may have an attribute of this name."""
    attribute = name.partition(".")[0]
    return (is_name(attribute) and attribute not in NO_ATTRIBUTES) or name == TIME_TEXT


def is_written_plainly(name: str) -> bool:
    """Whether JSON dialects take this name: an attribute's, and members of letters, digits, `_`, `-` and `/`."""
    attribute, _, below = name.partition(".")
    return is_name(attribute) and _PLAIN_MEMBERS.fullmatch(f".{below}" if "." in name else "") is not None


def present(name: str) -> Node:
    """Whether an event has an attribute: `has(ce.name)`; true of one that every event has."""
    if name in REQUIRED_ATTRIBUTES:
        return TRUE
    if _BACKTICKED.fullmatch(name):
        return Has(CE, name)
    return In(literal(name), CE)
