"""`attributes`: every named attribute is present and has exactly this value; an empty value accepts any.

This is Knative's `Trigger.spec.filter.attributes`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from headgate.filter.ast import Compare, Comparison, Has, Literal, LiteralKind, Name, Select
from headgate.filter.errors import FilterError
from headgate.filter.unparse import unparse
from headgate.limits import FILTER_LIST_ITEMS_MAX

_NAME: Final = re.compile(r"[a-z0-9]+")
_NO_ATTRIBUTES: Final = frozenset({"data", "data_base64"})


def attributes(value: object, field: str) -> str:
    """CEL text of an `attributes` object; an empty object accepts every event.

    Raises:
        FilterError: No object of strings, an invalid attribute name, or too many.
    """
    if not isinstance(value, Mapping):
        raise FilterError("must be an object of attribute names and values", field=field)
    if len(value) > FILTER_LIST_ITEMS_MAX:
        raise FilterError(
            f"has {len(value)} attributes: the limit is {FILTER_LIST_ITEMS_MAX} (FILTER_LIST_ITEMS_MAX)",
            field=field,
            limit="FILTER_LIST_ITEMS_MAX",
        )
    return " && ".join(_condition(name, wanted, field) for name, wanted in value.items()) or "true"


def _condition(name: object, wanted: object, field: str) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in _NO_ATTRIBUTES:
        hint = "use `expression` to filter on data" if name in _NO_ATTRIBUTES else ""
        reason = "is no attribute name (lower-case letters and digits)" if not hint else "data is no attribute"
        raise FilterError(reason, field=f"{field}.{name}" if name else field, hint=hint)
    if not isinstance(wanted, str):
        raise FilterError("must be a string", field=f"{field}.{name}", hint='"" accepts any value')
    attribute = Name("ce")
    if wanted == "":
        return unparse(Has(attribute, name))
    return unparse(Compare(Comparison.EQ, Select(attribute, name), Literal(LiteralKind.STRING, wanted)))
