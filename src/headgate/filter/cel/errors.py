"""Errors of filters: where the fault is, what was expected, and how to write it instead."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

from headgate_api import limits
from headgate_api.errors import InvalidInputError

_CARET_CHARACTERS: Final = 100
_UNUSABLE: Final = re.compile("[\0\ud800-\udfff]")


class FilterError(InvalidInputError):
    """A filter that Headgate does not accept. Nothing is ever matched by it: a filter never fails open."""

    code = "invalid-filter"
    http_status = 422

    def __init__(
        self,
        reason: str,
        *,
        field: str = "filter",
        position: int | None = None,
        caret: str = "",
        hint: str = "",
        limit: str = "",
        unknown: str = "",
    ) -> None:
        super().__init__(f"{field}: {reason}", hint=hint)
        self.reason = reason
        self.field = field  # path of the field inside the trigger, for instance `filter.attributes.type`
        self.position = position  # offset (code points, from 0) of the place in the expression's text; None without one
        self.caret = caret  # the offending line and, below it, a caret under the place; empty without one
        self.limit = limit  # name of the constant of `headgate_api.limits` that is exceeded; empty for another fault
        self.unknown = unknown  # the name in the text that there is not; empty for another fault

    def at_field(self, field: str) -> FilterError:
        """The same fault, told of another field: who translates a dialect knows where its text came from."""
        return self._copy(field, self.position, self.caret)

    def at(self, text: str, position: int | None) -> FilterError:
        return self._copy(self.field, position, "" if position is None else caret(text, position))

    def _copy(self, field: str, position: int | None, shown: str) -> FilterError:
        more = {"hint": self.hint, "limit": self.limit, "unknown": self.unknown}
        return FilterError(self.reason, field=field, position=position, caret=shown, **more)


class EvaluationError(InvalidInputError):
    """An expression has no value on its input, or not one that can be used."""

    code = "evaluation"


def over_limit(name: str, what: str, *, field: str = "filter.expression", maximum: int | None = None) -> FilterError:
    """The refusal of what is over the limit `name` of `headgate_api.limits`, or over `maximum` in its place."""
    maximum = getattr(limits, name) if maximum is None else maximum
    return FilterError(f"{what}: the limit is {maximum} ({name})", field=field, limit=name)


def known_names(known: Iterable[str], given: object = "") -> str:
    """The hint for a name that is none of those that there are, with the one that is nearly the same."""
    names = list(known)
    lowered = {name.lower(): name for name in names}
    near = get_close_matches(str(given).lower(), lowered, n=1, cutoff=0.7) if given else []
    return f"{f'did you mean {lowered[near[0]]}? ' if near else ''}one of: {', '.join(names)}"


def unusable_character(text: str) -> tuple[str, int] | None:
    """The first character that cel-cpp does not take, and its offset; None without one."""
    found = _UNUSABLE.search(text)
    if found is None:
        return None
    return "a NUL character" if found[0] == "\0" else "half of a surrogate pair", found.start()


def caret(text: str, position: int) -> str:
    """The line of `text` that holds the code point at `position`, cut when it is long, and a caret under the place."""
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    end = len(text) if end < 0 else end
    shown_from = max(start, position - _CARET_CHARACTERS // 2)
    shown = text[shown_from : min(end, shown_from + _CARET_CHARACTERS)]
    printable = "".join(character if character.isprintable() else " " for character in shown)
    return f"{printable}\n{' ' * (position - shown_from)}^"
