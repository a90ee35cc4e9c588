"""Which comparison of the matcher says what a condition says? One leaf of a filter at a time.

`words(node)` says a condition in simpler ones, where there are any; `atoms(node)` in operators of `plan.Op`. Both keep
"true" exactly and may turn an error into false, never the other way round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from headgate.filter.ast import (
    TRUE,
    And,
    Call,
    Compare,
    Comparison,
    Conditional,
    Has,
    In,
    Index,
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
    map_children,
)
from headgate.filter.casts import cast_words
from headgate.filter.operands import (
    EXACT_DOUBLE_MAX,
    NAMED,
    NEVER,
    TIME,
    TYPE_NAMES,
    arguments_of,
    instant_of,
    many_of,
    operand_of,
    place_of,
    solved,
)
from headgate.filter.patterns import LIKE, conditions_of
from headgate.filter.plan import Constant, ConstantKind, Form, Op, Place, Probe, Root
from headgate.filter.rewrite import certain_prefix, flatten_all, fold_constants, push_not

KINDS: Final = {
    LiteralKind.NULL: ConstantKind.NULL,
    LiteralKind.BOOL: ConstantKind.BOOL,
    LiteralKind.INT: ConstantKind.NUMBER,
    LiteralKind.UINT: ConstantKind.NUMBER,
    LiteralKind.DOUBLE: ConstantKind.NUMBER,
    LiteralKind.STRING: ConstantKind.STRING,
}
ORDERS: Final = {Comparison.LT: Op.LT, Comparison.LE: Op.LE, Comparison.GT: Op.GT, Comparison.GE: Op.GE}
METHODS: Final = {"startsWith": Op.STARTS, "endsWith": Op.ENDS, "contains": Op.CONTAINS, LIKE: Op.LIKE}
_DISTRIBUTED_MAX: Final = 8
"""Alternatives that the predicate of one `exists` may be written out as."""
_FORM_KINDS: Final = {
    Form.LOWER: ConstantKind.STRING,
    Form.UPPER: ConstantKind.STRING,
    Form.TYPE: ConstantKind.STRING,
    Form.TO_STRING: ConstantKind.STRING,
    Form.SIZE: ConstantKind.NUMBER,
    Form.TO_INT: ConstantKind.NUMBER,
    Form.TO_DOUBLE: ConstantKind.NUMBER,
    Form.INTEGER: ConstantKind.NUMBER,
}
"""The kind of constant that a form can be compared with."""


@dataclass(frozen=True, slots=True)
class Atom:
    """One comparison of the value at a place with constants, in the operators of `plan.Op`."""

    place: Place
    op: Op
    kind: ConstantKind
    constant: Constant | tuple[Constant, ...] = None
    negated: bool = False
    probes: tuple[Probe, ...] = ()


@dataclass(frozen=True, slots=True)
class Unsaid:
    """The matcher cannot say it.

    Attributes:
        why: For people.
        necessary: What it can say, and what must hold for the condition to be true.
    """

    why: str = "no operator of the matcher says it"
    necessary: tuple[Atom, ...] = ()


Said = tuple[tuple[Atom, ...], ...] | Unsaid
"""Alternatives, each of atoms that must hold together: none is never true, an empty one always."""


# --- other words ----------------------------------------------------------------------------------------------------


def words(node: Node) -> Node | None:
    """The same condition in simpler ones; None when it is simple already, or cannot be said more simply."""
    simpler = cast_words(node)
    if simpler is not None:
        return simpler
    match node:
        case Compare(Comparison.EQ | Comparison.NE as comparison, left, right) if _is_truth(left) and _is_truth(right):
            unless = push_not(Not(right))
            same, other = (right, unless) if comparison is Comparison.EQ else (unless, right)
            return Or((And((left, same)), And((push_not(Not(left)), other))))
        case Not(operand):
            simpler = words(operand)
            if simpler is None:
                return None
            negated = push_not(Not(simpler))
            subject = _searched(operand)
            # The words for a regular expression are false where it is an error: the negation must not be true there.
            return negated if subject is None else And((negated, _is_text(subject)))
        case Compare(comparison, Conditional(condition, then, otherwise), Literal() as right):
            chosen = (fold_constants(Compare(comparison, arm, right)) for arm in (then, otherwise))
            return Conditional(condition, *chosen)
        case Call("matches", _, (Literal(LiteralKind.STRING, str(pattern)),)) if node.target is not None:
            return conditions_of(node.target, pattern)
        case Macro(MacroKind.ALL, source, variable, predicate, None) if predicate is not None:
            return Not(Macro(MacroKind.EXISTS, source, variable, _negation(flatten_all(predicate), variable), None))
        case Macro(MacroKind.EXISTS, source, variable, predicate, None) if predicate is not None:
            return _exists_words(source, variable, flatten_all(predicate))
        case _:
            return None


_TRUTHS: Final = frozenset({"startsWith", "endsWith", "contains", "matches", "cesql.bool", "cesql.not"})
"""Functions whose value is always a boolean."""


def _is_truth(node: Node) -> bool:
    """Whether the value, where there is one, is sure to be a boolean."""
    match node:
        case Compare() | In() | And() | Or() | Not() | Has() | Literal(LiteralKind.BOOL):
            return True
        case Macro(kind):
            return kind in {MacroKind.ALL, MacroKind.EXISTS, MacroKind.EXISTS_ONE}
        case Call(function):
            return function in _TRUTHS
        case _:
            return False


def _searched(node: Node) -> Node | None:
    match node:
        case Call("matches", target, (Literal(LiteralKind.STRING),)):
            return target
        case _:
            return None


def _is_text(subject: Node) -> Node:
    """True of every string, an error of everything else."""
    return Call("startsWith", subject, (Literal(LiteralKind.STRING, ""),))


def _exists_words(source: Node, variable: str, predicate: Node) -> Node | None:
    """`exists(v, a || b)` is `exists(v, a) || exists(v, b)`, errors included; lists of two kinds are two lists."""

    def exists(condition: Node) -> Node:
        return Macro(MacroKind.EXISTS, source, variable, condition, None)

    if variable in {Root.CE, Root.DATA}:
        return None
    match predicate:
        case Or(operands):
            return Or(tuple(map(exists, operands)))
        case In(Name(name), ListOf(items)) if name == variable and all(isinstance(item, Literal) for item in items):
            kinds: dict[ConstantKind | None, list[Node]] = {}
            for item in items:
                kinds.setdefault(KINDS.get(item.kind) if isinstance(item, Literal) else None, []).append(item)
            if len(kinds) < 2:
                return None
            return Or(tuple(exists(In(predicate.element, ListOf(tuple(group)))) for group in kinds.values()))
        case And(operands) if any(isinstance(operand, Or) for operand in operands):
            return _distributed(operands, exists)
        case Not(operand) if (simpler := _negation(operand, variable)) != predicate:
            return exists(simpler)
        case And((Call("startsWith", Name(name), (Literal() as prefix,)), *asked)) if (
            source == Name(Root.CE) and name == variable and asked
        ):
            return _named(prefix, variable, And(tuple(asked)) if len(asked) > 1 else asked[0])
        case _:
            return _same_object(source, variable, predicate)


def _named(prefix: Literal, variable: str, asked: Node) -> Node | None:
    """`ce.exists(n, n.startsWith("tag") && ce[n] == "x")`: one of the values of extensions so named."""
    read = Index(Name(Root.CE), Name(variable))

    def value(node: Node) -> Node:
        return Name(variable) if node == read else map_children(node, value)

    named = Call(NAMED, None, (prefix,))
    match asked:
        case Compare(Comparison.EQ, left, Literal()) | In(left, ListOf()) if (
            left == read and many_of(named) is not None
        ):
            return Macro(MacroKind.EXISTS, named, variable, value(asked), None)
        case _:
            return None


def _negation(predicate: Node, variable: str) -> Node:
    """`!predicate`, pushed down, but for a guarded probe: that stays in one piece."""
    guarded = isinstance(predicate, And) and _guard(predicate.operands, variable)
    return Not(predicate) if guarded else push_not(Not(predicate))


def _distributed(operands: tuple[Node, ...], exists: Callable[[Node], Node]) -> Node | None:
    alternatives: list[tuple[Node, ...]] = [()]
    for operand in operands:
        choices = operand.operands if isinstance(operand, Or) else (operand,)
        alternatives = [(*before, choice) for before in alternatives for choice in choices]
        if len(alternatives) > _DISTRIBUTED_MAX:
            return None
    return Or(tuple(exists(And(alternative)) for alternative in alternatives))


def _same_object(source: Node, variable: str, predicate: Node) -> Node | None:
    """`json.objects(data, ["o"]).exists(o, json.values(o, ["x"])...)` without an array at `o`: one path.

    With an array there the matcher is in doubt about every value below it, see `Form.VALUES`.
    """
    match source:
        case Call("json.objects", None, (Name("data"), ListOf(path))):
            return _below(predicate, variable, path)
        case _:
            return None


def _below(node: Node, variable: str, path: tuple[Node, ...]) -> Node | None:
    """`node` with `json.values(variable, p)` as `json.values(data, path + p)`; None when it says anything else."""
    operands = node.operands if isinstance(node, And) else (node,)
    found: list[Node] = []
    for operand in operands:
        inner = operand.operand if isinstance(operand, Not) else operand
        match inner:
            case Macro(MacroKind.EXISTS, source, name, predicate, None):
                below = _joined(source, variable, path)
                moved: Node | None = None if below is None else Macro(MacroKind.EXISTS, below, name, predicate, None)
            case Compare(comparison, Call("size", None, (source,)), right):
                below = _joined(source, variable, path)
                moved = None if below is None else Compare(comparison, Call("size", None, (below,)), right)
            case _:
                moved = None
        if moved is None:
            return None
        found.append(Not(moved) if isinstance(operand, Not) else moved)
    # Without an object none of them is asked: one that is true must say that there is one.
    if not any(isinstance(operand, Macro) for operand in operands):
        return None
    return found[0] if len(found) == 1 else And(tuple(found))


def _joined(source: Node, variable: str, path: tuple[Node, ...]) -> Node | None:
    match source:
        case Call(("json.values" | "json.objects") as function, None, (Name(name), ListOf(more))) if name == variable:
            return Call(function, None, (Name("data"), ListOf((*path, *more))))
        case _:
            return None


# --- atoms ----------------------------------------------------------------------------------------------------------


def atoms(node: Node) -> Said:
    """A condition that has no `words`, in the matcher's operators."""
    match node:
        case Not(operand):
            return _atoms(operand, negated=True)
        case _:
            return _atoms(node, negated=False)


