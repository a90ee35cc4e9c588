"""What dialects share in CEL: values that have a text, instants, names of attributes in JSON."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

from headgate.filter.cel.ast import LiteralKind, Node
from headgate.filter.cel.build import NO_ATTRIBUTES, call, is_written_plainly, literal, one_of
from headgate.filter.cel.errors import FilterError
from headgate_api.event.attributes import INT32_MAX, INT32_MIN
from headgate_api.limits import FILTER_LIST_ITEMS_MAX

# --- text values ----------------------------------------------------------------------------------
# For dialects in which every property is text. An attribute that came as an HTTP header is; in JSON it may have come as
# an integer or a boolean, and then counts as its text: 5 is "5", true is "true".

_INTEGER: Final = re.compile(r"0|-?[1-9][0-9]{0,9}")


def text_is_one_of(value: Node, texts: Iterable[str]) -> Node:
    """Whether the text of an attribute's value is one of `texts`: `value in ["5", 5]`."""
    alike = ((literal(text), *map(literal, others_written(text))) for text in texts)
    constants = tuple(dict.fromkeys(itertools.chain.from_iterable(alike)))
    if len(constants) > FILTER_LIST_ITEMS_MAX:
        value = call("string", value)
        constants = tuple(constant for constant in constants if constant.kind is LiteralKind.STRING)
    return one_of(value, constants)


def others_written(text: str) -> tuple[int | bool, ...]:
    """The integer or the boolean that has this text, where there is one."""
    if text in {"true", "false"}:
        return (text == "true",)
    if _INTEGER.fullmatch(text) and INT32_MIN <= int(text) <= INT32_MAX:
        return (int(text),)
    return ()


# --- instants -------------------------------------------------------------------------------------

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def timestamp_of(milliseconds: float) -> Node | None:
    """`timestamp("...")` of an instant in milliseconds since 1970 UTC; None when there is none from year 1 to 9999."""
    if milliseconds != milliseconds or not float(milliseconds).is_integer():
        return None
    try:
        return timestamp_of_micros(int(milliseconds) * 1_000)
    except OverflowError:
        return None


def timestamp_of_micros(micros: int) -> Node:
    """`timestamp("...")` of an instant in microseconds since 1970 UTC, which lies from year 1 to 9999."""
    text = (_EPOCH + timedelta(microseconds=micros)).isoformat().removesuffix("+00:00")
    text = text.rstrip("0") if "." in text else text
    return call("timestamp", literal(f"{text}Z"))


# --- json names -----------------------------------------------------------------------------------


def check_name(name: str, field: str) -> None:
    """Refuses what is no name of an attribute, or of a member of one (`github.repository`), or names the data."""
    if name in NO_ATTRIBUTES:
        raise FilterError("data is no attribute", field=field, hint="use `expression` to filter on data")
    if not is_written_plainly(name):
        hint = "a member of a map stands behind a dot: github.repository"
        raise FilterError("is no attribute name (lower-case letters and digits)", field=field, hint=hint)
