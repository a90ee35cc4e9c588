"""A selector's tree, tokens and grammar, by recursive descent: OR, AND, NOT, comparison, sum, product, sign.

Jakarta Messaging 3.1, section 3.8.1. Operators of one level are taken from left to right; a comparison's result is
nothing to compare. What other brokers allow beyond it is refused, with the hint how to write it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from headgate.filter.cel.ast import INT64_MAX
from headgate.filter.cel.errors import FilterError
from headgate.filter.dialects.sql_tokens import Kind, Lexicon, Token, Words, fault
from headgate_api.limits import FILTER_LIST_ITEMS_MAX

# --- tree -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Number:
    """A numeric literal: exact (int, within 64 bits) or approximate (float)."""

    value: int | float
    position: int


@dataclass(frozen=True, slots=True)
class Text:
    """A string literal."""

    value: str
    position: int


@dataclass(frozen=True, slots=True)
class Truth:
    """TRUE or FALSE, as a value or as a condition."""

    value: bool
    position: int


@dataclass(frozen=True, slots=True)
class Identifier:
    """A property or a header, as a value or as a condition."""

    name: str
    position: int


@dataclass(frozen=True, slots=True)
class Signed:
    """`+x` or `-x`."""

    sign: Literal["+", "-"]
    operand: Value
    position: int


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """`x + y`, `x - y`, `x * y`, `x / y`; `position` is the operator's."""

    operator: Literal["+", "-", "*", "/"]
    left: Value
    right: Value
    position: int


Value = Number | Text | Truth | Identifier | Signed | Arithmetic


@dataclass(frozen=True, slots=True)
class Comparison:
    """`x = y` and the like; `position` is the operator's."""

    operator: Literal["=", "<>", "<", "<=", ">", ">="]
    left: Value
    right: Value
    position: int


@dataclass(frozen=True, slots=True)
class Between:
    """`x BETWEEN low AND high`, both included."""

    operand: Value
    low: Value
    high: Value
    negated: bool
    position: int


@dataclass(frozen=True, slots=True)
class OneOf:
    """`x IN ('a', 'b')`."""

    operand: Identifier
    values: tuple[str, ...]
    position: int


@dataclass(frozen=True, slots=True)
class Like:
    """`x LIKE 'pattern' ESCAPE 'c'`."""

    operand: Identifier
    pattern: Text
    escape: str | None
    position: int


@dataclass(frozen=True, slots=True)
class IsNull:
    """`x IS NULL`."""

    operand: Identifier
    position: int


@dataclass(frozen=True, slots=True)
class Negation:
    """`NOT x`; also of `NOT IN`, `NOT LIKE` and `IS NOT NULL`."""

    operand: Condition
    position: int


@dataclass(frozen=True, slots=True)
class Logic:
    """`x AND y AND ...`, or with OR."""

    operator: Literal["AND", "OR"]
    operands: tuple[Condition, ...]
    position: int


Condition = Truth | Identifier | Comparison | Between | OneOf | Like | IsNull | Negation | Logic


# --- tokens ---------------------------------------------------------------------------------------

_NAME: Final = r"(?:[^\W\d]|\$)[\w$]*"
_NUMBER: Final = r"""
    (?:0[xX][0-9a-fA-F]+[lL]?
      | (?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[dDfF]?
      | [0-9]+(?:[eE][+-]?[0-9]+[dDfF]?|[lLdDfF])?)
"""

LEXICON: Final = Lexicon(
    what="selector",
    pattern=re.compile(
        rf"""
          (?P<space>[ \t\f\r\n]+)
        | (?P<text>'(?:[^']|'')*')
        | (?P<number>(?>{_NUMBER})(?![\w$.]))
        | (?P<fused>{_NUMBER})
        | (?P<name>{_NAME}(?:\.{_NAME})*)
        | (?P<sign><>|<=|>=|[=<>+\-*/(),])
        """,
        re.VERBOSE,
    ),
    keywords=frozenset({"AND", "BETWEEN", "ESCAPE", "FALSE", "IN", "IS", "LIKE", "NOT", "NULL", "OR", "TRUE"}),
    unquoted=lambda word: word[1:-1].replace("''", "'"),
    hints={
        '"': "a string stands in single quotes: 'text'",
        "'": "the string has no closing quote; a quote inside is written twice: 'it''s'",
        "!": "write <> for unequal and NOT for negation",
        "&": "conjunction is written with AND",
        "|": "disjunction is written with OR",
        "%": "selectors have no remainder; write it in `expression`, with CEL",
        "[": "a name stands without brackets",
    },
)


