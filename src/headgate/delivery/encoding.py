"""Events as HTTP requests: binary or structured mode, batches, and dead letters with their error."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from headgate.event.hops import HOPS_HEADER, ROOT_HEADER, hops_of, with_lineage
from headgate.event.trace import TRACEPARENT, Context, context_of
from headgate_api import limits
from headgate_api.event.http import BATCH_JSON, STRUCTURED_JSON, encode_binary
from headgate_api.event.json_format import encode_batch, encode_event
from headgate_api.event.model import Event, holds_map

Headers = list[tuple[str, str]]
Wire = tuple[Headers, bytes]
"""Headers and body of a POST."""

_REPLY: Final = ("prefer", "reply")


def binary(event: Event, root: str, *, reply: bool = True) -> Wire:
    """Binary mode; the data byte for byte. An event that has no binary mode goes out in structured mode."""
    if holds_map(event):
        return structured(event, root, reply=reply)
    headers, body = encode_binary(with_lineage(event, 0))
    headers += _lineage(event, root)
    if TRACEPARENT in event.extensions:
        headers += context_of(event).items()
    if reply:
        headers.append(_REPLY)
    return headers, body


def structured(event: Event, root: str, *, reply: bool = True) -> Wire:
    """Structured mode (JSON)."""
    headers = [("content-type", STRUCTURED_JSON), *_lineage(event, root), *context_of(event).items()]
    return ([*headers, _REPLY] if reply else headers), encode_event(with_lineage(event, 0))


def batch(events: Sequence[Event], furthest: Event, root: str, *, reply: bool = True) -> Wire:
    """Batched mode; its lineage is that of the event that has been through most brokers."""
    headers = [("content-type", BATCH_JSON), *_lineage(furthest, root)]
    return ([*headers, _REPLY] if reply else headers), encode_batch([with_lineage(event, 0) for event in events])


def _lineage(event: Event, root: str) -> Headers:
    return [(HOPS_HEADER, str(hops_of(event) + 1)), (ROOT_HEADER, root)]


def traced(headers: list[tuple[str, str]], trace: Context) -> list[tuple[str, str]]:
    """The headers of this hop: its own context in the place of the one that the event carries."""
    return [header for header in headers if header[0] not in trace] + list(trace.items())


def dead(event: Event, destination: str, code: int, data: bytes) -> Event:
    """The event with what went wrong, as Knative names it; of `data` so much that its Base64 has 1,024 characters."""
    text = base64.b64encode(data[: limits.ERROR_BODY_BYTES_MAX]).decode()
    extensions = {**event.extensions, "knativeerrordest": destination, "knativeerrorcode": code}
    extensions.pop("knativeerrordata", None)
    if text:
        extensions["knativeerrordata"] = text
    return msgspec.structs.replace(event, extensions=extensions)


def encoded(event: Event, root: str, format_: Literal["binary", "json", "batch"], *, reply: bool) -> Wire:
    """One event in a target's format; a batch of one is a batch."""
    match format_:
        case "binary":
            return binary(event, root, reply=reply)
        case "json":
            return structured(event, root, reply=reply)
        case "batch":
            return batch([event], event, root, reply=reply)
