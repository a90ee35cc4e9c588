"""The predicate of an `exists` as probes of a list's elements, or of the values at a path."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from headgate.filter.cel.ast import (
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
    Not,
    Or,
)
from headgate.filter.cel.build import literal, operands_of
from headgate.filter.cel.rewrite import flatten_all
from headgate.filter.compile.operands import EXACT_DOUBLE_MAX, arguments_of
from headgate.filter.compile.patterns import conditions_of
from headgate.filter.compile.plan import Constant, ConstantKind, Form, Op, Operand, Probe
from headgate.filter.compile.predicates import (
    EQUAL_PROBES,
    KINDS,
    METHODS,
    ORDERS,
    Atom,
    Predicates,
    Unsupported,
    constant_of,
    form_of,
    only,
)

_GUARDS: Final = {
    frozenset({"string"}): ConstantKind.STRING,
    frozenset({"bool"}): ConstantKind.BOOL,
    frozenset({"int", "uint", "double"}): ConstantKind.NUMBER,
}
_LOWER: Final = {Form.ELEMENTS: Form.ELEMENTS_LOWER, Form.VALUES: Form.VALUES_LOWER}


@dataclass(slots=True)
class _Probes:
    """What is found of one value: probes and their constants, of one kind and in one form."""

    probes: list[Probe]
    constants: list[Constant]
    kinds: set[ConstantKind]
    lower: set[bool]


def exists(operand: Operand | None, variable: str, predicate: Node, *, negated: bool) -> Predicates:
    """Whether one of the values at an operand, called `variable`, satisfies a predicate; no operand: unsupported."""
    if operand is None:
        return Unsupported()
    operands = _conditions(flatten_all(predicate), variable)
    guard = guard_of(operands, variable)
    if guard is None:
        return Unsupported()
    found = _Probes([], [], set(), set())
    unsupported = [
        operand
        for operand in operands
        if _guarded(operand, variable) is None and not _add_probe(found, operand, variable, lenient=bool(guard))
    ]
    if unsupported and (negated or not found.probes):
        return Unsupported()
    if guard and any(probe.negated for probe in found.probes):
        found.probes.append(Probe(Op.HAS))
    if not found.probes or len(found.kinds) > 1 or len(found.lower) > 1:
        return Unsupported()
    (kind,) = found.kinds
    if guard and kind not in guard:
        return Unsupported()
    if True in found.lower:
        if operand.form not in _LOWER:
            return Unsupported()
        operand = form_of(operand, _LOWER[operand.form])
    if kind is ConstantKind.NULL and [probe.op for probe in found.probes] != [Op.EQ]:
        return Unsupported()
    if operand.form is Form.NAMED and not all(probe in EQUAL_PROBES for probe in found.probes):
        # An extension that is a map equals no constant, in every other comparison it is an error.
        return Unsupported()
    constants = () if kind is ConstantKind.NULL else tuple(found.constants)
    atom = Atom(operand, Op.EXISTS, kind, constants, negated, tuple(found.probes))
    return Unsupported(necessary=(atom,)) if unsupported else only(atom)


def _conditions(predicate: Node, variable: str) -> tuple[Node, ...]:
    """The conditions that a predicate joins by `&&`, regular expressions as plain ones."""
    conditions: list[Node] = []
    for operand in operands_of(And, predicate):
        match operand:
            case Call("matches", target, (Literal(LiteralKind.STRING, str(pattern)),)) if target is not None:
                simpler = conditions_of(target, pattern) or operand
                conditions += operands_of(And, simpler)
            case Not(And(guarded)) if guard_of(guarded, variable):
                conditions += _each_negated(guarded, variable)
            case _:
                conditions.append(operand)
    return tuple(conditions)


def _each_negated(guarded: tuple[Node, ...], variable: str) -> tuple[Node, ...]:
    """`!(guard && (a || b))` is `!(guard && a) && !(guard && b)`."""
    guards = tuple(operand for operand in guarded if _guarded(operand, variable) is not None)
    match [operand for operand in guarded if _guarded(operand, variable) is None]:
        case [Or(operands)]:
            return tuple(Not(And((*guards, operand))) for operand in operands)
        case _:
            return (Not(And(guarded)),)


def guard_of(operands: tuple[Node, ...], variable: str) -> frozenset[ConstantKind] | None:
    """The kind of value that guards let through; empty without a guard, None for a guard that probes cannot say."""
    found = {kind for operand in operands if (kind := _guarded(operand, variable)) is not None}
    return None if len(found) > 1 or ConstantKind.NONE in found else frozenset(found)


def _guarded(node: Node, variable: str) -> ConstantKind | None:
    """The kind of `type(v) == string`; NONE when there is none for these types, None when `node` is no such test."""
    match node:
        case Compare(Comparison.EQ, Call("type", None, (Name(name),)), Name(type_name)) if name == variable:
            names = frozenset({type_name})
        case In(Call("type", None, (Name(name),)), ListOf(items)) if name == variable:
            names = frozenset(item.name for item in items if isinstance(item, Name))
        case _:
            return None
    return _GUARDS.get(names, ConstantKind.NONE)


def _add_probe(found: _Probes, node: Node, variable: str, *, lenient: bool) -> bool:
    """Adds one condition about the variable; False when it is no probe."""
    negated = isinstance(node, Not)
    inner = node.operand if isinstance(node, Not) else node
    if negated and isinstance(inner, And):
        guard = guard_of(inner.operands, variable)
        rest = [operand for operand in inner.operands if _guarded(operand, variable) is None]
        if not guard or len(rest) != 1:
            return False
        inner, lenient = rest[0], True
        before = set(found.kinds)
        if not _add_probe(found, Not(inner), variable, lenient=True):
            return False
        return found.kinds <= (before | guard)
    constants: tuple[Literal, ...]
    match inner:
        case Compare(comparison, Call("size") as call, Literal(LiteralKind.INT, int(size))):
            # Of a list in the list it is no error: only a guard says that there is none.
            if not lenient or len(arguments_of(call)) != 1 or not 0 <= size < _SIZE_MAX:
                return False
            (left,) = arguments_of(call)
            pattern, opposite = _sized(comparison, size)
            op, negated, constants = Op.LIKE, negated is not opposite, (literal(pattern),)
        case Compare(comparison, left, Literal() as constant) if not isinstance(constant.value, bytes):
            op = ORDERS.get(comparison, Op.EQ)
            negated = negated is not (comparison is Comparison.NE)
            constants = (constant,)
        case In(left, ListOf(items)):
            constants = tuple(item for item in items if isinstance(item, Literal) and not isinstance(item.value, bytes))
            op = Op.IN
            if len(constants) < len(items) or not constants or found.probes:
                return False
        case Call(function, left, (Literal(LiteralKind.STRING) as constant,)) if function in METHODS:
            op, constants = METHODS[function], (constant,)
        case _:
            return False
    lower = False
    match left:
        case Call("lowerAscii", Name(name), ()):
            lower = True
        case Name(name):
            pass
        case _:
            return False
    if name != variable or any(probe.op is Op.IN for probe in found.probes) or not _all_supported(constants):
        return False
    if op in ORDERS.values() and constants[0].kind is LiteralKind.NULL:
        return False
    found.lower.add(lower)
    found.kinds |= {KINDS[constant.kind] for constant in constants}
    found.constants += [constant_of(constant) for constant in constants]
    if op is Op.IN and len(constants) == 1:
        op = Op.EQ
    equality = op in {Op.EQ, Op.IN} and not lower
    found.probes.append(Probe(op, negated, lenient or equality))
    return True


_SIZE_MAX: Final = 256
"""A size is a pattern of so many `_`."""


def _sized(comparison: Comparison, size: int) -> tuple[str, bool]:
    """`size(text) comparison size` as a pattern, and whether it must not stand for the text."""
    match comparison:
        case Comparison.GE | Comparison.LT:
            return "_" * size + "%", comparison is Comparison.LT
        case Comparison.GT | Comparison.LE:
            return "_" * (size + 1) + "%", comparison is Comparison.LE
        case Comparison.EQ | Comparison.NE:
            return "_" * size, comparison is Comparison.NE


def _all_supported(literals: Iterable[Literal]) -> bool:
    values = [literal.value for literal in literals]
    return not any(isinstance(value, float) and abs(value) > EXACT_DOUBLE_MAX for value in values)
