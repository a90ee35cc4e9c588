"""What goes out comes back, in every mode; and what comes in is either an event or an EventError."""

import json

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headgate.event.arrow import StoredEvent, columns_to_batch, from_batch, from_batch_all, to_batch
from headgate_api.errors import EventError
from headgate_api.event.http import BATCH_JSON, STRUCTURED_JSON, canonical, decode_request, encode_binary
from headgate_api.event.json_format import BatchFastPath, decode_batch, decode_event, encode_batch, encode_event
from headgate_api.event.model import DataKind, Event
from tests.event.strategies import events, usual_events

pytestmark = pytest.mark.usefixtures("json_checks")


@given(events())
def test_structured_mode_keeps_everything(event):
    body = encode_event(event)
    assert decode_event(body) == event
    assert decode_request([(b"content-type", STRUCTURED_JSON.encode())], body) == [event]


@given(st.lists(events(), max_size=5))
def test_batched_mode_keeps_everything(batch):
    body = encode_batch(batch)
    assert decode_batch(body) == batch
    assert decode_request([(b"Content-Type", BATCH_JSON.encode())], body) == batch


@given(st.lists(usual_events(), min_size=1, max_size=5), st.data())
def test_a_batch_read_at_once_is_what_its_events_are_alone(batch, data):
    """Usual events, some of them then spoilt: the same events or the same refusal as one by one."""
    reader = BatchFastPath()
    reader.learn(batch)
    body = encode_batch(batch)
    columns = reader.read(body)
    assert columns == batch
    assert (
        columns_to_batch([("b", columns)]).serialize()
        == to_batch([StoredEvent("b", one) for one in columns]).serialize()
    )
    spoilt = spoil(body, data.draw)
    at_once = reader.read(spoilt)
    if at_once is not None:
        elements = msgspec.json.decode(spoilt, type=list[msgspec.Raw])
        assert at_once == [decode_event(bytes(element)) for element in elements]


@pytest.mark.parametrize("space", [b"", b" "])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"5", b'{"a":1,"a":1}'),
        (b"5", b'[{"b":{"a":":","c":[],"a" : ":"}}]'),
        (b"5", b"[1e999]"),
        (b"5", b"[%b]" % (b"7" * 1_001)),
        (b'"data"', b'"data":4,"data"'),
        (b'"id"', b'"id":"i","id"'),
        (b'"class"', b'"class":":","class"'),
    ],
)
def test_a_batch_read_at_once_has_no_member_twice_and_no_number_too_long(old, new, space):
    event = b'{"specversion":"1.0","id":"i",%b"source":"/s","type":"t","class":"x","data":5}' % space
    reader = BatchFastPath()
    reader.learn([decode_event(event)])
    assert reader.read(b"[%b,%b]" % (event, event)) is not None
    spoilt = event.replace(old, new, 1)
    assert reader.read(b"[%b,%b]" % (event, spoilt)) is None
    with pytest.raises(EventError) as alone:
        decode_event(spoilt)
    with pytest.raises(EventError) as together:
        decode_batch(b"[%b,%b]" % (event, spoilt))
    found = together.value
    assert (found.index, found.attribute) == (1, alone.value.attribute)
    assert found.rule.split("'")[-1] == alone.value.rule.split("'")[-1]


def spoil(body: bytes, draw) -> bytes:
    """Doubles, renames, empties or replaces something in a JSON text."""
    old, new = draw(
        st.sampled_from(
            [
                (b'"id":', b'"id":"twice","id":'),
                (b'"type":', b'"type":"a:b","type":'),
                (b'"data":', b'"data":1,"data":'),
                (b'"data":', b'"data":{"a":1,"a":2},"datas":'),
                (b'"data":', b'"data_base64":"AAAA","x":'),
                (b'"specversion":"1.0"', b'"specversion":"0.3"'),
                (b'"source":"', b'"source":"% '),
                (b'"subject":', b'"subject":null,"s":'),
                (b'"time":"2', b'"time":"x2'),
                (b"json", b"text"),
                (b'"a"', b'""'),
                (b"[{", b"[{},{"),
                (b"{", b'{"new":1e999,'),
                (b"{", b'{"new":7,'),
                (b"1", b"0"),
            ]
        )
    )
    return body.replace(old, new, draw(st.integers(1, 3)))


