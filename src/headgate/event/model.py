"""What is an event, once it is decoded? One frozen struct, the same for every mode and version."""

from __future__ import annotations

from enum import IntEnum

import msgspec

ExtensionValue = str | int | bool
"""What an extension attribute can be: a string, an integer (int32) or a boolean."""


class DataKind(IntEnum):
    """How the bytes in `Event.data` are to be read; stored as int8, so the numbers never change."""

    NONE = 0  # there is no data
    JSON = 1  # one JSON text in UTF-8, byte for byte as it came
    TEXT = 2  # UTF-8 text: a string in the JSON format whose media type is not JSON
    BINARY = 3  # anything else


class Event(msgspec.Struct, frozen=True, gc=False):
    """A CloudEvent. Values are valid: only `headgate.event`'s decoders and tests make one.

    Attributes:
        specversion: "1.0" or "0.3"; an event keeps the version it came in.
        id: Unique within `source`; never empty.
        source: A URI-reference; never empty.
        type: The kind of occurrence; never empty.
        subject: Never empty when present.
        time: RFC 3339, verbatim (nanoseconds and offsets are kept).
        datacontenttype: Media type of the data, verbatim with its parameters.
        dataschema: An absolute URI; in an event of version 0.3 this is `schemaurl`, a URI-reference.
        extensions: Every other attribute by name. From HTTP headers all are strings. Never mutated.
        data_kind: How `data` is to be read.
        data: None exactly when `data_kind` is NONE.
    """

    specversion: str
    id: str
    source: str
    type: str
    subject: str | None = None
    time: str | None = None
    datacontenttype: str | None = None
    dataschema: str | None = None
    extensions: dict[str, ExtensionValue] = msgspec.field(default_factory=dict)
    data_kind: DataKind = DataKind.NONE
    data: bytes | None = None
