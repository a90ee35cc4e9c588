"""CESQL's syntax tree, its tokens and its grammar, by recursive descent (CloudEvents SQL 1.0, sections 2 and 3.6).

From loose to tight: AND, OR and XOR, all three alike; comparisons; `+ -`; `* / %`; LIKE and IN; NOT and `-`. What binds
alike is taken from left to right.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

from headgate.filter.cel.errors import FilterError
from headgate.filter.dialects.sql_tokens import Kind, Lexicon, Token, Words, fault
from headgate_api.event.attributes import INT32_MAX, INT32_MIN
from headgate_api.limits import FILTER_LIST_ITEMS_MAX

# --- tree -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal."""

    value: str | int | bool
    position: int


@dataclass(frozen=True, slots=True)
class Attribute:
    """The value of a context attribute or extension."""

    name: str
    position: int


@dataclass(frozen=True, slots=True)
class Exists:
    """`EXISTS name`."""

    name: str
    position: int


@dataclass(frozen=True, slots=True)
class Not:
    """`NOT x`; also of `NOT LIKE` and `NOT IN`."""

    operand: Tree
    position: int


@dataclass(frozen=True, slots=True)
class Minus:
    """`-x`."""

    operand: Tree
    position: int


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """`x + y` and its kin."""

    operator: Literal["+", "-", "*", "/", "%"]
    left: Tree
    right: Tree
    position: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """`x = y` and its kin; `<>` is written `!=`."""

    operator: Literal["=", "!=", "<", "<=", ">", ">="]
    left: Tree
    right: Tree
    position: int


@dataclass(frozen=True, slots=True)
class Logic:
    """Two or more operands joined by the same operator."""

    operator: Literal["AND", "OR", "XOR"]
    operands: tuple[Tree, ...]
    position: int


@dataclass(frozen=True, slots=True)
class Like:
    """`x LIKE pattern`; the pattern with its escapes."""

    operand: Tree
    pattern: str
    position: int


@dataclass(frozen=True, slots=True)
class OneOf:
    """`x IN (y, ...)`."""

    operand: Tree
    items: tuple[Tree, ...]
    position: int


@dataclass(frozen=True, slots=True)
class Invocation:
    """`NAME(x, ...)`; the name in upper case."""

    name: str
    arguments: tuple[Tree, ...]
    position: int


Tree = Constant | Attribute | Exists | Not | Minus | Arithmetic | Comparison | Logic | Like | OneOf | Invocation


# --- tokens ---------------------------------------------------------------------------------------


def _unquoted(word: str) -> str:
    """A backslash is itself unless it stands before the quote."""
    quote = word[0]
    return re.sub(r"\\(.)", lambda pair: quote if pair[1] == quote else pair[0], word[1:-1], flags=re.DOTALL)


LEXICON: Final = Lexicon(
    what="expression",
    pattern=re.compile(
        r"""
          (?P<space>[ \t\r\n]+)
        | (?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
        | (?P<number>[0-9]++(?![A-Za-z_]))
        | (?P<name>[A-Za-z0-9_]+)
        | (?P<sign><>|!=|<=|>=|[=<>+\-*/%(),])
        """,
        re.VERBOSE | re.DOTALL,
    ),
    keywords=frozenset({"AND", "EXISTS", "FALSE", "IN", "LIKE", "NOT", "OR", "TRUE", "XOR"}),
    unquoted=_unquoted,
    hints={
        "'": "the string has no closing quote; a quote inside is written \\'",
        '"': 'the string has no closing quote; a quote inside is written \\"',
        "!": "write != for unequal and NOT for negation",
        "&": "conjunction is written with AND",
        "|": "disjunction is written with OR",
        ".": "CESQL sees attributes and integers only; use `expression` to filter on data",
        "[": "a list after IN stands in parentheses",
        ";": "an expression is one condition",
    },
)


# --- grammar --------------------------------------------------------------------------------------

_COMPARISONS: Final = frozenset({"=", "!=", "<>", "<", "<=", ">", ">="})
_LOGIC: Final = ("AND", "OR", "XOR")
_INT32_DIGITS: Final = 10


def parse(text: str) -> Tree:
    """The tree of an expression; a FilterError has position, caret and often a hint, without the field."""
    return _Parser(text, LEXICON).whole()


