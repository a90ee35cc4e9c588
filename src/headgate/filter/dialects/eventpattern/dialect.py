"""`eventPattern`: an event pattern of Amazon EventBridge, as a JSON object or its text.

The pattern's tree is the CloudEvent in structured form. `detail` (or `data`) is the data; `detail-type` (or `type`) is
the type; every other name at the top is the attribute or extension of that name, so `account` and `region` are
extensions. Attributes are scalars and are asked by plain CEL; paths into the data go through arrays (`json.values`),
and several fields below one member are asked of one and the same object (`json.objects`), as event-ruler does.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from headgate.event.attributes import REQUIRED_ATTRIBUTES, TEXT_ATTRIBUTES
from headgate.filter.cel.ast import FALSE, TRUE, Compare, Comparison, Has, ListOf, Macro, MacroKind, Name, Node, Not
from headgate.filter.cel.attribute_names import is_written_plainly
from headgate.filter.cel.build import CE, all_of, any_of, attribute, call, literal
from headgate.filter.cel.errors import FilterError
from headgate.filter.cel.unparse import unparse
from headgate.filter.dialects.eventpattern.matchers import tests
from headgate.filter.dialects.eventpattern.rules import AnyOf, Exact, Exists, Field, Item, Matcher, items_of
from headgate.filter.dialects.eventpattern.text import Pattern
from headgate.filter.dialects.eventpattern.time import time_tests
from headgate.filter.dialects.eventpattern.tree import arranged

Bind = Callable[[Field, Pattern], tuple[str, ...]]
"""Where a field of a pattern lies: `("ce", attribute)` or `("data", member, ...)`; raises FilterError for nowhere."""

_RENAMED: Final = {"detail-type": "type"}
_DATA: Final = ("detail", "data")
_DOTTED_MAX: Final = 3
"""Names with dots in one path: each may be one member or several, which doubles the paths to look at."""


def event_pattern(value: object, field: str) -> str:
    """CEL text of an `eventPattern`.

    Raises:
        FilterError: No event pattern, a name that no attribute can have, or over a limit.
    """
    return pattern_to_cel(value, field, cloud_event)


def pattern_to_cel(value: object, field: str, bind: Bind) -> str:
    """CEL text of a pattern whose paths are bound by `bind`.

    Raises:
        FilterError: No event pattern, or over a limit.
    """
    pattern = Pattern(value, field)
    items = _bound(items_of(pattern), pattern, bind)
    try:
        return unparse(_all(arranged(items)))
    except FilterError as error:
        raise error.at_field(field) from None


def cloud_event(field: Field, pattern: Pattern) -> tuple[str, ...]:
    """The tree is the CloudEvent: `detail` is the data, other names are attributes."""
    first, *rest = field.names
    for root in _DATA:
        if first == root:
            return ("data", *rest)
        if first.startswith(f"{root}."):
            return ("data", first.removeprefix(f"{root}."), *rest)
    hint = "the event's data is under detail"
    if rest:
        raise pattern.fault(field.place, f"{first} is an attribute and has no members", hint=hint)
    name = _RENAMED.get(first, first)
    if not is_written_plainly(name):
        raise pattern.fault(field.place, "is no attribute name (lower-case letters and digits)", hint=hint)
    return ("ce", name)


def whole_tree(field: Field, pattern: Pattern) -> tuple[str, ...]:
    """The tree is the JSON data: for events that are no CloudEvents, such as those of the conformance cases."""
    return ("data", *field.names)


def _bound(items: tuple[Item, ...], pattern: Pattern, bind: Bind) -> tuple[Item, ...]:
    made: list[Item] = []
    for item in items:
        if isinstance(item, AnyOf):
            made.append(AnyOf(tuple(_bound(branch, pattern, bind) for branch in item.branches)))
            continue
        if sum("." in name for name in item.names) > _DOTTED_MAX:
            raise pattern.fault(item.place, f"has more than {_DOTTED_MAX} names with dots on its path")
        made.append(replace(item, names=bind(item, pattern)))
    return tuple(made)


def _all(items: tuple[Item, ...]) -> Node:
    """Every item holds: attributes first, they are cheapest, then the data, then alternatives."""
    fields = [item for item in items if isinstance(item, Field)]
    return all_of(
        [
            *(_attribute(field) for field in fields if field.names[0] == "ce"),
            *_members(Name("data"), [replace(f, names=f.names[1:]) for f in fields if f.names[0] == "data"], 0),
            *(any_of(map(_all, item.branches)) for item in items if isinstance(item, AnyOf)),
        ]
    )


def _attribute(field: Field) -> Node:
    name = field.names[1]
    asked = [matcher for matcher in field.matchers if not isinstance(matcher, Exists)]
    asked = [matcher for matcher in asked if not isinstance(matcher, Exact) or matcher.value is not None]
    value = attribute(name)
    found = time_tests(asked) if name == "time" else tests(value, asked, is_string=name in TEXT_ATTRIBUTES)
    present: Node = TRUE if name in REQUIRED_ATTRIBUTES else Has(CE, name)
    if Exists(True) in field.matchers:
        found = TRUE
    matched = FALSE if found == FALSE else all_of((present, found))
    if Exists(False) not in field.matchers:
        return matched
    absent = FALSE if present == TRUE else Not(present)
    return TRUE if Exists(True) in field.matchers else any_of((absent, found))


def _members(root: Node, fields: list[Field], depth: int) -> list[Node]:
    """Fields below an object: those that share its members are asked of one object there."""
    leaves = [field for field in fields if not field.names]
    groups: dict[str, list[Field]] = {}
    for field in fields:
        if field.names:
            groups.setdefault(field.names[0], []).append(field)
    asked = [_leaf(root, leaf.names, leaf.matchers) for leaf in leaves]
    for members in groups.values():
        if len(members) == 1:
            asked.append(_leaf(root, members[0].names, members[0].matchers))
        else:
            asked.extend(_group(root, members, depth))
    return asked


def _group(root: Node, fields: list[Field], depth: int) -> list[Node]:
    shortest = min(len(field.names) for field in fields)
    shared = 1
    while shared < shortest and len({field.names[shared] for field in fields}) == 1:
        shared += 1
    prefix = fields[0].names[:shared]
    below = [replace(field, names=field.names[shared:]) for field in fields if len(field.names) > shared]
    asked = [_leaf(root, field.names, field.matchers) for field in fields if len(field.names) == shared]
    if len(below) == 1:
        return [*asked, _leaf(root, (*prefix, *below[0].names), below[0].matchers)]
    may_all_be_absent = all(Exists(False) in field.matchers for field in below)
    element = Name("o" if depth == 0 else f"o{depth + 1}")
    conditions = _members(element, below, depth + 1)
    if may_all_be_absent:
        # Of members that may all be absent at least one is there, or the whole event has none of them.
        conditions.append(any_of(_present(element, field) for field in below))
        absent = all_of(_leaf(root, (*prefix, *field.names), (Exists(False),)) for field in below)
        if all(set(field.matchers) == {Exists(False)} for field in below):
            return [*asked, absent]
        return [*asked, any_of((_exists("json.objects", root, prefix, element, all_of(conditions)), absent))]
    return [*asked, _exists("json.objects", root, prefix, element, all_of(conditions))]


def _present(root: Node, field: Field) -> Node:
    return _leaf(root, field.names, tuple(m for m in field.matchers if m != Exists(False)) or (Exists(True),))


def _leaf(root: Node, names: tuple[str, ...], matchers: tuple[Matcher, ...]) -> Node:
    """One of the matchers takes one of the scalars at a path, or there is none and that is asked for."""
    wanted = {matcher.wanted for matcher in matchers if isinstance(matcher, Exists)}
    if wanted == {True, False}:
        return TRUE
    sizes = [call("size", _at("json.values", root, path)) for path in _spellings(names)]
    if True in wanted:
        return any_of(Compare(Comparison.GT, size, literal(0)) for size in sizes)
    asked = [matcher for matcher in matchers if not isinstance(matcher, Exists)]
    found = _exists("json.values", root, names, Name("v"), tests(Name("v"), asked, is_string=False)) if asked else FALSE
    absent = all_of(Compare(Comparison.EQ, size, literal(0)) for size in sizes) if wanted else FALSE
    return any_of((found, absent))


def _exists(function: str, root: Node, names: tuple[str, ...], variable: Name, condition: Node) -> Node:
    if condition == FALSE:
        return FALSE
    return any_of(
        Macro(MacroKind.EXISTS, _at(function, root, path), variable.name, condition, None) for path in _spellings(names)
    )


def _at(function: str, root: Node, names: tuple[str, ...]) -> Node:
    return call(function, root, ListOf(tuple(map(literal, names))))


def _spellings(names: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Paths that a written path may mean: a name with dots is one member, or one a part."""
    choices = [[(name,), tuple(name.split("."))] if "." in name else [(name,)] for name in names]
    return [tuple(itertools.chain.from_iterable(choice)) for choice in itertools.product(*choices)]
