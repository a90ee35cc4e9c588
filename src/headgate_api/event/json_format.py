"""The JSON event format and the JSON batch format, versions 1.0 and 0.3."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec.structs import astuple

from headgate_api import limits
from headgate_api.errors import EventError, EventTooLargeError
from headgate_api.event import json_text
from headgate_api.event.attributes import COMMON_TIME, OPTIONAL_ATTRIBUTES, is_json, is_source, make_event, media_type
from headgate_api.event.data import decode_base64, decode_batch_data, decode_data, kind_of, takes_base64, too_complex
from headgate_api.event.model import DataKind, Event, EventColumns

_decode_elements = msgspec.json.Decoder(list[msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode
_MISSING: Final = object()
_JSON: Final = DataKind.JSON  # a member of an enumeration is slow to look up


def decode_event(body: bytes) -> Event:
    """Reads one event in the JSON event format (UTF-8); EventError names the attribute and the rule."""
    if len(body) > limits.EVENT_BYTES_MAX:
        raise EventTooLargeError(f"an event must not be larger than {limits.EVENT_BYTES_MAX} bytes")
    members = _parse(body)
    if not isinstance(members, dict):
        raise EventError("the outermost JSON value must be an object")
    raw = bytes(decode_data(body).data) if "data" in members else b""
    return _event(members, raw, _has_plain_strings(body))


def decode_batch(body: bytes) -> Sequence[Event]:
    """Reads events in the JSON batch format: all of them or none. An empty batch is a batch.

    EventError names the index of the event, the attribute and the rule.
    """
    if len(body) > limits.BATCH_BYTES_MAX:
        raise EventTooLargeError(f"a batch must not be larger than {limits.BATCH_BYTES_MAX} bytes")
    if len(body) > limits.EVENT_BYTES_MAX or json_text.is_complex(body):
        return _decode_groups(body)
    plain = _has_plain_strings(body)
    if plain:
        fast = _fast_path.read(body)
        if fast is not None and len(fast) <= limits.BATCH_EVENTS_MAX:
            return fast
    events = _decode_group(body, plain=plain)
    _fast_path.learn(events)
    return events


def _decode_group(body: bytes, *, plain: bool) -> list[Event]:
    elements = _parse(body)
    if not isinstance(elements, list):
        raise EventError("the outermost JSON value of a batch must be an array")
    if len(elements) > limits.BATCH_EVENTS_MAX:
        raise EventTooLargeError(f"a batch must not have more than {limits.BATCH_EVENTS_MAX} events")
    kinds = list(map(type, elements))
    if kinds.count(dict) != len(kinds):
        index = next(index for index, kind in enumerate(kinds) if kind is not dict)
        raise EventError("an element of a batch must be an object", index=index)
    events: list[Event] = []
    try:
        for members, holder in zip(elements, decode_batch_data(body), strict=True):
            events.append(_event(members, bytes(holder.data), plain))
    except EventError as error:
        raise error.at(len(events)) from None
    return events


def _decode_groups(body: bytes) -> list[Event]:
    """Reads a large batch some events at a time, so that no step of it is a long one: other threads wait for each."""
    if body.count(b",") > _ELEMENTS_SPLIT_MAX:
        _check_elements(body)
    try:
        found = _decode_elements(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _decode_group(body, plain=False)  # says what is wrong
    if len(found) > limits.BATCH_EVENTS_MAX:
        raise EventTooLargeError(f"a batch must not have more than {limits.BATCH_EVENTS_MAX} events")
    elements = list(map(bytes, found))
    events: list[Event] = []
    while len(events) < len(elements):
        end = first = len(events)
        size_bytes = 0
        while end < len(elements) and (end == first or size_bytes + len(elements[end]) <= limits.DECODE_BYTES_INLINE):
            size_bytes += len(elements[end])
            end += 1
        try:
            if end == first + 1 and elements[first][:1] == b"{":
                events.append(decode_event(elements[first]))
                continue
            group = b"[%b]" % b",".join(elements[first:end])
            events += _decode_group(group, plain=_has_plain_strings(group))
        except EventError as error:
            raise error.at(first + (error.index or 0)) from None
    return events


class _Element(msgspec.Struct, gc=False):
    """What every event has, which takes it fifty bytes."""

    specversion: msgspec.Raw
    id: msgspec.Raw
    source: msgspec.Raw
    type: msgspec.Raw


_ELEMENTS_SPLIT_MAX: Final = 10 * limits.BATCH_EVENTS_MAX
_check_first_wrong = msgspec.json.Decoder(list[_Element]).decode
_WRONG_ELEMENT: Final = re.compile(r"(.*) - at `\$\[(\d+)\]`", re.DOTALL)


def _check_elements(body: bytes) -> None:
    """Stops at the first element that is no event: millions of such are not taken apart."""
    try:
        _check_first_wrong(body)
    except msgspec.ValidationError as error:
        wrong = _WRONG_ELEMENT.fullmatch(str(error))
        if wrong is None:
            raise EventError("the outermost JSON value of a batch must be an array") from None
        raise EventError(f"an element of a batch must be an event: {wrong[1]}", index=int(wrong[2])) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EventError(f"the body must be JSON in UTF-8: {error}") from None


def encode_event(event: Event) -> bytes:
    """Writes one event in the JSON event format of its own version. JSON data is written byte for byte."""
    return _encode(_members(event))


def encode_batch(events: Iterable[Event]) -> bytes:
    """Writes events in the JSON batch format."""
    return _encode([_members(event) for event in events])


def _parse(body: bytes) -> object:
    try:
        return json_text.parse(body)
    except json_text.ComplexJsonError as error:
        raise too_complex(error) from None
    except json_text.MalformedJsonError as error:
        raise EventError(f"the body must be JSON in UTF-8: {error}") from None
    except json_text.AmbiguousJsonError as error:
        index, attribute = json_text.locate(body)
        rule = str(error).replace(f"[{index}].", "", 1)  # the place in the batch stands beside it
        raise EventError(rule, attribute=attribute, index=index) from None


def _has_plain_strings(body: bytes) -> bool:
    """True: no string of this JSON text can hold a character that attributes forbid."""
    return body.isascii() and b"\\" not in body and b"\x7f" not in body


def _event(members: dict[str, object], raw: bytes, plain: bool) -> Event:
    """Makes an event of a JSON object, whose members it consumes; `raw` are the bytes of its `data`, if it has any."""
    value = members.pop("data", _MISSING)
    if "data_base64" in members or "datacontentencoding" in members:
        encoded = _take_encoded(members, value)
        if encoded is not _MISSING:
            data, given = decode_base64(encoded), members.get("datacontenttype")
            kind = kind_of(given if type(given) is str else None, data)
            return make_event(members, kind, data, plain=plain)
    if value is _MISSING:
        return make_event(members, DataKind.NONE, None, plain=plain)
    media = None
    content_type = members.get("datacontenttype")
    if type(content_type) is str:
        media = media_type(content_type)
        if media is not None and not media.is_json:
            if type(value) is not str:
                raise EventError(f"must be a string, because {content_type[:64]!r} is not JSON", attribute="data")
            return make_event(members, DataKind.TEXT, value.encode(), plain=plain, media=media)
    if len(raw) > 2 * limits.JSON_DEPTH_MAX:
        try:
            json_text.check_depth(raw)
        except json_text.AmbiguousJsonError as error:
            raise EventError(str(error), attribute="data") from None
    return make_event(members, _JSON, raw, plain=plain, media=media)


def _take_encoded(members: dict[str, object], value: object) -> object:
    """Takes Base64 data out of the members: `data_base64` in 1.0, `data` with `datacontentencoding` in 0.3.

    What the other version calls so is left where it is, to be treated as any attribute of that name.
    """
    if members.get("specversion") == "0.3":
        return value if takes_base64(members) else _MISSING
    encoded = members.pop("data_base64", None)
    if encoded is None:
        return _MISSING
    if value is not _MISSING:
        raise EventError("data and data_base64 must not both be present", attribute="data")
    return encoded


def _members(event: Event) -> dict[str, object]:
    members: dict[str, object] = {
        "specversion": event.specversion,
        "id": event.id,
        "source": event.source,
        "type": event.type,
    }
    if event.subject is not None:
        members["subject"] = event.subject
    if event.time is not None:
        members["time"] = event.time
    if event.datacontenttype is not None:
        members["datacontenttype"] = event.datacontenttype
    if event.dataschema is not None:
        members["dataschema" if event.specversion == "1.0" else "schemaurl"] = event.dataschema
    members.update(event.extensions)
    if event.data is None:
        return members
    if event.data_kind is DataKind.JSON:
        members["data"] = msgspec.Raw(event.data)
    elif event.data_kind is DataKind.TEXT:
        members["data"] = event.data.decode()
    elif event.specversion == "1.0":
        members["data_base64"] = event.data  # msgspec writes bytes as Base64
    else:
        members["datacontentencoding"] = "base64"
        members["data"] = event.data
    return members


# --- the fast path for batches --------------------------------------------------------------------
# Common events are decoded and checked at once, column by column: reading one event after the other spends most of its
# time in the interpreter.
#
# Most batches hold events of version 1.0 with JSON data, plain text and the extensions that earlier batches had.
# msgspec checks their types while it decodes, and what is left is checked once for every different value. A batch of
# another kind is no error: it is read event by event then, which finds the same events or the error.

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
    fields += [("data", msgspec.Raw, msgspec.Raw())]
    # `omit_defaults`: what was not there is not written when the events are encoded again.
    element = msgspec.defstruct(
        "CommonEvent", fields, gc=False, forbid_unknown_fields=True, omit_defaults=True, rename=members
    )
    return msgspec.json.Decoder(list[element]).decode  # type: ignore[valid-type]


def _repeats_a_member(body: bytes, elements: list[msgspec.Struct]) -> bool:
    """Whether an event may have two members of one name; `body` has no escapes, and what is in `data` does not count.

    The elements hold strings and raw data alone: written again without white space they are shorter by what was lost.
    """
    again = _encode(elements)
    return len(again) != len(body) and again.count(b":") != body.count(b":")


class BatchFastPath:
    """Reads batches of common events; remembers the names of recent extensions."""

    def __init__(self) -> None:
        self._extensions: tuple[str, ...] = ()
        self._names: frozenset[str] = frozenset()

    def learn(self, events: Iterable[Event]) -> None:
        fresh = set[str]().union(*[event.extensions for event in events])
        if fresh.issubset(self._extensions):
            return
        known = fresh.union(self._extensions)
        if len(known) > limits.FAST_PATH_EXTENSIONS_MAX:
            known = fresh
        if len(known) <= limits.FAST_PATH_EXTENSIONS_MAX:
            self._extensions, self._names = tuple(sorted(known)), frozenset(known)

    def read(self, body: bytes) -> EventColumns | None:
        """The events of a batch in plain ASCII without escapes; None when it must be read event by event."""
        try:
            elements = _decoder(self._extensions)(body)
            sure = json_text.is_plain(body)
            if not elements or (not sure and _repeats_a_member(body, elements)):
                return None
            columns = list(zip(*map(astuple, elements), strict=True))
            data = list(map(bytes, columns[-1]))
            if not all(data):
                return None
            longest = max(map(len, data))
            if not sure:
                json_text.parse(b"[%b]" % b",".join(data), longest)
        except (msgspec.DecodeError, RecursionError, ValueError):
            return None
        attributes, extensions = columns[:_ATTRIBUTES], columns[_ATTRIBUTES:-1]
        _, _, sources, _, _, times, content_types, schemas = attributes
        if not (
            all(map(is_source, set(sources)))
            and _are_common_times("\n".join([time or "" for time in times]) + "\n")
            and all(one is None or is_json(one) for one in set(content_types))
            and not any(schemas)
            and (sure or longest <= 2 * limits.JSON_DEPTH_MAX)  # then too short to be too deep
        ):
            return None
        dicts = self._extension_dicts(extensions, len(elements))
        return EventColumns((*attributes, dicts, [_JSON] * len(data), data), self._names)

    def _extension_dicts(self, columns: Sequence[tuple[Any, ...]], count: int) -> list[dict[str, Any]]:
        names = self._extensions
        if not columns:
            return [{} for _ in range(count)]
        if len(columns) == 1 and msgspec.UNSET not in columns[0]:
            return [{names[0]: value} for value in columns[0]]
        rows = zip(*columns, strict=True)
        return [{n: v for n, v in zip(names, row, strict=True) if v is not msgspec.UNSET} for row in rows]


_fast_path: Final = BatchFastPath()
