"""Conditions as comparisons of the matcher, one leaf of a filter at a time.

Where a comparison says what the condition says, "true" is kept exactly; an error may become false, never true.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from headgate.filter.cel.ast import (
    TYPE_NAMES,
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
    Not,
    Or,
    Select,
    children,
)
from headgate.filter.cel.build import literal, operands_of
from headgate.filter.cel.rewrite import asks_for_some, certain_prefix, flatten_all
from headgate.filter.compile.operands import (
    EXACT_DOUBLE_MAX,
    TIME,
    instant_of,
    many_of,
    operand_of,
    path_of,
    solved,
    time_of,
)
from headgate.filter.compile.patterns import LIKE, conditions_of
from headgate.filter.compile.plan import Constant, ConstantKind, Form, Op, Operand, Probe

KINDS: Final = {
    LiteralKind.NULL: ConstantKind.NULL,
    LiteralKind.BOOL: ConstantKind.BOOL,
    LiteralKind.STRING: ConstantKind.STRING,
    **dict.fromkeys((LiteralKind.INT, LiteralKind.UINT, LiteralKind.DOUBLE), ConstantKind.NUMBER),
}
TYPES: Final = {
    ConstantKind.STRING: frozenset({"string"}),
    ConstantKind.NUMBER: frozenset({"int", "uint", "double"}),
    ConstantKind.BOOL: frozenset({"bool"}),
    ConstantKind.NULL: frozenset({"null_type"}),
}
"""Names of the types that a value equal to a constant of a kind may have."""
ORDERS: Final = {Comparison.LT: Op.LT, Comparison.LE: Op.LE, Comparison.GT: Op.GT, Comparison.GE: Op.GE}
COMPARISONS: Final = {op: comparison for comparison, op in ORDERS.items()}
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


# --- leaves ---------------------------------------------------------------------------------------

_FORM_KINDS: Final = {
    **dict.fromkeys((Form.LOWER, Form.UPPER, Form.TYPE, Form.TO_STRING), ConstantKind.STRING),
    **dict.fromkeys((Form.SIZE, Form.TO_INT, Form.TO_DOUBLE, Form.INTEGER), ConstantKind.NUMBER),
}
"""The kind of constant that a form can be compared with."""


def atoms(node: Node) -> Predicates:
    """A condition that is as simple as it gets (see `desugar.py`), in the matcher's operators."""
    negated = isinstance(node, Not)
    node = node.operand if isinstance(node, Not) else node
    match node:
        case Has(parent, field):
            operand = path_of(Select(parent, field))
            return Unsupported() if operand is None else only(Atom(operand, Op.HAS, ConstantKind.NONE, negated=negated))
        case Select() | Name():
            # As a condition `p` is true exactly when `p == true` is, and `!p` when `p == false` is.
            return _compared(node, Comparison.EQ, literal(not negated), negated=False)
        case Compare(comparison, left, right):
            return _compared(left, comparison, right, negated=negated)
        case In(element, ListOf(items)):
            return _listed(element, items, negated=negated)
        case In(Literal() as item, container):
            probe = Compare(Comparison.EQ, Name(""), item)
            return exists(many_of(container), "", probe, negated=negated)
        case Macro(MacroKind.EXISTS, source, variable, predicate, None) if predicate is not None:
            return exists(many_of(source), variable, predicate, negated=negated)
        case Call():
            return _called(node, negated=negated)
        case _:
            return Unsupported()


def _compared(left: Node, comparison: Comparison, right: Node, *, negated: bool) -> Predicates:
    match right:
        case Name(name) if name in TYPE_NAMES and comparison in {Comparison.EQ, Comparison.NE}:
            return _typed(left, (name,), negated=negated is not (comparison is Comparison.NE))
        case Literal():
            return _compared_with(left, comparison, right, negated=negated)
        case _:
            instant, time = instant_of(right), time_of(left)
            if instant is None or time is None:
                return Unsupported()
            return only(_comparison(time, comparison, ConstantKind.NUMBER, instant, negated=negated))


def _compared_with(left: Node, comparison: Comparison, right: Literal, *, negated: bool) -> Predicates:
    operand = operand_of(left)
    if operand is None:
        return _counted(left, comparison, right, negated=negated)
    why = _unsupported(operand, right)
    if why:
        return Unsupported(why)
    kind, constant = KINDS[right.kind], constant_of(right)
    if kind is ConstantKind.NULL and comparison in ORDERS:
        return ()  # null has no order: always an error
    if constant == "" and comparison is Comparison.LT and not negated:
        return ()  # nothing lies before the empty text
    return only(_comparison(operand, comparison, kind, constant, negated=negated))


