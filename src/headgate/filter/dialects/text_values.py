"""The values of an attribute that have a text, for dialects in which every property is text.

Such a dialect compares with all of them. In Pulsar a property is a string. An attribute that came as an HTTP header is
one, too; in JSON it may have come as an integer or a boolean, and then counts as its text: 5 is "5", true is "true".
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from headgate.event.attributes import INT32_MAX, INT32_MIN
from headgate.filter.cel.ast import Literal, LiteralKind, Node
from headgate.filter.cel.build import call, literal, one_of
from headgate.limits import FILTER_LIST_ITEMS_MAX

_INTEGER: Final = re.compile(r"0|-?[1-9][0-9]{0,9}")


def text_is_one_of(value: Node, texts: Iterable[str]) -> Node:
    """Whether the text of an attribute's value is one of `texts`: `value in ["5", 5]`."""
    constants = tuple(dict.fromkeys(constant for text in texts for constant in _constants(text)))
    if len(constants) > FILTER_LIST_ITEMS_MAX:
        value = call("string", value)
        constants = tuple(constant for constant in constants if constant.kind is LiteralKind.STRING)
    return one_of(value, constants)


def _constants(text: str) -> tuple[Literal, ...]:
    return (literal(text), *map(literal, others_written(text)))


def others_written(text: str) -> tuple[int | bool, ...]:
    """The integer or the boolean that has this text, where there is one."""
    if text in {"true", "false"}:
        return (text == "true",)
    if _INTEGER.fullmatch(text) and INT32_MIN <= int(text) <= INT32_MAX:
        return (int(text),)
    return ()
