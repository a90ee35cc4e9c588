"""Can an attribute have this name? For dialects that name attributes in JSON."""

from __future__ import annotations

from typing import Final

from headgate.event.attributes import is_name
from headgate.filter.errors import FilterError

_DATA: Final = frozenset({"data", "data_base64"})


def check_name(name: str, field: str) -> None:
    """Refuses what is no attribute's name: `field` is where it stands.

    Raises:
        FilterError: It is the data, or has other characters than lower-case letters and digits.
    """
    if name in _DATA:
        raise FilterError("data is no attribute", field=field, hint="use `expression` to filter on data")
    if not is_name(name):
        raise FilterError("is no attribute name (lower-case letters and digits)", field=field)
