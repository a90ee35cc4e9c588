"""The rules that the public cases do not reach, each with the attribute that it names."""

import base64
import json

import pytest

from headgate_api.errors import EventError, EventFormatError, EventTooLargeError
from headgate_api.event import json_format
from headgate_api.event.http import BATCH_JSON, STRUCTURED_JSON, decode_request, encode_binary
from headgate_api.event.json_format import decode_batch, decode_event, encode_batch, encode_event
from headgate_api.event.json_text import is_light
from headgate_api.event.model import DataKind, Event
from headgate_api.limits import (
    ATTRIBUTE_NAME_CHARS_MAX,
    BATCH_BYTES_MAX,
    BATCH_EVENTS_MAX,
    EVENT_BYTES_MAX,
    HEADER_ATTRIBUTES_BYTES_MAX,
    JSON_CONTAINERS_MAX,
    JSON_DEPTH_MAX,
)
from tests.support import times

pytestmark = pytest.mark.usefixtures("json_checks")

MINIMAL = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}
OLD = MINIMAL | {"specversion": "0.3"}
HEADERS = [(f"ce-{name}".encode(), value.encode()) for name, value in MINIMAL.items()]
OLD_HEADERS = [(b"ce-specversion", b"0.3"), *HEADERS[1:]]


def structured(**members):
    return decode_event(json.dumps(MINIMAL | members).encode())


def old(**members):
    return decode_event(json.dumps(OLD | members).encode())


def refused(decode, *arguments, **members):
    with pytest.raises(EventError) as caught:
        decode(*arguments, **members)
    return caught.value


@pytest.mark.parametrize(
    ("members", "attribute"),
    [
        ({"source": "a b"}, "source"),
        ({"source": "/käse"}, "source"),
        ({"source": "/%zz"}, "source"),
        ({"source": ""}, "source"),
        ({"source": 7}, "source"),
        ({"source": "/" + "a" * 1000 + " "}, "source"),
        ({"dataschema": "no-scheme"}, "dataschema"),
        ({"dataschema": "1x:y"}, "dataschema"),
        ({"dataschema": {"a": 1}}, "dataschema"),
        ({"datacontenttype": "json"}, "datacontenttype"),
        ({"datacontenttype": "a/b; c"}, "datacontenttype"),
        ({"datacontenttype": 'a/b; c="é"'}, "datacontenttype"),
        ({"datacontenttype": True}, "datacontenttype"),
        ({"time": "now"}, "time"),
        ({"time": ""}, "time"),
        ({"time": 0}, "time"),
        ({"subject": ""}, "subject"),
        ({"subject": ["a"]}, "subject"),
        ({"specversion": 1.0}, "specversion"),
        ({"specversion": None}, "specversion"),
        ({"x": {"a": 1}}, "x"),
        ({"x": 1.0}, "x"),
        ({"x": -(2**31) - 1}, "x"),
        ({"x": "\x00"}, "x"),
        ({"data": {"a": ["\ud800"]}}, "data"),
        ({"data": {"\x00": 1}, "x": "a"}, "data"),
        ({"x": "a\x01"}, "x"),
        ({"x": "\x7f"}, "x"),
        ({"x": "\ufdd0"}, "x"),
        ({"x": "\U0010ffff"}, "x"),
        ({"id": "\x9f"}, "id"),
        ({"schemaurl": "\n"}, "schemaurl"),
        ({"": "x"}, ""),
        ({"a-b": "x"}, "a-b"),
        ({"é": "x"}, "é"),
        ({"１": "x"}, "１"),
        ({"a" * (ATTRIBUTE_NAME_CHARS_MAX + 1): "x"}, "a" * ATTRIBUTE_NAME_CHARS_MAX),
        ({"data_base64": "x"}, "data"),
        ({"data_base64": "aGk"}, "data"),
        ({"data_base64": "aG k="}, "data"),
        ({"data_base64": 1}, "data"),
        ({"data": None, "data_base64": "aGk="}, "data"),
        ({"data": None, "datacontenttype": "text/plain"}, "data"),
        ({"data_base64": base64.b64encode(b'{"a":1,"a":2}').decode(), "datacontenttype": "x/json"}, "data"),
    ],
)
def test_refused_in_the_json_format(members, attribute):
    error = refused(structured, **members)
    assert (error.http_status, error.attribute) == (400, attribute)
    assert error.rule in str(error)
    assert error.attribute in str(error)


