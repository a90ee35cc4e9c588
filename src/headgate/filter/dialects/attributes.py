"""`attributes` and `sourceAndType`, the filters of Knative's Triggers, where "" accepts any value; and `tags`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from headgate.filter.cel.ast import And, Compare, Comparison, Has, Index, Name, Node
from headgate.filter.cel.build import CE, attribute, call, exists, flattened, joined, literal, method
from headgate.filter.cel.engine import is_timestamp
from headgate.filter.cel.errors import FilterError, over_limit
from headgate.filter.cel.unparse import unparse
from headgate.filter.dialects.text_values import check_name, text_is_one_of
from headgate_api.event.attributes import REQUIRED_ATTRIBUTES
from headgate_api.limits import FILTER_CHARACTERS_MAX, FILTER_LIST_ITEMS_MAX

_TIME: Final = "time"

AttributeTest = Callable[[str, str, str], Node]
"""(attribute's name, wanted value, field for errors) to a condition."""


def attributes(value: object, field: str) -> str:
    """CEL text of an `attributes` object: each is there with exactly this value; an empty one takes every event."""
    conditions = of_attributes(value, field, _equal_or_any)
    return unparse(joined(And, flattened(And, conditions)))


def of_attributes(value: object, field: str, test: AttributeTest) -> tuple[Node, ...]:
    """One condition for every attribute of an object of names and values; raises FilterError, also what `test` does."""
    if not isinstance(value, Mapping):
        raise FilterError("must be an object of attribute names and values", field=field)
    if len(value) > FILTER_LIST_ITEMS_MAX:
        raise over_limit("FILTER_LIST_ITEMS_MAX", f"has {len(value)} attributes", field=field)
    return tuple(_condition(name, wanted, field, test) for name, wanted in value.items())


def equal(name: str, wanted: str, field: str) -> Node:
    """The attribute has this value; `time` as an instant, and FilterError where it is compared with what is no time."""
    if name == _TIME and not is_timestamp(wanted):
        raise FilterError("is no RFC 3339 time", field=field, hint='write it as "2026-01-31T12:00:00Z"')
    value = call("timestamp", literal(wanted)) if name == _TIME else literal(wanted)
    return _present(name, Compare(Comparison.EQ, attribute(name), value))


def affix(function: str) -> AttributeTest:
    """The attribute is there and `startsWith` or `endsWith` the value; `time` in its RFC 3339 form in UTC."""

    def test(name: str, wanted: str, field: str) -> Node:
        read = call("string", attribute(name)) if name == _TIME else attribute(name)
        return _present(name, method(read, function, wanted))

    return test


def _present(name: str, condition: Node) -> Node:
    """Absent is false, not an error: it has to stay so inside `not`."""
    return condition if name in REQUIRED_ATTRIBUTES else And((Has(CE, name), condition))


def _equal_or_any(name: str, wanted: str, field: str) -> Node:
    return equal(name, wanted, field) if wanted else Has(CE, name)


def _condition(name: object, wanted: object, field: str, test: AttributeTest) -> Node:
    place = f"{field}.{name}" if name != "" else field
    name = name if isinstance(name, str) else ""  # YAML has keys that are no text
    check_name(name, place)
    if not isinstance(wanted, str):
        hint = '"" accepts any value' if test is _equal_or_any else ""
        raise FilterError("must be a string", field=f"{field}.{name}", hint=hint)
    return test(name, wanted, f"{field}.{name}")


def source_and_type(value: object, field: str) -> str:
    """CEL text of a `sourceAndType` object, the filter of Knative's first Triggers: unknown fields are refused."""
    if not isinstance(value, Mapping):
        raise FilterError("must be an object with source and type", field=field)
    for name in value:
        if name not in {"source", "type"}:
            raise FilterError("unknown field", field=f"{field}.{name}", hint="one of: source, type")
    return attributes({name: wanted for name, wanted in value.items() if wanted != ""}, field)


# --- tags -----------------------------------------------------------------------------------------
# Events that carry one of some tags and all of others, as in Pulsar's pull request 8544.
#
# An event's tags are the values of its extensions whose name begins with `tag` (`tag1`, `tagcolour`). At least one of
# the values of the keys `anytag...` must be among them, and every value of the keys `alltag...`. Names only enumerate.

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
    return unparse(_tags_condition(value))


def tags_of(metadata: Mapping[str, str]) -> dict[str, str]:
    """What of a consumer's metadata are tags, for `tags`; empty when it asks for no tag, and so for every event."""
    return {name: value for name, value in metadata.items() if name.startswith((ANY, ALL))}


def _tags_condition(wanted: Mapping[str, str]) -> Node:
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
    return exists(CE, _VARIABLE.name, And((is_tag, equal)))
