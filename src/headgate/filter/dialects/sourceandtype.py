"""`sourceAndType`: the event's source and type, each exactly this value; an empty or absent one accepts any.

This is the filter of Knative's first Triggers.
"""

from __future__ import annotations

from collections.abc import Mapping

from headgate.filter.cel.errors import FilterError
from headgate.filter.cel.unparse import string_literal


def source_and_type(value: object, field: str) -> str:
    """CEL text of a `sourceAndType` object.

    Raises:
        FilterError: No object, unknown fields, or values that are no strings.
    """
    if not isinstance(value, Mapping):
        raise FilterError("must be an object with source and type", field=field)
    conditions = []
    for name, wanted in value.items():
        if name not in {"source", "type"}:
            raise FilterError("unknown field", field=f"{field}.{name}", hint="one of: source, type")
        if not isinstance(wanted, str):
            raise FilterError("must be a string", field=f"{field}.{name}", hint='"" accepts any value')
        if wanted:
            conditions.append(f"ce.{name} == {string_literal(wanted)}")
    return " && ".join(conditions) or "true"
