"""What an expression reads of an event: the rest need not be decoded for it, nor become values of CEL.

`{"of": ce.source, "data": {"id": data.id, "by": data.user.name}}` reads the attribute `source` and, of the data, `id`
and the `name` in `user`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypedDict

import msgspec

from headgate.filter.cel.ast import Call, Has, Name, Node, Select, children, reads_publish_time
from headgate.filter.cel.functions import OF_DATA

_Path = tuple[str, ...]
_WHOLE: Final[_Path] = ()
_OF_DATA: Final = frozenset(OF_DATA.values())


class Reads(NamedTuple):
    """What is read."""

    attributes: frozenset[str] | None  # their names; None for whatever there is
    data: bool
    decode: Callable[[bytes], Any] | None  # of the data as far as it is read; None where that is all, or nothing
    publish_time: bool


EVERYTHING: Final = Reads(None, data=True, decode=None, publish_time=True)


def reads_of(tree: Node) -> Reads:
    """What an expression reads; what a macro's variable hides counts, too."""
    found: dict[str, set[_Path]] = {"ce": set(), "data": set()}
    _find(tree, found)
    attributes, data = found["ce"], found["data"]
    return Reads(
        attributes=None if _WHOLE in attributes else frozenset(path[0] for path in attributes),
        data=bool(data),
        decode=msgspec.json.Decoder(_type(data)).decode if data and _WHOLE not in data else None,
        publish_time=reads_publish_time(tree),
    )


def _find(node: Node, found: dict[str, set[_Path]]) -> None:
    path, root = _WHOLE, node
    while isinstance(root, Select | Has):
        path, root = (root.field, *path), root.operand
    if isinstance(root, Name) and root.name in found:
        found[root.name].add(path)
    elif isinstance(root, Call) and root.function in _OF_DATA:
        found["data"].add(_WHOLE)
    for child in children(root):
        _find(child, found)


def _type(paths: set[_Path]) -> Any:  # noqa: ANN401 - a type, as msgspec takes it
    """A type of which msgspec makes an object with what is at some paths in it, and every other value as it is."""
    if _WHOLE in paths:
        return Any
    members: defaultdict[str, set[_Path]] = defaultdict(set)
    for name, *below in paths:
        members[name].add(tuple(below))
    read = TypedDict("_Read", {name: _type(below) for name, below in members.items()}, total=False)  # type: ignore[misc]
    return read | list[Any] | str | int | float | bool | None
