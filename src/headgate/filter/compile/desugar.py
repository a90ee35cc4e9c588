"""Conditions in simpler ones. "True" is kept exactly; an error may become false, never true.

A rule takes one step. `conjunctions.py` desugars what comes out again and remembers each condition: the simpler ones
may hold a part twice, so that a nest written out at once would be 2^depth large.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from headgate.filter.cel.ast import (
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
    map_children,
)
from headgate.filter.cel.build import call, exists, has_type, joined, literal, method, operands_of
from headgate.filter.cel.rewrite import flatten_all, fold_constants, is_path, negated
from headgate.filter.compile.atoms import KINDS, guard_of
from headgate.filter.compile.operands import NAMED, many_of
from headgate.filter.compile.patterns import conditions_of
from headgate.filter.compile.plan import ConstantKind, Root
from headgate_api.event.attributes import INT32_MAX, INT32_MIN

_DISTRIBUTED_MAX: Final = 8
"""Alternatives that the predicate of one `exists` may be written out as."""


def desugared(node: Node) -> Node | None:
    """The same condition in simpler ones by the first rule that applies; None when it is as simple as it gets."""
    for rule in RULES.get(type(node), ()):
        simpler = rule(node)
        if simpler is not None:
            return simpler
    return None


def equal_conditions(node: Node) -> Node | None:
    """`a == b` of two conditions is `a && b || !a && !b`."""
    match node:
        case Compare(Comparison.EQ | Comparison.NE as comparison, left, right) if _is_truth(left) and _is_truth(right):
            unless = negated(right)
            same, other = (right, unless) if comparison is Comparison.EQ else (unless, right)
            return Or((And((left, same)), And((negated(left), other))))
        case _:
            return None


def negation(node: Node) -> Node | None:
    """`!a` is the negation of what `a` is in simpler conditions."""
    match node:
        case Not(operand) if (simpler := desugared(operand)) is not None:
            match operand:
                case Call("matches", subject, (Literal(LiteralKind.STRING),)) if subject is not None:
                    # Simpler conditions are false where the regular expression is an error: `!` must not be true there.
                    return And((negated(simpler), method(subject, "startsWith", "")))
                case _:
                    return negated(simpler)
        case _:
            return None


def chosen_value(node: Node) -> Node | None:
    """`(c ? a : b) == 1` is `c ? a == 1 : b == 1`."""
    match node:
        case Compare(comparison, Conditional(condition, then, otherwise), Literal() as right):
            chosen = (fold_constants(Compare(comparison, arm, right)) for arm in (then, otherwise))
            return Conditional(condition, *chosen)
        case _:
            return None


def regular_expression(node: Node) -> Node | None:
    """`a.matches("^b")` is `a.startsWith("b")`."""
    match node:
        case Call("matches", target, (Literal(LiteralKind.STRING, str(pattern)),)) if target is not None:
            return conditions_of(target, pattern)
        case _:
            return None


def every_element(node: Node) -> Node | None:
    """`all(v, a)` is `!exists(v, !a)`."""
    match node:
        case Macro(MacroKind.ALL, source, variable, predicate, None) if predicate is not None:
            return Not(exists(source, variable, _negation(flatten_all(predicate), variable)))
        case _:
            return None


def some_element(node: Node) -> Node | None:
    """`exists(v, a || b)` is `exists(v, a) || exists(v, b)`, and more of this kind."""
    match node:
        case Macro(MacroKind.EXISTS, source, variable, predicate, None) if predicate is not None:
            return _exists(source, variable, flatten_all(predicate))
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


def _exists(source: Node, variable: str, predicate: Node) -> Node | None:
    """`exists(v, a || b)` is `exists(v, a) || exists(v, b)`, errors included; lists of two kinds are two lists."""

    def each(condition: Node) -> Node:
        return exists(source, variable, condition)

    if variable in {Root.CE, Root.DATA}:
        return None
    match predicate:
        case Or(operands):
            return Or(tuple(map(each, operands)))
        case In(Name(name), ListOf(items)) if name == variable and all(isinstance(item, Literal) for item in items):
            kinds: dict[ConstantKind | None, list[Node]] = {}
            for item in items:
                kinds.setdefault(KINDS.get(item.kind) if isinstance(item, Literal) else None, []).append(item)
            if len(kinds) < 2:
                return None
            return Or(tuple(each(In(predicate.element, ListOf(tuple(group)))) for group in kinds.values()))
        case And(operands) if any(isinstance(operand, Or) for operand in operands):
            return _distributed(operands, each)
        case Not(operand) if (simpler := _negation(operand, variable)) != predicate:
            return each(simpler)
        case And((Call("startsWith", Name(name), (Literal() as prefix,)), *predicates)) if (
            source == Name(Root.CE) and name == variable and predicates
        ):
            return _named(prefix, variable, joined(And, predicates))
        case _:
            return _same_object(source, variable, predicate)


def _named(prefix: Literal, variable: str, predicates: Node) -> Node | None:
    """`ce.exists(n, n.startsWith("tag") && ce[n] == "x")`: one of the values of extensions so named."""
    read = Index(Name(Root.CE), Name(variable))

    def value(node: Node) -> Node:
        return Name(variable) if node == read else map_children(node, value)

    named = Call(NAMED, None, (prefix,))
    match predicates:
        case Compare(Comparison.EQ, left, Literal()) | In(left, ListOf()) if (
            left == read and many_of(named) is not None
        ):
            return exists(named, variable, value(predicates))
        case _:
            return None


def _negation(predicate: Node, variable: str) -> Node:
    """`!predicate`, pushed down, but for a guarded probe: that stays in one piece."""
    guarded = isinstance(predicate, And) and guard_of(predicate.operands, variable)
    return Not(predicate) if guarded else negated(predicate)


def _distributed(operands: tuple[Node, ...], each: Callable[[Node], Node]) -> Node | None:
    alternatives: list[tuple[Node, ...]] = [()]
    for operand in operands:
        choices = operands_of(Or, operand)
        alternatives = [(*before, choice) for before in alternatives for choice in choices]
        if len(alternatives) > _DISTRIBUTED_MAX:
            return None
    return Or(tuple(each(And(alternative)) for alternative in alternatives))


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
    operands = operands_of(And, node)
    found: list[Node] = []
    for operand in operands:
        inner = operand.operand if isinstance(operand, Not) else operand
        match inner:
            case Macro(MacroKind.EXISTS, source, name, predicate, None) if predicate is not None:
                below = _joined(source, variable, path)
                moved: Node | None = None if below is None else exists(below, name, predicate)
            case Compare(comparison, Call("size", None, (source,)), right):
                below = _joined(source, variable, path)
                moved = None if below is None else Compare(comparison, call("size", below), right)
            case _:
                moved = None
        if moved is None:
            return None
        found.append(Not(moved) if isinstance(operand, Not) else moved)
    # Without an object none of them is asked: one that is true must say that there is one.
    if not any(isinstance(operand, Macro) for operand in operands):
        return None
    return joined(And, found)


def _joined(source: Node, variable: str, path: tuple[Node, ...]) -> Node | None:
    match source:
        case Call(("json.values" | "json.objects") as function, None, (Name(name), ListOf(more))) if name == variable:
            return Call(function, None, (Name("data"), ListOf((*path, *more))))
        case _:
            return None


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
            return _compared_cast(left, comparison if truth else comparison.opposite, constant)
        case Call("cesql.bool", None, (path,)) if is_path(path):
            is_some = And((has_type(path, "int"), _with(path, Comparison.NE, 0)))
            number = is_some if truth else _with(path, Comparison.EQ, 0)
            return Or((*_written(path, truth=truth), number))
        case Call("cesql.not", None, (path,)) if is_path(path):
            return Or(_written(path, truth=not truth))
        case _:
            return None


def _compared_cast(left: Node, comparison: Comparison, constant: int) -> Node | None:
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


def _with(left: Node, comparison: Comparison, constant: int) -> Node:
    return Compare(comparison, left, literal(constant))


RULES: Final[Mapping[type[Node], tuple[Callable[[Node], Node | None], ...]]] = {
    Compare: (desugared_cast, equal_conditions, chosen_value),
    Not: (desugared_cast, negation),
    Call: (desugared_cast, regular_expression),
    Macro: (every_element, some_element),
}
"""By the kind of condition; at most one applies."""
