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
from headgate.filter.cel.build import call, joined, method, operands_of
from headgate.filter.cel.rewrite import flatten_all, fold_constants, push_not
from headgate.filter.compile.elements import guard_of
from headgate.filter.compile.operands import NAMED, many_of
from headgate.filter.compile.patterns import conditions_of
from headgate.filter.compile.plan import ConstantKind, Root
from headgate.filter.compile.predicates import KINDS, desugared_cast

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
            unless = push_not(Not(right))
            same, other = (right, unless) if comparison is Comparison.EQ else (unless, right)
            return Or((And((left, same)), And((push_not(Not(left)), other))))
        case _:
            return None


def negation(node: Node) -> Node | None:
    """`!a` is the negation of what `a` is in simpler conditions."""
    match node:
        case Not(operand) if (simpler := desugared(operand)) is not None:
            negated = push_not(Not(simpler))
            match operand:
                case Call("matches", subject, (Literal(LiteralKind.STRING),)) if subject is not None:
                    # Simpler conditions are false where the regular expression is an error: `!` must not be true there.
                    return And((negated, method(subject, "startsWith", "")))
                case _:
                    return negated
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
            return Not(Macro(MacroKind.EXISTS, source, variable, _negation(flatten_all(predicate), variable), None))
        case _:
            return None


def some_element(node: Node) -> Node | None:
    """`exists(v, a || b)` is `exists(v, a) || exists(v, b)`, and more of this kind."""
    match node:
        case Macro(MacroKind.EXISTS, source, variable, predicate, None) if predicate is not None:
            return _exists(source, variable, flatten_all(predicate))
        case _:
            return None


RULES: Final[Mapping[type[Node], tuple[Callable[[Node], Node | None], ...]]] = {
    Compare: (desugared_cast, equal_conditions, chosen_value),
    Not: (desugared_cast, negation),
    Call: (desugared_cast, regular_expression),
    Macro: (every_element, some_element),
}
"""By the kind of condition; at most one applies."""

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
            return Macro(MacroKind.EXISTS, named, variable, value(predicates), None)
        case _:
            return None


def _negation(predicate: Node, variable: str) -> Node:
    """`!predicate`, pushed down, but for a guarded probe: that stays in one piece."""
    guarded = isinstance(predicate, And) and guard_of(predicate.operands, variable)
    return Not(predicate) if guarded else push_not(Not(predicate))


def _distributed(operands: tuple[Node, ...], exists: Callable[[Node], Node]) -> Node | None:
    alternatives: list[tuple[Node, ...]] = [()]
    for operand in operands:
        choices = operands_of(Or, operand)
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
    operands = operands_of(And, node)
    found: list[Node] = []
    for operand in operands:
        inner = operand.operand if isinstance(operand, Not) else operand
        match inner:
            case Macro(MacroKind.EXISTS, source, name, predicate, None):
                below = _joined(source, variable, path)
                moved: Node | None = None if below is None else Macro(MacroKind.EXISTS, below, name, predicate, None)
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
