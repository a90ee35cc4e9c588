"""The Kafka binding and the records of stored events."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.backend.kafka.records import RecordError, decode_stored, encode_record
from headgate.event.kafka import decode_record, encode_headers
from headgate_api.errors import EventError
from headgate_api.event.http import encode_binary
from headgate_api.event.json_format import decode_event, encode_event
from headgate_api.event.model import DataKind, Event, holds_map
from headgate_api.limits import HEADER_ATTRIBUTES_BYTES_MAX
from tests.event.strategies import events

BROKER = "default/default/1b4e28ba"
REQUIRED = [("ce_specversion", b"1.0"), ("ce_id", b"1"), ("ce_source", b"/s"), ("ce_type", b"t")]
EVENT = Event("1.0", "1", "/s", "t", time="2018-04-05T17:31:00.5Z", extensions={"n": 7, "flag": True, "text": "7"})


@given(events(), st.none() | st.just("7:producer"))
def test_a_stored_event_comes_back_as_it_was(event: Event, produced: str | None) -> None:
    record = encode_record(BROKER, event, produced)
    stored, number = decode_stored(record.headers, record.value)
    assert (stored.broker, stored.event, number) == (BROKER, event, produced)
    assert [type(value) for value in stored.event.extensions.values()] == [type(v) for v in event.extensions.values()]


@given(events())
def test_any_consumer_of_cloudevents_reads_what_the_binding_keeps(event: Event) -> None:
    """Values as text, and data as bytes; the kind of data is what the content type says."""
    record = encode_record(BROKER, event)
    read = decode_record(record.headers, record.value)
    assert read.data == event.data
    assert read.extensions.keys() == event.extensions.keys()
    assert all(type(value) is str for value in read.extensions.values())
    names = ("specversion", "id", "source", "type", "subject", "time", "dataschema", "datacontenttype")
    assert [getattr(read, name) for name in names] == [getattr(event, name) for name in names]


@given(events())
def test_a_structured_record_is_the_event(event: Event) -> None:
    headers = [("content-type", b"application/cloudevents+json; charset=UTF-8"), ("ce_id", b"passed over")]
    body = encode_event(event)
    assert decode_record(headers, body) == decode_event(body)


def test_maps_keep_their_shape() -> None:
    event = Event("0.3", "1", "/s", "t", extensions={"map": {"a": 1, "b": {"c": "x"}}})
    assert holds_map(event)
    record = encode_record(BROKER, event)
    assert ("ce_map", b'{"a":1,"b":{"c":"x"}}') in record.headers
    assert decode_stored(record.headers, record.value)[0].event == event


def test_an_extension_may_be_called_as_the_other_version_calls_the_schema() -> None:
    event = Event("1.0", "1", "/s", "t", dataschema="urn:x", extensions={"schemaurl": "/y"})
    record = encode_record(BROKER, event)
    assert decode_stored(record.headers, record.value)[0].event == event


def test_the_key_is_the_partition_key() -> None:
    assert encode_record(BROKER, Event("1.0", "1", "/s", "t")).key is None
    assert encode_record(BROKER, Event("1.0", "1", "/s", "t", extensions={"partitionkey": 7})).key == b"7"
    assert encode_record(BROKER, Event("1.0", "1", "/s", "t", extensions={"partitionkey": ""})).key is None


def test_nothing_is_percent_encoded() -> None:
    event = Event("1.0", "100%", "/s", "é")
    assert ("ce_id", b"100%") in encode_headers(event)
    assert ("ce_type", "é".encode()) in encode_headers(event)
    assert encode_binary(event)[0] != encode_headers(event)


def test_no_data_and_empty_data_differ() -> None:
    assert decode_record(REQUIRED, None).data_kind is DataKind.NONE
    assert (decode_record(REQUIRED, b"").data_kind, decode_record(REQUIRED, b"").data) == (DataKind.BINARY, b"")


@pytest.mark.parametrize(
    ("headers", "value", "reason"),
    [
        ([], b"{}", "specversion: REQUIRED attribute is missing"),
        ([*REQUIRED, ("ce_id", b"2")], None, "id: an attribute must appear only once"),
        ([*REQUIRED, ("ce_x", b"\xff")], None, "x: a header's value must be UTF-8"),
        ([*REQUIRED, ("ce_x", None)], None, "x: the header has no value"),
        ([*REQUIRED, ("ce_Upper", b"1")], None, "Upper: an attribute name must consist of"),
        ([*REQUIRED, ("ce_", b"1")], None, "an attribute name must consist of"),
        ([*REQUIRED, ("ce_data", b"1")], None, "data: data is no attribute"),
        ([*REQUIRED, ("ce_datacontenttype", b"a/b")], None, "datacontenttype: in binary mode"),
        ([*REQUIRED, ("ce_x", b"a\x00b")], None, "x: a string must not hold U+0000"),
        ([*REQUIRED, ("ce_time", b"yesterday")], None, "time: must be a timestamp"),
        ([*REQUIRED, ("content-type", b"text/plain"), ("content-type", b"a/b")], None, "must appear only once"),
        ([*REQUIRED, ("content-type", b"nonsense")], b"x", "datacontenttype: must be a media type"),
        ([*REQUIRED, ("ce_x", bytes(HEADER_ATTRIBUTES_BYTES_MAX))], None, "headers together must not exceed"),
        (REQUIRED, bytes((1 << 20) + 1), "an event must not be larger"),
        ([("content-type", b"application/cloudevents+json")], None, "must be JSON"),
        ([("content-type", b"application/cloudevents+json")], b"[]", "must be an object"),
        ([("content-type", b"application/cloudevents-batch+json")], b"[]", "is not supported"),
        ([("content-type", b"application/cloudevents+avro")], b"", "is not supported"),
        ([("content-type", b"application/cloudevents+json; charset=latin-1")], b"{}", "charset must be utf-8"),
    ],
)
def test_what_is_no_event_is_refused_with_the_reason(headers, value, reason) -> None:
    with pytest.raises(EventError) as caught:
        decode_record(headers, value)
    assert reason in str(caught.value)


def _replaced(name: str, value: bytes | None) -> list[tuple[str, bytes | None]]:
    headers = encode_record(BROKER, EVENT).headers
    assert name in dict(headers)
    return [(each, value if each == name else raw) for each, raw in headers]


@pytest.mark.parametrize(
    ("headers", "value", "reason"),
    [
        (REQUIRED, None, "headgate_broker: the header is missing"),
        (_replaced("headgate_broker", b""), None, "headgate_broker: the header is missing"),
        (_replaced("headgate_data_kind", b"4"), None, "headgate_data_kind: must be one of 0, 1, 2, 3"),
        (_replaced("headgate_data_kind", b"1"), None, "is 0 exactly where the record has no value"),
        (_replaced("headgate_data_kind", b"1"), b"{", "the value is not what the kind says"),
        (_replaced("headgate_data_kind", b"2"), b"\xff", "the value is not what the kind says"),
        (_replaced("headgate_data_kind", b"0"), b"x", "is 0 exactly where the record has no value"),
        (_replaced("headgate_time_us", b"1"), None, "must be the instant of ce_time"),
        (_replaced("headgate_extensions", b"{"), None, "must be a JSON object of extensions"),
        (_replaced("headgate_extensions", b'{"n":[1]}'), None, "must be a JSON object of extensions"),
        (_replaced("headgate_extensions", b'{"n":8,"flag":true,"text":"7"}'), None, "must hold the extensions"),
        (_replaced("headgate_extensions", b"\xff"), None, "must be UTF-8"),
        (_replaced("ce_n", b"8"), None, "must hold the extensions"),
        (_replaced("ce_id", b""), None, "id: must be a non-empty string"),
        ([*_replaced("ce_id", b"1"), ("headgate_broker", b"x")], None, "must appear only once"),
    ],
)
def test_a_forged_record_is_refused_with_the_reason(headers, value, reason) -> None:
    with pytest.raises(RecordError) as caught:
        decode_stored(headers, value)
    assert reason in str(caught.value)


_bytes = st.none() | st.binary(max_size=20)
_names = st.sampled_from(
    ["ce_id", "ce_source", "ce_type", "ce_specversion", "ce_x", "content-type", "headgate_broker", "headgate_data_kind"]
)


@given(st.lists(st.tuples(_names | st.text(max_size=10), _bytes), max_size=12), _bytes)
def test_no_record_does_anything_but_decode_or_be_refused(headers, value) -> None:
    for decode, error in ((decode_record, EventError), (decode_stored, RecordError)):
        with contextlib.suppress(error):
            decode([*REQUIRED, *headers], value)