@pytest.mark.parametrize(
    ("members", "attribute"),
    [
        ({"dataschema": "https://a.example"}, "dataschema"),
        ({"schemaurl": "a b"}, "schemaurl"),
        ({"data": "aGk=", "datacontentencoding": "gzip"}, "datacontentencoding"),
        ({"data": {"a": 1}, "datacontentencoding": "base64"}, "data"),
        ({"data": "?", "datacontentencoding": "base64"}, "data"),
        ({"data_base64": "aGk="}, "data_base64"),
    ],
)
def test_refused_in_version_03(members, attribute):
    assert refused(old, **members).attribute == attribute


@pytest.mark.parametrize(
    ("headers", "attribute"),
    [
        ([(b"ce-data", b"x")], "data"),
        ([(b"ce-datacontenttype", b"a/b")], "datacontenttype"),
        ([(b"content-type", b"a/b"), (b"Content-Type", b"a/b")], "datacontenttype"),
        ([(b"content-type", b"")], "datacontenttype"),
        ([(b"content-type", b"a/b; c=\xff")], "datacontenttype"),
        ([(b"ce-x", b"\xff")], "x"),
        ([(b"ce-x", b"%ff")], "x"),
        ([(b"CE-ID", b"2")], "id"),
        ([(b"ce-\xc3\xa9", b"2")], "Ã©"),
    ],
)
def test_refused_in_binary_mode(headers, attribute):
    assert refused(decode_request, HEADERS + headers, b"").attribute == attribute


def test_refused_encodings_and_charsets():
    for headers in (
        [(b"content-encoding", b"gzip")],
        [(b"content-type", b'application/cloudevents+json; charset="x"')],
    ):
        assert isinstance(refused(decode_request, HEADERS + headers, b"{}"), EventFormatError)
    decode_request([*HEADERS, (b"content-encoding", b"identity")], b"")


def test_limits():
    pad = "x" * EVENT_BYTES_MAX
    assert isinstance(refused(structured, data=pad), EventTooLargeError)
    assert isinstance(refused(decode_request, HEADERS, pad.encode() + b"x"), EventTooLargeError)
    (event,) = decode_request(HEADERS, pad.encode())
    assert len(event.data) == EVENT_BYTES_MAX
    large = [(b"ce-x", b"x" * HEADER_ATTRIBUTES_BYTES_MAX)]
    assert isinstance(refused(decode_request, HEADERS + large, b""), EventTooLargeError)
    assert isinstance(refused(decode_batch, b" " * BATCH_BYTES_MAX + b"[]"), EventTooLargeError)
    for one in (MINIMAL, MINIMAL | {"data": 1}):  # event by event, and all at once
        many = [one] * (BATCH_EVENTS_MAX + 1)
        assert isinstance(refused(decode_batch, json.dumps(many).encode()), EventTooLargeError)
        assert len(decode_batch(json.dumps(many[1:]).encode())) == BATCH_EVENTS_MAX


def test_an_event_in_a_batch_has_the_limit_of_an_event():
    fits = MINIMAL | {"data": "x" * (EVENT_BYTES_MAX - 200)}
    over = MINIMAL | {"data": "x" * EVENT_BYTES_MAX}
    assert len(decode_batch(json.dumps([fits, fits]).encode())) == 2
    error = refused(decode_batch, json.dumps([fits, over]).encode())
    assert (type(error), error.index) == (EventTooLargeError, 1)


@pytest.mark.parametrize(
    ("body", "index"), [(b"{}", None), (b"[1]", 0), (b"[null]", 0), (b"[{},[]]", 1), (b"[", None), (b"", None)]
)
def test_batches_that_are_none(body, index):
    assert refused(decode_batch, body).index == index


def test_depth_is_that_of_the_data():
    deep = b"[" * JSON_DEPTH_MAX + b"]" * JSON_DEPTH_MAX
    for data, accepted in ((deep, True), (b"[" + deep + b"]", False)):
        body = encode_event(Event("1.0", "1", "/s", "t", data_kind=DataKind.JSON, data=data))
        binary = [*HEADERS, (b"content-type", b"application/json")]
        if accepted:
            assert decode_event(body).data == decode_batch(b"[" + body + b"]")[0].data == data
            assert decode_request(binary, data)[0].data_kind is DataKind.JSON
        else:
            assert refused(decode_event, body).attribute == "data"
            assert refused(decode_batch, b"[" + body + b"]").attribute == "data"
            assert refused(decode_request, binary, data).attribute == "data"


