"""The values of the client: events, filters and places go in; events with their places, and numbers, come out."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import msgspec

from headgate_api.errors import EventError, InvalidInputError
from headgate_api.event import json_text
from headgate_api.event.attributes import CONTEXT_ATTRIBUTES, make_event, media_type
from headgate_api.event.data import kind_of
from headgate_api.event.model import DataKind, Event, ExtensionValue
from headgate_api.rpc import headgate_pb2 as pb

_JSON = "application/json"


class SupportsCel(Protocol):
    """A filter that gives its CEL text: what `headgate.expr` builds."""

    def cel(self) -> str:
        """The CEL text."""
        ...


Single = str | SupportsCel | Mapping[str, object]
"""CEL text, an expression of `headgate.expr`, or a JSON object as in a trigger's `spec.filter`."""

Filter = Single | Sequence[Mapping[str, object]]
"""CEL text, an expression of `headgate.expr`, or JSON as a trigger has it: `spec.filter` or a list `spec.filters`."""

Place = str | datetime
"""`earliest`, `latest`, `next` (readers only), a time of storing, or a position that was given before."""


@dataclass(frozen=True, slots=True)
class ReadEvent:
    """An event of the log, and its place there."""

    event: Event
    partition: int
    offset: int

    def json(self) -> object:
        """The event's JSON data, decoded; raises InvalidInputError when it has none."""
        return json_of(self.event)


@dataclass(frozen=True, slots=True)
class Received:
    """An event of a subscription, and its place in the log.

    Attributes:
        ack_id: What names it in acknowledgements.
        deliveries: 1 the first time that the server hands it out.
    """

    event: Event
    ack_id: str
    deliveries: int
    partition: int
    offset: int

    def json(self) -> object:
        """The event's JSON data, decoded; raises InvalidInputError when it has none."""
        return json_of(self.event)


@dataclass(frozen=True, slots=True)
class Progress:
    """What a reader has gone over since its stream began; begins anew with a reconnect.

    Attributes:
        at_end: Nothing is behind it now.
        chunks_read: Chunks that were looked into.
        chunks_skipped: Chunks that were passed over by a look at their header.
        chunks_false_positive: Of those looked into, those that held no such filter value.
        events_scanned: Events of the chunks that were looked into.
        events_matched: Events handed out.
        filter_errors: Events on which the filter is an error; they do not match.
        events_missed: Removed by retention before the reader came to them.
        events_corrupt: In damaged chunks that were passed over.
    """

    at_end: bool = False
    chunks_read: int = 0
    chunks_skipped: int = 0
    chunks_false_positive: int = 0
    events_scanned: int = 0
    events_matched: int = 0
    filter_errors: int = 0
    events_missed: int = 0
    events_corrupt: int = 0


@dataclass(frozen=True, slots=True)
class SeekProgress:
    """How far a seek is: events looked at, of about as many as there are."""

    events_scanned: int
    events_total: int


@dataclass(frozen=True, slots=True)
class SeekResult:
    """Where a subscription goes on after a seek; `epoch` counts its seeks."""

    position: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Stats:
    """Where a subscription stands, in events; since it was made, but for the last six.

    Attributes:
        processed: Looked at.
        accepted: Of them, those for consumers.
        rejected: Of them, those that the filter does not want.
        errors: Of them, those for which the filter is an error.
        lost: Of them, those that retention had removed.
        acknowledged: Accepted and acknowledged.
        redelivered: How often one was handed out again.
        expired: Given up: not taken for too long, or handed out too often.
        backlog: Unread or unacknowledged now.
        candidates: Of the backlog, unread and still to be decided by cel-cpp.
        unacknowledged: With consumers now.
        oldest_unacknowledged: When the oldest event of the backlog was stored, RFC 3339; None without one.
        epoch: Counts the subscription's seeks.
        consumer: Who has it, unless it is shared.
        history_left: Events of the log that its history has still to look at; not part of the backlog.
    """

    processed: int
    accepted: int
    rejected: int
    errors: int
    lost: int
    acknowledged: int
    redelivered: int
    expired: int
    backlog: int
    candidates: int
    unacknowledged: int
    oldest_unacknowledged: str | None
    epoch: int
    consumer: str | None
    history_left: int


@dataclass(frozen=True, slots=True)
class Analysis:
    """What a filter would take of a backlog, in events.

    `events` are those that were looked at: accepted, rejected, or errors of the filter. `complete`: that was all of it.
    """

    events: int
    accepted: int
    rejected: int
    errors: int
    complete: bool


