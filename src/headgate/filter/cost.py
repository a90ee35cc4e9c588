"""Is a filter small enough to be evaluated on every event? Limits on its tree, found without running it.

Two things can grow without bound while an expression is evaluated: the number of steps (macros inside macros; cel-cpp
stops at 10,000 iterations by itself) and the size of values (`[x].map(a, a + a)` doubles, and may be chained). Both are
estimated from the tree, from above.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from headgate.filter.ast import (
    Call,
    Conditional,
    ListOf,
    Literal,
    LiteralKind,
    Macro,
    MacroKind,
    MapOf,
    Name,
    Node,
    children,
)
from headgate.filter.cel import compile_expression, is_regular_expression
from headgate.filter.decode import decode
from headgate.filter.errors import FilterError, over_limit
from headgate.limits import (
    FILTER_CANONICAL_CHARACTERS_MAX,
    FILTER_COST_MAX,
    FILTER_GROWTH_MAX,
    FILTER_LIST_ITEMS_MAX,
    FILTER_NODES_MAX,
    FILTER_REGEX_CHARACTERS_MAX,
)

_ROUNDS: Final = 100
"""How often a macro over data of unknown length is counted."""
_ROUNDS_OBJECTS: Final = 10
"""The same over `json.objects`, which event patterns nest: its elements are parts of one event, each with members."""


@dataclass(frozen=True, slots=True)
class _Estimate:
    """Steps of one evaluation, and the size of the value in multiples of the event."""

    steps: int
    size: float


def check_limits(tree: Node) -> None:
    """Refuses a tree that is over a limit.

    Raises:
        FilterError: With the limit's name.
    """
    nodes, grows = 0, False
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        nodes += 1
        match node:
            case Literal() | Name():
                continue
            case ListOf(items) if len(items) > FILTER_LIST_ITEMS_MAX:
                raise over_limit("FILTER_LIST_ITEMS_MAX", FILTER_LIST_ITEMS_MAX, f"a list has {len(items)} items")
            case MapOf(entries) if len(entries) > FILTER_LIST_ITEMS_MAX:
                raise over_limit("FILTER_LIST_ITEMS_MAX", FILTER_LIST_ITEMS_MAX, f"a map has {len(entries)} entries")
            case Call("matches", _, (*_, Literal(LiteralKind.STRING, str(pattern)))):
                _check_pattern(pattern)
            case Macro() | Call("_+_"):
                grows = True
            case _:
                pass
        waiting.extend(children(node))
    if nodes > FILTER_NODES_MAX:
        raise over_limit("FILTER_NODES_MAX", FILTER_NODES_MAX, f"the expression has {nodes} nodes")
    if grows:
        steps = _estimate(tree, {"ce": 1.0, "data": 1.0}).steps
        if steps > FILTER_COST_MAX:
            raise over_limit("FILTER_COST_MAX", FILTER_COST_MAX, f"the expression may take {steps} steps")


def static_cost(cel: str) -> int:
    """Steps of one evaluation of a canonical text, counted from its tree."""
    return _estimate(
        decode(compile_expression(cel, characters_max=FILTER_CANONICAL_CHARACTERS_MAX).checked().expr), {}
    ).steps


def _check_pattern(pattern: str) -> None:
    if len(pattern) > FILTER_REGEX_CHARACTERS_MAX:
        what = f"a regular expression has {len(pattern)} characters"
        raise over_limit("FILTER_REGEX_CHARACTERS_MAX", FILTER_REGEX_CHARACTERS_MAX, what)
    if not is_regular_expression(pattern):
        raise FilterError(
            "matches() has an invalid regular expression",
            field="filter.expression",
            hint="the syntax is RE2's: no look-around, no back-references",
        )


def _estimate(node: Node, sizes: dict[str, float]) -> _Estimate:
    match node:
        case Literal():
            return _Estimate(1, 0.0)
        case Name(name):
            return _Estimate(1, sizes.get(name, 0.0))
        case Macro():
            return _estimate_macro(node, sizes)
        case _:
            parts = [_estimate(child, sizes) for child in children(node)]
            steps = 1 + sum(part.steps for part in parts)
            return _Estimate(steps, _bounded(_combined(node, [part.size for part in parts])))


def _combined(node: Node, sizes: list[float]) -> float:
    match node:
        case Call("_+_") | ListOf() | MapOf():
            return sum(sizes)
        case Conditional():
            return max(sizes[1:])
        case _:
            return max(sizes, default=0.0)


def _estimate_macro(macro: Macro, sizes: dict[str, float]) -> _Estimate:
    source = _estimate(macro.range, sizes)
    literal = isinstance(macro.range, ListOf | MapOf)
    objects = isinstance(macro.range, Call) and macro.range.function == "json.objects"
    rounds = max(1, len(children(macro.range))) if literal else _ROUNDS_OBJECTS if objects else _ROUNDS
    inner = {**sizes, macro.variable: source.size}
    bodies = [_estimate(body, inner) for body in (macro.predicate, macro.transform) if body is not None]
    steps = source.steps + rounds * sum(body.steps for body in bodies)
    if macro.kind is not MacroKind.MAP or macro.transform is None:
        return _Estimate(steps, source.size)
    # Elements share the range's size between them; what comes from outside the macro comes again in every round.
    own = _estimate(macro.transform, {**dict.fromkeys(sizes, 0.0), macro.variable: source.size}).size
    outer = _estimate(macro.transform, {**sizes, macro.variable: 0.0}).size
    return _Estimate(steps, _bounded(own + rounds * outer))


def _bounded(size: float) -> float:
    if size > FILTER_GROWTH_MAX:
        what = f"the expression may build a value of {size:.0f} times its event"
        raise over_limit("FILTER_GROWTH_MAX", FILTER_GROWTH_MAX, what)
    return size
