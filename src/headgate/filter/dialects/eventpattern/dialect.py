"""`eventPattern`: an event pattern of Amazon EventBridge, as a JSON object or its text.

The pattern's tree is the CloudEvent in structured form. `detail` (or `data`) is the data; `detail-type` (or `type`) is
the type; every other name at the top is the attribute or extension of that name, so `account` and `region` are
extensions. Attributes are scalars and are asked by plain CEL; paths into the data go through arrays (`json.values`),
and several fields below one member are asked of one and the same object (`json.objects`), as event-ruler does.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from headgate.filter.cel.ast import FALSE, TRUE, Compare, Comparison, ListOf, Macro, MacroKind, Name, Node, Not
from headgate.filter.cel.build import all_of, any_of, attribute, call, is_written_plainly, literal, present
from headgate.filter.cel.errors import FilterError
from headgate.filter.cel.unparse import unparse
from headgate.filter.dialects.eventpattern.matchers import tests, time_tests
from headgate.filter.dialects.eventpattern.rules import (
    AnyOf,
    Exact,
    Exists,
    Field,
    Item,
    Pattern,
    arranged,
    items_of,
)
from headgate_api.event.attributes import TEXT_ATTRIBUTES

Bind = Callable[[Field, Pattern], tuple[str, ...]]
"""Where a field of a pattern lies: `("ce", attribute)` or `("data", member, ...)`; raises FilterError for nowhere."""

_RENAMED: Final = {"detail-type": "type"}
_DATA: Final = ("detail", "data")
_DOTTED_MAX: Final = 3
"""Names with dots in one path: each may be one member or several, which doubles the paths to look at."""


def event_pattern(value: object, field: str) -> str:
    """CEL text of an `eventPattern`; FilterError for none, a name that no attribute can have, or over a limit."""
    return pattern_to_cel(value, field, cloud_event)


def pattern_to_cel(value: object, field: str, bind: Bind) -> str:
    """CEL text of a pattern whose paths are bound by `bind`."""
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
    there = present(name)
    if Exists(True) in field.matchers:
        found = TRUE
    matched = FALSE if found == FALSE else all_of((there, found))
    if Exists(False) not in field.matchers:
        return matched
    absent = FALSE if there == TRUE else Not(there)
    return TRUE if Exists(True) in field.matchers else any_of((absent, found))


def _members(root: Node, fields: list[Field], depth: int) -> list[Node]:
    """Fields below the data: those that share its members are asked of one object there."""
    return [_one_of(root, _choices(root, block, depth)) for block in _blocks(fields)]


@dataclass(frozen=True, slots=True)
class _Choice:
    """A way in which all of some fields match.

    At the paths `absent` there must be no value, in the event around, as no element of an array was chosen there.
    Nothing is `asked` where all fields are absent.
    """

    absent: tuple[tuple[str, ...], ...]
    asked: tuple[Node, ...]


def _one_of(root: Node, choices: list[_Choice]) -> Node:
    return any_of(all_of((*choice.asked, *(_absent(root, path) for path in choice.absent))) for choice in choices)


def _blocks(fields: list[Field]) -> list[list[Field]]:
    """Fields that are asked together, in event-ruler's order: by their paths, in UTF-16."""
    groups: dict[tuple[str, ...], list[Field]] = {}
    for field in sorted(fields, key=lambda field: ".".join(field.names).encode("utf-16-be")):
        groups.setdefault(field.names[:1], []).append(field)
    blocks = []
    for group in groups.values():
        shared = _shared(group)
        blocks += [[field] for field in group if len(field.names) == shared]
        blocks += [below] if (below := [field for field in group if len(field.names) > shared]) else []
    return blocks


def _shared(fields: list[Field]) -> int:
    """Names with which all of the paths begin."""
    columns = zip(*(field.names for field in fields), strict=False)
    return sum(1 for _ in itertools.takewhile(lambda names: len(set(names)) == 1, columns))


def _choices(root: Node, fields: list[Field], depth: int) -> list[_Choice]:
    """The ways in which fields that begin with the same name match below `root`.

    As in event-ruler a field is absent from what was chosen by the fields before it: from the element of the array
    where one of them has its value, from all of the elements where none has.
    """
    if len(fields) == 1:
        return _leaf(root, fields[0])
    shared = _shared(fields)
    prefix = fields[0].names[:shared]
    element = Name("o" if depth == 0 else f"o{depth + 1}")
    chosen: list[_Choice] = []
    none: tuple[tuple[str, ...], ...] | None = ()
    for block in _blocks([replace(field, names=field.names[shared:]) for field in fields]):
        choices = _choices(element, block, depth + 1)
        here = _one_of(element, choices)
        chosen = [_Choice(before.absent, (*before.asked, here)) for before in chosen]
        if none is not None:
            chosen += [_Choice((*none, *choice.absent), choice.asked) for choice in choices if choice.asked]
            absent = [choice.absent for choice in choices if not choice.asked]
            none = (*none, *absent[0]) if absent else None
    made = [
        _Choice(_below(prefix, choice.absent), (_exists("json.objects", root, prefix, element, all_of(choice.asked)),))
        for choice in chosen
    ]
    return made if none is None else [*made, _Choice(_below(prefix, none), ())]


def _below(prefix: tuple[str, ...], paths: tuple[tuple[str, ...], ...]) -> tuple[tuple[str, ...], ...]:
    return tuple((*prefix, *path) for path in paths)


def _leaf(root: Node, field: Field) -> list[_Choice]:
    """One of the matchers takes one of the scalars at a path, or there is none and that is asked for."""
    matchers = [matcher for matcher in field.matchers if not isinstance(matcher, Exists)]
    choices: list[_Choice] = []
    if Exists(True) in field.matchers:
        sizes = [call("size", _at("json.values", root, path)) for path in _spellings(field.names)]
        choices.append(_Choice((), (any_of(Compare(Comparison.GT, size, literal(0)) for size in sizes),)))
    elif matchers:
        tested = tests(Name("v"), matchers, is_string=False)
        choices.append(_Choice((), (_exists("json.values", root, field.names, Name("v"), tested),)))
    if Exists(False) in field.matchers:
        choices.append(_Choice((field.names,), ()))
    return choices


def _absent(root: Node, names: tuple[str, ...]) -> Node:
    sizes = (call("size", _at("json.values", root, path)) for path in _spellings(names))
    return all_of(Compare(Comparison.EQ, size, literal(0)) for size in sizes)


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
