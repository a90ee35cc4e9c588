"""Tokens of dialects like SQL, with their places, taken one by one.

CESQL and selectors differ in what their words look like (`Lexicon`) and in their grammars (parsers on `Words`).
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple, TypeVar

from headgate.filter.cel.errors import FilterError, over_limit, unusable_character
from headgate_api.limits import FILTER_CHARACTERS_MAX, FILTER_DEPTH_MAX, FILTER_TOKENS_MAX

Part = TypeVar("Part")


class Kind(StrEnum):
    """What a token is."""

    KEYWORD = "keyword"
    NAME = "name"
    NUMBER = "number"
    TEXT = "text"
    SIGN = "sign"
    END = "end"


class Token(NamedTuple):
    """One word."""

    kind: Kind
    text: str  # a keyword in upper case, a string without its quotes, anything else as it was written
    position: int  # offset in the text, in code points from 0


@dataclass(frozen=True, slots=True)
class Lexicon:
    """The words of a dialect."""

    what: str
    pattern: re.Pattern[str]  # groups `space`, `text`, `number`, `name`, `sign`; `fused`: a number that runs into one
    keywords: frozenset[str]  # words that are no names, in upper, lower or mixed case
    unquoted: Callable[[str], str]  # a string between its quotes, from one with them
    hints: Mapping[str, str]  # what to do about a character that begins no word


def fault(text: str, position: int, reason: str, hint: str = "", *, limit: str = "") -> FilterError:
    """The refusal of a text at a place; the dialect adds the field."""
    return FilterError(reason, hint=hint, limit=limit).at(text, position)


def tokens(text: str, lexicon: Lexicon) -> Iterator[Token]:
    """The words of a text, with one END after the last; FilterError when it is too long, or has what is no word."""
    if len(text) > FILTER_CHARACTERS_MAX:
        raise over_limit("FILTER_CHARACTERS_MAX", f"the {lexicon.what} has {len(text)} characters", field="filter")
    position, words = 0, 0
    while position < len(text):
        found = lexicon.pattern.match(text, position)
        if found is None:
            shown = ascii(text[position])
            raise fault(text, position, f"unexpected {shown}", lexicon.hints.get(text[position], ""))
        group, word = found.lastgroup, found[0]
        words += group != "space"
        if words > FILTER_TOKENS_MAX:
            reason = f"the {lexicon.what} has more than {FILTER_TOKENS_MAX} words (FILTER_TOKENS_MAX)"
            raise fault(text, position, reason, limit="FILTER_TOKENS_MAX")
        match group:
            case "space":
                pass
            case "text":
                if (unusable := unusable_character(word)) is not None:
                    raise fault(text, position + unusable[1], f"{unusable[0]} in a string")
                yield Token(Kind.TEXT, lexicon.unquoted(word), position)
            # Not only upper(): other letters fold to keywords too, and are names.
            case "name" if word.isascii() and word.upper() in lexicon.keywords:
                yield Token(Kind.KEYWORD, word.upper(), position)
            case "fused":
                raise fault(text, position, "a number runs into a name", "a name begins with a letter, _ or $")
            case _:
                yield Token(Kind(str(group)), word, position)
        position = found.end()
    yield Token(Kind.END, "", len(text))


def walk(tree: object) -> Iterator[object]:
    """A syntax tree's node and all below it."""
    waiting = [tree]
    while waiting:
        part = waiting.pop()
        if isinstance(part, tuple):
            waiting += part
        elif hasattr(part, "__match_args__"):
            yield part
            waiting += [getattr(part, field) for field in part.__match_args__]


_BEHIND: Final = {
    "is": "EXISTS x says that there is one",
    "between": "write x >= 1 AND x <= 9",
    **dict.fromkeys(("matches", "contains", "startswith", "endswith"), "compare with a pattern: x LIKE 'a%'"),
}
"""What people write behind a whole expression, and what is meant, where the language has no such word."""


class Words(ABC):
    """The words of a text as a grammar takes them, and how deep it is in the tree.

    They are taken one by one: a hostile text is refused where it goes too deep, not after all of it was read.
    """

    def __init__(self, text: str, lexicon: Lexicon) -> None:
        self._text = text
        self._what = lexicon.what
        self._tokens = tokens(text, lexicon)
        self._token = next(self._tokens)
        self._before: Token | None = None
        self._depth = 0

    def _whole(self, part: Callable[[], Part]) -> Part:
        if self._peek().kind is Kind.END:
            raise fault(self._text, 0, f"the {self._what} is empty", "leave the filter out to take every event")
        found = part()
        if self._peek().kind is not Kind.END:
            hint = _BEHIND.get(self._peek().text.lower(), "")
            if self._text.lstrip()[:6].rstrip().upper() in ("SELECT", "WHERE"):
                hint = "write the condition alone, without SELECT and WHERE"
            raise self._unexpected(self._peek(), f"the {self._what} should end here", hint)
        return found

    def _peek(self) -> Token:
        return self._token

    def _advance(self) -> None:
        """To the next token; behind the END there is none."""
        self._before, self._token = self._token, next(self._tokens, self._token)

    def _at(self, word: str) -> bool:
        token = self._token
        return token.text == word and token.kind in {Kind.KEYWORD, Kind.SIGN}

    def _take(self, word: str) -> bool:
        found = self._at(word)
        if found:
            self._advance()
        return found

    def _expect(self, word: str) -> None:
        if not self._take(word):
            raise self._unexpected(self._token, f"{word} should stand here")

    def _expect_text(self, wanted: str, hint: str = "") -> Token:
        token = self._token
        if token.kind is not Kind.TEXT:
            raise self._unexpected(token, wanted, hint)
        self._advance()
        return token

    def _nested(self, token: Token, part: Callable[[], Part]) -> Part:
        self._deeper(token)
        found = part()
        self._depth -= 1
        return found

    def _left_to_right(
        self, operand: Callable[[], Part], operators: Collection[str], joined: Callable[[Token, Part, Part], Part]
    ) -> Part:
        """Operands with operators of one level between them; every further operator is one level of the tree."""
        left, deeper = operand(), 0
        while (token := self._peek()).kind is Kind.SIGN and token.text in operators:
            self._advance()
            self._deeper(token)
            deeper += 1
            left = joined(token, left, operand())
        self._depth -= deeper
        return left

    def _deeper(self, token: Token) -> None:
        self._depth += 1
        if self._depth > FILTER_DEPTH_MAX:
            reason = f"the {self._what} is nested too deeply: the limit is {FILTER_DEPTH_MAX} (FILTER_DEPTH_MAX)"
            raise self._fault(token, reason, limit="FILTER_DEPTH_MAX")

    def _fault(self, token: Token, reason: str, hint: str = "", *, limit: str = "") -> FilterError:
        return fault(self._text, token.position, reason, hint, limit=limit)

    @abstractmethod
    def _unexpected(self, token: Token, wanted: str, hint: str = "") -> FilterError:
        """What to say of a token that should not stand there."""
