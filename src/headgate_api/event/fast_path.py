"""The fast path for batches: common events are decoded and checked at once, column by column.

Reading one event after the other spends most of its time in the interpreter. Most batches hold events of version 1.0
with JSON data, plain text and the extensions that earlier batches had: msgspec checks their types while it decodes, and
what is left to check is checked once for every different value. A batch of another kind is no error: the
caller then reads it event by event, which finds the same events or the error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec.structs import astuple

from headgate_api.event import json_text
from headgate_api.event.attributes import COMMON_TIME, OPTIONAL_ATTRIBUTES, is_source, media_type
from headgate_api.event.data import decode_batch_data
from headgate_api.event.model import DataKind, Event, EventColumns
from headgate_api.limits import FAST_PATH_EXTENSIONS_MAX, JSON_DEPTH_MAX

_Text = Annotated[str, msgspec.Meta(min_length=1)]
_REQUIRED: Final = ("id", "source", "type")
_ATTRIBUTES: Final = 1 + len(_REQUIRED) + len(OPTIONAL_ATTRIBUTES)
_are_common_times: Final = re.compile(f"(?:(?:{COMMON_TIME})?\n)*").fullmatch


@lru_cache(16)
def _decoder(extensions: tuple[str, ...]) -> Callable[[bytes], list[msgspec.Struct]]:
    """Decodes a batch of events that have at most these extensions: attributes as in `Event`, extensions, data."""
    fields: list[Any] = [("specversion", Literal["1.0"])]
    fields += [(name, _Text) for name in _REQUIRED]
    fields += [(name, _Text | None, None) for name in OPTIONAL_ATTRIBUTES]
    members = {f"extension_{number}": name for number, name in enumerate(extensions)}  # a name may be `class` or `0`
    fields += [(field, str | msgspec.UnsetType, msgspec.UNSET) for field in members]
    fields += [("data", object, msgspec.UNSET)]
    # `omit_defaults`: what was not there is not written when the events are encoded again.
    element = msgspec.defstruct(
        "CommonEvent", fields, gc=False, forbid_unknown_fields=True, omit_defaults=True, rename=members
    )
    return msgspec.json.Decoder(list[element]).decode  # type: ignore[valid-type]


class BatchFastPath:
    """Reads batches of common events; remembers the names of recent extensions."""

    def __init__(self) -> None:
        self._extensions: tuple[str, ...] = ()
        self._names: frozenset[str] = frozenset()

    def learn(self, events: Iterable[Event]) -> None:
        """Adds the extensions of a batch that the fast path did not take."""
        fresh = set[str]().union(*[event.extensions for event in events])
        if fresh.issubset(self._extensions):
            return
        known = fresh.union(self._extensions)
        if len(known) > FAST_PATH_EXTENSIONS_MAX:
            known = fresh
        if len(known) <= FAST_PATH_EXTENSIONS_MAX:
            self._extensions, self._names = tuple(sorted(known)), frozenset(known)

    def read(self, body: bytes) -> EventColumns | None:
        """The events of a batch in plain ASCII without escapes; None when it must be read event by event."""
        try:
            elements = _decoder(self._extensions)(body)
            json_text.check_lengths(body)
            repeats = json_text.may_repeat_a_member(body, elements)
        except (msgspec.DecodeError, RecursionError, ValueError):
            return None
        if not elements or repeats:
            return None
        columns = list(zip(*map(astuple, elements), strict=True))
        attributes, extensions, trees = columns[:_ATTRIBUTES], columns[_ATTRIBUTES:-1], columns[-1]
        _, _, sources, _, _, times, content_types, schemas = attributes
        data = [bytes(holder.data) for holder in decode_batch_data(body)]
        if not (
            all(map(is_source, set(sources)))
            and _are_common_times("\n".join([time or "" for time in times]) + "\n")
            and all(map(_is_json, set(content_types)))
            and schemas.count(None) == len(schemas)
            and msgspec.UNSET not in trees
            and max(map(len, data)) <= 2 * JSON_DEPTH_MAX  # too short to be too deep
        ):
            return None
        dicts = self._extension_dicts(extensions, len(elements))
        return EventColumns((*attributes, dicts, [DataKind.JSON] * len(data), data), self._names)

    def _extension_dicts(self, columns: Sequence[tuple[Any, ...]], count: int) -> list[dict[str, Any]]:
        names = self._extensions
        if not columns:
            return [{} for _ in range(count)]
        if len(columns) == 1 and msgspec.UNSET not in columns[0]:
            return [{names[0]: value} for value in columns[0]]
        rows = zip(*columns, strict=True)
        return [{n: v for n, v in zip(names, row, strict=True) if v is not msgspec.UNSET} for row in rows]


def _is_json(content_type: str | None) -> bool:
    if content_type is None:
        return True
    media = media_type(content_type)
    return media is not None and media.is_json
