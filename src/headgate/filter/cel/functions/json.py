"""Values and objects at a path of a JSON value, through arrays on the way, as event patterns need them.

Any element of an array may answer. Both functions are total on JSON, up to a limit on what they look at. They walk each
value at most once, without recursion. cel-cpp converts the arguments of a function to Python's values, and a whole
event's data takes long: a program asks `..._of_data` instead, which means the same of `data` and finds it where the
evaluation has left it.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping
from typing import Final

from headgate.filter.cel.ast import Call, Macro, Name, Node, map_children
from headgate.filter.cel.functions.declare import CelType, Function, FunctionError, Overload
from headgate_api.limits import JSON_VALUES_VISITED_MAX

ABSENT: Final = object()
"""Stands for data that there is none of."""


class _Evaluated(threading.local):
    """The event that this thread evaluates a filter on."""

    data: object = ABSENT


EVALUATED: Final = _Evaluated()


def _at(root: object, path: list[object]) -> Iterator[object]:
    """Everything at `path` that is no array, in document order.

    A name is looked up in objects, as it is written: dots in it mean nothing. Arrays are gone through wherever they
    are, also arrays of arrays and the root itself; they use up no name.
    """
    waiting: list[tuple[object, int]] = [(root, 0)]
    visited = 0
    while waiting:
        value, steps = waiting.pop()
        visited += 1
        if visited > JSON_VALUES_VISITED_MAX:
            what = f"more than {JSON_VALUES_VISITED_MAX:,} values on the way to {path} (JSON_VALUES_VISITED_MAX)"
            raise FunctionError(what)
        if isinstance(value, list):
            waiting.extend((item, steps) for item in reversed(value))
        elif steps == len(path):
            yield value
        elif isinstance(value, Mapping) and path[steps] in value:
            waiting.append((value[path[steps]], steps + 1))


class FoundCounts:
    """How many values `json.values` and `json.objects` find in an event, whose lists have `elements` in all."""

    __slots__ = ("_counts", "_elements", "_left", "_root")

    def __init__(self, root: object, elements: int) -> None:
        self._root = root
        self._elements = elements
        self._left = JSON_VALUES_VISITED_MAX
        self._counts: dict[tuple[tuple[str, ...], bool], float] = {}

    def at(self, path: tuple[str, ...], *, objects: bool) -> float:
        """The count, or infinity where it is not known."""
        asked = path, objects
        if asked not in self._counts:
            self._left -= self._elements
            if self._left < 0:
                return math.inf
            try:
                found = _at(self._root, [*path])
                self._counts[asked] = sum(isinstance(value, Mapping) is objects for value in found)
            except FunctionError:
                self._counts[asked] = math.inf
        return self._counts[asked]


def _data() -> object:
    if EVALUATED.data is ABSENT:
        raise FunctionError("the event has no JSON data")
    return EVALUATED.data


OF_DATA: Final = {"json.values": "json.values_of_data", "json.objects": "json.objects_of_data"}
"""Functions whose first argument is `data`, by what they are in a program."""


def data_at_hand(node: Node) -> Node:
    """The same expression, in which no function has the whole of the event's data as an argument."""
    match node:
        case Call(name, None, (Name("data"), path)) if name in OF_DATA:
            return Call(OF_DATA[name], None, (path,))
        case Macro(variable="data"):
            return node  # another `data`
        case _:
            return map_children(node, data_at_hand)


def _declared(name: str, *, objects: bool) -> tuple[Function, Function]:
    """A function of any value, and the same of the event's data."""

    def found(root: object, path: list[object]) -> list[object]:
        for member in path:
            if not isinstance(member, str):
                what = f"{name}(): a path is a list of member names, not of {type(member).__name__}"
                raise FunctionError(what)
        return [value for value in _at(root, path) if isinstance(value, Mapping) is objects]

    return (
        Function(name, (Overload((CelType.DYN, CelType.LIST), CelType.LIST, found),)),
        Function(OF_DATA[name], (Overload((CelType.LIST,), CelType.LIST, lambda path: found(_data(), path)),)),
    )


JSON_FUNCTIONS: Final = (*_declared("json.values", objects=False), *_declared("json.objects", objects=True))
"""`json.values(root, ["a", "b"])`: the scalars (null too) at a path; empty when there are none.

`json.objects(root, ["a", "b"])`: the objects at a path, each element of an array by itself, so that conditions on
several members of an object can be asked of one and the same object.
"""
