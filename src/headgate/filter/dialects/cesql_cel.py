"""What is a CESQL expression in CEL? Every cast is written out, and what is an error in CESQL is one in CEL.

CESQL evaluates from left to right and any error spoils the whole: `a OR b` is an error when `a` is one, whatever `b`
says, where CEL's `||` would be true. So `a OR b` is `a || b` only if `a` cannot fail, or only for lack of an attribute
without which `b` fails too; else it is `a ? true : b`. `a AND b` is `a && b` likewise, and also wherever false and an
error come to the same: a filter is wanted when it is true, below an even number of NOT. That is what `Aim` says.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from enum import Enum, auto
from typing import Final, assert_never

from headgate.filter.ast import (
    FALSE,
    TRUE,
    And,
    Call,
    Compare,
    Conditional,
    Has,
    In,
    ListOf,
    Name,
    Node,
    Or,
    Select,
)
from headgate.filter.ast import Comparison as Op
from headgate.filter.cel import is_timestamp
from headgate.filter.dialects import cesql_functions as functions
from headgate.filter.dialects.cesql_lexer import fault
from headgate.filter.dialects.cesql_tree import (
    Arithmetic,
    Attribute,
    Comparison,
    Constant,
    Exists,
    Invocation,
    Like,
    Logic,
    Minus,
    Not,
    OneOf,
    Tree,
)
from headgate.filter.dialects.cesql_values import (
    CE,
    Part,
    Type,
    cast,
    constant,
    literal,
    negated,
    of_all,
    read,
    within_32_bits,
)
from headgate.filter.dialects.sql_like import Pattern, Wildcard, like, plain_text
from headgate.filter.functions.cesql import INT32_MAX, to_bool, to_int, to_string
from headgate.filter.functions.declare import FunctionError
from headgate.filter.rewrite import REQUIRED_ATTRIBUTES

_ORDERS: Final = {"<": Op.LT, "<=": Op.LE, ">": Op.GT, ">=": Op.GE}
_INTEGER_TEXT: Final = re.compile(r"0|-?[1-9][0-9]{0,9}", re.ASCII)
_INTEGER_CHARACTERS: Final = frozenset("-0123456789")
_WHOLE_SECONDS: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-5][0-9]Z", re.ASCII)
_TIME: Final = Call("string", None, (Select(CE, "time"),))


class Aim(Enum):
    """What of a condition in CEL must be CESQL's."""

    EXACT = auto()  # true, false and error
    TRUE = auto()  # what is true; false and error may stand for each other
    FALSE = auto()  # what is false; true and error may stand for each other

    @property
    def opposite(self) -> Aim:
        """That of the operand of a NOT."""
        return {Aim.TRUE: Aim.FALSE, Aim.FALSE: Aim.TRUE, Aim.EXACT: Aim.EXACT}[self]


