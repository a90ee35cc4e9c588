"""CESQL's `=`, IN and LIKE in CEL that the matcher knows, wherever that is exact.

An extension may be an Integer or a Boolean, and equal to the text that is written so. Where the constants are no such
texts, the comparison is plain: what is no string is then not equal in CESQL and not equal, or an error, in CEL.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Final

from headgate.filter.cel.ast import FALSE, Call, Compare, In, ListOf, Literal, Name, Node, Or, Select
from headgate.filter.cel.ast import Comparison as Op
from headgate.filter.cel.build import literal
from headgate.filter.cel.build import one_of as one_of_constants
from headgate.filter.cel.functions import FunctionError, to_bool, to_int, to_string
from headgate.filter.cel.like import Pattern, Wildcard, like, pattern_of, plain_text
from headgate.filter.dialects.cesql.values import Aim, Part, Type, cast, condition, constant, negated, read
from headgate.filter.dialects.text_values import others_written

_INTEGER_CHARACTERS: Final = frozenset("-0123456789")
_MAY_FAIL: Final = Part(FALSE, Type.BOOLEAN, fails=None)
"""Stands for a reason to fail beside those of the other parts of a condition."""


def equal(left: Part, right: Part, aim: Aim) -> Part:
    """`left = right`: the left one is cast to the type of the right one."""
    if right.type is Type.ANY:
        return condition(Call("cesql.equal", None, (left.node, right.node)), left, right, _MAY_FAIL)
    if right.type is Type.STRING and isinstance(right.constant, str):
        return _equal_text(left, right.constant, aim)
    left = cast(left, right.type)
    if right.constant is True:
        return left
    if right.constant is False:
        return replace(left, node=negated(left.node))
    return condition(Compare(Op.EQ, left.node, right.node), left, right)


def one_of(operand: Part, constants: list[str | int | bool], aim: Aim) -> Part:
    """`operand IN (constants)`: the constants are cast to the type of the operand."""
    if operand.type is Type.ANY:
        return _extension_one_of(operand, constants, aim)
    items = [cast(constant(value), operand.type) for value in constants]
    if any(item.constant is None for item in items):
        return condition(_call_one_of(operand, constants), operand, _MAY_FAIL)
    if operand.type is Type.STRING:
        return _in(operand, [str(item.constant) for item in items], aim)
    return condition(In(operand.node, ListOf(tuple(item.node for item in items))), operand)


def _equal_text(left: Part, text: str, aim: Aim) -> Part:
    if left.type is Type.ANY:
        return _in(left, [text], aim)
    left = cast(left, Type.STRING)
    return _affix(left, text, aim) or _in(left, [text], aim)


def _affix(left: Part, text: str, aim: Aim) -> Part | None:
    """`LEFT(s, 3) = 'abc'` is `s LIKE 'abc%'`, and `RIGHT` likewise; None for other lengths."""
    match left.node:
        case Call("cesql.left", None, (operand, Literal(_, int(length)))) if length == len(text) > 0:
            return _like(_read_by(operand, left), Pattern((text, Wildcard.ANY)), aim)
        case Call("cesql.right", None, (operand, Literal(_, int(length)))) if length == len(text) > 0:
            return _like(_read_by(operand, left), Pattern((Wildcard.ANY, text)), aim)
        # An empty text has no first place, which is an error: only what is true is the same.
        case Call("cesql.substring", None, (operand, Literal(_, 1), Literal(_, int(length)))) if (
            length == len(text) > 0 and aim is Aim.TRUE
        ):
            return _like(_read_by(operand, left), Pattern((text, Wildcard.ANY)), aim)
        case _:
            return None


def _read_by(operand: Node, part: Part) -> Part:
    """The argument of a function whose call is `part`."""
    match operand:
        case Select(Name("ce"), name) | Call("string", None, (Select(Name("ce"), name),)):
            return read(name)
        case _:
            return Part(operand, Type.STRING, part.fails, part.needs)


def _in(operand: Part, texts: list[str], aim: Aim) -> Part:
    """Whether a value is one of some texts; an extension is equal to a text that its value is written as."""
    values: list[str | int | bool] = list(dict.fromkeys(texts))
    if operand.type is Type.ANY:
        values.extend(other for text in texts for other in others_written(text))
    operand = _in_one_case(operand, texts, aim, whole=True)
    return condition(_member(operand.node, values), operand)


def _member(node: Node, values: Iterable[str | int | bool]) -> Node:
    return one_of_constants(node, tuple(map(literal, values)))


def _extension_one_of(operand: Part, constants: list[str | int | bool], aim: Aim) -> Part:
    """`extension IN (constants)`: the constants are cast to the type that the extension has in the event."""
    integers, booleans = _cast_until_error(to_int, constants), _cast_until_error(to_bool, constants)
    texts = list(dict.fromkeys(map(to_string, constants)))
    member = _member(operand.node, [*texts, *integers, *booleans])
    if aim is Aim.TRUE:
        return condition(member, operand, _MAY_FAIL)
    if not integers and not booleans:
        # For what is no string every cast fails: `x < ""` is an error then, and false for every string.
        is_text = Compare(Op.LT, operand.node, literal(""))
        return condition(Or((is_text, member)), operand, _MAY_FAIL)
    return condition(_call_one_of(operand, constants), operand, _MAY_FAIL)


def _cast_until_error(to: Callable[[object], int], constants: list[str | int | bool]) -> list[int]:
    """What an Integer or Boolean is compared with before a cast fails, each once."""
    found: list[int] = []
    for value in constants:
        try:
            found.append(to(value))
        except FunctionError:
            break
    return list(dict.fromkeys(found))


def _call_one_of(operand: Part, constants: Iterable[str | int | bool]) -> Node:
    return Call("cesql.one_of", None, (operand.node, ListOf(tuple(map(literal, constants)))))


def _pieces(text: str) -> Iterator[str | Wildcard]:
    """A LIKE pattern taken apart; a backslash is itself unless it stands before `%` or `_`."""
    for found in re.finditer(r"\\([%_])|(%)|(_)|([^%_\\]+|\\)", text):
        escaped, many, one, plain = found.groups()
        yield Wildcard.ANY if many else Wildcard.ONE if one else escaped or plain


def is_like(operand: Part, pattern: str, aim: Aim) -> Part:
    """`operand LIKE pattern`: the operand is cast to String."""
    parts = pattern_of(_pieces(pattern))
    text = plain_text(parts)
    if text is not None:
        return _equal_text(operand, text, aim)
    return _like(operand, parts, aim)


def _like(operand: Part, parts: Pattern, aim: Aim) -> Part:
    others = _may_match_others(parts)
    if operand.type is Type.ANY and aim is Aim.TRUE and not others:
        return condition(like(operand.node, parts), operand)
    operand = cast(operand, Type.STRING)
    if Wildcard.ONE not in parts.parts and not others:
        texts = [part for part in parts.parts if isinstance(part, str)]
        operand = _in_one_case(operand, texts, aim, whole=False)
    return condition(like(operand.node, parts), operand)


def _may_match_others(pattern: Pattern) -> bool:
    """Whether the text of an Integer or Boolean may be like the pattern; when in doubt it may."""
    if all(isinstance(part, Wildcard) or set(part) <= _INTEGER_CHARACTERS for part in pattern.parts):
        return True
    if sum(part is not Wildcard.ANY and len(part if isinstance(part, str) else "_") for part in pattern.parts) > 5:
        return False  # longer than "false"
    written = {Wildcard.ANY: ".*", Wildcard.ONE: "."}
    parts = (written[part] if isinstance(part, Wildcard) else re.escape(part) for part in pattern.parts)
    expression = re.compile("".join(parts))
    return any(expression.fullmatch(text) for text in ("true", "false"))


def _in_one_case(part: Part, texts: list[str], aim: Aim, *, whole: bool) -> Part:
    """`LOWER(s)` compared with texts is `s.lowerAscii()` where that makes no difference, for the matcher knows it.

    Not `whole`: the texts are compared with a part of it.
    """
    match part.node:
        case Call("cesql.lower", None, (operand,)) if all(_is_lower_case_of_ascii(text, whole=whole) for text in texts):
            function = "lowerAscii"
        case Call("cesql.upper", None, (operand,)) if whole and all(map(_is_upper_case_of_ascii, texts)):
            function = "upperAscii"
        case _:
            return part
    match operand:
        case Call("string", None, (Select(Name("ce")) as extension,)) if aim is Aim.TRUE and not any(
            map(_is_text_of_other, texts)
        ):
            # What is no string is an error then, and could not be equal.
            operand = extension
        case _:
            pass
    return replace(part, node=Call(function, operand, ()))


def _is_lower_case_of_ascii(text: str, *, whole: bool) -> bool:
    """Only two other characters become ASCII in lower case: the Kelvin sign `k`, I with a dot `i` and a mark."""
    return text.isascii() and "k" not in text and (whole or not text.endswith("i"))


def _is_upper_case_of_ascii(text: str) -> bool:
    """Other characters that become ASCII alone in upper case become I, S, SS, ST, FF, FI, FL and the like."""
    return text.isascii() and not set(text) & {"F", "I", "S"}


def _is_text_of_other(text: str) -> bool:
    """Whether an Integer or Boolean is written so, in lower or upper case."""
    return bool(others_written(text.lower()))