def _comparison(
    operand: Operand, comparison: Comparison, kind: ConstantKind, constant: Constant, *, negated: bool
) -> Atom:
    if comparison in ORDERS:
        return Atom(operand, ORDERS[comparison], kind, constant, negated)
    return Atom(operand, Op.EQ, kind, constant, negated=negated is not (comparison is Comparison.NE))


def _counted(left: Node, comparison: Comparison, right: Literal, *, negated: bool) -> Predicates:
    """Arithmetic with integers, and whether there are any values: `size(json.values(...)) > 0`."""
    constant = right.value
    if isinstance(constant, bool) or not isinstance(constant, int | float):
        return Unsupported()
    match left:
        case Call("size") if len(children(left)) == 1:
            operand = many_of(children(left)[0])
            if operand is None or operand.form is not Form.VALUES:
                return Unsupported()
            some = asks_for_some(comparison, constant)
            if some is None:
                return Unsupported()
            return only(Atom(operand, Op.EXISTS, ConstantKind.NONE, (), negated is some))
        case _:
            bounds = solved(left, comparison, constant)
    if bounds is None:
        return Unsupported()
    operand, found = bounds
    made = tuple(_comparison(operand, side, ConstantKind.NUMBER, bound, negated=negated) for side, bound in found)
    together = (comparison is not Comparison.NE) is not negated
    return (made,) if together else tuple((atom,) for atom in made)


def _typed(left: Node, names: Iterable[str], *, negated: bool) -> Predicates:
    """`type(x) == string`, `type(x) in [int, double]`."""
    operand = operand_of(left)
    if operand is None or operand.form is not Form.TYPE:
        return Unsupported()
    return only(one_of(operand, ConstantKind.STRING, tuple(names), negated=negated))


def _listed(element: Node, items: tuple[Node, ...], *, negated: bool) -> Predicates:
    names = [item.name for item in items if isinstance(item, Name) and item.name in TYPE_NAMES]
    if names and len(names) == len(items):
        return _typed(element, dict.fromkeys(names), negated=negated)
    operand = operand_of(element)
    literals = [item for item in items if isinstance(item, Literal)]
    if operand is None or len(literals) < len(items) or not literals:
        return Unsupported()
    groups: dict[ConstantKind, dict[Constant, None]] = {}
    for constant in literals:
        why = _unsupported(operand, constant)
        if why:
            return Unsupported(why)
        groups.setdefault(KINDS[constant.kind], {})[constant_of(constant)] = None
    made = tuple(one_of(operand, kind, tuple(group), negated=negated) for kind, group in groups.items())
    return (made,) if negated else tuple((atom,) for atom in made)


def _called(call: Call, *, negated: bool) -> Predicates:
    match call:
        case Call(function, target, (Literal(LiteralKind.STRING, str(text)),)) if target is not None:
            operand = operand_of(target)
        case _:
            return Unsupported()
    if operand is None:
        return Unsupported()
    if operand == TIME:
        return Unsupported("a timestamp is no string")
    if _FORM_KINDS.get(operand.form, ConstantKind.STRING) is not ConstantKind.STRING or operand.form is Form.TYPE:
        return Unsupported()
    if function in METHODS:
        return only(Atom(operand, METHODS[function], ConstantKind.STRING, text, negated))
    if function == "matches":
        # The matcher looks for the text that the pattern cannot do without.
        prefix = "" if negated else certain_prefix(text)
        necessary = (Atom(operand, Op.STARTS, ConstantKind.STRING, prefix),) if prefix else ()
        return Unsupported("regular expressions are decided by cel-cpp", necessary)
    return Unsupported()


def _unsupported(operand: Operand, literal: Literal) -> str:
    """Why a comparison of `operand` with `literal` is left to cel-cpp; empty when the matcher decides it."""
    if operand == TIME:
        return "a timestamp is compared with timestamps"
    value = literal.value
    if isinstance(value, bytes):
        return "bytes are decided by cel-cpp"
    if isinstance(value, float) and abs(value) > EXACT_DOUBLE_MAX:
        return "doubles beyond 2^53 are decided by cel-cpp"
    if KINDS[literal.kind] is not _FORM_KINDS.get(operand.form, KINDS[literal.kind]) or operand.form is Form.TYPE:
        return "types that differ are decided by cel-cpp"
    return ""


# --- elements -------------------------------------------------------------------------------------
# The predicate of an `exists` as probes of a list's elements, or of the values at a path.

_GUARDS: Final = {names: kind for kind, names in TYPES.items() if kind is not ConstantKind.NULL}
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
        operand = replace(operand, form=_LOWER[operand.form])
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
            if not lenient or len(children(call)) != 1 or not 0 <= size < _SIZE_MAX:
                return False
            (left,) = children(call)
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
