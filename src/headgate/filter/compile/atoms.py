"""Conditions as comparisons of the matcher, one leaf of a filter at a time.

Where a comparison says what the condition says, "true" is kept exactly; an error may become false, never true.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from headgate.filter.cel.ast import (
    TYPE_NAMES,
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
    Select,
)
from headgate.filter.cel.build import literal
from headgate.filter.cel.rewrite import asks_for_some, certain_prefix
from headgate.filter.compile.elements import exists
from headgate.filter.compile.operands import (
    EXACT_DOUBLE_MAX,
    TIME,
    arguments_of,
    instant_of,
    many_of,
    operand_of,
    path_of,
    solved,
    time_of,
)
from headgate.filter.compile.plan import Constant, ConstantKind, Form, Op, Operand
from headgate.filter.compile.predicates import (
    KINDS,
    METHODS,
    ORDERS,
    Atom,
    Predicates,
    Unsupported,
    constant_of,
    one_of,
    only,
)

_FORM_KINDS: Final = {
    **dict.fromkeys((Form.LOWER, Form.UPPER, Form.TYPE, Form.TO_STRING), ConstantKind.STRING),
    **dict.fromkeys((Form.SIZE, Form.TO_INT, Form.TO_DOUBLE, Form.INTEGER), ConstantKind.NUMBER),
}
"""The kind of constant that a form can be compared with."""


def atoms(node: Node) -> Predicates:
    """A condition that is as simple as it gets (see `desugar.py`), in the matcher's operators."""
    match node:
        case Not(operand):
            return _atoms(operand, negated=True)
        case _:
            return _atoms(node, negated=False)


def _atoms(node: Node, *, negated: bool) -> Predicates:
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
        case Call("size") if len(arguments_of(left)) == 1:
            operand = many_of(arguments_of(left)[0])
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
