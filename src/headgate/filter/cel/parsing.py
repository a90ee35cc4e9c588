"""From CEL text to its checked tree: within all limits for what clients send, and of what was admitted.

Filters of one system differ in little more than the texts that they compare with, and what cel-cpp parses and checks
does not depend on what such a text says, but for its length. So it parses an expression once with marks in their place,
and the tree of each filter is that one, filled. What depends on values (limits, rewriting, plans) looks at it filled.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias

from headgate.filter.cel.ast import Compare, Comparison, In, ListOf, Literal, LiteralKind, Node, children, map_children
from headgate.filter.cel.budget import check_limits
from headgate.filter.cel.engine import compile_expression
from headgate.filter.cel.errors import FilterError
from headgate.filter.cel.rewrite import rewrite
from headgate.filter.cel.tokens import TEXTS
from headgate_api.limits import (
    FILTER_CANONICAL_CHARACTERS_MAX,
    FILTER_CHARACTERS_MAX,
    FILTER_NODES_MAX,
    FILTER_TEMPLATES_CACHED_MAX,
)

_TEXTS: Final = re.compile(rf"""(?<![bBrR])"(?P<plain>[ !#-\[\]-~]*)"(?!")|{TEXTS}""", re.DOTALL)
"""Comments and texts; `plain` is one in double quotes, of printable ASCII without escapes: it says what it shows."""
_MARK: Final = re.compile(r"\$[0-9]+\$")
_Filler: TypeAlias = "Callable[[Sequence[str]], Node]"


@dataclass(frozen=True, slots=True)
class Checked:
    """What cel-cpp says of an expression; `type` names the static type of its value: `BOOL`, `DYN`, ..."""

    type: str
    tree: Node


def checked(text: str, *, characters_max: int = FILTER_CHARACTERS_MAX) -> Checked:
    """Parses and type checks CEL text, or fills the tree of one like it; raises FilterError."""
    # Of a longer text the engine looks at the number of its signs first.
    if len(text) <= FILTER_NODES_MAX:
        texts: list[str] = []

        def marked(found: re.Match[str]) -> str:
            if found["plain"] is None:
                return found[0]
            texts.append(found["plain"])
            return f'"${len(texts) - 1}$"'

        template = _TEXTS.sub(marked, text)
        made = _template(template, len(texts)) if texts else None
        if made is not None:
            type_, fill = made
            return Checked(type_, fill(texts))
    expression = compile_expression(text, characters_max=characters_max)
    return Checked(expression.result_type(), expression.tree())


@lru_cache(maxsize=FILTER_TEMPLATES_CACHED_MAX)
def _template(text: str, holes: int) -> tuple[str, _Filler] | None:
    """The type of an expression with marks in its holes, and what fills them; None where a mark is elsewhere, too."""
    try:
        expression = compile_expression(text)
        tree = expression.tree()
    except FilterError:
        return None  # the message is to name what was written
    found: list[str] = []
    _gather(tree, found, is_hole=False)
    if sorted(found) != sorted(f"${number}$" for number in range(holes)):
        return None
    return expression.result_type(), _filler(tree) or (lambda _: tree)


def _gather(node: Node, found: list[str], *, is_hole: bool) -> None:
    """The texts of a tree that stand where a hole may be; one that looks like a mark elsewhere spoils the count."""
    match node:
        case Literal(LiteralKind.STRING, str(text)):
            if is_hole:
                found.append(text)
            elif _MARK.search(text):
                found.append("")
        case Literal(LiteralKind.BYTES, bytes(raw)):
            if _MARK.search(raw.decode("latin-1")):
                found.append("")
        case Compare(Comparison.EQ | Comparison.NE, left, right):
            for one in (left, right):
                _gather(one, found, is_hole=True)
        case In(element, ListOf(items)):
            _gather(element, found, is_hole=True)
            for one in items:
                _gather(one, found, is_hole=True)
        case _:
            for one in children(node):
                _gather(one, found, is_hole=False)


def _filler(node: Node) -> _Filler | None:
    """What makes the node with its holes filled; None where it has none: then it is the same for all texts."""
    if isinstance(node, Literal):
        if node.kind is not LiteralKind.STRING or _MARK.fullmatch(str(node.value)) is None:
            return None
        number = int(str(node.value)[1:-1])
        return lambda texts: Literal(LiteralKind.STRING, texts[number])
    fillers: list[_Filler | None] = [_filler(child) for child in children(node)]
    if not any(fillers):
        return None
    if isinstance(node, ListOf):
        items = tuple(zip(node.items, fillers, strict=True))
        return lambda texts: ListOf(tuple(item if fill is None else fill(texts) for item, fill in items))
    if isinstance(node, Compare):
        left, right = fillers
        return lambda texts: Compare(
            node.operator,
            node.left if left is None else left(texts),
            node.right if right is None else right(texts),
        )

    def fill_all(texts: Sequence[str]) -> Node:
        following = iter(fillers)

        def filled(child: Node) -> Node:
            fill = next(following)
            return child if fill is None else fill(texts)

        return map_children(node, filled)

    return fill_all


@lru_cache(maxsize=1)
def parse(text: str) -> Node:
    """The checked tree of CEL text, within all limits; asked for again at once, it is free. Raises FilterError."""
    found = checked(text)
    if found.type not in {"BOOL", "DYN"}:
        raise FilterError(
            f"a filter is true or false, this expression is of type {found.type.lower()}",
            field="filter.expression",
            hint="compare the value with something",
        )
    check_limits(found.tree, text)
    return found.tree


def tree_of(cel: str) -> Node:
    """The tree of a text that was admitted, or of its canonical form."""
    return compile_expression(cel, characters_max=FILTER_CANONICAL_CHARACTERS_MAX).tree()


def simplified_tree(cel: str) -> Node:
    """The same in the canonical form, see `rewrite.py`."""
    return rewrite(tree_of(cel))
