"""Stored events as Kafka records: the CloudEvents binding in binary mode, and headers of `event/kafka.py`. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Final

import msgspec

from headgate.event.arrow import StoredEvent
from headgate.event.kafka import (
    BROKER,
    DATA_KIND,
    EXTENSIONS,
    PRODUCED,
    TIME_US,
    Header,
    encode_headers,
    read_headers,
    text_of,
)
from headgate.ingress.encode import Entries
from headgate.log.errors import UnreadableEventsError
from headgate_api.errors import EventError, TooLargeError
from headgate_api.event import json_text, rfc3339
from headgate_api.event.attributes import CONTEXT_ATTRIBUTES, make_event
from headgate_api.event.http import canonical
from headgate_api.event.model import DataKind, Event
from headgate_api.limits import KAFKA_RECORD_BYTES_MAX

_OURS: Final = frozenset({BROKER, DATA_KIND, TIME_US, EXTENSIONS, PRODUCED})
_CONTEXT: Final = frozenset(CONTEXT_ATTRIBUTES)
_CONTEXT_OF_03: Final = _CONTEXT - {"dataschema"} | {"schemaurl"}
_encode: Final = msgspec.json.Encoder().encode
_decode_extensions: Final = msgspec.json.Decoder(dict[str, str | int | bool | dict[str, Any]]).decode
_KINDS: Final = {str(int(kind)): kind for kind in DataKind}


class RecordError(UnreadableEventsError):
    """A record of the topic `events` that Headgate has not written so."""

    code = "record"


@dataclass(frozen=True, slots=True)
class KafkaRecord:
    """What is sent to Kafka: of an event the partition key and the data.

    In a topic of state, which is compacted, `key` names what `value` says something about; None: it is gone.
    """

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        """What it takes in a topic at most: each of Kafka's own numbers counts as long as can be."""
        headers = sum(len(name) + len(value) + 10 for name, value in self.headers)
        return len(self.key or b"") + len(self.value or b"") + headers + 100


def encode_record(broker: str, event: Event, produced: str | None = None) -> KafkaRecord:
    """Writes an event stored for a broker, by its identity; for `produced` see the log's column of that name."""
    headers = encode_headers(event)
    headers.append((BROKER, broker.encode()))
    headers.append((DATA_KIND, b"%d" % event.data_kind))
    if (time_us := _time_us(event)) is not None:
        headers.append((TIME_US, time_us.encode()))
    if event.extensions:
        headers.append((EXTENSIONS, _encode(event.extensions)))
    if produced is not None:
        headers.append((PRODUCED, produced.encode()))
    key = event.extensions.get("partitionkey")
    return KafkaRecord(None if key is None or key == "" else canonical(key).encode(), event.data, headers)


def decode_stored(headers: Iterable[Header], value: bytes | None) -> tuple[StoredEvent, str | None]:
    """Reads a stored event back, with its broker's identity and the column `produced`; RecordError says what is wrong.

    As strictly as what comes from outside: others may be able to write to the topic.
    """
    headers = list(headers)
    try:
        ours = _read_ours(headers)
        event = _event(headers, ours, value)
    except EventError as error:
        raise RecordError(f"no event that Headgate stored: {error.message}") from error
    return StoredEvent(ours[BROKER], event), ours.get(PRODUCED)


def _read_ours(headers: list[Header]) -> dict[str, str]:
    ours: dict[str, str] = {}
    for name, raw in headers:
        if name in _OURS:
            if name in ours:
                raise EventError("a header must appear only once", attribute=name)
            ours[name] = text_of(raw, name)
    for name in (BROKER, DATA_KIND):
        if not ours.get(name):
            raise EventError("the header is missing", attribute=name)
    return ours


def _event(headers: list[Header], ours: dict[str, str], value: bytes | None) -> Event:
    texts, content_type = read_headers([header for header in headers if header[0] not in _OURS], KAFKA_RECORD_BYTES_MAX)
    kind = _KINDS.get(ours[DATA_KIND])
    if kind is None:
        raise EventError(f"must be one of {', '.join(_KINDS)}", attribute=DATA_KIND)
    _check_data(kind, value)
    context = _CONTEXT_OF_03 if texts.get("specversion") == "0.3" else _CONTEXT
    attributes: dict[str, object] = {name: text for name, text in texts.items() if name in context}
    typed = _typed(ours.get(EXTENSIONS))
    if {name: canonical(each) for name, each in typed.items()} != {
        name: text for name, text in texts.items() if name not in attributes
    }:
        raise EventError("must hold the extensions that the ce_ headers hold", attribute=EXTENSIONS)
    event = make_event({**attributes, **typed, "datacontenttype": content_type}, kind, value)
    if ours.get(TIME_US) != _time_us(event):
        raise EventError("must be the instant of ce_time", attribute=TIME_US)
    return event


def _time_us(event: Event) -> str | None:
    time_us = None if event.time is None else rfc3339.micros(event.time)
    return None if time_us is None else str(time_us)


def _typed(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        return _decode_extensions(text)
    except msgspec.DecodeError as error:
        raise EventError(f"must be a JSON object of extensions: {error}", attribute=EXTENSIONS) from error


def _check_data(kind: DataKind, value: bytes | None) -> None:
    """The value must be what its kind says: readers and the matcher rely on it."""
    if (value is None) != (kind is DataKind.NONE):
        raise EventError("is 0 exactly where the record has no value", attribute=DATA_KIND)
    if value is None or kind is DataKind.BINARY:
        return
    try:
        if kind is DataKind.JSON:
            json_text.check(value)
        else:
            value.decode()
    except (json_text.MalformedJsonError, json_text.AmbiguousJsonError, UnicodeDecodeError) as error:
        raise EventError(f"the value is not what the kind says: {error}", attribute=DATA_KIND) from error


# --- entry records --------------------------------------------------------------------------------


def records_of(entries: Entries) -> list[KafkaRecord]:
    """The records of some events; TooLargeError when one is larger than the topic takes."""
    found = []
    for event, produced in zip_longest(entries.events, entries.produced):
        found.append(checked_record(entries.broker, event, produced))
    return found


def checked_record(broker: str, event: Event, produced: str | None = None) -> KafkaRecord:
    """The record of an event, see `encode_record`; TooLargeError when it is larger than the topic takes."""
    record = encode_record(broker, event, produced)
    if record.size_bytes > KAFKA_RECORD_BYTES_MAX:
        raise TooLargeError(f"an event of {record.size_bytes} bytes is over the {KAFKA_RECORD_BYTES_MAX} of a record")
    return record
