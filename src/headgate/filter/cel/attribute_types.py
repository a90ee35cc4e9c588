"""Faults of a filter that takes an attribute of an event for what it never is.

For the checker every attribute is `dyn`, because an extension may be anything. An attribute that is none, compared with
a value of another type or used as a condition, makes no sense: it is refused, as the checker refuses it of a variable.
`dyn(x)` says that it is meant.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from headgate.filter.cel.ast import (
    And,
    Call,
    Compare,
    Comparison,
    Conditional,
    In,
    Index,
    ListOf,
    Literal,
    LiteralKind,
    Macro,
    Name,
    Node,
    Not,
    Or,
    Select,
    children,
)
from headgate.filter.cel.engine import offset_in
from headgate.filter.cel.errors import FilterError
from headgate.filter.cel.unparse import string_literal, unparse
from headgate_api.event.attributes import TEXT_ATTRIBUTES

_STRING: Final = "string"
_TIMESTAMP: Final = "timestamp"
_CALLS: Final = {_TIMESTAMP: _TIMESTAMP, "duration": "duration", _STRING: _STRING, "int": "int", "size": "int"}
_CE: Final = Name("ce")
_METHODS: Final = frozenset({"startsWith", "endsWith", "contains", "matches", "match", "lowerAscii", "upperAscii"})


def check_attribute_types(text: str, tree: Node) -> None:
    """Refuses a text, and its tree before any rewriting, that treats an attribute as what it never is."""
    fault = _first_fault(tree) or next(_of_condition(tree), None)
    if fault is not None:
        node, reason, hint = fault
        raise FilterError(reason, field="filter.expression", hint=hint).at(text, offset_in(text, node))


_Fault = tuple[Node, str, str]
"""The part that is wrong, what is wrong with it, and how to write it."""


def _first_fault(tree: Node) -> _Fault | None:
    """The first part that is wrong, in the order in which they are written."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Macro) and node.variable == "ce":
            waiting.append(node.range)
            continue
        if (fault := next(_faults(node), None)) is not None:
            return fault
        waiting.extend(reversed(children(node)))
    return None


def _faults(node: Node) -> Iterator[_Fault]:
    match node:
        case Compare(comparison, left, right):
            yield from _of_comparison(node, left, comparison, right)
            yield from _of_comparison(node, right, comparison, left)
        case In(element, ListOf(items)) if items:
            yield from _of_list(node, element, items)
        case In(_, container) if (kind := _attribute_type(container)) is not None:
            hint = f"write {unparse(container)}.contains(...)" if kind == _STRING else ""
            yield node, f"{unparse(container)} is {_a(kind)}, and no list", hint
        case Call(function, target, _) if target is not None and function in _METHODS:
            if _attribute_type(target) == _TIMESTAMP:
                hint = f"write string({unparse(target)}).{function}(...)"
                yield node, f"{unparse(target)} is {_a(_TIMESTAMP)}, and {function}() is of strings", hint
        case And(operands) | Or(operands):
            for operand in operands:
                yield from _of_condition(operand)
        case Not(operand) | Conditional(operand):
            yield from _of_condition(operand)
        case Macro(_, _, _, predicate, _) if predicate is not None:
            yield from _of_condition(predicate)
        case _:
            pass


def _of_condition(node: Node) -> Iterator[_Fault]:
    match node:
        case Conditional(_, then, otherwise):
            yield from _of_condition(then)
            yield from _of_condition(otherwise)
        case _ if (kind := _attribute_type(node)) is not None:
            hint = (
                f'compare it: {unparse(node)} == "..."' if kind == _STRING else f"compare it, or has({unparse(node)})"
            )
            yield node, f"{unparse(node)} is {_a(kind)}, and neither true nor false", hint
        case _:
            pass


def _of_comparison(node: Node, attribute: Node, comparison: Comparison, other: Node) -> Iterator[_Fault]:
    kind, given = _attribute_type(attribute), _type(other)
    if kind is not None and _differ(kind, given):
        yield node, _reason(attribute, kind, other, given), _hint(attribute, kind, comparison, other)


def _of_list(node: Node, element: Node, items: tuple[Node, ...]) -> Iterator[_Fault]:
    kind = _attribute_type(element)
    if kind is not None and all(_differ(kind, _type(item)) for item in items):
        reason = _reason(element, kind, items[0], _type(items[0]))
        yield node, reason, _hint(element, kind, Comparison.EQ, items[0])


def _attribute_type(node: Node) -> str | None:
    if not isinstance(node, Select | Index) or node.operand != _CE:
        return None
    match node:
        case Select(_, name) | Index(_, Literal(LiteralKind.STRING, name)):
            return _STRING if name in TEXT_ATTRIBUTES else _TIMESTAMP if name == "time" else None
        case _:
            return None


def _type(node: Node) -> str | None:
    match node:
        case Literal(kind):
            return kind.value
        case Call(function, None, (_,)):
            return _CALLS.get(function)
        case ListOf():
            return "list"
        case _:
            return _attribute_type(node)


def _differ(kind: str, given: str | None) -> bool:
    # A time outside CEL's years is null.
    return given is not None and given != kind and not (kind == _TIMESTAMP and given == LiteralKind.NULL)


def _reason(attribute: Node, kind: str, other: Node, given: str | None) -> str:
    of = "never null" if given == LiteralKind.NULL else f"{_shown(other)} is {_a(str(given))}"
    return f"{unparse(attribute)} is {_a(kind)}, and {of}"


def _hint(attribute: Node, kind: str, comparison: Comparison, other: Node) -> str:
    match other:
        case Literal(LiteralKind.NULL):
            presence = f"has({unparse(attribute)})"
            return f"write {presence}" if comparison is Comparison.NE else f"write !{presence}"
        case Literal(LiteralKind.STRING, str(text)) if kind == _TIMESTAMP:
            return f"write timestamp({string_literal(text[:40])})"
        case Literal(_, value) if kind == _STRING and not isinstance(value, bytes):
            text = unparse(other).removesuffix("u")
            return f"attributes are text: write {string_literal(text)}"
        case _:
            return "dyn(x) says that it is meant"


def _shown(node: Node) -> str:
    text = unparse(node)
    return text if len(text) <= 40 else f"{text[:40]}..."


def _a(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeiu" and kind != "uint" else f"a {kind}"