def _atoms(node: Node, *, negated: bool) -> Said:
    match node:
        case Has(operand, field):
            place = place_of(Select(operand, field))
            return Unsaid() if place is None else _only(Atom(place, Op.HAS, ConstantKind.NONE, negated=negated))
        case Select() | Name():
            # As a condition `p` is true exactly when `p == true` is, and `!p` when `p == false` is.
            right = TRUE if not negated else Literal(LiteralKind.BOOL, False)
            return _compared(node, Comparison.EQ, right, negated=False)
        case Compare(comparison, left, right):
            return _compared(left, comparison, right, negated=negated)
        case In(element, ListOf(items)):
            return _listed(element, items, negated=negated)
        case In(Literal() as item, container):
            probe = Compare(Comparison.EQ, Name(""), item)
            return _exists(many_of(container), "", probe, negated=negated)
        case Macro(MacroKind.EXISTS, source, variable, predicate, None) if predicate is not None:
            return _exists(many_of(source), variable, predicate, negated=negated)
        case Call():
            return _called(node, negated=negated)
        case _:
            return Unsaid()


def _only(*together: Atom) -> Said:
    return (together,)


def _compared(left: Node, comparison: Comparison, right: Node, *, negated: bool) -> Said:
    match right:
        case Name(name) if name in TYPE_NAMES and comparison in {Comparison.EQ, Comparison.NE}:
            return _typed(left, (name,), negated=negated is not (comparison is Comparison.NE))
        case Literal():
            return _compared_with(left, comparison, right, negated=negated)
        case _:
            instant = instant_of(right)
            if instant is None or place_of(left) != TIME:
                return Unsaid()
            return _only(_comparison(_form(TIME, Form.TIME), comparison, ConstantKind.NUMBER, instant, negated=negated))


