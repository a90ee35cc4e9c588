"""CloudEvents' protobuf format: events as messages, and back.

What the format leaves open: JSON data travels as text (it is text), a protobuf message as `proto_data` with the type
URL that `dataschema` names. A time is a timestamp where its text is the one that a timestamp is read as, else a string:
what came as text goes out as the same text, whatever its version and its digits.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final, NoReturn

import msgspec
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.timestamp_pb2 import Timestamp

from headgate_api.errors import EventError, EventTooLargeError
from headgate_api.event import json_text
from headgate_api.event.attributes import is_json, make_event, media_type
from headgate_api.event.data import decode_base64, kind_of, takes_base64
from headgate_api.event.http import canonical
from headgate_api.event.model import DataKind, Event, ExtensionValue
from headgate_api.limits import ATTRIBUTE_NAME_CHARS_MAX, EVENT_BYTES_MAX, JSON_DEPTH_MAX, VALUES_CACHED_MAX
from headgate_api.rpc.cloudevents_pb2 import CloudEvent

_Value = CloudEvent.CloudEventAttributeValue
_PROTOBUF: Final = "application/protobuf"
_HTTPS: Final = "https://"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECONDS_MIN: Final = -62_135_596_800
_SECONDS_MAX: Final = 253_402_300_799
"""Years 1 to 9999: what google.protobuf.Timestamp may hold."""
_NANOS: Final = 1_000_000_000
# What `_timestamp_text` writes: groups of three digits, the last of which is not 000.
_WRITTEN_TIME: Final = re.compile(r"([0-9-]{10}T[0-9:]{8})(?:\.((?:[0-9]{3}){0,2}(?!000)[0-9]{3}))?Z").fullmatch
_FIELDS: Final = {"specversion": "spec_version", "id": "id", "source": "source", "type": "type"}
_NO_ATTRIBUTES: Final = frozenset([*_FIELDS, "data"])
# Members of an enumeration are slow to look up.
_NONE, _JSON, _TEXT, _BINARY = DataKind.NONE, DataKind.JSON, DataKind.TEXT, DataKind.BINARY
_decode_elements = msgspec.json.Decoder(list[msgspec.Raw]).decode


_Read = tuple[dict[str, object], DataKind, bytes | None, bool]
"""A message, read but not checked: attributes as `make_event` takes them, data, what it is unless it calls itself JSON,
and whether it does. A tuple, because every event makes one."""


def to_message(event: Event) -> CloudEvent:
    """Writes an event as a message.

    JSON data without a media type gets "application/json", as the JSON event format implies it. An extension that is a
    map, which this format has no type for, becomes its JSON text.
    """
    message = CloudEvent(id=event.id, source=event.source, spec_version=event.specversion, type=event.type)
    attributes = message.attributes
    content_type = event.datacontenttype
    if event.subject is not None:
        attributes["subject"].ce_string = event.subject
    if event.time is not None:
        _write_time(attributes["time"], event.time)
    if event.dataschema is not None:
        if event.specversion == "1.0":
            attributes["dataschema"].ce_uri = event.dataschema
        else:
            attributes["schemaurl"].ce_uri_ref = event.dataschema
    for name, value in event.extensions.items():
        if type(value) is str:
            attributes[name].ce_string = value
        elif type(value) is bool:
            attributes[name].ce_boolean = value
        elif type(value) is dict:
            attributes[name].ce_string = canonical(value)
        else:
            attributes[name].ce_integer = value
    data = event.data
    if data is not None:
        if event.data_kind is not _BINARY:
            message.text_data = data.decode()
            if content_type is None and event.data_kind is _JSON:
                content_type = "application/json"
        elif event.dataschema is not None and _is_protobuf(content_type):
            message.proto_data.type_url = event.dataschema.removeprefix(_HTTPS) or _HTTPS
            message.proto_data.value = data
        else:
            message.binary_data = data
    if content_type is not None:
        attributes["datacontenttype"].ce_string = content_type
    return message


def from_messages(messages: Iterable[CloudEvent]) -> list[Event]:
    """Reads events: all of them or none. EventError names the index of the event, the attribute and the rule."""
    events: list[Event] = []
    read: list[_Read] = []
    try:
        for message in messages:
            read.append(_read(message))  # noqa: PERF401 - their number is the index of what is wrong
    except EventError as error:
        raise error.at(len(read)) from None
    known = _all_json([data for _, _, data, is_json in read if is_json])
    try:
        for each in read:
            events.append(_event(each, known))  # noqa: PERF401
    except EventError as error:
        raise error.at(len(events)) from None
    return events


def _read(message: CloudEvent) -> _Read:
    if message.ByteSize() > EVENT_BYTES_MAX:
        raise EventTooLargeError(f"an event must not be larger than {EVENT_BYTES_MAX} bytes")
    attributes: dict[str, object] = {}
    for name, value in message.attributes.items():
        text = value.ce_string
        attributes[name] = text if text else _value(name, value)
    if not attributes.keys().isdisjoint(_NO_ATTRIBUTES):
        _refuse_attribute(attributes)
    attributes["specversion"] = message.spec_version or None
    attributes["id"] = message.id or None
    attributes["source"] = message.source or None
    attributes["type"] = message.type or None
    is_encoded = takes_base64(attributes)
    where = message.WhichOneof("data")
    if where is None:
        return attributes, _NONE, None, False
    if where == "proto_data":
        return _packed(attributes, message.proto_data), _BINARY, message.proto_data.value, False
    text_data = where == "text_data"
    data = message.text_data.encode() if text_data else message.binary_data
    kind = _TEXT if text_data else _BINARY
    if is_encoded:
        data, kind = decode_base64(data.decode("latin-1")), _BINARY
    elif text_data and b"\0" in data:  # the JSON format takes none either
        raise EventError("a string must not hold U+0000", attribute="data")
    content_type = attributes.get("datacontenttype")
    return attributes, kind, data, type(content_type) is str and is_json(content_type)


def _event(read: _Read, known_json: bool) -> Event:
    """Checks what was read and makes the event.

    `known_json`: if its data calls itself JSON, it is, and breaks no rule but perhaps that of its depth.
    """
    attributes, kind, data, is_json = read
    if is_json and data is not None:
        content_type = attributes["datacontenttype"]
        assert type(content_type) is str
        kind = _JSON if known_json and len(data) <= 2 * JSON_DEPTH_MAX else kind_of(content_type, data)
    return make_event(attributes, kind, data)


def _all_json(texts: list[bytes | None]) -> bool:
    """True: each is JSON that breaks no rule of `json_text` but perhaps that of its depth. Cheaper than one by one."""
    if len(texts) < 2:
        return False
    body = b"[%b]" % b",".join([text or b"" for text in texts])
    if not json_text.is_light(body):
        return False
    try:
        # A text that is no JSON may be one together with its neighbours: each must be an element as it is.
        if [bytes(element) for element in _decode_elements(body)] != texts:
            return False
        if not json_text.is_plain(body):
            json_text.parse(body)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return False
    return True


def _packed(attributes: dict[str, object], packed: AnyMessage) -> dict[str, object]:
    """The attributes of an event whose data is a protobuf message: `dataschema` says which, as the format wants it."""
    if not packed.type_url:
        raise EventError("proto_data must have a type URL", attribute="data")
    # A type URL without a scheme means https (google/protobuf/any.proto); dataschema must be absolute.
    schema = packed.type_url if ":" in packed.type_url else _HTTPS + packed.type_url
    name = "schemaurl" if attributes["specversion"] == "0.3" else "dataschema"
    given = attributes.setdefault(name, schema)
    if given == packed.type_url:
        attributes[name] = schema
    elif given != schema:
        raise EventError("must be the type URL of proto_data, or not set", attribute=name)
    attributes.setdefault("datacontenttype", _PROTOBUF)
    return attributes


def _is_protobuf(content_type: str | None) -> bool:
    media = media_type(content_type) if content_type is not None else None
    return media is not None and media.essence == _PROTOBUF


def _value(name: str, value: _Value) -> ExtensionValue:
    """An attribute's value; of the types that an `Event` does not hold the string form (CloudEvents type system)."""
    kind = value.WhichOneof("attr")
    if kind == "ce_timestamp":
        return _timestamp_text(name, value.ce_timestamp)
    if kind == "ce_bytes":
        return b64encode(value.ce_bytes).decode()
    if kind is None:
        raise EventError("must have a value", attribute=name[:ATTRIBUTE_NAME_CHARS_MAX])
    same: ExtensionValue = getattr(value, kind)
    return same


