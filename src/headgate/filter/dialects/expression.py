"""`expression` (or `cel`): a CEL expression, as it is, unless it treats an attribute as what it never is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headgate.filter.cel.attribute_types import check_attribute_types
from headgate.filter.cel.errors import FilterError
from headgate.filter.cel.parsing import parse

VERSION: Final = "celVersion"
"""The field beside a CEL expression that says which version of the language it is written in."""
VERSIONS: Final = ("1",)
"""Versions that there are; the first is that of an expression without the field."""
_FIELDS: Final = frozenset({"expression", "cel"})


def without_version(filter_object: Mapping[str, object], field: str) -> Mapping[str, object]:
    """A filter object without its `celVersion`, which is no filter; FilterError for an unknown one, or without CEL."""
    if VERSION not in filter_object:
        return filter_object
    rest = {name: value for name, value in filter_object.items() if name != VERSION}
    if filter_object[VERSION] not in VERSIONS:
        known = ", ".join(f'"{version}"' for version in VERSIONS)
        raise FilterError("is no version of the language", field=f"{field}.{VERSION}", hint=f"one of: {known}")
    if _FIELDS.isdisjoint(rest):
        hint = "leave it out, or write the filter as `cel`"
        raise FilterError("is the version of a CEL filter, and there is none", field=f"{field}.{VERSION}", hint=hint)
    return rest


def expression(value: object, field: str) -> str:
    """CEL text as given; FilterError for none within the limits, or for a type fault of an attribute."""
    if not isinstance(value, str):
        raise FilterError("must be a string", field=field)
    if not value.strip():
        raise FilterError("the expression is empty", field=field, hint="leave the filter out to take every event")
    try:
        check_attribute_types(value, parse(value))
    except FilterError as error:
        raise error.at_field(field) from None
    return value