class Translator:
    """Translates the trees of one text.

    Args:
        text: The expression, for the carets of errors.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._done: dict[tuple[int, Aim], Part] = {}

    def part(self, tree: Tree, aim: Aim = Aim.EXACT) -> Part:
        """A tree in CEL; the aim concerns conditions.

        Raises:
            FilterError: A function that there is none of.
        """
        # Remembered, because a condition is asked for under several aims on every level.
        key = (id(tree), aim)
        if key not in self._done:
            self._done[key] = self._translated(tree, aim)
        return self._done[key]

    def _translated(self, tree: Tree, aim: Aim) -> Part:
        match tree:
            case Constant(value):
                return constant(value)
            case Attribute(name):
                return read(name)
            case Exists(name):
                node = TRUE if name in REQUIRED_ATTRIBUTES else Has(CE, name)
                return Part(node, Type.BOOLEAN)
            case Not(operand):
                return self._not(operand, aim)
            case Minus(operand):
                number = cast(self.part(operand), Type.INTEGER)
                return within_32_bits(Call("-_", None, (number.node,)), -number.high, -number.low, number)
            case Arithmetic():
                return self._arithmetic(tree)
            case Comparison(operator, left, right):
                return self._comparison(operator, self.part(left), self.part(right), aim)
            case Logic():
                return self._logic(tree, aim)
            case Like(operand, pattern):
                return _like(self.part(operand), _pattern(pattern), aim)
            case OneOf(operand, items):
                return self._one_of(self.part(operand), tuple(map(self.part, items)), aim)
            case Invocation(name, arguments, position):
                found = self.signature(name, len(arguments), position)
                return functions.call(found, functions.arguments_of(found, tuple(map(self.part, arguments))))
            case _:
                assert_never(tree)

    def signature(self, name: str, count: int, position: int) -> functions.Signature:
        """The function that an invocation means.

        Raises:
            FilterError: There is none.
        """
        found = functions.signature(name, count)
        if found is None and name in functions.FUNCTIONS:
            counts = " or ".join(_count(one) for one in functions.FUNCTIONS[name])
            raise fault(self._text, position, f"{name} takes {counts}, not {count}")
        if found is None:
            hint = f"one of: {', '.join(functions.FUNCTIONS)}"
            raise fault(self._text, position, f"there is no function {name[:40]}", hint)
        return found

    def _condition(self, tree: Tree, aim: Aim) -> Part:
        return cast(self.part(tree, aim), Type.BOOLEAN)

    def _not(self, operand: Tree, aim: Aim) -> Part:
        part = self.part(operand, aim.opposite)
        if part.type in {Type.INTEGER, Type.ANY}:
            return Part(Call("cesql.not", None, (part.node,)), Type.BOOLEAN, None, part.needs)
        part = cast(part, Type.BOOLEAN)
        return replace(part, node=negated(part.node), constant=None)

    def _arithmetic(self, tree: Arithmetic) -> Part:
        left = cast(self.part(tree.left), Type.INTEGER)
        right = cast(self.part(tree.right), Type.INTEGER)
        node = Call(f"_{tree.operator}_", None, (left.node, right.node))
        match tree.operator:
            case "+":
                return within_32_bits(node, left.low + right.low, left.high + right.high, left, right)
            case "-":
                return within_32_bits(node, left.low - right.high, left.high - right.low, left, right)
            case "*":
                bounds = [one * other for one in (left.low, left.high) for other in (right.low, right.high)]
                return within_32_bits(node, min(bounds), max(bounds), left, right)
            case "/" | "%":
                # Only -2147483648 / -1 has more than 32 bits. Division by zero is an error in CEL too.
                most = max(abs(left.low), abs(left.high))
                high = most if tree.operator == "/" and right.low <= -1 <= right.high else min(most, INT32_MAX)
                part = within_32_bits(node, -most, high, left, right)
                return part if right.low > 0 or right.high < 0 else replace(part, fails=None)
            case _:
                assert_never(tree.operator)

    def _comparison(self, operator: str, left: Part, right: Part, aim: Aim) -> Part:
        if operator in _ORDERS:
            left, right = cast(left, Type.INTEGER), cast(right, Type.INTEGER)
            return _made(Compare(_ORDERS[operator], left.node, right.node), left, right)
        if operator == "=":
            return _equal(left, right, aim)
        equal = _equal(left, right, aim.opposite)
        return replace(equal, node=negated(equal.node))

    def _logic(self, tree: Logic, aim: Aim) -> Part:
        if tree.operator == "XOR":
            parts = tuple(self._condition(operand, Aim.EXACT) for operand in tree.operands)
            node = parts[0].node
            for part in parts[1:]:
                node = Compare(Op.NE, node, part.node)
            return _made(node, *parts)
        exact = tuple(self._condition(operand, Aim.EXACT) for operand in tree.operands)
        aimed = tuple(self._condition(operand, aim) for operand in tree.operands)
        return _joined(And if tree.operator == "AND" else Or, exact, aimed, aim)

    def _one_of(self, operand: Part, items: tuple[Part, ...], aim: Aim) -> Part:
        constants = [item.constant for item in items if item.constant is not None]
        if len(constants) < len(items):
            # Values are looked at one after the other, until one is equal.
            equalities = tuple(_equal(item, operand, Aim.EXACT) for item in items)
            return _joined(Or, equalities, equalities, aim) if len(items) > 1 else equalities[0]
        if operand.type is Type.ANY:
            return _extension_one_of(operand, constants, aim)
        cast_items = [cast(item, operand.type) for item in items]
        if any(item.constant is None for item in cast_items):
            return _made(_call_one_of(operand, constants), operand, Part(FALSE, Type.BOOLEAN, None))
        if operand.type is Type.STRING:
            return _in(operand, [str(item.constant) for item in cast_items], aim)
        return _made(In(operand.node, ListOf(tuple(item.node for item in cast_items))), operand)


def _count(found: functions.Signature) -> str:
    count = len(found.parameters)
    return f"{count} or more arguments" if found.more else f"{count} argument{'' if count == 1 else 's'}"


def _made(node: Node, *parts: Part) -> Part:
    """A condition that is computed from all of the parts."""
    return Part(node, Type.BOOLEAN, *of_all(parts))


def _joined(join: type[And] | type[Or], exact: tuple[Part, ...], aimed: tuple[Part, ...], aim: Aim) -> Part:
    """Conditions joined by AND or OR; see the module's docstring.

    Args:
        join: Which.
        exact: The conditions under the aim EXACT.
        aimed: The same under `aim`.
        aim: Of the whole.
    """
    careless = (join is And and aim is Aim.TRUE) or (join is Or and aim is Aim.FALSE)
    result = aimed[-1]
    for strict, part in zip(reversed(exact[:-1]), reversed(aimed[:-1]), strict=True):
        fails, _ = of_all((strict, result))
        if careless or (strict.fails is not None and strict.fails <= result.needs):
            rest = result.node.operands if isinstance(result.node, join) else (result.node,)
            node: Node = join((*(part.node.operands if isinstance(part.node, join) else (part.node,)), *rest))
        elif join is And:
            node = Conditional(strict.node, result.node, FALSE)
        else:
            node = Conditional(strict.node, TRUE, result.node)
        result = Part(node, Type.BOOLEAN, fails, strict.needs)
    return result


def _equal(left: Part, right: Part, aim: Aim) -> Part:
    """`left = right`: the left one is cast to the type of the right one."""
    if right.type is Type.ANY:
        fails_otherwise = Part(FALSE, Type.BOOLEAN, None)
        return _made(Call("cesql.equal", None, (left.node, right.node)), left, right, fails_otherwise)
    if right.type is Type.STRING and isinstance(right.constant, str):
        return _equal_text(left, right.constant, aim)
    left = cast(left, right.type)
    if right.constant is True:
        return left
    if right.constant is False:
        return replace(left, node=negated(left.node))
    return _made(Compare(Op.EQ, left.node, right.node), left, right)


def _equal_text(left: Part, text: str, aim: Aim) -> Part:
    if left.node == _TIME and _WHOLE_SECONDS.fullmatch(text) and is_timestamp(text):
        # This is how CEL writes the instant, so the texts are equal when the instants are.
        instant = Call("timestamp", None, (literal(text),))
        return _made(Compare(Op.EQ, Select(CE, "time"), instant), left)
    return _in(left if left.type is Type.ANY else cast(left, Type.STRING), [text], aim)


def _in(operand: Part, texts: list[str], aim: Aim) -> Part:
    """Whether a value is one of some texts; an extension is equal to a text that its value is written as."""
    values: list[str | int | bool] = list(dict.fromkeys(texts))
    if operand.type is Type.ANY:
        values.extend(to_int(text) for text in texts if _is_integer_text(text))
        values.extend(text == "true" for text in texts if text in {"true", "false"})
    operand = _in_lower_case(operand, texts, aim)
    return _made(_member(operand.node, values), operand)


def _member(node: Node, values: list[str | int | bool]) -> Node:
    if len(values) == 1:
        return Compare(Op.EQ, node, literal(values[0]))
    return In(node, ListOf(tuple(map(literal, values))))


def _is_integer_text(text: str) -> bool:
    """Whether some Integer is written so."""
    try:
        return _INTEGER_TEXT.fullmatch(text) is not None and str(to_int(text)) == text
    except FunctionError:
        return False


def _extension_one_of(operand: Part, constants: list[str | int | bool], aim: Aim) -> Part:
    """`extension IN (constants)`: the constants are cast to the type that the extension has in the event."""
    integers, booleans = _cast_until_error(to_int, constants), _cast_until_error(to_bool, constants)
    texts = list(dict.fromkeys(map(to_string, constants)))
    fails_otherwise = Part(FALSE, Type.BOOLEAN, None)
    member = _member(operand.node, [*texts, *integers, *booleans])
    if aim is Aim.TRUE:
        return _made(member, operand, fails_otherwise)
    if not integers and not booleans:
        # For what is no string every cast fails: `x < ""` is an error then, and false for every string.
        is_text = Compare(Op.LT, operand.node, literal(""))
        return _made(Or((is_text, member)), operand, fails_otherwise)
    return _made(_call_one_of(operand, constants), operand, fails_otherwise)


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


def _pattern(text: str) -> Pattern:
    """A LIKE pattern taken apart; a backslash is itself unless it stands before `%` or `_`."""
    parts: list[str | Wildcard] = []
    for found in re.finditer(r"\\([%_])|(%+)|(_)|([^%_\\]+|\\)", text):
        escaped, many, one, plain = found.groups()
        if many:
            parts.append(Wildcard.ANY)
        elif one:
            parts.append(Wildcard.ONE)
        elif parts and isinstance(parts[-1], str):
            parts[-1] += escaped or plain
        else:
            parts.append(escaped or plain)
    return Pattern(tuple(parts))


def _like(operand: Part, pattern: Pattern, aim: Aim) -> Part:
    text = plain_text(pattern)
    if text is not None:
        return _equal_text(operand, text, aim)
    if operand.type is Type.ANY and aim is Aim.TRUE and not _may_match_others(pattern):
        return _made(like(operand.node, pattern), operand)
    operand = cast(operand, Type.STRING)
    if Wildcard.ONE not in pattern.parts and not _may_match_others(pattern):
        operand = _in_lower_case(operand, [part for part in pattern.parts if isinstance(part, str)], aim)
    return _made(like(operand.node, pattern), operand)


def _may_match_others(pattern: Pattern) -> bool:
    """Whether the text of an Integer or Boolean may be like the pattern; when in doubt it may."""
    if all(isinstance(part, Wildcard) or set(part) <= _INTEGER_CHARACTERS for part in pattern.parts):
        return True
    written = {Wildcard.ANY: ".*", Wildcard.ONE: "."}
    parts = (written[part] if isinstance(part, Wildcard) else re.escape(part) for part in pattern.parts)
    expression = re.compile("".join(parts))
    return any(expression.fullmatch(text) for text in ("true", "false"))


def _in_lower_case(part: Part, texts: list[str], aim: Aim) -> Part:
    """`LOWER(s)` compared with texts is `s.lowerAscii()` where that makes no difference, for the matcher knows it.

    Beside A to Z only two characters become ASCII in lower case: the Kelvin sign `k`, and the I with a dot `i` followed
    by a mark.
    """
    if any(not text.isascii() or "k" in text or text.endswith("i") for text in texts):
        return part
    match part.node:
        case Call("cesql.lower", None, (Call("string", None, (Select(Name("ce"), name) as extension,)),)) if (
            name != "time" and aim is Aim.TRUE and not any(_is_text_of_other(text) for text in texts)
        ):
            # What is no string is an error then, and could not be equal.
            return replace(part, node=Call("lowerAscii", extension, ()))
        case Call("cesql.lower", None, (operand,)):
            return replace(part, node=Call("lowerAscii", operand, ()))
        case _:
            return part


def _is_text_of_other(text: str) -> bool:
    """Whether an Integer or Boolean is written so."""
    return _is_integer_text(text) or text in {"true", "false"}
