"""What does CESQL 1.0 say of an expression? The specification read literally, to hold the translation against."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import assert_never

from headgate.filter.dialects.cesql import parser as t

Value = str | int | bool
INT32 = range(-(1 << 31), 1 << 31)


class CesqlError(Exception):
    """The value comes with an error."""


def value_of(tree: t.Tree, event: Mapping[str, Value]) -> Value:
    """The value of a tree; raises CesqlError as soon as there is an error."""
    match tree:
        case t.Constant(value):
            return value
        case t.Attribute(name):
            if name not in event:
                raise CesqlError(f"missing {name}")
            return event[name]
        case t.Exists(name):
            return name in event
        case t.Not(operand):
            value = value_of(operand, event)
            if type(value) is int:
                raise CesqlError("NOT of an Integer")
            return not to_bool(value)
        case t.Minus(operand):
            return within(-to_int(value_of(operand, event)))
        case t.Arithmetic(operator, left, right):
            return arithmetic(operator, to_int(value_of(left, event)), to_int(value_of(right, event)))
        case t.Comparison(operator, left, right):
            return compared(operator, value_of(left, event), value_of(right, event))
        case t.Logic(operator, operands):
            return logic(operator, operands, event)
        case t.Like(operand, pattern):
            return like(to_string(value_of(operand, event)), pattern)
        case t.OneOf(operand, items):
            value = value_of(operand, event)
            return any(compared("=", value_of(item, event), value) for item in items)
        case t.Invocation(name, arguments):
            return called(name, [value_of(argument, event) for argument in arguments])
        case _:
            assert_never(tree)


def logic(operator: str, operands: tuple[t.Tree, ...], event: Mapping[str, Value]) -> bool:
    result = to_bool(value_of(operands[0], event))
    for operand in operands[1:]:
        if (operator == "AND" and not result) or (operator == "OR" and result):
            continue
        other = to_bool(value_of(operand, event))
        result = result != other if operator == "XOR" else other
    return result


def compared(operator: str, left: Value, right: Value) -> bool:
    if operator in {"=", "!="}:
        cast = {str: to_string, int: to_int, bool: to_bool}[type(right)]
        return (cast(left) == right) == (operator == "=")
    one, other = to_int(left), to_int(right)
    return {"<": one < other, "<=": one <= other, ">": one > other, ">=": one >= other}[operator]


def arithmetic(operator: str, left: int, right: int) -> int:
    if operator in {"/", "%"}:
        if right == 0:
            raise CesqlError("division by zero")
        quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
        return within(quotient if operator == "/" else left - quotient * right)
    return within({"+": left + right, "-": left - right, "*": left * right}[operator])


def within(value: int) -> int:
    if value not in INT32:
        raise CesqlError("more than 32 bits")
    return value


def like(text: str, pattern: str) -> bool:
    expression, position = "", 0
    while position < len(pattern):
        two = pattern[position : position + 2]
        if two in {"\\%", "\\_"}:
            expression += re.escape(two[1])
            position += 2
            continue
        expression += {"%": ".*", "_": "."}.get(pattern[position], re.escape(pattern[position]))
        position += 1
    return re.fullmatch(expression, text, re.DOTALL) is not None


def called(name: str, arguments: list[Value]) -> Value:
    match name, arguments:
        case "LENGTH", [x]:
            return len(to_string(x))
        case "CONCAT", _:
            return "".join(map(to_string, arguments))
        case "CONCAT_WS", [delimiter, *texts]:
            return to_string(delimiter).join(map(to_string, texts))
        case "LOWER", [x]:
            return to_string(x).lower()
        case "UPPER", [x]:
            return to_string(x).upper()
        case "LEFT", [x, y]:
            text, count = to_string(x), not_negative(to_int(y))
            return text[:count]
        case "RIGHT", [x, y]:
            text, count = to_string(x), not_negative(to_int(y))
            return text[len(text) - count :] if count <= len(text) else text
        case "SUBSTRING", [x, y, *rest]:
            text, start = to_string(x), to_int(y)
            length = not_negative(to_int(rest[0])) if rest else None
            if abs(start) > len(text):
                raise CesqlError("outside of the text")
            begin = start - 1 if start > 0 else len(text) + start
            return "" if start == 0 else text[begin:] if length is None else text[begin : begin + length]
        case "ABS", [x]:
            return within(abs(to_int(x)))
        case "INT", [x]:
            return to_int(x)
        case "BOOL", [x]:
            return to_bool(x)
        case "STRING", [x]:
            return to_string(x)
        case "IS_INT", [x]:
            return succeeds(to_int, x)
        case "IS_BOOL", [x]:
            return succeeds(to_bool, x)
        case _:
            raise AssertionError(name)


def not_negative(value: int) -> int:
    if value < 0:
        raise CesqlError("negative")
    return value


def succeeds(cast: object, value: Value) -> bool:
    try:
        cast(value)  # type: ignore[operator]
    except CesqlError:
        return False
    return True


def to_int(value: Value) -> int:
    if isinstance(value, str):
        if not re.fullmatch(r"[+-]?[0-9]+", value, re.ASCII):
            raise CesqlError("no Integer")
        return within(int(value))
    return int(value)


def to_bool(value: Value) -> bool:
    if isinstance(value, str):
        if value.lower() not in {"true", "false"}:
            raise CesqlError("no Boolean")
        return value.lower() == "true"
    return bool(value)


def to_string(value: Value) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)
