"""How is an event written as a protobuf message? CloudEvents' protobuf format, both ways.

What the format leaves open: JSON data travels as text (it is text), a protobuf message as `proto_data` with the type
URL that `dataschema` names. A time is a timestamp where its text is the one that a timestamp is read as, else a string:
what came as text goes out as the same text, whatever its version and its digits.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.timestamp_pb2 import Timestamp

from headgate.event.attributes import make_event, media_type
from headgate.event.data import decode_base64, kind_of
from headgate.event.errors import EventError, EventTooLargeError
from headgate.event.model import DataKind, Event
from headgate.limits import ATTRIBUTE_NAME_CHARS_MAX, EVENT_BYTES_MAX
from headgate.rpc.cloudevents_pb2 import CloudEvent

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
_STRINGS: Final = frozenset(["ce_string", "ce_uri", "ce_uri_ref"])
_PLAIN: Final = frozenset(["ce_boolean", "ce_integer"])
_FIELDS: Final = {"id": "id", "source": "source", "type": "type", "specversion": "spec_version"}


def to_message(event: Event) -> CloudEvent:
    """Writes an event as a message.

    JSON data without a media type gets "application/json", as the JSON event format implies it.
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
        else:
            attributes[name].ce_integer = value
    data = event.data
    if data is not None:
        if event.data_kind is not DataKind.BINARY:
            message.text_data = data.decode()
            if content_type is None and event.data_kind is DataKind.JSON:
                content_type = "application/json"
        elif event.dataschema is not None and _is_protobuf(content_type):
            message.proto_data.type_url = event.dataschema.removeprefix(_HTTPS)
            message.proto_data.value = data
        else:
            message.binary_data = data
    if content_type is not None:
        attributes["datacontenttype"].ce_string = content_type
    return message


def from_messages(messages: Iterable[CloudEvent]) -> list[Event]:
    """Reads events: all of them or none.

    Raises:
        EventError: Names the index of the event, the attribute and the rule.
    """
    events: list[Event] = []
    try:
        for message in messages:
            events.append(from_message(message))  # noqa: PERF401 - their number is the index of what is wrong
    except EventError as error:
        raise error.at(len(events)) from None
    return events


def from_message(message: CloudEvent) -> Event:
    """Reads a message.

    Raises:
        EventError: Names the attribute and the rule.
    """
    if message.ByteSize() > EVENT_BYTES_MAX:
        raise EventTooLargeError(f"an event must not be larger than {EVENT_BYTES_MAX} bytes")
    version = message.spec_version
    attributes: dict[str, object] = {
        "specversion": version or None,
        "id": message.id or None,
        "source": message.source or None,
        "type": message.type or None,
    }
    for name, value in message.attributes.items():
        kind = value.WhichOneof("attr")
        if name in _FIELDS or name == "data":
            _refuse_twice(name)
        if kind in _STRINGS or kind in _PLAIN:
            attributes[name] = getattr(value, kind)
        else:
            attributes[name] = _text_of(name, kind, value)
    where = message.WhichOneof("data")
    if where == "proto_data":
        return _with_message(attributes, message.proto_data)
    content_type = attributes.get("datacontenttype")
    media = content_type if type(content_type) is str else None
    if where is None:
        return make_event(attributes, DataKind.NONE, None)
    if version == "0.3" and "datacontentencoding" in attributes:
        if attributes.pop("datacontentencoding") != "base64":
            raise EventError('the only value is "base64"', attribute="datacontentencoding")
        data = decode_base64(message.text_data if where == "text_data" else message.binary_data.decode("latin-1"))
        return make_event(attributes, kind_of(media, data), data)
    if where == "binary_data":
        data = message.binary_data
        return make_event(attributes, kind_of(media, data), data)
    data = message.text_data.encode()
    known = media_type(media) if media is not None else None
    kind_of_text = kind_of(media, data) if known is not None and known.is_json else DataKind.TEXT
    return make_event(attributes, kind_of_text, data, media=known)


def _with_message(attributes: dict[str, object], packed: AnyMessage) -> Event:
    """An event whose data is a protobuf message: its bytes; what it is says `dataschema`, as the format wants it."""
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
    return make_event(attributes, DataKind.BINARY, packed.value)


def _is_protobuf(content_type: str | None) -> bool:
    media = media_type(content_type) if content_type is not None else None
    return media is not None and media.essence == _PROTOBUF


def _text_of(name: str, kind: str | None, value: _Value) -> str:
    """The string form of a value of a type that an `Event` does not hold (CloudEvents type system)."""
    if kind == "ce_timestamp":
        return _timestamp_text(name, value.ce_timestamp)
    if kind == "ce_bytes":
        return b64encode(value.ce_bytes).decode()
    raise EventError("must have a value", attribute=name[:ATTRIBUTE_NAME_CHARS_MAX])


def _refuse_twice(name: str) -> None:
    field = _FIELDS.get(name)
    rule = f"must be in the message's field {field}, not among its attributes" if field else "data is no attribute"
    raise EventError(rule, attribute=name)


def _timestamp_text(name: str, value: Timestamp) -> str:
    seconds, nanos = value.seconds, value.nanos
    if not _SECONDS_MIN <= seconds <= _SECONDS_MAX or not 0 <= nanos < _NANOS:
        raise EventError("a timestamp must be within the years 1 to 9999", attribute=name[:ATTRIBUTE_NAME_CHARS_MAX])
    text = (_EPOCH + timedelta(0, seconds)).isoformat()[:19]
    if nanos == 0:
        return f"{text}Z"
    digits = f"{nanos:09}"
    while digits.endswith("000"):
        digits = digits[:-3]
    return f"{text}.{digits}Z"


def _write_time(value: _Value, text: str) -> None:
    match = _WRITTEN_TIME(text)
    if match is not None:
        try:
            since = datetime.fromisoformat(match[1] + "Z") - _EPOCH
        except ValueError:  # year 0, a leap second
            pass
        else:
            value.ce_timestamp.seconds = since.days * 86_400 + since.seconds
            if match[2] is not None:
                value.ce_timestamp.nanos = int(match[2].ljust(9, "0"))
            else:
                value.ce_timestamp.SetInParent()
            return
    value.ce_string = text
