"""Which comparisons must hold together for a filter to be true? A rewritten tree as a bounded list of conjunctions.

Lowering keeps "true" exactly and may turn an error into false, never the other way round: with `!` pushed down
only `&&` and `||` are left, both monotone in false < error < true, so a lowered part never makes the whole truer.
A part that no `Op` can say is dropped from its conjunction, which is then inexact: it can only match more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from headgate.filter.ast import (
    FALSE,
    TRUE,
    And,
    Call,
    Compare,
    Comparison,
    Conditional,
    Has,
    In,
    ListOf,
    Literal,
    LiteralKind,
    Name,
    Node,
    Not,
    Or,
    Select,
)
from headgate.filter.plan import Constant, ConstantKind, Op, Place, Root
from headgate.filter.rewrite import certain_prefix, push_not, whole_text
from headgate.filter.unparse import unparse
from headgate.limits import FILTER_CONJUNCTIONS_MAX

EXACT_DOUBLE_MAX: Final = 2**53 - 1
"""Beyond it a double stands for several integers: cel-cpp compares an int with a double as two doubles."""

_KINDS: Final = {
    LiteralKind.NULL: ConstantKind.NULL,
    LiteralKind.BOOL: ConstantKind.BOOL,
    LiteralKind.INT: ConstantKind.NUMBER,
    LiteralKind.UINT: ConstantKind.NUMBER,
    LiteralKind.DOUBLE: ConstantKind.NUMBER,
    LiteralKind.STRING: ConstantKind.STRING,
}
_ORDERS: Final = {Comparison.LT: Op.LT, Comparison.LE: Op.LE, Comparison.GT: Op.GT, Comparison.GE: Op.GE}
_METHODS: Final = {"startsWith": Op.STARTS, "endsWith": Op.ENDS, "contains": Op.CONTAINS}
_TIME: Final = Place(Root.CE, ("time",))
_REASON_CHARACTERS: Final = 80


@dataclass(frozen=True, slots=True)
class Atom:
    """One comparison of the value at a place with constants, in the operators of `plan.Op`."""

    place: Place
    op: Op
    kind: ConstantKind
    constant: Constant | tuple[Constant, ...] = None
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Conjunction:
    """Atoms that must all hold.

    Attributes:
        atoms: Without duplicates, in the order in which they were written.
        dropped: Why parts are missing; empty when the atoms say everything.
    """

    atoms: tuple[Atom, ...] = ()
    dropped: tuple[str, ...] = ()


_ALWAYS: Final[tuple[Conjunction, ...]] = (Conjunction(),)


def conjunctions(node: Node) -> tuple[Conjunction, ...]:
    """The disjunction of conjunctions of a rewritten filter; empty when it is never true."""
    return _lower(node, {})


def place_of(node: Node) -> Place | None:
    """The place that a path reads, or None when `node` is no path (or reads the whole of `ce`)."""
    names: list[str] = []
    while isinstance(node, Select):
        names.append(node.field)
        node = node.operand
    match node:
        case Name("data"):
            return Place(Root.DATA, tuple(reversed(names)))
        case Name("ce") if len(names) == 1:
            return Place(Root.CE, (names[0],))
        case _:
            return None


def _lower(node: Node, known: dict[Node, tuple[Conjunction, ...]]) -> tuple[Conjunction, ...]:
    match node:
        case And(operands):
            return _product([_lower(operand, known) for operand in operands])
        case Or(operands):
            return _sum([_lower(operand, known) for operand in operands])
        case Conditional(condition, then, otherwise):
            # Conditions are lowered twice, so conditions inside conditions must be remembered or cost 2^depth.
            if node not in known:
                unless = push_not(Not(condition))
                known[node] = _lower(Or((And((condition, then)), And((unless, otherwise)))), known)
            return known[node]
        case _ if node == TRUE:
            return _ALWAYS
        case _ if node == FALSE:
            return ()
        case _:
            return _atom(node)


def _sum(parts: list[tuple[Conjunction, ...]]) -> tuple[Conjunction, ...]:
    whole = _merge_equalities(tuple(dict.fromkeys(conjunction for part in parts for conjunction in part)))
    if len(whole) > FILTER_CONJUNCTIONS_MAX:
        return (Conjunction(dropped=(f"more than {FILTER_CONJUNCTIONS_MAX} alternatives",)),)
    return whole


def _merge_equalities(alternatives: tuple[Conjunction, ...]) -> tuple[Conjunction, ...]:
    """`p == 1 || p == 2` is `p in [1, 2]`: one conjunction, however many constants there are."""
    merged: list[Conjunction] = []
    groups: dict[tuple[Place, ConstantKind], dict[Constant, None]] = {}
    for alternative in alternatives:
        match alternative:
            case Conjunction((Atom(place, Op.EQ | Op.IN, kind, constant, False),), ()):
                constants = constant if isinstance(constant, tuple) else (constant,)
                groups.setdefault((place, kind), {}).update(dict.fromkeys(constants))
            case _:
                merged.append(alternative)
    lists = (Conjunction((_one_of(place, kind, tuple(group)),)) for (place, kind), group in groups.items())
    return (*lists, *merged)


def _one_of(place: Place, kind: ConstantKind, constants: tuple[Constant, ...], *, negated: bool = False) -> Atom:
    if len(constants) == 1:
        return Atom(place, Op.EQ, kind, constants[0], negated)
    return Atom(place, Op.IN, kind, constants, negated)


def _product(parts: list[tuple[Conjunction, ...]]) -> tuple[Conjunction, ...]:
    """Distributes `&&` over `||`; what would exceed the bound is dropped, narrowest parts first kept."""
    result: tuple[Conjunction, ...] = _ALWAYS
    for part in sorted(parts, key=len):
        if len(result) * len(part) > FILTER_CONJUNCTIONS_MAX:
            part = (Conjunction(dropped=(f"more than {FILTER_CONJUNCTIONS_MAX} alternatives",)),)
        result = tuple(dict.fromkeys(_both(left, right) for left in result for right in part))
    return tuple(conjunction for conjunction in result if not _contradicts(conjunction))


def _both(left: Conjunction, right: Conjunction) -> Conjunction:
    return Conjunction(
        tuple(dict.fromkeys(left.atoms + right.atoms)), tuple(dict.fromkeys(left.dropped + right.dropped))
    )


def _contradicts(conjunction: Conjunction) -> bool:
    """Whether two equalities of one place exclude each other: the conjunction is then never true."""
    wanted: dict[Place, tuple[ConstantKind, Constant | tuple[Constant, ...]]] = {}
    for atom in conjunction.atoms:
        if atom.op is Op.EQ and not atom.negated:
            asked = (atom.kind, atom.constant)
            if isinstance(atom.constant, int) and abs(atom.constant) > EXACT_DOUBLE_MAX:
                continue  # two such integers may both equal one double
            if wanted.setdefault(atom.place, asked) != asked:
                return True
    return False


def _unsaid(node: Node, why: str = "") -> tuple[Conjunction, ...]:
    text = unparse(node)
    if len(text) > _REASON_CHARACTERS:
        text = text[: _REASON_CHARACTERS - 3] + "..."
    return (Conjunction(dropped=(f"{text}: {why or 'no operator of the matcher says it'}",)),)


def _only(atom: Atom) -> tuple[Conjunction, ...]:
    return (Conjunction((atom,)),)


def _atom(node: Node) -> tuple[Conjunction, ...]:
    match node:
        case Has(operand, field):
            place = place_of(Select(operand, field))
            return _unsaid(node) if place is None else _only(Atom(place, Op.HAS, ConstantKind.NONE))
        case Not(Has(operand, field)):
            place = place_of(Select(operand, field))
            return _unsaid(node) if place is None else _only(Atom(place, Op.HAS, ConstantKind.NONE, negated=True))
        case Select() | Name():
            # As a condition `p` is true exactly when `p == true` is.
            return _compared(node, node, Comparison.EQ, TRUE)
        case Not(Select() | Name() as operand):
            return _compared(node, operand, Comparison.EQ, FALSE)
        case Compare(comparison, left, Literal() as right):
            return _compared(node, left, comparison, right)
        case In(element, ListOf(items)):
            return _listed(node, element, items, negated=False)
        case Not(In(element, ListOf(items))):
            return _listed(node, element, items, negated=True)
        case Call():
            return _called(node, node, negated=False)
        case Not(Call() as call):
            return _called(node, call, negated=True)
        case _:
            return _unsaid(node)


def _compared(node: Node, left: Node, comparison: Comparison, right: Literal) -> tuple[Conjunction, ...]:
    place = place_of(left)
    if place is None:
        return _unsaid(node)
    why = _unsayable(place, right)
    if why:
        return _unsaid(node, why)
    kind, constant = _KINDS[right.kind], _constant(right)
    if comparison in _ORDERS:
        if kind is ConstantKind.NULL:
            return ()  # null has no order: always an error
        return _only(Atom(place, _ORDERS[comparison], kind, constant))
    return _only(Atom(place, Op.EQ, kind, constant, negated=comparison is Comparison.NE))


def _listed(node: Node, element: Node, items: tuple[Node, ...], *, negated: bool) -> tuple[Conjunction, ...]:
    place = place_of(element)
    literals = [item for item in items if isinstance(item, Literal)]
    if place is None or len(literals) < len(items) or not literals:
        return _unsaid(node)
    groups: dict[ConstantKind, dict[Constant, None]] = {}
    for literal in literals:
        why = _unsayable(place, literal)
        if why:
            return _unsaid(node, why)
        groups.setdefault(_KINDS[literal.kind], {})[_constant(literal)] = None
    atoms = tuple(_one_of(place, kind, tuple(group), negated=negated) for kind, group in groups.items())
    return (Conjunction(atoms),) if negated else tuple(Conjunction((atom,)) for atom in atoms)


def _called(node: Node, call: Call, *, negated: bool) -> tuple[Conjunction, ...]:
    match call:
        case Call(function, Select() | Name() as target, (Literal(LiteralKind.STRING, str(text)),)):
            place = place_of(target)
        case _:
            return _unsaid(node)
    if place is None:
        return _unsaid(node)
    if place == _TIME:
        return _unsaid(node, "timestamps are decided by cel-cpp")
    if function in _METHODS:
        return _only(Atom(place, _METHODS[function], ConstantKind.STRING, text, negated))
    return _matched(node, place, text) if function == "matches" and not negated else _unsaid(node)


def _matched(node: Node, place: Place, pattern: str) -> tuple[Conjunction, ...]:
    """A regular expression: the matcher only looks for the text that it cannot do without."""
    text = whole_text(pattern)
    if text is not None:
        return _only(Atom(place, Op.EQ, ConstantKind.STRING, text))
    (conjunction,) = _unsaid(node, "regular expressions are decided by cel-cpp")
    prefix = certain_prefix(pattern)
    atoms = (Atom(place, Op.STARTS, ConstantKind.STRING, prefix),) if prefix else ()
    return (Conjunction(atoms, conjunction.dropped),)


def _unsayable(place: Place, literal: Literal) -> str:
    """Why a comparison of `place` with `literal` is left to cel-cpp; empty when the matcher can say it."""
    if place == _TIME:
        return "timestamps are decided by cel-cpp"
    value = literal.value
    if isinstance(value, bytes):
        return "bytes are decided by cel-cpp"
    if isinstance(value, float) and abs(value) > EXACT_DOUBLE_MAX:
        return "doubles beyond 2^53 are decided by cel-cpp"
    return ""


def _constant(literal: Literal) -> Constant:
    value = literal.value
    assert not isinstance(value, bytes)
    if isinstance(value, float) and value.is_integer():
        return int(value)  # 1.0 and 1 are one constant: one key, one row
    return value