def new_event(
    type: str,
    source: str,
    data: object = None,
    *,
    id: str | None = None,
    subject: str | None = None,
    time: str | datetime | None = None,
    datacontenttype: str | None = None,
    dataschema: str | None = None,
    extensions: Mapping[str, ExtensionValue] | None = None,
) -> Event:
    """Makes a CloudEvent of version 1.0.

    Args:
        type: The kind of occurrence.
        source: Where it happened, a URI-reference.
        data: None for none. With a `datacontenttype` that is not JSON a str is text; bytes are what they are, with a
            JSON media type JSON already. Anything else becomes JSON.
        id: Unique within the source; a new UUID by default.
        subject: What it is about.
        time: RFC 3339, or a datetime with a time zone.
        datacontenttype: Media type of the data; "application/json" by default for JSON.
        dataschema: An absolute URI.
        extensions: More attributes.

    Raises:
        EventError: Names the attribute and the rule that it breaks.
    """
    attributes: dict[str, object] = {**(extensions or {})}
    taken = attributes.keys() & {"data", *CONTEXT_ATTRIBUTES}
    if taken:
        raise EventError("is no extension", attribute=min(taken))
    media = media_type(datacontenttype) if datacontenttype is not None else None
    is_json = datacontenttype is None or (media is not None and media.is_json)
    kind, stored = DataKind.NONE, None
    match data:
        case None:
            pass
        case bytes():
            kind, stored = kind_of(datacontenttype, data), data
        case str() if not is_json:
            kind, stored = DataKind.TEXT, data.encode()
        case _ if is_json:
            kind, stored = DataKind.JSON, _json_bytes(data)
            datacontenttype = datacontenttype or _JSON
        case _:
            raise EventError(f"must be str or bytes, because {datacontenttype!r} is not JSON", attribute="data")
    attributes |= {
        "specversion": "1.0",
        "id": str(uuid.uuid4()) if id is None else id,
        "source": source,
        "type": type,
        "subject": subject,
        "time": _rfc3339(time) if isinstance(time, datetime) else time,
        "datacontenttype": datacontenttype,
        "dataschema": dataschema,
    }
    return make_event(attributes, kind, stored)


def json_of(event: Event) -> object:
    """An event's JSON data, decoded; InvalidInputError when it has none."""
    if event.data_kind is not DataKind.JSON or event.data is None:
        kind = "no data" if event.data is None else f"data of {event.datacontenttype or 'no media type'}"
        raise InvalidInputError(f"event {event.id!r} has {kind}, not JSON", hint="its bytes are in event.data")
    json_text.allow_deep_json()  # a program's own process: nothing of Headgate ran at its start
    return msgspec.json.decode(event.data)


def _json_bytes(value: object) -> bytes:
    json_text.allow_deep_json()
    try:
        text = msgspec.json.encode(value)
        json_text.check(text)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise EventError(f"cannot be JSON: {error}", attribute="data") from None
    return text


def filter_message(wanted: Filter | None) -> pb.Filter | None:
    """A filter as the server takes it; InvalidInputError where it is none."""
    if wanted is None:
        return None
    if isinstance(wanted, str):
        return pb.Filter(cel=wanted)
    try:
        if isinstance(wanted, Mapping):
            return pb.Filter(filter=msgspec.json.encode(wanted).decode())
        if isinstance(wanted, Sequence):
            return pb.Filter(filters=msgspec.json.encode(wanted).decode())
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInputError(f"the filter cannot be JSON: {error}") from error
    return pb.Filter(cel=wanted.cel())


def condition_text(wanted: Single | None) -> str:
    """A place's condition as the server takes it, empty without one; InvalidInputError where it is none."""
    if wanted is None or isinstance(wanted, str):
        return wanted or ""
    message = filter_message(wanted)
    if message is None or message.filters:
        raise InvalidInputError("first and last are one filter each, not a list")
    return message.cel or message.filter


def place_text(place: Place) -> str:
    """A place as the server takes it."""
    return _rfc3339(place) if isinstance(place, datetime) else place


def _rfc3339(moment: datetime) -> str:
    if moment.tzinfo is None:
        raise InvalidInputError(f"{moment} has no time zone", hint="datetime.now(tz=UTC)")
    return moment.isoformat().replace("+00:00", "Z")
