"""Binary and structured mode, whatever protocol carries them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headgate.event.attributes import MediaType, make_event
from headgate.event.data import decode_base64, kind_of
from headgate.event.errors import EventError, EventFormatError
from headgate.event.model import DataKind, Event

_UTF8_CHARSETS: Final = frozenset(["", "utf-8", "utf8", "us-ascii"])
_NOT_HEADERS: Final = {
    "datacontenttype": "in binary mode datacontenttype is the header Content-Type",
    "data": "data is no attribute: in binary mode it is the body",
}


def event_of_binary(attributes: dict[str, object], content_type: str | None, body: bytes | None) -> Event:
    """Checks an event in binary mode and makes it.

    Args:
        attributes: By name, as text; consumed.
        content_type: Of the body; None without one.
        body: The data, None for no data.

    Raises:
        EventError: Names the attribute and the rule.
    """
    for name, rule in _NOT_HEADERS.items():
        if name in attributes:
            raise EventError(rule, attribute=name)
    if content_type is not None:
        attributes["datacontenttype"] = content_type
    data = body
    if attributes.get("specversion") == "0.3" and "datacontentencoding" in attributes:
        if attributes.pop("datacontentencoding") != "base64":
            raise EventError('the only value is "base64"', attribute="datacontentencoding")
        data = decode_base64((body or b"").decode("latin-1"))
    if body is None or data is None:
        return make_event(attributes, DataKind.NONE, None)
    return make_event(attributes, kind_of(content_type, data), data)


def is_structured(media: MediaType) -> bool:
    """Whether a content type says that the body is an event with its attributes, or several."""
    return media.essence.startswith("application/cloudevents")


def check_format(media: MediaType, formats: Sequence[str]) -> None:
    """Refuses a format of structured mode that is not one of `formats`.

    Raises:
        EventFormatError: The format or the charset is another one.
    """
    if media.charset not in _UTF8_CHARSETS:
        raise EventFormatError("the charset must be utf-8")
    if media.essence not in formats:
        raise EventFormatError(
            f"the event format {media.essence[:64]!r} is not supported", hint=f"use {' or '.join(formats)}"
        )
