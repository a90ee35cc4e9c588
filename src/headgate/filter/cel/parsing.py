"""From CEL text to its checked tree: within all limits for what clients send, and of what was admitted."""

from __future__ import annotations

from functools import lru_cache

from headgate.filter.cel.ast import Node
from headgate.filter.cel.cost import check_limits
from headgate.filter.cel.engine import compile_expression
from headgate.filter.cel.errors import FilterError
from headgate.filter.cel.rewrite import rewrite
from headgate.filter.cel.templates import checked
from headgate.limits import FILTER_CANONICAL_CHARACTERS_MAX


@lru_cache(maxsize=1)
def parse(text: str) -> Node:
    """The checked tree of CEL text, within all limits; asked for again at once, it is free.

    Raises:
        FilterError: No expression, not boolean, or over a limit (`limit` names it).
    """
    found = checked(text)
    if found.type not in {"BOOL", "DYN"}:
        raise FilterError(
            f"a filter is true or false, this expression is of type {found.type.lower()}",
            field="filter.expression",
            hint="compare the value with something",
        )
    check_limits(found.tree)
    return found.tree


def tree_of(cel: str) -> Node:
    """The tree of a text that was admitted, or of its canonical form.

    Raises:
        FilterError: It is no expression.
    """
    return compile_expression(cel, characters_max=FILTER_CANONICAL_CHARACTERS_MAX).tree()


def simplified_tree(cel: str) -> Node:
    """The same in the canonical form, see `rewrite.py`.

    Raises:
        FilterError: It is no expression.
    """
    return rewrite(tree_of(cel))