class _Parser(Words):
    def whole(self) -> Tree:
        return self._whole(self._logic)

    def _logic(self) -> Tree:
        left, deeper = self._comparison(), 0
        while (token := self._peek()).kind is Kind.KEYWORD and token.text in _LOGIC:
            self._advance()
            right = self._comparison()
            if isinstance(left, Logic) and left.operator == token.text and deeper:
                operands = (*left.operands, right)
            else:
                # Another operator is one level more: `a AND b OR c` is `(a AND b) OR c`.
                self._deeper(token)
                deeper += 1
                operands = (left, right)
            left = Logic(token.text, operands, token.position)  # type: ignore[arg-type]
        self._depth -= deeper
        return left

    def _comparison(self) -> Tree:
        def joined(token: Token, left: Tree, right: Tree) -> Tree:
            operator = "!=" if token.text == "<>" else token.text
            return Comparison(operator, left, right, token.position)  # type: ignore[arg-type]

        return self._left_to_right(self._sum, _COMPARISONS, joined)

    def _sum(self) -> Tree:
        return self._left_to_right(self._product, "+-", _arithmetic)

    def _product(self) -> Tree:
        return self._left_to_right(self._tested, "*/%", _arithmetic)

    def _tested(self) -> Tree:
        left, deeper = self._signed(), 0
        while (token := self._peek()).kind is Kind.KEYWORD and token.text in {"NOT", "LIKE", "IN"}:
            self._deeper(token)
            deeper += 1
            negated = self._take("NOT")
            if self._take("LIKE"):
                pattern = self._expect_text("a string should follow LIKE", "the pattern is a literal in quotes")
                tested: Tree = Like(left, pattern.text, token.position)
            elif self._take("IN"):
                opening = self._peek()
                if not self._at("("):
                    raise self._unexpected(opening, "a list in parentheses should follow IN")
                tested = OneOf(left, self._list(), token.position)
                if not tested.items:
                    raise self._fault(opening, "the list is empty", "write at least one value")
            else:
                raise self._unexpected(self._peek(), "LIKE or IN should follow NOT")
            left = Not(tested, token.position) if negated else tested
        self._depth -= deeper
        return left

    def _signed(self) -> Tree:
        token = self._peek()
        if token.kind is Kind.SIGN and token.text in {"+", "-"}:
            self._advance()
            following = self._peek()
            if following.kind is Kind.NUMBER:
                self._advance()
                return self._integer(following, negative=token.text == "-", position=token.position)
            if token.text == "+":
                raise self._unexpected(following, "an integer should follow the sign +")
            return Minus(self._nested(token, self._signed), token.position)
        if self._take("NOT"):
            return Not(self._nested(token, self._signed), token.position)
        return self._primary()

    def _primary(self) -> Tree:
        token = self._peek()
        self._advance()
        match token:
            case Token(Kind.NUMBER):
                return self._integer(token, negative=False, position=token.position)
            case Token(Kind.TEXT, text, position):
                return Constant(text, position)
            case Token(Kind.KEYWORD, "TRUE" | "FALSE" as word, position):
                return Constant(word == "TRUE", position)
            case Token(Kind.KEYWORD, "EXISTS", position=position):
                return Exists(self._attribute_name(self._peek(), advance=True), position)
            case Token(Kind.NAME) if self._at("("):
                return Invocation(token.text.upper(), self._list(), token.position)
            case Token(Kind.NAME, position=position):
                return Attribute(self._attribute_name(token, advance=False), position)
            case Token(Kind.SIGN, "("):
                inner = self._nested(token, self._logic)
                self._expect(")")
                return inner
            case _:
                raise self._unexpected(token, "a name, a value or a condition should stand here")

    def _attribute_name(self, token: Token, *, advance: bool) -> str:
        if token.kind is not Kind.NAME:
            raise self._unexpected(token, "the name of an attribute should stand here")
        if advance:
            self._advance()
        name = token.text.lower()
        if "_" in name:
            reason = f"{token.text} is no name of an attribute (letters and digits)"
            raise self._fault(token, reason, "a function's arguments stand in parentheses")
        if name == "data":
            hint = "use `expression` to filter on data"
            raise self._fault(token, "CESQL does not see the data of an event", hint)
        return name

    def _integer(self, token: Token, *, negative: bool, position: int) -> Constant:
        digits = token.text.lstrip("0") or "0"
        value = int(digits) if len(digits) <= _INT32_DIGITS else INT32_MAX + 2
        value = -value if negative else value
        if not INT32_MIN <= value <= INT32_MAX:
            reason = "an integer has 32 bits: from -2147483648 to 2147483647"
            raise fault(self._text, position, reason, "compare larger numbers as strings, or with CEL in `expression`")
        return Constant(value, position)

    def _list(self) -> tuple[Tree, ...]:
        opening = self._peek()
        self._advance()
        self._deeper(opening)
        items: list[Tree] = []
        if not self._at(")"):
            items.append(self._logic())
            while self._at(","):
                if len(items) == FILTER_LIST_ITEMS_MAX:
                    reason = f"a list may have {FILTER_LIST_ITEMS_MAX} items (FILTER_LIST_ITEMS_MAX)"
                    raise self._fault(opening, reason, limit="FILTER_LIST_ITEMS_MAX")
                self._advance()
                items.append(self._logic())
        self._expect(")")
        self._depth -= 1
        return tuple(items)

    def _unexpected(self, token: Token, wanted: str, hint: str = "") -> FilterError:
        if token.kind is Kind.END:
            return self._fault(token, f"the expression ends too early: {wanted}", hint)
        if token.text == "=" and not hint:
            hint = "equality is written with one ="
        if token.kind is Kind.TEXT and self._before is not None and self._before.kind is Kind.TEXT:
            hint = "a quote inside a string is written \\'"
        return self._fault(token, wanted, hint)


def _arithmetic(token: Token, left: Tree, right: Tree) -> Tree:
    return Arithmetic(token.text, left, right, token.position)  # type: ignore[arg-type]