@given(events())
def test_another_writer_of_json_is_read_the_same(event):
    tree = json.loads(encode_event(event))
    for style in ({"ensure_ascii": True}, {"ensure_ascii": False}, {"indent": 2, "separators": (" ,", " : ")}):
        again = decode_event(json.dumps(tree, **style).encode())
        assert msgspec.structs.replace(again, data=event.data) == event


def as_in_binary_mode(event: Event) -> Event:
    """What binary mode cannot say: types of extensions, TEXT, empty data, JSON without a media type."""
    content_type, kind, data = event.datacontenttype, event.data_kind, event.data
    if kind is DataKind.TEXT:
        kind = DataKind.BINARY
    if kind is DataKind.JSON and content_type is None:
        content_type = "application/json"
    if not data:
        kind, data = DataKind.NONE, None
    extensions = {name: canonical(value) for name, value in event.extensions.items()}
    return msgspec.structs.replace(
        event, datacontenttype=content_type, data_kind=kind, data=data, extensions=extensions
    )


@given(events())
def test_binary_mode_keeps_what_it_can_say(event):
    headers, body = encode_binary(event)
    for name, value in headers:
        assert name == name.lower()
        assert all("\x20" < character < "\x7f" for character in value) or name == "content-type"
    raw = [(name.encode(), value.encode("ascii")) for name, value in headers]
    assert decode_request(raw, body) == [as_in_binary_mode(event)]


@given(st.lists(events(), min_size=1, max_size=5))
def test_arrow_keeps_everything(batch):
    stored = [StoredEvent(f"ns/b{index % 2}", event) for index, event in enumerate(batch)]
    columns = to_batch(stored)
    columns.validate(full=True)
    assert from_batch_all(columns) == stored
    assert from_batch(columns, len(stored) - 1) == stored[-1]


def events_or_error(decode, *arguments):
    try:
        return decode(*arguments)
    except EventError as error:
        return error


CONTENT_TYPES = [STRUCTURED_JSON, BATCH_JSON, "application/json", "text/plain", "application/cloudevents+xml", ";"]
header_names = st.sampled_from([b"ce-id", b"ce-source", b"ce-type", b"ce-specversion", b"ce-time", b"ce-x", b"CE-Data"])


@given(
    st.lists(st.tuples(header_names | st.binary(max_size=8), st.binary(max_size=20)), max_size=8),
    st.none() | st.sampled_from(CONTENT_TYPES).map(str.encode) | st.binary(max_size=20),
    st.binary(max_size=200),
)
@example([], STRUCTURED_JSON.encode(), b"[" * 100_000)
@example([], STRUCTURED_JSON.encode(), b'{"a":' * 100_000)
@example([], BATCH_JSON.encode(), b"[[[[1]]]]")
@example([(b"ce-specversion", b"0.3"), (b"ce-datacontentencoding", b"base64")], b"application/json", b"\xff")
def test_random_requests_give_events_or_an_event_error(headers, content_type, body):
    given_type = [] if content_type is None else [(b"content-type", content_type)]
    outcome = events_or_error(decode_request, headers + given_type, body)
    if isinstance(outcome, EventError):
        assert outcome.http_status in (400, 413, 415)
        assert outcome.rule
    else:
        assert all(isinstance(event, Event) for event in outcome)


member_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
MEMBERS = ["id", "source", "type", "specversion", "time", "data", "data_base64", "datacontentencoding"]
MEMBERS += ["datacontenttype", "x"]


@given(st.dictionaries(st.sampled_from(MEMBERS), member_values), st.sampled_from(["1.0", "0.3", None]))
def test_random_members_give_an_event_or_an_event_error(members, version):
    tree = {"id": "1", "source": "/s", "type": "t", "specversion": version} | members
    body = json.dumps(tree).encode()
    outcome = events_or_error(decode_event, body)
    if isinstance(outcome, EventError):
        assert outcome.rule
    else:
        assert decode_event(encode_event(outcome)) == outcome