@pytest.mark.parametrize("inside", [b"1", b'{"a":1,"a":1}'])
def test_data_that_only_a_second_look_finds_too_deep_is_refused(inside):
    begin = json.dumps(MINIMAL).encode()[:-1]
    step = times(4, 1) if inside == b"1" else times(24, 8)  # it names the place, which is long
    for depth in range(3 * JSON_DEPTH_MAX - 120, 3 * JSON_DEPTH_MAX, step):
        body = begin + b',"data":' + b"[" * depth + inside + b"]" * depth + b"}"
        refused(decode_event, body)
        refused(decode_batch, b"[" + body + b"]")


@pytest.mark.parametrize("data", [b'{"s": "a\\u0000b"}', b'{"s": "\\ud800"}', b'{"a":1,"a":1}', b"1e999"])
def test_ambiguous_data_is_refused_in_every_mode(data):
    binary = [*HEADERS, (b"content-type", b"application/json")]
    assert refused(decode_request, binary, data).attribute == "data"
    body = json.dumps(MINIMAL).encode()[:-1] + b',"data":' + data + b"}"
    assert refused(decode_event, body).attribute == "data"
    error = refused(decode_batch, b" [ {} ," + body + b"\n]")
    assert (error.attribute, error.index) == ("data", 1)


def test_a_number_that_nothing_can_hold_is_refused_by_name():
    body = json.dumps(MINIMAL).encode()[:-1] + b', "x": ' + b"9" * 5000 + b"}"
    assert refused(decode_event, body).attribute == "x"


def test_an_attribute_that_appears_twice_is_named():
    body = json.dumps(MINIMAL).encode()
    twice = body[:-1] + b', "id" : "2"}'
    assert refused(decode_event, twice).attribute == "id"
    error = refused(decode_batch, b"[" + body + b"," + twice + b"]")
    assert (error.attribute, error.index) == ("id", 1)


@pytest.mark.parametrize(
    ("member", "shown"),
    [
        (b'"\\ud800": 1', r"\ud800"),
        (b'"a\\udfff": 1, "a\\udfff": 2', r"a\udfff"),
        (b'"%b": "\\u0000"' % (b"x" * 40_000), "x" * ATTRIBUTE_NAME_CHARS_MAX),
    ],
)
def test_a_name_that_no_attribute_can_have_is_told_as_far_as_it_can_be(member, shown):
    body = json.dumps(MINIMAL).encode()[:-1] + b", " + member + b"}"
    for decode, text in ((decode_event, body), (decode_batch, b"[" + body + b"]")):
        error = refused(decode, text)
        assert error.attribute == shown
        assert shown.encode() in error.message.encode()  # which a lone surrogate cannot be


@pytest.mark.parametrize("data", [b'{ "a" : 1.0e2 }', b"12345678901234567890123", b'"\\u00e9\\/"', b"null", b"[1.10]"])
def test_json_data_is_kept_byte_for_byte(data):
    body = json.dumps(MINIMAL).encode()[:-1] + b', "data": ' + data + b" }"
    event = decode_event(body)
    assert (event.data_kind, event.data) == (DataKind.JSON, data)
    assert decode_batch(b"[" + body + b"]") == [event]
    assert data in encode_event(event)
    assert encode_binary(event)[1] == data


def test_version_03_stays_03():
    event = old(schemaurl="relative", data="aGk=", datacontentencoding="base64", datacontenttype="text/plain")
    assert (event.specversion, event.dataschema) == ("0.3", "relative")
    assert (event.data_kind, event.data, event.extensions) == (DataKind.BINARY, b"hi", {})
    assert json.loads(encode_event(event)) == OLD | {
        "schemaurl": "relative",
        "datacontenttype": "text/plain",
        "datacontentencoding": "base64",
        "data": "aGk=",
    }
    headers, body = encode_binary(event)
    assert ("ce-schemaurl", "relative") in headers
    assert ("ce-specversion", "0.3") in headers
    assert body == b"hi"


def test_version_03_base64_in_binary_mode_is_decoded():
    encoded = [*OLD_HEADERS, (b"ce-datacontentencoding", b"base64"), (b"content-type", b"application/json")]
    (event,) = decode_request(encoded, b"eyJhIjoxfQ==")
    assert (event.data_kind, event.data, event.extensions) == (DataKind.JSON, b'{"a":1}', {})
    assert refused(decode_request, encoded, b"?").attribute == "data"
    (event,) = decode_request(encoded, b"")
    assert (event.data_kind, event.extensions) == (DataKind.NONE, {})


