"""Functions that CEL has here beside its own: pure Python that cel-cpp calls.

A dialect whose operator CEL cannot say is translated to one of these, so that there is one evaluator: cel-cpp. A
function is total on its declared types or raises `FunctionError`, which is the CEL error of that call and nothing more.
It costs 1.5 us a call more than a built-in one: whatever CEL can say in a reasonable space is said in CEL.
"""

from __future__ import annotations

import ipaddress
import math
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final

from headgate.filter.cel.ast import Call, Macro, Name, Node, map_children
from headgate_api.event.attributes import INT32_MAX, INT32_MIN
from headgate_api.limits import JSON_VALUES_VISITED_MAX

# --- declarations: name, static types, and the Python that computes it ----------------------------


class FunctionError(ValueError):
    """The call's value is a CEL error; the text is shown to people."""


class CelType(StrEnum):
    """Static types of parameters and results; DYN is checked by each call."""

    BOOL = "bool"
    INT = "int"
    DOUBLE = "double"
    STRING = "string"
    LIST = "list"  # of anything
    DYN = "dyn"


@dataclass(frozen=True, slots=True)
class Function:
    """A function, or one of the ways to call it; an argument of another type is cel-cpp's "no matching overload".

    `compute` gets plain Python values (lists and maps converted), and raises FunctionError. It keeps no state, is
    linear in the size of its arguments or bounded by a named limit, and never returns a NUL or a lone surrogate.
    """

    name: str  # `<subject>.<function>`
    parameters: tuple[CelType, ...]
    result: CelType
    compute: Callable[..., Any]


# --- CESQL ----------------------------------------------------------------------------------------
# CESQL's values are strings, booleans and integers of 32 bits. Each function is CESQL's own where that gives a value,
# and a CEL error where CESQL's result comes with an error (CloudEvents SQL, sections 3.5 and 3.7).

_INTEGER: Final = re.compile(r"[+-]?[0-9]+", re.ASCII)
_SHOWN_CHARACTERS: Final = 40
_INTEGER_DIGITS_MAX: Final = 64
"""Digits that are converted: a text with more is out of range unless it is all but zeros, which nobody writes."""


def to_int(value: object) -> int:
    """`cesql.int(x)`: CESQL's cast to Integer.

    The rule, exactly: a boolean is 1 or 0. An int is itself from -2147483648 to 2147483647. A string is the number that
    it writes if it matches `[+-]?[0-9]+` as a whole (ASCII digits, leading zeros allowed, no white space, at most 64
    characters) and that number is within the same range. Everything else is an error.
    """
    match value:
        case bool():
            return int(value)
        case int() if INT32_MIN <= value <= INT32_MAX:
            return value
        case str() if len(value) <= _INTEGER_DIGITS_MAX and _INTEGER.fullmatch(value):
            number = int(value)
            if INT32_MIN <= number <= INT32_MAX:
                return number
        case _:
            pass
    raise FunctionError(f"{_shown(value)} is no Integer of 32 bits")


def to_bool(value: object) -> bool:
    """`cesql.bool(x)`: CESQL's cast to Boolean.

    The rule, exactly: a boolean is itself. An int is true unless it is 0. A string is true or false if it is "true" or
    "false" in any mixture of upper and lower case (ASCII). Everything else is an error.
    """
    match value:
        case bool():
            return value
        case int():
            return value != 0
        case str() if len(value) <= len("false") and value.lower() in {"true", "false"}:
            return value.lower() == "true"
        case _:
            raise FunctionError(f"{_shown(value)} is no Boolean")


def negation(value: object) -> bool:
    """`cesql.not(x)`: `NOT x`, where an Integer is a cast error, as the specification's test suite has it."""
    if isinstance(value, int) and not isinstance(value, bool):
        raise FunctionError(f"NOT: {value} is no Boolean")
    return not to_bool(value)


