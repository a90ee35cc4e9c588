"""The Kafka protocol binding of CloudEvents: binary and structured mode of one record; and headers of our own.

Names and values of headers are UTF-8, as they are: nothing is percent-encoded, unlike in HTTP. A record has one event;
the batched mode does not exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from headgate_api.errors import EventError, EventTooLargeError
from headgate_api.event.http import STRUCTURED_JSON, canonical, event_of_binary, structured_format
from headgate_api.event.json_format import decode_event
from headgate_api.event.model import Event
from headgate_api.limits import EVENT_BYTES_MAX, HEADER_ATTRIBUTES_BYTES_MAX

Header = tuple[str, bytes | None]
"""A record's header; Kafka allows one without a value."""
PREFIX: Final = "ce_"
CONTENT_TYPE: Final = "content-type"


def decode_record(headers: Iterable[Header], value: bytes | None) -> Event:
    """The event of a record that any producer may have written; EventError names the attribute and the rule.

    Headers are in order, with duplicates; unknown ones are passed over. A value of None is no data, in binary mode.
    """
    if value is not None and len(value) > EVENT_BYTES_MAX:
        raise EventTooLargeError(f"an event must not be larger than {EVENT_BYTES_MAX} bytes")
    attributes, content_type = read_headers(headers, HEADER_ATTRIBUTES_BYTES_MAX)
    if content_type is not None and structured_format(content_type, (STRUCTURED_JSON,)) is not None:
        return decode_event(value or b"")
    return event_of_binary(dict(attributes), content_type, value)


def read_headers(headers: Iterable[Header], bytes_max: int) -> tuple[dict[str, str], str | None]:
    """The attributes in a record's headers, as text, and its content type.

    Raises EventError where a header of the binding is there twice, has no value or is no UTF-8; EventTooLargeError
    where names and values together are over `bytes_max`.
    """
    attributes: dict[str, str] = {}
    content_type: str | None = None
    size_bytes = 0
    for name, raw in headers:
        size_bytes += len(name) + len(raw or b"")
        if size_bytes > bytes_max:
            raise EventTooLargeError(f"headers together must not exceed {bytes_max} bytes")
        if name == CONTENT_TYPE:
            if content_type is not None:
                raise EventError("the header content-type must appear only once", attribute="datacontenttype")
            content_type = text_of(raw, "datacontenttype").strip(" \t")
        elif name.startswith(PREFIX):
            attribute = name[len(PREFIX) :]
            if attribute in attributes:
                raise EventError("an attribute must appear only once", attribute=attribute[:64])
            attributes[attribute] = text_of(raw, attribute)
    return attributes, content_type


def text_of(raw: bytes | None, attribute: str) -> str:
    """A header's value as text; raises EventError where it has none, or is no UTF-8."""
    if raw is None:
        raise EventError("the header has no value", attribute=attribute[:64])
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise EventError("a header's value must be UTF-8", attribute=attribute[:64]) from None


def encode_headers(event: Event) -> list[tuple[str, bytes]]:
    """The headers of an event in binary mode; its data is the record's value, None for no data.

    Without a media type there is no content type, also for JSON: who reads the record back must not find one. An
    extension that is a map becomes its JSON text.
    """
    fields: Sequence[tuple[str, str | None]] = (
        ("specversion", event.specversion),
        ("id", event.id),
        ("source", event.source),
        ("type", event.type),
        ("subject", event.subject),
        ("time", event.time),
        ("dataschema" if event.specversion == "1.0" else "schemaurl", event.dataschema),
    )
    headers = [(PREFIX + name, text.encode()) for name, text in fields if text is not None]
    headers += [(PREFIX + name, canonical(value).encode()) for name, value in event.extensions.items()]
    if event.datacontenttype is not None:
        headers.append((CONTENT_TYPE, event.datacontenttype.encode()))
    return headers


# --- headers of ours ------------------------------------------------------------------------------
# Those of a stored event's record, beside those of the CloudEvents binding, which loses what they hold. They hold the
# text of the log's columns of those names (`event/arrow.py`), so that Spark reads the same from both.

BROKER: Final = "headgate_broker"  # identity of the broker that accepted the event
DATA_KIND: Final = "headgate_data_kind"  # how the value is to be read: a number of `DataKind`
TIME_US: Final = "headgate_time_us"  # the event's time in microseconds since 1970 UTC; absent without one
EXTENSIONS: Final = "headgate_extensions"  # as a JSON object with their types; absent without extensions
PRODUCED: Final = "headgate_produced"  # NUMBER:PRODUCER where the producer numbers its events
