"""The kinds of event data: none, JSON, text, binary."""

from __future__ import annotations

import binascii
from typing import Final

import msgspec

from headgate_api.errors import EventError, EventTooLargeError
from headgate_api.event import json_text
from headgate_api.event.attributes import is_json
from headgate_api.event.model import DataKind


class _DataOnly(msgspec.Struct):
    """The bytes of an event's member `data` in the JSON format; everything else is read elsewhere."""

    data: msgspec.Raw = msgspec.Raw()


decode_data: Final = msgspec.json.Decoder(_DataOnly).decode
decode_batch_data: Final = msgspec.json.Decoder(list[_DataOnly]).decode


def kind_of(content_type: str | None, data: bytes) -> DataKind:
    """Kind of data that came as bytes: in a binary request's body or as Base64.

    Without a media type nothing is assumed. Bytes that call themselves JSON and are not stay what they are: BINARY.
    Raises EventError for JSON that breaks one of the rules of `json_text`.
    """
    if not is_json(content_type):
        return DataKind.BINARY
    try:
        json_text.check(data)
    except json_text.MalformedJsonError:
        return DataKind.BINARY
    except json_text.ComplexJsonError as error:
        raise too_complex(error) from None
    except json_text.AmbiguousJsonError as error:
        raise EventError(str(error), attribute="data") from None
    return DataKind.JSON


def too_complex(error: json_text.ComplexJsonError) -> EventTooLargeError:
    """What the producer of such data is told."""
    hint = "send parts of it as events of their own"
    return EventTooLargeError(f"{error} (JSON_CONTAINERS_MAX)", hint=hint)


def takes_base64(attributes: dict[str, object]) -> bool:
    """Whether data is Base64 by `datacontentencoding`, which an event of version 0.3 may have: it is taken away."""
    if attributes.get("specversion") != "0.3":
        return False
    encoding = attributes.pop("datacontentencoding", None)
    if encoding not in (None, "base64"):
        raise EventError('the only value is "base64"', attribute="datacontentencoding")
    return encoding is not None


def decode_base64(encoded: object) -> bytes:
    """Decodes data that is written as Base64 (RFC 4648, padded, no line breaks); raises EventError where it is not."""
    if type(encoded) is not str:
        raise EventError("must be a string of Base64", attribute="data")
    try:
        return binascii.a2b_base64(encoded, strict_mode=True)
    except ValueError:
        raise EventError("must be Base64 (RFC 4648)", attribute="data") from None