# --- grammar --------------------------------------------------------------------------------------

_INT64_DIGITS: Final = 19
_COMPARISONS: Final = frozenset({"=", "<>", "<", "<=", ">", ">="})
_Part = Value | Condition


def parse(text: str) -> Condition:
    """The condition that a selector states; a FilterError has position, caret and often a hint, without the field."""
    return _Parser(text, LEXICON).whole()


class _Parser(Words):
    def whole(self) -> Condition:
        return self._whole(lambda: self._condition(self._disjunction()))

    # --- conditions ---

    def _disjunction(self) -> _Part:
        return self._joined("OR", self._conjunction)

    def _conjunction(self) -> _Part:
        return self._joined("AND", self._negation)

    def _joined(self, word: Literal["AND", "OR"], operand: Callable[[], _Part]) -> _Part:
        first = operand()
        if not self._at(word):
            return first
        position, parts = self._peek().position, [self._condition(first)]
        while self._take(word):
            parts.append(self._condition(operand()))
        return Logic(word, tuple(parts), position)

    def _negation(self) -> _Part:
        token = self._peek()
        if not self._take("NOT"):
            return self._predicate()
        return Negation(self._nested(token, lambda: self._condition(self._negation())), token.position)

    def _predicate(self) -> _Part:
        left = self._sum()
        token = self._peek()
        if token.kind is Kind.SIGN and token.text in _COMPARISONS:
            self._advance()
            right = self._value(self._sum())
            again = self._peek()
            if again.kind is Kind.SIGN and again.text in _COMPARISONS:
                raise self._unexpected(again, "a comparison's result cannot be compared", "join comparisons with AND")
            return Comparison(token.text, self._value(left), right, token.position)  # type: ignore[arg-type]
        if self._take("IS"):
            negated = self._take("NOT")
            self._expect("NULL")
            return _negated(negated, IsNull(self._identifier(left, "IS NULL"), token.position))
        negated = self._take("NOT")
        if self._take("BETWEEN"):
            return self._between(self._value(left), negated, token)
        if self._take("IN"):
            return _negated(negated, self._one_of(self._identifier(left, "IN"), token))
        if self._take("LIKE"):
            return _negated(negated, self._like(self._identifier(left, "LIKE"), token))
        if negated:
            raise self._unexpected(self._peek(), "BETWEEN, IN or LIKE should follow NOT")
        return left

    def _between(self, operand: Value, negated: bool, token: Token) -> Between:
        low = self._value(self._sum())
        self._expect("AND")
        return Between(operand, low, self._value(self._sum()), negated, token.position)

    def _one_of(self, operand: Identifier, token: Token) -> OneOf:
        self._expect("(")
        values = [self._expect_text("a string should stand in the list of IN").text]
        while self._take(","):
            values.append(self._expect_text("a string should stand in the list of IN").text)
        self._expect(")")
        if len(values) > FILTER_LIST_ITEMS_MAX:
            reason = f"IN lists {len(values)} strings: the limit is {FILTER_LIST_ITEMS_MAX} (FILTER_LIST_ITEMS_MAX)"
            raise self._fault(token, reason, limit="FILTER_LIST_ITEMS_MAX")
        return OneOf(operand, tuple(values), token.position)

    def _like(self, operand: Identifier, token: Token) -> Like:
        pattern = self._expect_text("a string should follow LIKE")
        escape = None
        if self._take("ESCAPE"):
            character = self._expect_text("a string should follow ESCAPE")
            escape = character.text
            if len(escape) != 1 or escape in {"%", "_"}:
                reason = "the escape must be one character, and neither % nor _"
                raise fault(self._text, character.position, reason, "for instance ESCAPE '\\'")
        return Like(operand, Text(pattern.text, pattern.position), escape, token.position)

    # --- values ---

    def _sum(self) -> _Part:
        return self._left_to_right(self._product, "+-", self._arithmetic)

    def _product(self) -> _Part:
        return self._left_to_right(self._signed, "*/", self._arithmetic)

    def _arithmetic(self, token: Token, left: _Part, right: _Part) -> _Part:
        right = self._value(right)
        return Arithmetic(token.text, self._value(left), right, token.position)  # type: ignore[arg-type]

    def _signed(self) -> _Part:
        token = self._peek()
        if token.kind is not Kind.SIGN or token.text not in {"+", "-"}:
            return self._primary()
        self._advance()
        following = self._peek()
        if following.kind is Kind.NUMBER:
            self._advance()
            return self._number(following, token)
        operand = self._nested(token, lambda: self._value(self._signed()))
        return Signed(token.text, operand, token.position)  # type: ignore[arg-type]

    def _primary(self) -> _Part:
        token = self._peek()
        self._advance()
        match token:
            case Token(Kind.NUMBER):
                return self._number(token, None)
            case Token(Kind.TEXT, text, position):
                return Text(text, position)
            case Token(Kind.NAME, name, position):
                return Identifier(name, position)
            case Token(Kind.KEYWORD, "TRUE" | "FALSE" as word, position):
                return Truth(word == "TRUE", position)
            case Token(Kind.SIGN, "("):
                inner = self._nested(token, self._disjunction)
                self._expect(")")
                return inner
            case _:
                raise self._unexpected(token, "a name, a number, a string or a condition should stand here")

    def _number(self, token: Token, sign: Token | None) -> Number:
        negative = sign is not None and sign.text == "-"
        position = token.position if sign is None else sign.position
        value = _numeric(token.text)
        if value is None:
            raise self._fault(token, "a number that begins with 0 is octal, with digits from 0 to 7")
        if isinstance(value, int) and value > INT64_MAX + negative:
            raise self._fault(token, "an exact number has 64 bits", "write it with a dot or an exponent")
        if math.isinf(value):
            raise self._fault(token, "the number is too large for a double")
        return Number(-value if negative else value, position)

    # --- what is wanted here ---

    def _unexpected(self, token: Token, reason: str, hint: str = "") -> FilterError:
        match token:
            case Token(Kind.END):
                what = "the end"
            case Token(Kind.TEXT):
                what = "a string"
            case _:
                what = repr(token.text)
        if token.text == "=" and not hint:
            hint = "equality is written with one ="
        if token.text == "(" and not hint:
            hint = "selectors have no functions; write it in `expression`, with CEL"
        return self._fault(token, f"unexpected {what}: {reason}", hint)

    def _value(self, part: _Part) -> Value:
        if isinstance(part, Value):
            return part
        raise fault(self._text, part.position, "a condition is no value", "join conditions with AND, OR and NOT")

    def _condition(self, part: _Part) -> Condition:
        if isinstance(part, Condition):
            return part
        raise fault(self._text, part.position, "a value is no condition", "compare it with something")

    def _identifier(self, part: _Part, before: str) -> Identifier:
        if isinstance(part, Identifier):
            return part
        raise fault(self._text, part.position, f"a name should stand before {before}")


def _negated(negated: bool, found: Condition) -> Condition:
    return Negation(found, found.position) if negated else found


def _numeric(text: str) -> int | float | None:
    """Java's literals: 57, 57L, 0x1F, 017, 7., .5, 6.2E5, 1d; None for an octal number with an 8 or a 9."""
    lower = text.lower()
    if lower.startswith("0x"):
        return int(lower.rstrip("l"), 16)
    digits = lower.rstrip("l")
    if not digits.isdecimal():
        return float(lower.rstrip("df"))
    if len(digits) > 1 and digits[0] == "0":
        return int(digits, 8) if not set(digits) & {"8", "9"} else None
    return int(digits) if len(digits) <= _INT64_DIGITS else INT64_MAX + 2  # Python refuses thousands of digits