def test_names_of_the_other_version_are_plain_extensions_in_10():
    event = structured(schemaurl="x", datacontentencoding="base64", data="aGk=")
    assert event.extensions == {"schemaurl": "x", "datacontentencoding": "base64"}
    assert (event.data_kind, event.data) == (DataKind.JSON, b'"aGk="')


def test_base64_data_of_a_json_type_is_json_as_in_binary_mode():
    encoded = base64.b64encode(b'{"a": 1}').decode()
    event = structured(data_base64=encoded, datacontenttype="application/json")
    assert (event.data_kind, event.data) == (DataKind.JSON, b'{"a": 1}')
    broken = structured(data_base64=base64.b64encode(b"{").decode(), datacontenttype="application/json")
    assert (broken.data_kind, broken.data) == (DataKind.BINARY, b"{")


def test_header_values_are_encoded_as_little_as_possible():
    event = Event("1.0", "100%", "/s", "a b", subject='€"', extensions={"yes": True, "no": False, "number": -7})
    assert encode_binary(event)[0][1:] == [
        ("ce-id", "100%25"),
        ("ce-source", "/s"),
        ("ce-type", "a%20b"),
        ("ce-subject", "%E2%82%AC%22"),
        ("ce-yes", "true"),
        ("ce-no", "false"),
        ("ce-number", "-7"),
    ]


def test_mode_is_decided_by_the_media_type_in_any_case_and_form():
    body = json.dumps(MINIMAL).encode()
    for content_type in (
        "Application/CloudEvents+JSON",
        f'{STRUCTURED_JSON} ; charset="utf-8"',
        f" {STRUCTURED_JSON};",
    ):
        assert decode_request([(b"content-type", content_type.encode())], body) == [decode_event(body)]
    batch = encode_batch([decode_event(body)])
    assert decode_request([(b"content-type", BATCH_JSON.upper().encode())], batch) == [decode_event(body)]
    assert isinstance(refused(decode_request, [(b"content-type", b"application/cloudeventsx")], body), EventFormatError)


def test_null_members_are_not_set():
    event = structured(subject=None, time=None, datacontenttype=None, dataschema=None, x=None, y=1)
    assert event == Event("1.0", "1", "/s", "t", extensions={"y": 1})


def test_an_error_says_where_in_a_batch():
    error = refused(decode_batch, json.dumps([MINIMAL, MINIMAL | {"time": "now"}]).encode())
    assert (error.index, error.attribute) == (1, "time")
    assert str(error).startswith("event 1: time: must be a timestamp")


@pytest.mark.parametrize(
    "body", [b'["\\ud800"]', b'"\\ud800"', b'[["\\ud800"]]', b"[" * 100_000, b"[" * 2_980, b"[1,{" * 99_000, b" 1e999 "]
)
def test_ambiguous_texts_that_hold_no_event_name_no_attribute(body):
    for decode in (decode_event, decode_batch):
        error = refused(decode, body)
        assert (error.attribute, error.index) == ("", None)


@pytest.mark.parametrize(
    "text", ["a/b" + " ; " * 5_000 + "\x01", "a/b" + ';c="' * 5_001, "a/b" + "; c=d" * 5_000 + ";="]
)
def test_a_hostile_media_type_is_refused_without_trying_every_way_to_read_it(text):
    assert refused(structured, datacontenttype=text).attribute == "datacontenttype"
    assert refused(decode_request, [*HEADERS, (b"content-type", text.encode())], b"").http_status == 400


def test_a_charset_is_a_parameter_and_not_a_part_of_another_one():
    body = json.dumps(MINIMAL).encode()
    for parameters in ('x="; charset=utf-16"', "X=y;charset=US-ASCII", 'charset="UTF-8"; charset=utf-16', ""):
        content_type = f"{STRUCTURED_JSON}; {parameters}".encode()
        assert decode_request([(b"content-type", content_type)], body) == [decode_event(body)]


def event_with(data: bytes) -> bytes:
    return b'{"specversion":"1.0","id":"1","source":"/s","type":"t","data":%b}' % data


