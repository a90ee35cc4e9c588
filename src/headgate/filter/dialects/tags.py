"""`tags`: events that carry one of some tags and all of others, as in Pulsar's pull request 8544.

    {"anytag1": "red", "anytag2": "blue", "alltag1": "urgent"}

An event's tags are the values of its extensions whose name begins with `tag` (`tag1`, `tagcolour`). At least one of the
values of the keys `anytag...` must be among them, and every value of the keys `alltag...`. Names only enumerate.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headgate.filter.cel.ast import And, Index, Macro, MacroKind, Name, Node
from headgate.filter.cel.build import CE, joined, method
from headgate.filter.cel.errors import FilterError, over_limit
from headgate.filter.cel.unparse import unparse
from headgate.filter.dialects.text_values import text_is_one_of
from headgate_api.limits import FILTER_CHARACTERS_MAX, FILTER_LIST_ITEMS_MAX

ANY: Final = "anytag"
ALL: Final = "alltag"
_PREFIX: Final = "tag"
_VARIABLE: Final = Name("name")
_HINT: Final = '{"anytag1": "red", "anytag2": "blue", "alltag1": "urgent"}'


def tags(value: object, field: str) -> str:
    """CEL text of a `tags` object; FilterError for names other than `anytag...` and `alltag...`, or for none."""
    if not isinstance(value, Mapping):
        raise FilterError("must be an object of tags", field=field, hint=_HINT)
    if not value:
        raise FilterError("names no tag, and would want every event", field=field, hint=_HINT)
    if len(value) > FILTER_LIST_ITEMS_MAX:
        raise over_limit("FILTER_LIST_ITEMS_MAX", f"has {len(value)} tags", field=field)
    for name, tag in value.items():
        if not isinstance(name, str) or not name.startswith((ANY, ALL)):
            raise FilterError("must begin with anytag or alltag", field=f"{field}.{name}", hint=_HINT)
        if not isinstance(tag, str):
            raise FilterError("must be a string", field=f"{field}.{name}")
        if len(tag) > FILTER_CHARACTERS_MAX:
            raise over_limit("FILTER_CHARACTERS_MAX", f"has {len(tag)} characters", field=f"{field}.{name}")
    return unparse(_condition(value))


def tags_of(metadata: Mapping[str, str]) -> dict[str, str]:
    """What of a consumer's metadata are tags, for `tags`; empty when it asks for no tag, and so for every event."""
    return {name: value for name, value in metadata.items() if name.startswith((ANY, ALL))}


def _condition(wanted: Mapping[str, str]) -> Node:
    conditions = []
    any_of = [tag for name, tag in wanted.items() if name.startswith(ANY)]
    if any_of:
        conditions.append(_carried(any_of))
    every = dict.fromkeys(tag for name, tag in wanted.items() if name.startswith(ALL))
    conditions.extend(_carried([tag]) for tag in every)
    return joined(And, conditions)


def _carried(wanted: list[str]) -> Node:
    """`ce.exists(name, name.startsWith("tag") && ce[name] in [...])`."""
    equal = text_is_one_of(Index(CE, _VARIABLE), wanted)
    is_tag = method(_VARIABLE, "startsWith", _PREFIX)
    return Macro(MacroKind.EXISTS, CE, _VARIABLE.name, And((is_tag, equal)), None)
