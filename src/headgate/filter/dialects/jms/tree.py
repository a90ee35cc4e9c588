"""The syntax tree of selectors: values, and conditions on them, each with its place in the text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Number:
    """A numeric literal: exact (int, within 64 bits) or approximate (float)."""

    value: int | float
    position: int


@dataclass(frozen=True, slots=True)
class Text:
    """A string literal."""

    value: str
    position: int


@dataclass(frozen=True, slots=True)
class Truth:
    """TRUE or FALSE, as a value or as a condition."""

    value: bool
    position: int


@dataclass(frozen=True, slots=True)
class Identifier:
    """A property or a header, as a value or as a condition."""

    name: str
    position: int


@dataclass(frozen=True, slots=True)
class Signed:
    """`+x` or `-x`."""

    sign: Literal["+", "-"]
    operand: Value
    position: int


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """`x + y`, `x - y`, `x * y`, `x / y`; `position` is the operator's."""

    operator: Literal["+", "-", "*", "/"]
    left: Value
    right: Value
    position: int


Value = Number | Text | Truth | Identifier | Signed | Arithmetic


@dataclass(frozen=True, slots=True)
class Comparison:
    """`x = y` and the like; `position` is the operator's."""

    operator: Literal["=", "<>", "<", "<=", ">", ">="]
    left: Value
    right: Value
    position: int


@dataclass(frozen=True, slots=True)
class Between:
    """`x BETWEEN low AND high`, both included."""

    operand: Value
    low: Value
    high: Value
    negated: bool
    position: int


@dataclass(frozen=True, slots=True)
class OneOf:
    """`x IN ('a', 'b')`."""

    operand: Identifier
    values: tuple[str, ...]
    position: int


@dataclass(frozen=True, slots=True)
class Like:
    """`x LIKE 'pattern' ESCAPE 'c'`."""

    operand: Identifier
    pattern: Text
    escape: str | None
    position: int


@dataclass(frozen=True, slots=True)
class IsNull:
    """`x IS NULL`."""

    operand: Identifier
    position: int


@dataclass(frozen=True, slots=True)
class Negation:
    """`NOT x`; also of `NOT IN`, `NOT LIKE` and `IS NOT NULL`."""

    operand: Condition
    position: int


@dataclass(frozen=True, slots=True)
class Conjunction:
    """`x AND y AND ...`."""

    operands: tuple[Condition, ...]
    position: int


@dataclass(frozen=True, slots=True)
class Disjunction:
    """`x OR y OR ...`."""

    operands: tuple[Condition, ...]
    position: int


Condition = Truth | Identifier | Comparison | Between | OneOf | Like | IsNull | Negation | Conjunction | Disjunction
