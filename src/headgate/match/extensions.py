"""What is the value of an extension attribute, without parsing?

The log holds extensions as a compact JSON object that Headgate wrote itself: flat, each name once, names without
characters that JSON escapes, values strings, integers or booleans. There a name in quotes before a colon is always a
member's name: inside a string a quote is escaped, and no colon follows the quote that ends a value.
"""

from __future__ import annotations

import json

from pyspark.sql import Column
from pyspark.sql import functions as F

from headgate.match.reads import Wanted

_EXTENSIONS = "extensions"


def is_plain(name: str) -> bool:
    """Whether a member of this name is written as the name in quotes."""
    return json.dumps(name, ensure_ascii=False) == f'"{name}"'


def read(item: Wanted) -> list[Column]:
    """The typed columns that are wanted of an extension."""
    name, names = item.place.path[0], item.columns
    member = f'"{name}":'
    text = F.col(_EXTENSIONS)
    has = F.coalesce(F.contains(text, F.lit(member)), F.lit(False))
    rest = F.when(has, F.substring_index(text, member, -1))
    false_if_present = F.when(has, F.lit(False))
    columns = {
        names.text: F.when(F.startswith(rest, F.lit('"')), _string(rest, name)),
        # "-" and the digits lie between "-" and ":"
        names.number: F.when((rest >= "-") & (rest < ":"), _token(rest).try_cast("double")),
        names.flag: F.when(F.startswith(rest, F.lit("true")), F.lit(True)).when(
            F.startswith(rest, F.lit("false")), F.lit(False)
        ),
        names.is_null: false_if_present,
        names.mismatch: false_if_present,
        names.has: has,
    }
    return [column.alias(name) for name, column in columns.items() if name]


def _string(rest: Column, name: str) -> Column:
    """The string that `rest` starts with; only with an escape somewhere behind it is a parser asked."""
    parsed = F.try_variant_get(F.try_parse_json(F.col(_EXTENSIONS)), f'$["{name}"]', "string")
    plain = F.substring_index(F.substring(rest, 2, 1 << 30), '"', 1)
    return F.when(F.contains(rest, F.lit("\\")), parsed).otherwise(plain)


def _token(rest: Column) -> Column:
    """What stands before the next comma or brace."""
    return F.substring_index(F.substring_index(rest, ",", 1), "}", 1)
