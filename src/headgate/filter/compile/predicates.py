"""The predicates that the matcher supports: atoms in the operators of `plan.Op`, and their constants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from headgate.filter.cel.ast import And, Call, Compare, Comparison, Literal, LiteralKind, Name, Node, Not, Or
from headgate.filter.cel.build import call, joined, literal
from headgate.filter.cel.rewrite import is_path
from headgate.filter.compile.patterns import LIKE
from headgate.filter.compile.plan import Constant, ConstantKind, Form, Op, Operand, Probe
from headgate_api.event.attributes import INT32_MAX, INT32_MIN

KINDS: Final = {
    LiteralKind.NULL: ConstantKind.NULL,
    LiteralKind.BOOL: ConstantKind.BOOL,
    LiteralKind.INT: ConstantKind.NUMBER,
    LiteralKind.UINT: ConstantKind.NUMBER,
    LiteralKind.DOUBLE: ConstantKind.NUMBER,
    LiteralKind.STRING: ConstantKind.STRING,
}
TYPES: Final = {
    ConstantKind.STRING: frozenset({"string"}),
    ConstantKind.NUMBER: frozenset({"int", "uint", "double"}),
    ConstantKind.BOOL: frozenset({"bool"}),
    ConstantKind.NULL: frozenset({"null_type"}),
}
"""Names of the types that a value equal to a constant of a kind may have."""
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

    @property
    def constants(self) -> tuple[Constant, ...]:
        """All of them, also where it is one."""
        return self.constant if isinstance(self.constant, tuple) else (self.constant,)


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A condition that the matcher has no operator for; `necessary` must hold for it, and can be checked."""

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


# --- casts ----------------------------------------------------------------------------------------
# Comparisons of CESQL's casts in conditions that the matcher knows. See `filter/cel/functions.py`.
#
# `cesql.int(p)` is `int(p)` within 32 bits, but for booleans and texts with a `+`: of these `int(p)` leaves the matcher
# in doubt. As everywhere in the matcher, "true" is kept exactly and an error may become false.


def desugared_cast(node: Node) -> Node | None:
    """A condition on a cast in simpler ones; None when it is no such condition."""
    truth = not isinstance(node, Not)
    match node.operand if isinstance(node, Not) else node:
        case Compare(comparison, left, Literal(LiteralKind.INT, int(constant))):
            return _compared(left, comparison if truth else comparison.opposite, constant)
        case Call("cesql.bool", None, (path,)) if is_path(path):
            number = And((_is_int(path), _with(path, Comparison.NE, 0))) if truth else _with(path, Comparison.EQ, 0)
            return Or((*_written(path, truth=truth), number))
        case Call("cesql.not", None, (path,)) if is_path(path):
            return Or(_written(path, truth=not truth))
        case _:
            return None


def _compared(left: Node, comparison: Comparison, constant: int) -> Node | None:
    """`cesql.int(p) > 5`, and `cesql.int(cesql.int(p) + 5) > 10`, which is an error beyond 32 bits twice."""
    match left:
        case Call("cesql.int", None, (path,)) if is_path(path):
            return _within(path, comparison, constant, INT32_MIN, INT32_MAX)
        case Call("cesql.int", None, (Call("_+_" | "_-_" as sign, None, (inner, Literal(_, int(added)))),)):
            added = added if sign == "_+_" else -added
        case Call("cesql.int", None, (Call("_+_", None, (Literal(_, int(added)), inner)),)):
            pass
        case _:
            return None
    match inner:
        case Call("cesql.int", None, (path,)) if is_path(path):
            low, high = max(INT32_MIN, INT32_MIN - added), min(INT32_MAX, INT32_MAX - added)
            return _within(path, comparison, constant - added, low, high)
        case _:
            return None


def _within(path: Node, comparison: Comparison, constant: int, low: int, high: int) -> Node:
    """`int(path)` compared, and between `low` and `high` where the comparison alone does not say so."""
    cast = call("int", path)
    conditions = [_with(cast, comparison, constant)]
    bounded_above = comparison in {Comparison.EQ, Comparison.LT, Comparison.LE} and constant <= high
    bounded_below = comparison in {Comparison.EQ, Comparison.GT, Comparison.GE} and constant >= low
    if not bounded_above:
        conditions.append(_with(cast, Comparison.LE, high))
    if not bounded_below:
        conditions.append(_with(cast, Comparison.GE, low))
    return joined(And, conditions)


def _written(path: Node, *, truth: bool) -> tuple[Node, ...]:
    """The boolean, and the text that is written so in upper or lower case."""
    lower = Call("lowerAscii", path, ())
    return (
        Compare(Comparison.EQ, path, literal(truth)),
        Compare(Comparison.EQ, lower, literal("true" if truth else "false")),
    )


def _is_int(path: Node) -> Node:
    return Compare(Comparison.EQ, call("type", path), Name("int"))


def _with(left: Node, comparison: Comparison, constant: int) -> Node:
    return Compare(comparison, left, literal(constant))
