"""The ways to write a filter. Each dialect is one row of `DIALECTS` and becomes CEL.

A dialect is a function from the JSON value of its field to CEL text. It refuses what it does not understand with a
`FilterError` that names the field: a filter that is not understood must never match.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from headgate.filter.cel.errors import FilterError, known_names
from headgate.filter.cel.unparse import unparse
from headgate.filter.dialects.attributes import attributes, source_and_type, tags
from headgate.filter.dialects.cesql.to_cel import cesql
from headgate.filter.dialects.custom import Installed, installed
from headgate.filter.dialects.eventpattern.to_cel import event_pattern
from headgate.filter.dialects.expression import VERSION, expression, without_version
from headgate.filter.dialects.jms.to_cel import jms
from headgate.filter.dialects.pulsar.to_cel import pulsar
from headgate.filter.dialects.subscriptions import NAMES, Dialect, filters_tree

_OURS: Final[Mapping[str, Dialect]] = {
    "attributes": attributes,
    "sourceAndType": source_and_type,
    "expression": expression,
    "cel": expression,
    "cesql": cesql,
    "jms": jms,
    "pulsar": pulsar,
    "tags": tags,
    "eventPattern": event_pattern,
}

CUSTOM: Final[Mapping[str, Installed]] = installed((*_OURS, *NAMES, VERSION))
"""What installed packages bring, broken ones among them; read once, when this module is imported."""

DIALECTS: Final[Mapping[str, Dialect]] = {
    **_OURS,
    **{name: dialect for name, dialect in CUSTOM.items() if not dialect.taken},
}
"""Fields of `spec.filter`, of which one may be given; elements of `spec.filters` also have `subscriptions.NAMES`."""


def to_cel(filter_object: Mapping[str, object] | None, filters: Sequence[object] = ()) -> str:
    """CEL text of a trigger's filter; the field of a FilterError is a path below `spec`.

    `filter_object` is `spec.filter`, decoded; None or `{}` takes every event. When `filters` (`spec.filters`) is not
    empty it is what counts, as in Knative; `filter_object` must be valid all the same.
    """
    name = dialect_of(filter_object)
    text = "true" if filter_object is None or name is None else DIALECTS[name](filter_object[name], f"filter.{name}")
    if not isinstance(filters, list | tuple):
        raise FilterError("must be a list of filters", field="filters")
    return unparse(filters_tree(filters, "filters", DIALECTS)) if filters else text


def written_in(filter_object: Mapping[str, object] | None, filters: Sequence[object]) -> str:
    """The path below `spec` of what `to_cel` translated, for faults of the whole."""
    name = None if filters else dialect_of(filter_object)
    return "filters" if filters else "filter" if name is None else f"filter.{name}"


def dialect_of(filter_object: Mapping[str, object] | None) -> str | None:
    """Name of the one field of a filter object, beside `celVersion`, or None; FilterError for unknown or several."""
    if filter_object is None:
        return None
    if not isinstance(filter_object, Mapping):
        raise FilterError("must be an object", hint=known_names(DIALECTS))
    filter_object = without_version(filter_object, "filter")
    for name in filter_object:
        if name not in DIALECTS:
            raise FilterError("unknown field", field=f"filter.{name}", hint=known_names(DIALECTS, name))
    if len(filter_object) > 1:
        given = ", ".join(sorted(filter_object))
        raise FilterError(f"give one field, not several ({given})", hint="join conditions with && in `expression`")
    return next(iter(filter_object), None)
