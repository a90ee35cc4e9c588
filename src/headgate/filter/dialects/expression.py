"""`expression` (or `cel`): a CEL expression, as it is, unless it treats an attribute as what it never is."""

from __future__ import annotations

from headgate.filter.attribute_types import check_attribute_types
from headgate.filter.errors import FilterError
from headgate.filter.parsing import parse


def expression(value: object, field: str) -> str:
    """CEL text as given.

    Raises:
        FilterError: No string, a blank one, no CEL within the limits, or a type fault of an attribute.
    """
    if not isinstance(value, str):
        raise FilterError("must be a string", field=field)
    if not value.strip():
        raise FilterError("the expression is empty", field=field, hint="leave the filter out to take every event")
    try:
        check_attribute_types(value, parse(value))
    except FilterError as error:
        raise error.at_field(field) from None
    return value