def _compared_with(left: Node, comparison: Comparison, right: Literal, *, negated: bool) -> Said:
    place = operand_of(left)
    if place is None:
        return _counted(left, comparison, right, negated=negated)
    why = _unsayable(place, right)
    if why:
        return Unsaid(why)
    kind, constant = KINDS[right.kind], constant_of(right)
    if kind is ConstantKind.NULL and comparison in ORDERS:
        return ()  # null has no order: always an error
    if constant == "" and comparison is Comparison.LT and not negated:
        return ()  # nothing lies before the empty text
    return _only(_comparison(place, comparison, kind, constant, negated=negated))


def _comparison(place: Place, comparison: Comparison, kind: ConstantKind, constant: Constant, *, negated: bool) -> Atom:
    if comparison in ORDERS:
        return Atom(place, ORDERS[comparison], kind, constant, negated)
    return Atom(place, Op.EQ, kind, constant, negated=negated is not (comparison is Comparison.NE))


def _counted(left: Node, comparison: Comparison, right: Literal, *, negated: bool) -> Said:
    """Arithmetic with integers, and whether there are any values: `size(json.values(...)) > 0`."""
    constant = right.value
    if isinstance(constant, bool) or not isinstance(constant, int | float):
        return Unsaid()
    match left:
        case Call("size") if len(arguments_of(left)) == 1:
            place = many_of(arguments_of(left)[0])
            if place is None or place.form is not Form.VALUES:
                return Unsaid()
            match comparison, constant:
                case (Comparison.GT | Comparison.NE, 0) | (Comparison.GE, 1):
                    return _only(Atom(place, Op.EXISTS, ConstantKind.NONE, (), negated))
                case (Comparison.EQ | Comparison.LE, 0) | (Comparison.LT, 1):
                    return _only(Atom(place, Op.EXISTS, ConstantKind.NONE, (), not negated))
                case _:
                    return Unsaid()
        case _:
            bounds = solved(left, comparison, constant)
    if bounds is None:
        return Unsaid()
    made = tuple(
        _comparison(bound.place, bound.comparison, ConstantKind.NUMBER, bound.constant, negated=negated)
        for bound in bounds
    )
    together = (comparison is not Comparison.NE) is not negated
    return (made,) if together else tuple((atom,) for atom in made)


