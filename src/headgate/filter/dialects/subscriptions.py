"""`spec.filters`: a list of filters that must all hold. CloudEvents Subscriptions API 1.0, section 3.2.4.

An element is a test of attributes, `all`, `any` or `not` of others, or a filter in any other dialect. An absent
attribute makes a test false, and `not` of it true. What says nothing (`{}`, `""`) would want every event: refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from headgate.filter.cel.ast import TRUE, And, Node, Not, Or
from headgate.filter.cel.build import flattened, joined
from headgate.filter.cel.errors import FilterError, known_names
from headgate.filter.cel.parsing import parse
from headgate.filter.dialects.attributes import AttributeTest, affix, equal, of_attributes
from headgate.filter.dialects.expression import without_version
from headgate_api.limits import FILTER_CHARACTERS_MAX, FILTERS_DEPTH_MAX, FILTERS_MAX

Dialect = Callable[[object, str], str]
"""(value of the field, path of the field for errors) to CEL text; raises FilterError."""

_TESTS: Final[Mapping[str, AttributeTest]] = {
    "exact": equal,
    "prefix": affix("startsWith"),
    "suffix": affix("endsWith"),
}
_LISTS: Final[Mapping[str, type[And] | type[Or]]] = {"all": And, "any": Or}
_NOT: Final = "not"
NAMES: Final = (*_TESTS, *_LISTS, _NOT)
"""The dialects that are elements of `spec.filters` only."""


def filters_tree(filters: Sequence[object], field: str, leaves: Mapping[str, Dialect]) -> Node:
    """The condition that all filters (at least one) hold, also in dialects of `leaves`; FilterError has the place."""
    _check_size(filters, field)
    conditions = tuple(_element(value, f"{field}[{at}]", leaves) for at, value in enumerate(filters))
    return joined(And, flattened(And, conditions))


def _check_size(filters: Sequence[object], field: str) -> None:
    waiting: list[tuple[object, int]] = []
    count, characters = 0, 0

    def wait(filters: Sequence[object], depth: int) -> None:
        nonlocal count
        count += len(filters)
        if count > FILTERS_MAX:
            reason = f"has more than {FILTERS_MAX} filters, nested ones and attributes included (FILTERS_MAX)"
            raise FilterError(reason, field=field, limit="FILTERS_MAX")
        waiting.extend((one, depth) for one in filters)

    wait(filters, 1)
    while waiting:
        value, depth = waiting.pop()
        if depth > FILTERS_DEPTH_MAX:
            reason = f"nests deeper than {FILTERS_DEPTH_MAX} filters (FILTERS_DEPTH_MAX)"
            raise FilterError(reason, field=field, limit="FILTERS_DEPTH_MAX")
        if not isinstance(value, Mapping):
            continue
        for name, inner in value.items():
            if name in _LISTS and isinstance(inner, list | tuple):
                wait(inner, depth + 1)
            elif name == _NOT:
                wait([inner], depth + 1)
            elif name in _TESTS and isinstance(inner, Mapping):
                count += max(0, len(inner) - 1)
                wait((), depth)
            elif isinstance(inner, str):
                # Expressions are parsed one by one, so their sum is bounded before.
                characters += len(inner)
        if characters > FILTER_CHARACTERS_MAX:
            reason = f"has expressions of more than {FILTER_CHARACTERS_MAX} characters (FILTER_CHARACTERS_MAX)"
            raise FilterError(reason, field=field, limit="FILTER_CHARACTERS_MAX")


def _element(value: object, field: str, leaves: Mapping[str, Dialect]) -> Node:
    known = (*NAMES, *leaves)
    if not isinstance(value, Mapping):
        raise FilterError("must be an object", field=field, hint=known_names(known))
    value = without_version(value, field)
    for name in value:
        if name not in NAMES and name not in leaves:
            raise FilterError("unknown field", field=f"{field}.{name}", hint=known_names(known, name))
    if len(value) > 1:
        given = ", ".join(sorted(value))
        raise FilterError(f"give one field, not several ({given})", field=field, hint="write a filter for each")
    if not value:
        raise FilterError("is empty", field=field, hint=known_names(known))
    ((name, inner),) = value.items()
    below = f"{field}.{name}"
    if name in _TESTS:
        return _tested(inner, below, _TESTS[name])
    if name in _LISTS:
        return _listed(inner, below, _LISTS[name], leaves)
    if name == _NOT:
        return Not(_element(inner, below, leaves))
    return _leaf(inner, below, leaves[name])


def _tested(value: object, field: str, test: AttributeTest) -> Node:
    def not_empty(name: str, wanted: str, below: str) -> Node:
        if not wanted:
            raise FilterError("must not be empty", field=below, hint='write {"attributes": ...} for "any value"')
        return test(name, wanted, below)

    conditions = of_attributes(value, field, not_empty)
    if not conditions:
        raise FilterError("is empty", field=field, hint="name at least one attribute")
    return joined(And, flattened(And, conditions))


def _listed(value: object, field: str, join: type[And] | type[Or], leaves: Mapping[str, Dialect]) -> Node:
    if not isinstance(value, list | tuple):
        raise FilterError("must be a list of filters", field=field)
    if not value:
        raise FilterError("is empty", field=field, hint="write at least one filter")
    conditions = tuple(_element(one, f"{field}[{at}]", leaves) for at, one in enumerate(value))
    return joined(join, flattened(join, conditions) if join is And else conditions)


def _leaf(value: object, field: str, dialect: Dialect) -> Node:
    text = dialect(value, field)
    try:
        # Alone, not as part of the whole: `true) || (true` is no expression, and a fault has its own field.
        tree = parse(text)
    except FilterError as error:
        raise error.at_field(field) from None
    if isinstance(value, Mapping) and tree == TRUE:
        raise FilterError("says nothing", field=field, hint="leave it out")
    return tree