def to_string(value: object) -> str:
    """CESQL's cast to String, which is CEL's `string(x)`."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | str():
            return str(value)
        case _:
            raise FunctionError(f"{_shown(value)} is no value of CESQL")


def equal(left: object, right: object) -> bool:
    """`cesql.equal(x, y)`: `x = y`, where `x` is cast to the type of `y`."""
    match right:
        case bool():
            return to_bool(left) == right
        case int():
            return to_int(left) == right
        case str():
            return to_string(left) == right
        case _:
            raise FunctionError(f"{_shown(right)} is no value of CESQL")


def one_of(value: object, items: list[object]) -> bool:
    """`cesql.one_of(x, [y, ...])`: `x IN (y, ...)`, each `y` cast to the type of `x`, until one is equal or fails."""
    return any(equal(item, value) for item in items)


def is_int(value: object) -> bool:
    """`cesql.is_int(x)`: whether `cesql.int(x)` has a value."""
    return _succeeds(to_int, value)


def is_bool(value: object) -> bool:
    """`cesql.is_bool(x)`: whether `cesql.bool(x)` has a value."""
    return _succeeds(to_bool, value)


def left(text: str, length: int) -> str:
    """`cesql.left(s, n)`: the first `n` code points, or all if there are fewer; an error where `n` is negative."""
    if length < 0:
        raise FunctionError(f"LEFT: the length {length} is negative")
    return text[:length]


def right(text: str, length: int) -> str:
    """`cesql.right(s, n)`: the last `n` code points, or all if there are fewer; an error where `n` is negative."""
    if length < 0:
        raise FunctionError(f"RIGHT: the length {length} is negative")
    return text[max(0, len(text) - length) :]


def substring(text: str, start: int, length: int | None = None) -> str:
    """`cesql.substring(s, from[, n])`: `n` code points from place `from`, counted from 1, or from the end if negative.

    Place 0 is before the text: the empty string. A place outside the text and a negative `n` are errors.
    """
    if not -len(text) <= start <= len(text):
        raise FunctionError(f"SUBSTRING: there is no place {start} in a text of {len(text)} characters")
    if length is not None and length < 0:
        raise FunctionError(f"SUBSTRING: the length {length} is negative")
    if start == 0:
        return ""
    begin = start - 1 if start > 0 else len(text) + start
    return text[begin:] if length is None else text[begin : begin + length]


def absolute(value: int) -> int:
    """`cesql.abs(i)`: without its sign; an error for the least of 32 bits, which has no negative."""
    if value == INT32_MIN:
        raise FunctionError(f"ABS: {value} has no absolute value of 32 bits")
    return abs(value)


def _succeeds(cast: Callable[[object], object], value: object) -> bool:
    try:
        cast(value)
    except FunctionError:
        return False
    return True


def _shown(value: object) -> str:
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


_DYN, _STRING, _INT, _BOOL = CelType.DYN, CelType.STRING, CelType.INT, CelType.BOOL

CESQL_FUNCTIONS: Final[tuple[Function, ...]] = (
    Function("cesql.int", (_DYN,), _INT, to_int),
    Function("cesql.bool", (_DYN,), _BOOL, to_bool),
    Function("cesql.not", (_DYN,), _BOOL, negation),
    Function("cesql.equal", (_DYN, _DYN), _BOOL, equal),
    Function("cesql.one_of", (_DYN, CelType.LIST), _BOOL, one_of),
    Function("cesql.is_int", (_DYN,), _BOOL, is_int),
    Function("cesql.is_bool", (_DYN,), _BOOL, is_bool),
    Function("cesql.lower", (_STRING,), _STRING, str.lower),
    Function("cesql.upper", (_STRING,), _STRING, str.upper),
    Function("cesql.left", (_STRING, _INT), _STRING, left),
    Function("cesql.right", (_STRING, _INT), _STRING, right),
    Function("cesql.substring", (_STRING, _INT), _STRING, substring),
    Function("cesql.substring", (_STRING, _INT, _INT), _STRING, substring),
    Function("cesql.abs", (_INT,), _INT, absolute),
)


# --- JSON -----------------------------------------------------------------------------------------
# Any element of an array may answer. Both functions are total on JSON, up to a limit on what they look at. They walk
# each value at most once, without recursion. cel-cpp converts the arguments of a function to Python's values, and a
# whole event's data takes long: a program asks `..._of_data` instead, which means the same of `data` and finds it where
# the evaluation has left it.

ABSENT: Final = object()
"""Stands for what there is none of."""


class _Evaluated(threading.local):
    """The data of the event that this thread evaluates an expression on."""

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

    def found(root: object, path: list[object]) -> list[object]:
        for member in path:
            if not isinstance(member, str):
                what = f"{name}(): a path is a list of member names, not of {type(member).__name__}"
                raise FunctionError(what)
        return [value for value in _at(root, path) if isinstance(value, Mapping) is objects]

    return (
        Function(name, (CelType.DYN, CelType.LIST), CelType.LIST, found),
        Function(OF_DATA[name], (CelType.LIST,), CelType.LIST, lambda path: found(_data(), path)),
    )


JSON_FUNCTIONS: Final = (*_declared("json.values", objects=False), *_declared("json.objects", objects=True))
"""`json.values(root, ["a", "b"])`: the scalars (null too) at a path; empty when there are none.

`json.objects(root, ["a", "b"])`: the objects at a path, each element of an array by itself, so that conditions on
several members of an object can be asked of one and the same object.
"""


# --- selectors: arithmetic, of numbers, and never a conversion of anything else -------------------


def _number(value: object) -> float:
    """An int, uint or double as a double; a string is never read as a number, a boolean is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FunctionError("arithmetic in a selector is for numbers")
    return float(value)


def _divide(dividend: float, divisor: float) -> float:
    if divisor == 0:
        raise FunctionError("division by zero")
    return dividend / divisor


# --- IP addresses and networks, of which CEL has none of its own ----------------------------------

_ADDRESS_CHARACTERS_MAX: Final = 45
"""The longest spelling of an IPv6 address, one that ends in an IPv4 address."""


@lru_cache(maxsize=1024)
def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError as error:
        raise FunctionError(f"ip.within(): {error}") from None


def _within(value: object, network: str) -> bool:
    """`ip.within(value, "10.0.0.0/24")`: whether a value is an address in the network; an error where that is none."""
    inside = _network(network)
    if not isinstance(value, str) or len(value) > _ADDRESS_CHARACTERS_MAX or "%" in value:
        return False
    try:
        return ipaddress.ip_address(value) in inside
    except ValueError:
        return False


FUNCTIONS: Final[tuple[Function, ...]] = (
    *CESQL_FUNCTIONS,
    Function("ip.within", (CelType.DYN, CelType.STRING), CelType.BOOL, _within),
    Function("jms.number", (CelType.DYN,), CelType.DOUBLE, _number),
    Function("jms.divide", (CelType.DOUBLE, CelType.DOUBLE), CelType.DOUBLE, _divide),
    *JSON_FUNCTIONS,
)
"""Every function there is; names are `<subject>.<function>` and never change meaning, canonical texts hold them."""