def _form(place: Place, form: Form) -> Place:
    return Place(place.root, place.path, form)


def _typed(left: Node, names: Iterable[str], *, negated: bool) -> Said:
    """`type(x) == string`, `type(x) in [int, double]`."""
    place = operand_of(left)
    if place is None or place.form is not Form.TYPE:
        return Unsaid()
    return _only(one_of(place, ConstantKind.STRING, tuple(TYPE_NAMES[name] for name in names), negated=negated))


def one_of(place: Place, kind: ConstantKind, constants: tuple[Constant, ...], *, negated: bool = False) -> Atom:
    """`place in constants`, which are of one kind."""
    if len(constants) == 1:
        return Atom(place, Op.EQ, kind, constants[0], negated)
    return Atom(place, Op.IN, kind, constants, negated)


def _listed(element: Node, items: tuple[Node, ...], *, negated: bool) -> Said:
    names = [item.name for item in items if isinstance(item, Name) and item.name in TYPE_NAMES]
    if names and len(names) == len(items):
        return _typed(element, dict.fromkeys(names), negated=negated)
    place = operand_of(element)
    literals = [item for item in items if isinstance(item, Literal)]
    if place is None or len(literals) < len(items) or not literals:
        return Unsaid()
    groups: dict[ConstantKind, dict[Constant, None]] = {}
    for literal in literals:
        why = _unsayable(place, literal)
        if why:
            return Unsaid(why)
        groups.setdefault(KINDS[literal.kind], {})[constant_of(literal)] = None
    made = tuple(one_of(place, kind, tuple(group), negated=negated) for kind, group in groups.items())
    return (made,) if negated else tuple((atom,) for atom in made)


