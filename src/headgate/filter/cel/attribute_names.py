r"""Names by which filters read attributes, and members of an extension that is a map.

CloudEvents 0.3 has extensions that are maps. A member's name is that of its map, a dot and its own name:
`github.repository`; a dot or a backslash of its own name has a backslash before it: `labels.app\.kubernetes\.io/name`.
So a member is one more attribute, whose presence is never an error, and the names of no two of them are equal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from headgate.filter.cel.ast import TRUE, Has, In, Node
from headgate.filter.cel.build import CE, literal
from headgate_api.event.attributes import REQUIRED_ATTRIBUTES, is_name
from headgate_api.event.model import ExtensionValue

TIME_TEXT: Final = "@time"
"""The text of `ce.time` as it was sent, under a name that no attribute has: `ce["@time"]`."""
NO_ATTRIBUTES: Final = frozenset({"data", "data_base64"})
_BACKTICKED: Final = re.compile(r"[A-Za-z0-9_.\-/ ]+")
_SPECIAL: Final = re.compile(r"[.\\]")
_PLAIN_MEMBERS: Final = re.compile(r"(?:\.[A-Za-z0-9_\-/]+)*")


def of_member(name: str, member: str) -> str:
    """The name of a member of the map `name`."""
    escaped = _SPECIAL.sub(r"\\\g<0>", member)
    return f"{name}.{escaped}"


def members(name: str, value: ExtensionValue) -> Iterator[tuple[str, ExtensionValue]]:
    """All members of an extension, those of its maps among them, with their names; none where it is no map."""
    if not isinstance(value, dict):
        return
    for member, inner in value.items():
        below = of_member(name, member)
        yield below, inner
        yield from members(below, inner)


def may_exist(name: str) -> bool:
    """Whether some event may have an attribute of this name."""
    attribute = name.partition(".")[0]
    return (is_name(attribute) and attribute not in NO_ATTRIBUTES) or name == TIME_TEXT


def is_written_plainly(name: str) -> bool:
    """Whether JSON dialects take this name: an attribute's, and members of letters, digits, `_`, `-` and `/`."""
    attribute, _, below = name.partition(".")
    return is_name(attribute) and _PLAIN_MEMBERS.fullmatch(f".{below}" if "." in name else "") is not None


def present(name: str) -> Node:
    """Whether an event has an attribute: `has(ce.name)`; true of one that every event has."""
    if name in REQUIRED_ATTRIBUTES:
        return TRUE
    if _BACKTICKED.fullmatch(name):
        return Has(CE, name)
    return In(literal(name), CE)
