"""The predicates that the matcher supports: atoms in the operators of `plan.Op`, and their constants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from headgate.filter.cel.ast import Comparison, Literal, LiteralKind
from headgate.filter.compile.patterns import LIKE
from headgate.filter.compile.plan import Constant, ConstantKind, Form, Op, Operand, Probe

KINDS: Final = {
    LiteralKind.NULL: ConstantKind.NULL,
    LiteralKind.BOOL: ConstantKind.BOOL,
    LiteralKind.INT: ConstantKind.NUMBER,
    LiteralKind.UINT: ConstantKind.NUMBER,
    LiteralKind.DOUBLE: ConstantKind.NUMBER,
    LiteralKind.STRING: ConstantKind.STRING,
}
ORDERS: Final = {Comparison.LT: Op.LT, Comparison.LE: Op.LE, Comparison.GT: Op.GT, Comparison.GE: Op.GE}
EQUAL_PROBES: Final = (Probe(Op.EQ, lenient=True), Probe(Op.IN, lenient=True))
METHODS: Final = {"startsWith": Op.STARTS, "endsWith": Op.ENDS, "contains": Op.CONTAINS, LIKE: Op.LIKE}


@dataclass(frozen=True, slots=True)
class Atom:
    """One comparison of the value at an operand with constants, in the operators of `plan.Op`."""

    operand: Operand
    op: Op
    kind: ConstantKind
    constant: Constant | tuple[Constant, ...] = None
    negated: bool = False
    probes: tuple[Probe, ...] = ()


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A condition that the matcher has no operator for.

    Attributes:
        why: For people.
        necessary: What the matcher can check, and what must hold for the condition to be true.
    """

    why: str = "no operator of the matcher says it"
    necessary: tuple[Atom, ...] = ()


Predicates = tuple[tuple[Atom, ...], ...] | Unsupported
"""Alternatives, each of atoms that must hold together: none is never true, an empty one always."""


def only(*together: Atom) -> Predicates:
    """Atoms that must hold together, without an alternative."""
    return (together,)


def one_of(operand: Operand, kind: ConstantKind, constants: tuple[Constant, ...], *, negated: bool = False) -> Atom:
    """`operand in constants`, which are of one kind."""
    if len(constants) == 1:
        return Atom(operand, Op.EQ, kind, constants[0], negated)
    return Atom(operand, Op.IN, kind, constants, negated)


def constant_of(literal: Literal) -> Constant:
    """A literal as rows have it."""
    value = literal.value
    assert not isinstance(value, bytes)
    if isinstance(value, float) and value.is_integer():
        return int(value)  # 1.0 and 1 are one constant: one key, one row
    return value


def form_of(operand: Operand, form: Form) -> Operand:
    """The same operand in another form."""
    return Operand(operand.root, operand.path, form)