def _called(call: Call, *, negated: bool) -> Said:
    match call:
        case Call(function, target, (Literal(LiteralKind.STRING, str(text)),)) if target is not None:
            place = operand_of(target)
        case _:
            return Unsaid()
    if place is None:
        return Unsaid()
    if place == TIME:
        return Unsaid("a timestamp is no string")
    if _FORM_KINDS.get(place.form, ConstantKind.STRING) is not ConstantKind.STRING or place.form is Form.TYPE:
        return Unsaid()
    if function in METHODS:
        return _only(Atom(place, METHODS[function], ConstantKind.STRING, text, negated))
    if function == "matches":
        # The matcher looks for the text that the pattern cannot do without.
        prefix = "" if negated else certain_prefix(text)
        necessary = (Atom(place, Op.STARTS, ConstantKind.STRING, prefix),) if prefix else ()
        return Unsaid("regular expressions are decided by cel-cpp", necessary)
    return Unsaid()


def _unsayable(place: Place, literal: Literal) -> str:
    """Why a comparison of `place` with `literal` is left to cel-cpp; empty when the matcher can say it."""
    if place == TIME:
        return "a timestamp is compared with timestamps"
    value = literal.value
    if isinstance(value, bytes):
        return "bytes are decided by cel-cpp"
    if isinstance(value, float) and abs(value) > EXACT_DOUBLE_MAX:
        return "doubles beyond 2^53 are decided by cel-cpp"
    if KINDS[literal.kind] is not _FORM_KINDS.get(place.form, KINDS[literal.kind]) or place.form is Form.TYPE:
        return "types that differ are decided by cel-cpp"
    return ""


def constant_of(literal: Literal) -> Constant:
    """A literal as rows have it."""
    value = literal.value
    assert not isinstance(value, bytes)
    if isinstance(value, float) and value.is_integer():
        return int(value)  # 1.0 and 1 are one constant: one key, one row
    return value


# --- one of many ----------------------------------------------------------------------------------------------------

_GUARDS: Final = {
    frozenset({"string"}): ConstantKind.STRING,
    frozenset({"bool"}): ConstantKind.BOOL,
    frozenset({"int", "uint", "double"}): ConstantKind.NUMBER,
}
_LOWER: Final = {Form.ELEMENTS: Form.ELEMENTS_LOWER, Form.VALUES: Form.VALUES_LOWER}


@dataclass(slots=True)
class _Question:
    """What is asked of one value: probes and their constants, of one kind and in one form."""

    probes: list[Probe]
    constants: list[Constant]
    kinds: set[ConstantKind]
    lower: set[bool]


def _exists(place: Place | None, variable: str, predicate: Node, *, negated: bool) -> Said:
    if place is None:
        return Unsaid()
    operands = _plainly(flatten_all(predicate), variable)
    guard = _guard(operands, variable)
    if guard is None:
        return Unsaid()
    asked = _Question([], [], set(), set())
    unasked = [
        operand
        for operand in operands
        if _guarded(operand, variable) is None and not _ask(asked, operand, variable, lenient=bool(guard))
    ]
    if unasked and (negated or not asked.probes):
        return Unsaid()
    if guard and any(probe.negated for probe in asked.probes):
        asked.probes.append(Probe(Op.HAS))
    if not asked.probes or len(asked.kinds) > 1 or len(asked.lower) > 1:
        return Unsaid()
    (kind,) = asked.kinds
    if guard and kind not in guard:
        return Unsaid()
    if True in asked.lower:
        if place.form not in _LOWER:
            return Unsaid()
        place = _form(place, _LOWER[place.form])
    if kind is ConstantKind.NULL and [probe.op for probe in asked.probes] != [Op.EQ]:
        return Unsaid()
    if place.form is Form.NAMED and not all(probe in _OF_NAMED for probe in asked.probes):
        return Unsaid()
    constants = () if kind is ConstantKind.NULL else tuple(asked.constants)
    atom = Atom(place, Op.EXISTS, kind, constants, negated, tuple(asked.probes))
    return Unsaid(necessary=(atom,)) if unasked else _only(atom)


