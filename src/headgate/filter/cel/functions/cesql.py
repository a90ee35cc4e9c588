"""Operations of CESQL 1.0 that CEL lacks: casts between its three types, and its string functions.

CESQL's values are strings, booleans and integers of 32 bits. Each function is CESQL's own where that gives a value, and
a CEL error where CESQL's result comes with an error (CloudEvents SQL, sections 3.5 and 3.7).
"""

from __future__ import annotations

import re
from typing import Final

from headgate.filter.cel.functions.declare import CelType, Function, FunctionError, Overload
from headgate_api.event.attributes import INT32_MAX, INT32_MIN

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


def _succeeds(cast: object, value: object) -> bool:
    try:
        cast(value)  # type: ignore[operator]
    except FunctionError:
        return False
    return True


def _shown(value: object) -> str:
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


_DYN, _STRING, _INT, _BOOL = CelType.DYN, CelType.STRING, CelType.INT, CelType.BOOL

CESQL_FUNCTIONS: Final[tuple[Function, ...]] = (
    Function("cesql.int", (Overload((_DYN,), _INT, to_int),)),
    Function("cesql.bool", (Overload((_DYN,), _BOOL, to_bool),)),
    Function("cesql.not", (Overload((_DYN,), _BOOL, negation),)),
    Function("cesql.equal", (Overload((_DYN, _DYN), _BOOL, equal),)),
    Function("cesql.one_of", (Overload((_DYN, CelType.LIST), _BOOL, one_of),)),
    Function("cesql.is_int", (Overload((_DYN,), _BOOL, is_int),)),
    Function("cesql.is_bool", (Overload((_DYN,), _BOOL, is_bool),)),
    Function("cesql.lower", (Overload((_STRING,), _STRING, str.lower),)),
    Function("cesql.upper", (Overload((_STRING,), _STRING, str.upper),)),
    Function("cesql.left", (Overload((_STRING, _INT), _STRING, left),)),
    Function("cesql.right", (Overload((_STRING, _INT), _STRING, right),)),
    Function(
        "cesql.substring",
        (Overload((_STRING, _INT), _STRING, substring), Overload((_STRING, _INT, _INT), _STRING, substring)),
    ),
    Function("cesql.abs", (Overload((_INT,), _INT, absolute),)),
)
