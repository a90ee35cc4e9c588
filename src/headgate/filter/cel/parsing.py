"""What does CEL text say? Its checked tree, within all limits: no text becomes part of a filter without."""

from __future__ import annotations

from functools import lru_cache

from headgate.filter.cel.ast import Node
from headgate.filter.cel.cost import check_limits
from headgate.filter.cel.decode import decode
from headgate.filter.cel.engine import compile_expression
from headgate.filter.cel.errors import FilterError


@lru_cache(maxsize=1)
def parse(text: str) -> Node:
    """The checked tree of CEL text, within all limits; for who asks at once again of the same text it is free.

    Raises:
        FilterError: No expression, not boolean, or over a limit (`limit` names it).
    """
    expression = compile_expression(text)
    result = expression.result_type()
    if result not in {"BOOL", "DYN"}:
        raise FilterError(
            f"a filter is true or false, this expression is of type {result.lower()}",
            field="filter.expression",
            hint="compare the value with something",
        )
    tree = decode(expression.checked().expr)
    check_limits(tree)
    return tree