_OF_NAMED: Final = (Probe(Op.EQ, lenient=True), Probe(Op.IN, lenient=True))
"""A map that dots make of extensions equals nothing, in every other comparison it is an error."""


def _plainly(predicate: Node, variable: str) -> tuple[Node, ...]:
    """The conditions that a predicate joins by `&&`, regular expressions in other words."""
    conditions: list[Node] = []
    for operand in predicate.operands if isinstance(predicate, And) else (predicate,):
        match operand:
            case Call("matches", target, (Literal(LiteralKind.STRING, str(pattern)),)) if target is not None:
                simpler = conditions_of(target, pattern) or operand
                conditions += simpler.operands if isinstance(simpler, And) else (simpler,)
            case Not(And(guarded)) if _guard(guarded, variable):
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


def _guard(operands: tuple[Node, ...], variable: str) -> frozenset[ConstantKind] | None:
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


def _ask(asked: _Question, node: Node, variable: str, *, lenient: bool) -> bool:
    """Adds one condition about the variable; False when it is no probe."""
    negated = isinstance(node, Not)
    inner = node.operand if isinstance(node, Not) else node
    if negated and isinstance(inner, And):
        guard = _guard(inner.operands, variable)
        rest = [operand for operand in inner.operands if _guarded(operand, variable) is None]
        if not guard or len(rest) != 1:
            return False
        inner, lenient = rest[0], True
        before = set(asked.kinds)
        if not _ask(asked, Not(inner), variable, lenient=True):
            return False
        return asked.kinds <= (before | guard)
    constants: tuple[Literal, ...]
    match inner:
        case Compare(comparison, Call("size") as call, Literal(LiteralKind.INT, int(size))):
            # Of a list in the list it is no error: only a guard says that there is none.
            if not lenient or len(arguments_of(call)) != 1 or not 0 <= size < _SIZE_MAX:
                return False
            (left,) = arguments_of(call)
            pattern, opposite = _sized(comparison, size)
            op, negated, constants = Op.LIKE, negated is not opposite, (Literal(LiteralKind.STRING, pattern),)
        case Compare(comparison, left, Literal() as literal) if not isinstance(literal.value, bytes):
            op = ORDERS.get(comparison, Op.EQ)
            negated = negated is not (comparison is Comparison.NE)
            constants = (literal,)
        case In(left, ListOf(items)):
            constants = tuple(item for item in items if isinstance(item, Literal) and not isinstance(item.value, bytes))
            op = Op.IN
            if len(constants) < len(items) or not constants or asked.probes:
                return False
        case Call(function, left, (Literal(LiteralKind.STRING) as literal,)) if function in METHODS:
            op, constants = METHODS[function], (literal,)
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
    if name != variable or any(probe.op is Op.IN for probe in asked.probes) or not _all_sayable(constants):
        return False
    if op in ORDERS.values() and constants[0].kind is LiteralKind.NULL:
        return False
    asked.lower.add(lower)
    asked.kinds |= {KINDS[constant.kind] for constant in constants}
    asked.constants += [constant_of(constant) for constant in constants]
    if op is Op.IN and len(constants) == 1:
        op = Op.EQ
    equality = op in {Op.EQ, Op.IN} and not lower
    asked.probes.append(Probe(op, negated, lenient or equality))
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


def _all_sayable(literals: Iterable[Literal]) -> bool:
    values = [literal.value for literal in literals]
    return not any(isinstance(value, float) and abs(value) > EXACT_DOUBLE_MAX for value in values)


__all__ = ["NEVER", "Atom", "Said", "Unsaid", "atoms", "constant_of", "one_of", "words"]
