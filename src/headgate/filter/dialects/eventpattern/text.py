"""The JSON of an event pattern, and faults that name the place in its text.

A pattern comes as a JSON object inside a filter or as the text of one. Only in text are number literals and places
still to be seen, so a fault has a path always and a position in text.
"""

from __future__ import annotations

import json
import math
from json.decoder import JSONDecoder, scanstring  # type: ignore[attr-defined]
from typing import Final

from headgate.filter.cel.errors import FilterError, over_limit
from headgate_api.event.json_text import refuse_constant
from headgate_api.limits import FILTER_CHARACTERS_MAX

Step = str | int
"""A member's name or an element's index."""

_SPACE: Final = " \t\n\r"
_DECODER: Final = JSONDecoder()


class Pattern:
    """A decoded pattern, from an object or its text, to speak of places in it; FilterError when it is no JSON."""

    def __init__(self, value: object, field: str) -> None:
        self._field = field
        self._text = value if isinstance(value, str) else None
        self.root = value if self._text is None else self._decode(self._text)

    def fault(self, path: tuple[Step, ...], reason: str, *, hint: str = "", limit: str = "") -> FilterError:
        field = self._field + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
        refusal = FilterError(reason, field=field, hint=hint, limit=limit)
        return refusal if self._text is None else refusal.at(self._text, _position(self._text, path))

    def _decode(self, text: str) -> object:
        if len(text) > FILTER_CHARACTERS_MAX:
            raise over_limit("FILTER_CHARACTERS_MAX", f"has {len(text)} characters", field=self._field)
        try:
            return json.loads(
                text, parse_float=_float, parse_constant=refuse_constant, object_pairs_hook=_without_duplicates
            )
        except json.JSONDecodeError as error:
            raise FilterError(f"is no JSON: {error.msg}", field=self._field).at(text, error.pos) from None
        except RecursionError:
            raise FilterError("is nested too deeply", field=self._field) from None
        except ValueError as error:
            raise FilterError(str(error), field=self._field) from None


def _float(literal: str) -> float:
    number = float(literal)
    mantissa = literal.lower().partition("e")[0]
    if math.isinf(number) or (number == 0 and any(digit in mantissa for digit in "123456789")):
        raise ValueError(f"the number {literal} is outside the range of a double")
    return number


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"{json.dumps(twice)} is given twice in one object")
    return made


def _position(text: str, path: tuple[Step, ...]) -> int:
    """Offset of the value at `path` in JSON text that is known to be well-formed; of the nearest one around it else."""
    at = _skip(text, 0)
    for step in path:
        found = _member(text, at, step) if text[at] == "{" else _element(text, at, step) if text[at] == "[" else None
        if found is None:
            break
        at = found
    return at


def _member(text: str, at: int, step: Step) -> int | None:
    at = _skip(text, at + 1)
    while text[at] != "}":
        name, at = scanstring(text, at + 1)
        at = _skip(text, _skip(text, at) + 1)
        if name == step:
            return at
        at = _next(text, at)
    return None


def _element(text: str, at: int, step: Step) -> int | None:
    at, index = _skip(text, at + 1), 0
    while text[at] != "]":
        if index == step:
            return at
        at, index = _next(text, at), index + 1
    return None


def _next(text: str, at: int) -> int:
    """Where the value or the bracket after the value at `at` is."""
    at = _skip(text, _DECODER.raw_decode(text, at)[1])
    return _skip(text, at + 1) if text[at] == "," else at


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at
