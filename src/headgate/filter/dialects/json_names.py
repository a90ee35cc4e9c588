"""Names of attributes in dialects that are JSON."""

from __future__ import annotations

from headgate.filter.cel.attribute_names import NO_ATTRIBUTES, is_written_plainly
from headgate.filter.cel.errors import FilterError


def check_name(name: str, field: str) -> None:
    """Refuses what is no name of an attribute, or of a member of one (`github.repository`).

    Args:
        name: The name.
        field: Where it stands.

    Raises:
        FilterError: It is the data, or has characters that names do not have.
    """
    if name in NO_ATTRIBUTES:
        raise FilterError("data is no attribute", field=field, hint="use `expression` to filter on data")
    if not is_written_plainly(name):
        hint = "a member of a map stands behind a dot: github.repository"
        raise FilterError("is no attribute name (lower-case letters and digits)", field=field, hint=hint)
