"""Constructors of expressions: literals, calls, and conditions joined by `&&` and `||`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, assert_never

from headgate.filter.cel.ast import (
    FALSE,
    INT64_MAX,
    TRUE,
    And,
    Call,
    Compare,
    Comparison,
    In,
    ListOf,
    Literal,
    LiteralKind,
    Name,
    Node,
    Or,
    Select,
)

CE: Final = Name("ce")


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
