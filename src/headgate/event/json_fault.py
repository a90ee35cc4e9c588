"""The attribute and event that made a JSON text invalid; used for error messages only."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final

from headgate.event.json_text import AmbiguousJsonError, parse
from headgate.limits import ATTRIBUTE_NAME_CHARS_MAX

_decoder: Final = json.JSONDecoder(parse_int=str, parse_float=str)
_SPACE: Final = re.compile(r"[ \t\r\n]*")


def locate(body: bytes) -> tuple[int | None, str]:
    """Looks for the first member whose value or name `json_text.parse` refuses, or that appears twice.

    Args:
        body: JSON (of an event or of a batch) that `parse` has refused as ambiguous.

    Returns:
        The event's position in its batch, None outside a batch, and the attribute's name, "" where there is none; of a
        name that no attribute can have what can be shown: its begin, lone surrogates as escapes.
    """
    try:
        text = body.decode()
        start = _skip(text, 0)
        if text[start] != "[":
            return None, _shown(_find_member(text))
        for index, (_, element) in enumerate(_items(text, start)):
            if element.startswith("{"):
                name = _find_member(element)
                if name:
                    return index, _shown(name)
    except (RecursionError, ValueError, IndexError):
        pass  # nested too deep: such a text was not read to its end, so it need not even be JSON
    return None, ""


def _shown(name: str) -> str:
    return name[:ATTRIBUTE_NAME_CHARS_MAX].encode(errors="backslashreplace").decode()


def _find_member(text: str) -> str:
    """The member of an object that is to blame, "" for none."""
    seen: set[str] = set()
    if not text.startswith("{", start := _skip(text, 0)):
        return ""
    for name, value in _items(text, start):
        if name in seen:
            return name
        seen.add(name)
        try:
            parse(value.encode())
            parse(json.dumps(name).encode())
        except AmbiguousJsonError:
            return name
    return ""


def _items(text: str, start: int) -> Iterator[tuple[str, str]]:
    """Members of the object, or elements of the array with the name "", that begins at `start`: their own text."""
    at = _skip(text, start + 1)
    while text[at] not in "]}":
        name = ""
        if text[start] == "{":
            name, at = _decoder.raw_decode(text, at)
            at = _skip(text, _skip(text, at) + 1)  # the colon
        _, end = _decoder.raw_decode(text, at)
        yield name, text[at:end]
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return at if match is None else match.end()
