"""Names of attributes in dialects that are JSON."""

from __future__ import annotations

from typing import Final

from headgate.filter.cel.attribute_names import is_written_plainly
from headgate.filter.cel.errors import FilterError

_DATA: Final = frozenset({"data", "data_base64"})


def check_name(name: str, field: str) -> None:
    """Refuses what is no name of an attribute, or of a member of one (`github.repository`).

    Args:
        name: The name.
        field: Where it stands.

    Raises:
        FilterError: It is the data, or has characters that names do not have.
    """
    if name in _DATA:
        raise FilterError("data is no attribute", field=field, hint="use `expression` to filter on data")
    if not is_written_plainly(name):
        hint = "a member of a map stands behind a dot: github.repository"
        raise FilterError("is no attribute name (lower-case letters and digits)", field=field, hint=hint)
