"""What a record of a foreign topic becomes, by every rule."""

from __future__ import annotations

import json

import pytest

from headgate.backend.kafka.records import decode_stored
from headgate.backend.kafka.source import AdmittedRecord, ForeignRecord, RefusedRecord, admit
from headgate.event.kafka import Header
from headgate.ingress.partitions import partition_of_key
from headgate.objects.kinds.specs import DEFAULT_RULE, ServedBroker
from headgate_api.limits import EVENT_BYTES_MAX, KAFKA_RECORD_BYTES_MAX

BROKER = ServedBroker("ns/b/1", DEFAULT_RULE)
NEEDED: list[Header] = [("ce_specversion", b"1.0"), ("ce_id", b"1"), ("ce_source", b"/s"), ("ce_type", b"t")]
JSON: Header = ("content-type", b"application/json")


def foreign(
    headers: list[Header] | None, value: bytes | None = b'{"a":1}', key: bytes | None = None, offset: int = 7
) -> ForeignRecord:
    return ForeignRecord("orders", 3, offset, key, value, headers)


def admitted(record: ForeignRecord) -> AdmittedRecord:
    found = admit(record, BROKER, 16)
    assert isinstance(found, AdmittedRecord), found
    return found


def refused(record: ForeignRecord) -> RefusedRecord:
    found = admit(record, BROKER, 16)
    assert isinstance(found, RefusedRecord), found
    return found


def test_binary_and_structured_mode_become_the_same_event() -> None:
    structured = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "data": {"a": 1}}
    structured["datacontenttype"] = "application/json"
    one = admitted(foreign([*NEEDED, JSON]))
    other = admitted(
        foreign([("content-type", b"application/cloudevents+json; charset=utf-8")], json.dumps(structured).encode())
    )
    events = [decode_stored(each.record.headers, each.record.value)[0] for each in (one, other)]
    assert events[0].broker == BROKER.identity
    assert (events[0].event.data, json.loads(events[1].event.data or b"")) == (b'{"a":1}', {"a": 1})
    assert events[0].event.id == events[1].event.id == "1"


def test_the_key_decides_the_partition_and_else_where_it_came_from() -> None:
    keyed = [*NEEDED, JSON, ("ce_partitionkey", b"k1")]
    assert admitted(foreign(keyed, key=b"other")).partition == partition_of_key("k1", 16)
    assert admitted(foreign([*NEEDED, JSON], key=b"k1")).partition == partition_of_key("k1", 16)
    places = {admitted(foreign([*NEEDED, JSON], offset=offset)).partition for offset in range(9)}
    assert places == {partition_of_key("orders/3", 16)}


@pytest.mark.parametrize(
    ("headers", "value", "reason"),
    [
        ([], b"text", "specversion"),
        (NEEDED[1:], b"{}", "specversion"),
        ([*NEEDED, ("ce_id", b"2")], b"{}", "id: an attribute must appear only once"),
        ([*NEEDED, ("ce_x", b"\xff")], b"{}", "x: a header's value must be UTF-8"),
        ([*NEEDED, ("ce_x", None)], b"{}", "x: the header has no value"),
        ([*NEEDED, ("ce_headgatehops", b"1")], b"{}", "headgatehops: is the broker's own attribute"),
        ([("content-type", b"application/cloudevents+json")], b"{", "JSON"),
        ([("content-type", b"application/cloudevents-batch+json")], b"[]", "application/cloudevents-batch"),
        ([*NEEDED, ("ce_big", b"x" * (200 << 10))], b"{}", "headers together"),
        (None, b"{}", "no UTF-8"),
        ([], None, "specversion"),
        (NEEDED, b"x" * (EVENT_BYTES_MAX + 1), "larger than"),
    ],
)
def test_what_is_no_event_is_refused_with_the_reason(
    headers: list[Header] | None, value: bytes | None, reason: str
) -> None:
    found = refused(foreign(headers, value, key=b"k"))
    assert reason in found.reason
    named = dict(found.record.headers)
    assert (named["headgate_topic"], named["headgate_partition"], named["headgate_offset"]) == (b"orders", b"3", b"7")
    assert (named["headgate_broker"], named["headgate_reason"].decode()) == (BROKER.identity.encode(), found.reason)
    assert (found.record.key, found.record.value) == (b"k", value)
    assert named.get("headgate_dropped") == (b"headers" if headers is None else None)
    kept = [(name, raw or b"") for name, raw in headers or []]
    assert found.record.headers[: len(kept)] == kept


def test_a_refused_record_says_no_place_but_its_own() -> None:
    """Its producer may write headers of our names."""
    forged: list[Header] = [("headgate_offset", b"1"), ("headgate_reason", b"none"), ("mine", b"x")]
    headers = refused(foreign(forged)).record.headers
    assert [raw for name, raw in headers if name == "headgate_offset"] == [b"7"]
    assert sum(name == "headgate_reason" for name, _ in headers) == 1
    assert headers[0] == ("mine", b"x")


def test_what_has_no_room_is_left_out_and_said() -> None:
    large = refused(foreign([("x", b"1")], b"x" * KAFKA_RECORD_BYTES_MAX)).record
    assert (large.value, dict(large.headers)["headgate_dropped"], dict(large.headers)["x"]) == (None, b"value", b"1")
    headers: list[Header] = [("x", b"1" * KAFKA_RECORD_BYTES_MAX)]
    larger = refused(foreign(headers, b"x" * KAFKA_RECORD_BYTES_MAX, key=b"k" * KAFKA_RECORD_BYTES_MAX)).record
    assert (larger.key, larger.value, dict(larger.headers)["headgate_dropped"]) == (None, None, b"value,headers")
    assert larger.size_bytes < KAFKA_RECORD_BYTES_MAX