@pytest.mark.parametrize(
    "one",
    [b"[]", pytest.param(b"{}", marks=pytest.mark.slow), pytest.param(b"[[[1]]]", marks=pytest.mark.slow), b'{"a":[]}'],
)
def test_arrays_and_objects_are_counted_before_they_are_made(one):
    """Each costs as much as many bytes, and all of an event are made in one go, for which everybody waits."""
    each = one.count(b"[") + one.count(b"{")
    count = (JSON_CONTAINERS_MAX - 2) // each  # the array around them, and the event
    padding = b" " * (2 * JSON_CONTAINERS_MAX)
    most = event_with(b"[%b]" % b",".join([one] * count) + padding)
    assert decode_event(most).data_kind is DataKind.JSON
    more = event_with(b"[%b]" % b",".join([one] * (count + 1)) + padding)
    for decode, body in ((decode_event, more), (decode_batch, b"[%b]" % more)):
        error = refused(decode, body)
        assert (type(error), "JSON_CONTAINERS_MAX" in error.rule, error.hint != "") == (EventTooLargeError, True, True)
    headers = [*HEADERS, (b"content-type", b"application/json")]
    assert type(refused(decode_request, headers, more)) is EventTooLargeError
    assert len(decode_batch(b"[%b]" % b",".join([most] * 3))) == 3, "an event has its own share"


def test_brackets_in_strings_are_none():
    text = json.dumps('[{"\\' * JSON_CONTAINERS_MAX).encode()
    assert decode_event(event_with(text)).data == text
    assert not is_light(event_with(text)), "but they are looked for off the loop"


def test_a_large_batch_is_read_as_a_small_one_is():
    """Event by event: the same events, and the same words about what is wrong."""
    large = json.dumps("x" * (EVENT_BYTES_MAX - 1_000)).encode()
    wrong = [
        b"[1]",
        b'{"specversion":"1.0"}',
        event_with(b'{"a":1,"a":2}'),
        event_with(b'"\\ud800"'),
        event_with(b"1e999"),
        event_with(b"[" * 1_001 + b"]" * 1_001),
    ]
    for element in wrong:
        batches = [b"[%b]" % b",".join([event_with(b"1"), event_with(data), element]) for data in (b"1", large)]
        small, great = (refused(decode_batch, batch + b" " * 1_000) for batch in batches)
        assert (great.rule, great.attribute, great.index) == (small.rule, small.attribute, small.index)
        assert great.index == 2
    whole = b"[%b]" % b",".join([event_with(large), event_with(b"7")])
    assert [event.data for event in decode_batch(whole)] == [large, b"7"]
    assert decode_batch(b" " * EVENT_BYTES_MAX + b"[ ] ") == []
    for text in (b"{}", b"[1", b"[" + event_with(b"1") + b",]", b"nothing", b"[" * 100_000):
        body = text + b" " * EVENT_BYTES_MAX
        assert refused(decode_batch, body).rule == refused(decode_batch, text).rule


@pytest.mark.parametrize("element", [b"{}", b"[]", b'""', b"1", b'{"specversion":"1.0"}'])
@pytest.mark.parametrize("end", [b"]", b"", b",{}]"])
def test_a_batch_of_millions_that_are_no_events_is_not_taken_apart(
    monkeypatch: pytest.MonkeyPatch, element: bytes, end: bytes
) -> None:
    """Each element that is taken out costs as much as many bytes, and all of them come in one go."""

    def never(_: bytes) -> None:
        raise AssertionError("all elements were taken out")

    monkeypatch.setattr(json_format, "_decode_elements", never)
    monkeypatch.setattr(json_format, "_parse", never)
    event = b'{"specversion":"1.0","id":"1","source":"/s","type":"t","data":"%b"}' % (b"x" * EVENT_BYTES_MAX)
    body = b"[" + event + b"," + b",".join([element] * (11 * BATCH_EVENTS_MAX)) + end
    with pytest.raises(EventError, match=r"^event 1: an element of a batch must be an event: ") as refused:
        decode_batch(body)
    assert refused.value.index == 1


def test_a_batch_with_as_many_commas_is_read_and_what_is_wrong_is_said() -> None:
    event = b'{"specversion":"1.0","id":"1","source":"/s","type":"t","data":[%b]}' % b",".join([b"1"] * 60_000)
    batch = b"[" + b",".join([event] * 10) + b"]"
    assert len(decode_batch(batch)) == 10
    for wrong, rule in (
        (batch[:-1], "the body must be JSON in UTF-8"),
        (batch[::-1].replace(b'"1":"di"', b'1:"di"', 1)[::-1], "event 9: id: must be a string"),
        (b'{"a":[%b]}' % batch, "the outermost JSON value of a batch must be an array"),
    ):
        with pytest.raises(EventError, match=f"^{rule}"):
            decode_batch(wrong)
