"""`expression` (or `cel`): a CEL expression, as it is."""

from __future__ import annotations

from headgate.filter.errors import FilterError


def expression(value: object, field: str) -> str:
    """CEL text as given; the compiler checks it.

    Raises:
        FilterError: No string, or a blank one.
    """
    if not isinstance(value, str):
        raise FilterError("must be a string", field=field)
    if not value.strip():
        raise FilterError("the expression is empty", field=field, hint="leave the filter out to take every event")
    return value
