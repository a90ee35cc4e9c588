"""An event pattern's items without overridden fields and tangled `$or`s.

Fields that must be asked together stand together here. A pattern means what it means with every `$or` written out, one
rule a combination of branches, in which of a path given twice the later one counts. Here a `$or` stays where it is,
unless it shares a path or a member of the data with what stands beside it: only then its branches take in what it
shares.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from headgate.filter.cel.errors import FilterError, over_limit
from headgate.filter.dialects.eventpattern.rules import AnyOf, Field, Item
from headgate.limits import PATTERN_FIELDS_MAX

_Items = tuple[Item, ...]
_TOGETHER: Final = 2
"""Names that two paths share when they lie in one object below a root: the root and a member of it."""


def arranged(items: Iterable[Item], base: _Items = ()) -> _Items:
    """Items that hold together if and only if `base` and `items` do, no `$or` tangled with another item.

    Args:
        items: Paths begin with the name of a root, as they are bound.
        base: Items that came before and are arranged already.

    Raises:
        FilterError: `$or`s that have to be written out make too many fields (`limit` is named, the field is not).
    """
    for item in items:
        base = _with_field(base, item) if isinstance(item, Field) else _with_any(base, item)
        if sum(1 for _ in _fields(base)) > PATTERN_FIELDS_MAX:
            raise _too_many()
    return base


def _with_field(base: _Items, field: Field) -> _Items:
    base = _without(base, _key(field))
    tangled = [item for item in base if isinstance(item, AnyOf) and _tangled((item,), (field,))]
    if not tangled:
        return (*base, field)
    rest = tuple(item for item in base if item not in tangled)
    written_out = tangled[0].branches
    for other in tangled[1:]:
        if len(written_out) * len(other.branches) > PATTERN_FIELDS_MAX:
            raise _too_many()
        written_out = tuple(arranged(branch, before) for before in written_out for branch in other.branches)
    return (*rest, AnyOf(tuple(arranged((field,), branch) for branch in written_out)))


def _with_any(base: _Items, item: AnyOf) -> _Items:
    shared = tuple(other for other in base if _tangled((other,), (item,)))
    rest = tuple(other for other in base if other not in shared)
    return (*rest, AnyOf(tuple(arranged(branch, shared) for branch in item.branches)))


def _without(items: _Items, key: str) -> _Items:
    kept: list[Item] = []
    for item in items:
        if isinstance(item, AnyOf):
            kept.append(AnyOf(tuple(_without(branch, key) for branch in item.branches)))
        elif _key(item) != key:
            kept.append(item)
    return tuple(kept)


def _tangled(left: _Items, right: _Items) -> bool:
    keys = {_key(field) for field in _fields(left)}
    members = {field.names[:_TOGETHER] for field in _fields(left) if len(field.names) > _TOGETHER}
    return any(_key(field) in keys or field.names[:_TOGETHER] in members for field in _fields(right))


def _fields(items: _Items) -> Iterator[Field]:
    for item in items:
        if isinstance(item, Field):
            yield item
        else:
            for branch in item.branches:
                yield from _fields(branch)


def _key(field: Field) -> str:
    """A path as event-ruler sees it: names joined by dots."""
    return ".".join(field.names)


def _too_many() -> FilterError:
    return over_limit("PATTERN_FIELDS_MAX", "has too many fields with its $or written out", field="filter")
