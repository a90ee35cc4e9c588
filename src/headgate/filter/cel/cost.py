"""Limits on a filter's tree, found without evaluating it.

These bound what admission itself does, and refuse what no event could bear; `budget.py` looks at the size of an event.
"""

from __future__ import annotations

from typing import Final

from headgate.filter.cel.ast import Call, ListOf, Literal, LiteralKind, Macro, MapOf, Name, Node, children
from headgate.filter.cel.budget import check_budget
from headgate.filter.cel.engine import has_value, is_regular_expression
from headgate.filter.cel.errors import FilterError, over_limit
from headgate.filter.cel.regex import regex_size
from headgate.filter.cel.unparse import unparse
from headgate_api.limits import (
    FILTER_CONSTANTS_A_NODE,
    FILTER_COST_MAX,
    FILTER_LIST_ITEMS_MAX,
    FILTER_NODES_MAX,
    FILTER_REGEX_CHARACTERS_MAX,
    FILTER_REGEX_INSTRUCTIONS_MAX,
)

_ROUNDS: Final = 100
"""How often a macro over data of unknown length is counted."""
_ROUNDS_OBJECTS: Final = 10
"""The same over `json.objects`, which event patterns nest: its elements are parts of one event.

In each is the tenth part of what the event has, so that a nest goes over the event once for each of its levels.
"""


def check_limits(tree: Node) -> None:
    """Refuses a tree that is over a limit."""
    nodes, constants, calls = 0, 0, False
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        nodes += 1
        match node:
            case Literal():
                constants += 1
                continue
            case Name():
                continue
            case ListOf(items) if len(items) > FILTER_LIST_ITEMS_MAX:
                raise over_limit("FILTER_LIST_ITEMS_MAX", f"a list has {len(items)} items")
            case MapOf(entries) if len(entries) > FILTER_LIST_ITEMS_MAX:
                raise over_limit("FILTER_LIST_ITEMS_MAX", f"a map has {len(entries)} entries")
            case Call("matches", _, (*_, Literal(LiteralKind.STRING, str(pattern)))):
                _check_pattern(pattern)
                calls = True
            case Call("matches", _, _):
                raise FilterError(
                    "matches() needs a constant regular expression",
                    field="filter.expression",
                    hint="startsWith, endsWith and contains take any text",
                )
            case Call(function, None, (Literal(LiteralKind.STRING),)) if function in _CONVERSIONS:
                _check_conversion(node)
                calls = True
            case Macro() | Call():
                calls = True
            case _:
                pass
        waiting.extend(children(node))
    nodes -= constants - constants // FILTER_CONSTANTS_A_NODE
    if nodes > FILTER_NODES_MAX:
        raise over_limit("FILTER_NODES_MAX", f"the expression has {nodes} nodes")
    if calls:
        steps = static_cost(tree)
        if steps > FILTER_COST_MAX:
            raise over_limit("FILTER_COST_MAX", f"the expression may take {steps} steps")
        check_budget(tree)


_CONVERSIONS: Final = {
    "timestamp": "an RFC 3339 time: 2026-01-01T00:00:00Z",
    "duration": "numbers with units: 1h30m, 0.5s",
    **dict.fromkeys(("int", "uint", "double"), "a number of this type"),
}
"""Functions that fail for most texts, and what they take."""


def _check_conversion(call: Call) -> None:
    text = unparse(call)
    if not has_value(text):
        hint = f"{call.function}() takes {_CONVERSIONS[call.function]}"
        raise FilterError(f"{text} is an error on every event", field="filter.expression", hint=hint)


def _check_pattern(pattern: str) -> None:
    if len(pattern) > FILTER_REGEX_CHARACTERS_MAX:
        what = f"a regular expression has {len(pattern)} characters"
        raise over_limit("FILTER_REGEX_CHARACTERS_MAX", what)
    size = regex_size(pattern).instructions
    if size > FILTER_REGEX_INSTRUCTIONS_MAX:
        what = f"a regular expression becomes some {size} instructions"
        raise over_limit("FILTER_REGEX_INSTRUCTIONS_MAX", what)
    if not is_regular_expression(pattern):
        raise FilterError(
            "matches() has an invalid regular expression",
            field="filter.expression",
            hint="the syntax is RE2's: no look-around, no back-references",
        )


def static_cost(node: Node) -> int:
    """Steps of one evaluation, counted from the tree alone; see `budget.py` for what an event's size adds."""
    match node:
        case Macro(_, source, _, predicate, transform):
            return static_cost(source) + _rounds(source) * sum(
                static_cost(body) for body in (predicate, transform) if body is not None
            )
        case _:
            return 1 + sum(map(static_cost, children(node)))


def _rounds(source: Node) -> int:
    match source:
        case ListOf() | MapOf():
            return max(1, len(children(source)))
        case Call(("json.values" | "json.objects") as function, None, (root, _)):
            rounds = _ROUNDS_OBJECTS if function == "json.objects" else _ROUNDS
            return rounds if root == Name("data") else rounds // _ROUNDS_OBJECTS
        case _:
            return _ROUNDS
