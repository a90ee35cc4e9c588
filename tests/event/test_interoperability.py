"""What becomes of events that SDKs write oddly or cannot read; docs/reference/interoperability.md."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from headgate.event.kafka import Header, decode_record, encode_headers
from headgate_api.errors import EventError
from headgate_api.event.http import decode_request, encode_binary
from headgate_api.event.json_format import decode_event, encode_event
from headgate_api.event.model import DataKind, Event

NEEDED = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}
HEADERS = [(f"ce-{name}".encode(), value.encode()) for name, value in NEEDED.items()]
KAFKA: list[Header] = [(f"ce_{name}", value.encode()) for name, value in NEEDED.items()]


def structured(**members: Any) -> Event:
    return decode_event(json.dumps(NEEDED | members).encode())


def binary(content_type: str, body: bytes) -> Event:
    (event,) = decode_request([*HEADERS, (b"content-type", content_type.encode())], body)
    return event


def sent(event: Event) -> tuple[dict[str, Any], dict[str, str], bytes]:
    """What subscribers get: the object of structured mode, the headers and the body of binary mode."""
    headers, body = encode_binary(event)
    return json.loads(encode_event(event)), dict(headers), body


@pytest.mark.parametrize(
    "media_type", ["application/vnd.acme.order_v1+json", "application/problem+json; charset=utf-8", "text/json"]
)
def test_every_json_media_type_is_json_in_every_mode(media_type: str) -> None:
    for event in (structured(datacontenttype=media_type, data={"n": 1}), binary(media_type, b'{"n": 1}')):
        assert event.data_kind is DataKind.JSON
        document, headers, body = sent(event)
        assert (document["datacontenttype"], document["data"]) == (media_type, {"n": 1})
        assert (headers["content-type"], json.loads(body)) == (media_type, {"n": 1})


@pytest.mark.parametrize("text", ["0", "false", '""', "null", "[]"])
def test_data_that_programs_take_for_none_stays(text: str) -> None:
    for event in (structured(data=json.loads(text)), binary("application/json", text.encode())):
        assert (event.data_kind, event.data) == (DataKind.JSON, text.encode())
        document, _, body = sent(event)
        assert (document["data"], body) == (json.loads(text), text.encode())


def test_bytes_stay_the_same_bytes_with_and_without_a_media_type() -> None:
    data = bytes(range(256))
    for named in ({"datacontenttype": "image/png"}, {}):
        event = structured(data_base64=base64.b64encode(data).decode(), **named)
        document, headers, body = sent(event)
        assert (base64.b64decode(document["data_base64"]), body) == (data, data)
        assert "data" not in document
        assert headers.get("content-type") == named.get("datacontenttype")


@pytest.mark.parametrize("member", [b'"data":ab', b'"data":'])
def test_a_structured_event_that_is_no_json_is_refused(member: bytes) -> None:
    with pytest.raises(EventError, match="JSON") as caught:
        decode_event(json.dumps(NEEDED).encode()[:-1] + b"," + member + b"}")
    assert caught.value.http_status == 400


@pytest.mark.parametrize("time", ["2016-12-31T23:59:60Z", "2026-01-31t12:00:00.5z"])
def test_a_time_is_delivered_as_it_was_written(time: str) -> None:
    document, headers, _ = sent(structured(time=time))
    assert (document["time"], headers["ce-time"]) == (time, time)


def test_an_extension_is_no_fraction_and_null_is_none() -> None:
    with pytest.raises(EventError, match="not a number with fraction"):
        structured(n=1.5)
    assert structured(region=None).extensions == {}
    (text,) = decode_request([*HEADERS, (b"ce-region", b"null")], b"")
    assert text.extensions == {"region": "null"}


@pytest.mark.parametrize("body", [b"['a', 1]", b"{'a': 1}", b"True"])
def test_a_body_that_is_no_json_whatever_its_media_type_says_is_bytes(body: bytes) -> None:
    event = binary("application/json", body)
    assert (event.data_kind, event.data) == (DataKind.BINARY, body)
    assert sent(event)[2] == body


@pytest.mark.parametrize("parameter", ["", ";charset=utf-8", "; charset=UTF-8"])
def test_the_media_type_alone_decides_the_mode(parameter: str) -> None:
    content_type = f"application/cloudevents+json{parameter}".encode()
    (event,) = decode_request([*HEADERS, (b"content-type", content_type)], json.dumps(NEEDED | {"id": "2"}).encode())
    assert event.id == "2"


def test_a_structured_record_needs_neither_a_time_nor_other_headers() -> None:
    event = decode_record([("content-type", b"application/cloudevents+json")], json.dumps(NEEDED).encode())
    assert (event.id, event.time) == ("1", None)


def test_an_empty_value_of_a_record_is_data_and_an_empty_body_is_none() -> None:
    assert decode_record(KAFKA, None).data_kind is DataKind.NONE
    record = decode_record(KAFKA, b"")
    assert (record.data_kind, record.data) == (DataKind.BINARY, b"")
    assert decode_request(HEADERS, b"")[0].data_kind is DataKind.NONE
    assert sent(record)[0]["data_base64"] == ""
    assert dict(encode_headers(record)) == dict(KAFKA)


def test_headers_that_the_binding_does_not_define_are_passed_over() -> None:
    trace = ("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-03")
    assert decode_record([*KAFKA, trace, trace, ("note", None)], None) == decode_record(KAFKA, None)
