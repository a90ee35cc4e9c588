"""The syntax tree of CESQL: a closed set of nodes, each with its place in the text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal."""

    value: str | int | bool
    position: int


@dataclass(frozen=True, slots=True)
class Attribute:
    """The value of a context attribute or extension."""

    name: str
    position: int


@dataclass(frozen=True, slots=True)
class Exists:
    """`EXISTS name`."""

    name: str
    position: int


@dataclass(frozen=True, slots=True)
class Not:
    """`NOT x`; also of `NOT LIKE` and `NOT IN`."""

    operand: Tree
    position: int


@dataclass(frozen=True, slots=True)
class Minus:
    """`-x`."""

    operand: Tree
    position: int


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """`x + y` and its kin."""

    operator: Literal["+", "-", "*", "/", "%"]
    left: Tree
    right: Tree
    position: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """`x = y` and its kin; `<>` is written `!=`."""

    operator: Literal["=", "!=", "<", "<=", ">", ">="]
    left: Tree
    right: Tree
    position: int


@dataclass(frozen=True, slots=True)
class Logic:
    """Two or more operands joined by the same operator."""

    operator: Literal["AND", "OR", "XOR"]
    operands: tuple[Tree, ...]
    position: int


@dataclass(frozen=True, slots=True)
class Like:
    """`x LIKE pattern`; the pattern with its escapes."""

    operand: Tree
    pattern: str
    position: int


@dataclass(frozen=True, slots=True)
class OneOf:
    """`x IN (y, ...)`."""

    operand: Tree
    items: tuple[Tree, ...]
    position: int


@dataclass(frozen=True, slots=True)
class Invocation:
    """`NAME(x, ...)`; the name in upper case."""

    name: str
    arguments: tuple[Tree, ...]
    position: int


Tree = Constant | Attribute | Exists | Not | Minus | Arithmetic | Comparison | Logic | Like | OneOf | Invocation


def walk(tree: Tree) -> Iterator[Tree]:
    """The node and all below it."""
    waiting: list[object] = [tree]
    while waiting:
        part = waiting.pop()
        if isinstance(part, tuple):
            waiting += part
        elif isinstance(part, Tree):
            yield part
            waiting += [getattr(part, field) for field in part.__match_args__]
