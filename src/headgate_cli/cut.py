"""Answers in JSON that fit into so many bytes, and what was cut of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from headgate_api.limits import MCP_ANSWER_DEPTH_MAX

_PLACE: Final = 8
"""Bytes beside a value: quotes, a comma, a colon, brackets."""
_NAME_CHARS: Final = 60
"""Of a member in a place."""
_LEFT_OUT: Final = "..."


def cut(answer: Any, bytes_max: int) -> tuple[Any, list[str]]:  # noqa: ANN401 - JSON
    """An answer of which lists, texts and objects are cut until it has at most `bytes_max` bytes of JSON.

    Of lists and texts the first part stays; of an object what is small stays whole, and the others share what is left.
    The list says each place with how much of it is there: `$.items: the first 20 of 100`.
    """
    cuts: list[str] = []
    return _cut(answer, bytes_max, "$", 0, cuts), cuts


def written(value: object) -> str:
    """As JSON that is read by people and models."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _cut(value: Any, left: int, place: str, depth: int, cuts: list[str]) -> Any:  # noqa: ANN401 - JSON
    if _size(value) <= left:
        return value
    if depth == MCP_ANSWER_DEPTH_MAX and isinstance(value, list | Mapping):
        value = written(value)
    if isinstance(value, str):
        return _text(value, left, place, cuts)
    if isinstance(value, list):
        return _list(value, left, place, depth, cuts)
    return _object(value, left, place, depth, cuts) if isinstance(value, Mapping) else value


def _size(value: object) -> int:
    return len(written(value).encode(errors="surrogatepass"))


def _text(value: str, left: int, place: str, cuts: list[str]) -> str:
    most = max(0, left - _PLACE)
    shown = value.encode(errors="surrogatepass")[:most].decode(errors="ignore")
    while shown and _size(shown + _LEFT_OUT) > left:  # what JSON escapes is longer
        shown = shown[: len(shown) * 3 // 4]
    cuts.append(f"{place}: the first {len(shown):,} of {len(value):,} characters")
    return shown + _LEFT_OUT


def _list(value: list[Any], left: int, place: str, depth: int, cuts: list[str]) -> list[Any]:
    shown: list[Any] = []
    left -= _PLACE
    for item in value:
        size = _size(item) + 1
        if size > left:
            break
        shown.append(item)
        left -= size
    if not shown and left > _PLACE:
        shown.append(_cut(value[0], left, f"{place}[0]", depth + 1, cuts))
    if len(shown) < len(value):
        cuts.append(f"{place}: the first {len(shown):,} of {len(value):,}")
    return shown


def _object(value: Mapping[str, Any], left: int, place: str, depth: int, cuts: list[str]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    left -= _PLACE
    sizes = {name: _size({name: item}) for name, item in value.items()}
    for rank, name in enumerate(sorted(sizes, key=sizes.__getitem__)):
        share = left // (len(sizes) - rank)
        if sizes[name] <= share:
            kept[name] = value[name]
            left -= sizes[name]
        elif share > 3 * _PLACE and (room := share - _size(name) - 2) > 2 * _PLACE:
            kept[name] = _cut(value[name], room, f"{place}.{name[:_NAME_CHARS]}", depth + 1, cuts)
            left -= _size({name: kept[name]})
    if len(kept) < len(value):
        cuts.append(f"{place}: {len(kept):,} of {len(value):,} members")
    return {name: kept[name] for name in value if name in kept}
