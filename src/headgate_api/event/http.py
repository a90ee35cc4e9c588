"""The HTTP protocol binding of CloudEvents: binary, structured and batched mode.

`Content-Type` alone decides the mode. Header values are unquoted once, then percent-decoded once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote, unquote_to_bytes

import msgspec

from headgate_api.errors import EventError, EventFormatError, EventTooLargeError
from headgate_api.event.attributes import make_event, media_type
from headgate_api.event.data import decode_base64, kind_of, takes_base64
from headgate_api.event.json_format import decode_batch, decode_event
from headgate_api.event.model import DataKind, Event, ExtensionValue
from headgate_api.limits import EVENT_BYTES_MAX, HEADER_ATTRIBUTES_BYTES_MAX

STRUCTURED_JSON: Final = "application/cloudevents+json"
BATCH_JSON: Final = "application/cloudevents-batch+json"
_JSON: Final = "application/json"
_QUOTED_STRING: Final = re.compile(rb'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_QUOTED_PAIR: Final = re.compile(rb"\\(.)", re.DOTALL)
_NEEDS_ENCODING: Final = re.compile(r'[^\x21-\x7e]|["%]')
_NEVER_ENCODED: Final = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')


def decode_request(headers: Sequence[tuple[bytes, bytes]], body: bytes) -> Sequence[Event]:
    """Reads the events of an HTTP request: one in binary or structured mode, any number in batched mode.

    `headers` are names in any case with values, without line folding, in order, duplicates included. EventError names
    the attribute and the rule; its `http_status` is 400, 413 or 415.
    """
    content_type: bytes | None = None
    attributes: list[tuple[bytes, bytes]] = []
    for header in headers:
        name = header[0].lower()
        if name[:3] == b"ce-":
            attributes.append((name, header[1]))
        elif name == b"content-type":
            if content_type is not None:
                raise EventError("the header Content-Type must appear only once", attribute="datacontenttype")
            content_type = header[1]
        elif name == b"content-encoding" and header[1].strip().lower() not in (b"", b"identity"):
            raise EventFormatError(
                "the header Content-Encoding must not be used", hint="send the body without compression"
            )
    if content_type is None:
        return [_decode_binary(attributes, None, body)]
    text = content_type.decode("latin-1").strip(" \t")
    event_format = structured_format(text, (STRUCTURED_JSON, BATCH_JSON))
    if event_format is None:
        return [_decode_binary(attributes, text, body)]
    return decode_batch(body) if event_format == BATCH_JSON else [decode_event(body)]


def _decode_binary(headers: list[tuple[bytes, bytes]], content_type: str | None, body: bytes) -> Event:
    if len(body) > EVENT_BYTES_MAX:
        raise EventTooLargeError(f"an event must not be larger than {EVENT_BYTES_MAX} bytes")
    attributes: dict[str, object] = {}
    size_bytes = 0
    for header, raw in headers:
        name = header[3:].decode("latin-1")
        size_bytes += len(header) + len(raw)
        if size_bytes > HEADER_ATTRIBUTES_BYTES_MAX:
            raise EventTooLargeError(f"ce- headers together must not exceed {HEADER_ATTRIBUTES_BYTES_MAX} bytes")
        if name in attributes:
            raise EventError("an attribute must appear only once", attribute=name[:64])
        attributes[name] = _decode_value(raw, name)
    return event_of_binary(attributes, content_type, body or None)


def _decode_value(raw: bytes, name: str) -> str:
    """A header's value as an attribute's: optional white space, then quotes, then one round of percent-decoding.

    A percent sign without two hexadecimal digits behind it stands for itself.
    """
    value = raw.strip(b" \t")
    if value[:1] == b'"':
        quoted = _QUOTED_STRING.fullmatch(value)
        if quoted is not None:
            value = _QUOTED_PAIR.sub(rb"\1", quoted[1])
    if b"%" in value:
        value = unquote_to_bytes(value)
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise EventError("a percent-decoded header value must be UTF-8", attribute=name[:64]) from None


def encode_binary(event: Event) -> tuple[list[tuple[str, str]], bytes]:
    """Headers (lower-case names, values in printable ASCII) and body of an event in binary mode; b"" for no data.

    JSON data without a media type gets "application/json", as the JSON event format implies it. An extension that is a
    map becomes its JSON text: see `holds_map`.
    """
    headers = [
        ("ce-specversion", event.specversion),
        ("ce-id", _encode_value(event.id)),
        ("ce-source", _encode_value(event.source)),
        ("ce-type", _encode_value(event.type)),
    ]
    if event.subject is not None:
        headers.append(("ce-subject", _encode_value(event.subject)))
    if event.time is not None:
        headers.append(("ce-time", _encode_value(event.time)))
    if event.dataschema is not None:
        name = "ce-dataschema" if event.specversion == "1.0" else "ce-schemaurl"
        headers.append((name, _encode_value(event.dataschema)))
    for name, value in event.extensions.items():
        headers.append((f"ce-{name}", _encode_value(canonical(value))))
    if event.datacontenttype is not None:
        headers.append(("content-type", event.datacontenttype))
    elif event.data_kind is DataKind.JSON:
        headers.append(("content-type", _JSON))
    return headers, event.data or b""


def canonical(value: ExtensionValue) -> str:
    """The string form of an attribute's value (CloudEvents type system); of a map its JSON text."""
    if type(value) is str:
        return value
    if type(value) is bool:
        return "true" if value else "false"
    if type(value) is dict:
        return msgspec.json.encode(value).decode()
    return str(value)


def _encode_value(value: str) -> str:
    return quote(value, safe=_NEVER_ENCODED) if _NEEDS_ENCODING.search(value) is not None else value


# --- modes ----------------------------------------------------------------------------------------
# Binary and structured mode, whatever protocol carries them: Kafka does, too.

_UTF8_CHARSETS: Final = frozenset(["", "utf-8", "utf8", "us-ascii"])
_NOT_HEADERS: Final = {
    "datacontenttype": "in binary mode datacontenttype is the header Content-Type",
    "data": "data is no attribute: in binary mode it is the body",
}


def event_of_binary(attributes: dict[str, object], content_type: str | None, body: bytes | None) -> Event:
    """Checks an event in binary mode and makes it, of attributes as text, which it consumes; raises EventError."""
    for name, rule in _NOT_HEADERS.items():
        if name in attributes:
            raise EventError(rule, attribute=name)
    if content_type is not None:
        attributes["datacontenttype"] = content_type
    data = decode_base64((body or b"").decode("latin-1")) if takes_base64(attributes) else body
    if body is None or data is None:
        return make_event(attributes, DataKind.NONE, None)
    return make_event(attributes, kind_of(content_type, data), data)


def structured_format(content_type: str, formats: Sequence[str]) -> str | None:
    """The format, one of `formats`, of a body that is an event with its attributes, or several; None in binary mode.

    Raises EventError where the content type is none, EventFormatError for another format or charset.
    """
    media = media_type(content_type)
    if media is None:
        raise EventError("must be a media type as in RFC 2046 (type/subtype)", attribute="datacontenttype")
    if not media.essence.startswith("application/cloudevents"):
        return None
    if media.charset not in _UTF8_CHARSETS:
        raise EventFormatError("the charset must be utf-8")
    if media.essence not in formats:
        raise EventFormatError(
            f"the event format {media.essence[:64]!r} is not supported", hint=f"use {' or '.join(formats)}"
        )
    return media.essence
