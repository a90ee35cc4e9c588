"""What lies at a path of a JSON value, through arrays on the way? Event patterns ask so: any element may answer.

Both functions are total on JSON. They walk each value at most once, without recursion, so they are linear in the event,
whose size and depth ingress has bounded; a filter that goes over more than 10,000 results runs into cel-cpp's own
iteration budget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from headgate.filter.functions.declare import CelType, Function, FunctionError, Overload


def _at(root: object, path: list[object]) -> Iterator[object]:
    """Everything at `path` that is no array, in document order.

    A name is looked up in objects, as it is written: dots in it mean nothing. Arrays are gone through wherever they
    are, also arrays of arrays and the root itself; they use up no name.
    """
    waiting: list[tuple[object, int]] = [(root, 0)]
    while waiting:
        value, steps = waiting.pop()
        if isinstance(value, list):
            waiting.extend((item, steps) for item in reversed(value))
        elif steps == len(path):
            yield value
        elif isinstance(value, Mapping) and path[steps] in value:
            waiting.append((value[path[steps]], steps + 1))


def _values(root: object, path: list[object]) -> list[object]:
    _check(path, "json.values")
    return [value for value in _at(root, path) if not isinstance(value, Mapping)]


def _objects(root: object, path: list[object]) -> list[object]:
    _check(path, "json.objects")
    return [value for value in _at(root, path) if isinstance(value, Mapping)]


def _check(path: list[object], function: str) -> None:
    for name in path:
        if not isinstance(name, str):
            raise FunctionError(f"{function}(): a path is a list of member names, not of {type(name).__name__}")


def _function(name: str, compute: Callable[[object, list[object]], list[object]]) -> Function:
    return Function(name, (Overload((CelType.DYN, CelType.LIST), CelType.LIST, compute),))


JSON_FUNCTIONS: Final = (
    _function("json.values", _values),
    _function("json.objects", _objects),
)
"""`json.values(root, ["a", "b"])`: the scalars (null too) at a path; empty when there are none.

`json.objects(root, ["a", "b"])`: the objects at a path, each element of an array by itself, so that conditions on
several members of an object can be asked of one and the same object.
"""