def _refuse_attribute(attributes: dict[str, object]) -> NoReturn:
    for name, field in _FIELDS.items():
        if name in attributes:
            raise EventError(f"must be in the message's field {field}, not among its attributes", attribute=name)
    raise EventError("data is no attribute", attribute="data")


def _timestamp_text(name: str, value: Timestamp) -> str:
    seconds, nanos = value.seconds, value.nanos
    if not _SECONDS_MIN <= seconds <= _SECONDS_MAX or not 0 <= nanos < _NANOS:
        raise EventError("a timestamp must be within the years 1 to 9999", attribute=name[:ATTRIBUTE_NAME_CHARS_MAX])
    text = _seconds_text(seconds)
    if nanos == 0:
        return f"{text}Z"
    digits = f"{nanos:09}"
    while digits.endswith("000"):
        digits = digits[:-3]
    return f"{text}.{digits}Z"


@lru_cache(VALUES_CACHED_MAX)
def _seconds_text(seconds: int) -> str:
    return (_EPOCH + timedelta(0, seconds)).isoformat()[:19]


@lru_cache(VALUES_CACHED_MAX)
def _seconds_of(text: str) -> int | None:
    """Seconds since 1970 of what `_seconds_text` writes; None where that is nothing (year 0, a leap second)."""
    try:
        since = datetime.fromisoformat(text + "Z") - _EPOCH
    except ValueError:
        return None
    return since.days * 86_400 + since.seconds


def _write_time(value: _Value, text: str) -> None:
    match = _WRITTEN_TIME(text)
    seconds = _seconds_of(match[1]) if match is not None else None
    if match is None or seconds is None:
        value.ce_string = text
        return
    timestamp = value.ce_timestamp
    timestamp.seconds = seconds  # sets the field also where it is 0
    if match[2] is not None:
        timestamp.nanos = int(match[2].ljust(9, "0"))
