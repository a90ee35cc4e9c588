"""CloudEvents' protobuf format: what goes out comes back, what the format says is meant, what is wrong is named."""

import msgspec
import pytest
from google.protobuf.any_pb2 import Any
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import example, given
from hypothesis import strategies as st

from headgate_api.errors import EventError, EventTooLargeError
from headgate_api.event.attributes import media_type
from headgate_api.event.model import DataKind, Event
from headgate_api.limits import EVENT_BYTES_MAX
from headgate_api.rpc.cloudevents_pb2 import CloudEvent
from headgate_api.rpc.events import from_messages, to_message
from tests.event.strategies import events, usual_events

Value = CloudEvent.CloudEventAttributeValue
JSON = {"datacontenttype": Value(ce_string="application/json")}


def message(attributes=None, **fields) -> CloudEvent:
    core = {"id": "1", "source": "/s", "spec_version": "1.0", "type": "t"}
    return CloudEvent(**{**core, **fields}, attributes=attributes or {})


def with_media_type(event: Event) -> Event:
    """The event with what to_message says about JSON data that came without a media type."""
    if event.data_kind is DataKind.JSON and event.datacontenttype is None:
        return msgspec.structs.replace(event, datacontenttype="application/json")
    return event


def from_message(one: CloudEvent) -> Event:
    (event,) = from_messages([one])
    return event


def over_the_wire(event: Event) -> CloudEvent:
    return CloudEvent.FromString(to_message(event).SerializeToString())


@given(st.one_of(events(), usual_events()))
@example(Event("1.0", "1", "/s", "t", data_kind=DataKind.TEXT, data=b"without a media type"))
@example(
    Event(
        "1.0", "1", "/s", "t", None, None, "application/protobuf", "https://t.example/a.B", {}, DataKind.BINARY, b"\n\1"
    )
)
@example(Event("0.3", "1", "/s", "t", None, None, "application/protobuf", "urn:a.B", {}, DataKind.BINARY, b""))
@example(Event("1.0", "1", "/s", "t", None, None, "application/protobuf", "https://", {}, DataKind.BINARY, b""))
def test_a_message_keeps_everything(event):
    assert from_message(over_the_wire(event)) == with_media_type(event)


@given(st.lists(st.one_of(events(), usual_events()), max_size=5))
def test_many_messages_are_read_as_each_alone(batch):
    assert from_messages(map(over_the_wire, batch)) == list(map(with_media_type, batch))


@pytest.mark.parametrize(
    "texts",
    [
        ["[1", "2]", "3,4"],  # together two elements and two commas: JSON of as many elements
        ['"a', 'b"', "1,2"],
        [" 1 ", "2"],
        ["1", "", "2"],
        ["{}", "[" * 900 + "]" * 900 + " " * 300],
        ['{"a":1}', '{"a":[]}', "null"],
    ],
)
def test_texts_that_are_json_only_together_are_none(texts):
    batch = [message(JSON, text_data=text) for text in texts]
    assert from_messages(batch) == [from_message(each) for each in batch]


@given(events())
def test_the_format_says_where_data_is(event):
    written = to_message(event)
    media = media_type(event.datacontenttype) if event.datacontenttype else None
    expected = {
        DataKind.NONE: None,
        DataKind.JSON: "text_data",
        DataKind.TEXT: "text_data",
        DataKind.BINARY: "binary_data",
    }[event.data_kind]
    assert written.WhichOneof("data") == expected
    if event.data_kind is DataKind.JSON:
        assert media is None or media.is_json
        assert written.text_data.encode() == event.data


@pytest.mark.parametrize(
    ("time", "kind"),
    [
        ("2018-04-05T17:31:00Z", "ce_timestamp"),
        ("2018-04-05T17:31:00.5Z", "ce_string"),  # a timestamp would be read as .500
        ("2018-04-05T17:31:00.500Z", "ce_timestamp"),
        ("2018-04-05T17:31:00.000Z", "ce_string"),
        ("2018-04-05T17:31:00.123456Z", "ce_timestamp"),
        ("2018-04-05T17:31:00.123456789Z", "ce_timestamp"),
        ("2018-04-05T17:31:00.1234567891Z", "ce_string"),
        ("1970-01-01T00:00:00Z", "ce_timestamp"),
        ("1969-12-31T23:59:59.999Z", "ce_timestamp"),
        ("0001-01-01T00:00:00Z", "ce_timestamp"),
        ("9999-12-31T23:59:59.999999999Z", "ce_timestamp"),
        ("0000-02-29T00:00:00Z", "ce_string"),
        ("2016-12-31T23:59:60Z", "ce_string"),
        ("2018-04-05T17:31:00+00:00", "ce_string"),
        ("2018-04-05t17:31:00z", "ce_string"),
    ],
)
def test_a_time_stays_as_it_was_written(time, kind):
    event = Event("1.0", "1", "/s", "t", time=time)
    written = over_the_wire(event)
    value = written.attributes["time"]
    assert value.WhichOneof("attr") == kind
    assert from_message(written) == event
    if kind == "ce_timestamp":  # the same instant to everybody else
        official = Timestamp()
        official.FromJsonString(time)
        assert value.ce_timestamp == official


def test_the_plain_text_example_of_the_format():
    text = message({"datacontenttype": Value(ce_string="text/plain")}, text_data="This is a plain text message")
    assert from_message(text).data_kind is DataKind.TEXT
    assert from_message(text).data == b"This is a plain text message"


def test_the_protobuf_example_of_the_format():
    packed = Any()
    packed.Pack(Timestamp(seconds=17))
    protobuf = message(
        {
            "dataschema": Value(ce_uri=packed.type_url),  # as the specification's example has it: without a scheme
            "datacontenttype": Value(ce_string="application/protobuf"),
        },
        proto_data=packed,
    )
    event = from_message(protobuf)
    assert event.dataschema == "https://type.googleapis.com/google.protobuf.Timestamp"
    assert (event.datacontenttype, event.data_kind) == ("application/protobuf", DataKind.BINARY)
    assert Timestamp.FromString(event.data) == Timestamp(seconds=17)
    back = to_message(event).proto_data
    assert back == packed
    assert from_message(message(proto_data=packed)) == event  # both attributes are optional


def test_extensions_are_of_the_types_that_the_format_has():
    event = from_message(
        message(
            {
                "text": Value(ce_string=""),
                "flag": Value(ce_boolean=False),
                "number": Value(ce_integer=-(2**31)),
                "bytes": Value(ce_bytes=b"\x00\xff"),
                "absolute": Value(ce_uri="urn:x"),
                "reference": Value(ce_uri_ref="/a"),
                "instant": Value(ce_timestamp=Timestamp(seconds=1, nanos=500_000_000)),
            }
        )
    )
    assert event.extensions == {
        "text": "",
        "flag": False,
        "number": -(2**31),
        "bytes": "AP8=",
        "absolute": "urn:x",
        "reference": "/a",
        "instant": "1970-01-01T00:00:01.500Z",
    }


@pytest.mark.parametrize("where", ["text_data", "binary_data"])
@pytest.mark.parametrize(
    ("content_type", "data", "kind"),
    [
        ("application/json", b'{"a": 1.0}', DataKind.JSON),
        ("application/vnd.x+json; charset=utf-8", b"null", DataKind.JSON),
        ("application/json", b"{'a'}", DataKind.BINARY),
        ("application/json", b"", DataKind.BINARY),
        ("text/plain", b"", None),
        (None, b"1", None),
    ],
)
def test_data_that_calls_itself_json_is_json_where_it_is(where, content_type, data, kind):
    attributes = {"datacontenttype": Value(ce_string=content_type)} if content_type else {}
    event = from_message(message(attributes, **{where: data.decode() if where == "text_data" else data}))
    assert event.data == data
    assert event.data_kind is (kind or (DataKind.TEXT if where == "text_data" else DataKind.BINARY))


def test_base64_of_version_0_3_is_decoded():
    event = from_message(
        message({"datacontentencoding": Value(ce_string="base64")}, spec_version="0.3", text_data="AP8=")
    )
    assert (event.specversion, event.data, event.data_kind, event.extensions) == (
        "0.3",
        b"\x00\xff",
        DataKind.BINARY,
        {},
    )


@pytest.mark.parametrize("data", [{}, {"proto_data": Any(type_url="a/b", value=b"\xff")}])
def test_the_encoding_of_version_0_3_is_no_attribute_of_what_is_not_encoded(data):
    event = from_message(message({"datacontentencoding": Value(ce_string="base64")}, spec_version="0.3", **data))
    assert (event.extensions, event.data) == ({}, b"\xff" if data else None)


TOO_LATE = Timestamp(seconds=253_402_300_800)


@pytest.mark.parametrize(
    ("wrong", "attribute", "rule"),
    [
        (message(spec_version=""), "specversion", "missing"),
        (message(spec_version="2.0"), "specversion", "not supported"),
        (message(id=""), "id", "missing"),
        (message(source=""), "source", "missing"),
        (message(source="a b"), "source", "URI-reference"),
        (message(type=""), "type", "missing"),
        (message({"subject": Value(ce_string="")}), "subject", "non-empty"),
        (message({"subject": Value(ce_integer=1)}), "subject", "a string, not an integer"),
        (message({"subject": Value(ce_boolean=True)}), "subject", "a string, not a boolean"),
        (message({"subject": Value(ce_string="a\0b")}), "subject", "U.0000"),
        (message({"time": Value(ce_string="yesterday")}), "time", "RFC 3339"),
        (message({"time": Value(ce_timestamp=TOO_LATE)}), "time", "years 1 to 9999"),
        (message({"time": Value(ce_timestamp=Timestamp(nanos=-1))}), "time", "years 1 to 9999"),
        (message({"x": Value(ce_timestamp=Timestamp(nanos=10**9))}), "x", "years 1 to 9999"),
        (message({"dataschema": Value(ce_uri="relative")}), "dataschema", "absolute URI"),
        (message({"dataschema": Value(ce_uri="urn:x")}, spec_version="0.3"), "dataschema", "schemaurl"),
        (message({"datacontenttype": Value(ce_string="json")}), "datacontenttype", "media type"),
        (message({"extension": Value()}), "extension", "must have a value"),
        (message({"Extension": Value(ce_string="x")}), "Extension", "lower-case"),
        (message({"e" * 129: Value(ce_string="x")}), "e" * 128, "longer"),
        (message({"id": Value(ce_string="x")}), "id", "field id"),
        (message({"specversion": Value(ce_string="1.0")}), "specversion", "field spec_version"),
        (message({"data": Value(ce_string="x")}), "data", "no attribute"),
        (message(JSON, text_data='{"a":1,"a":2}'), "data", "twice"),
        (message(JSON, binary_data=b'"\\u0000"'), "data", "U.0000"),
        (message(proto_data=Any(value=b"x")), "data", "type URL"),
        (message({"dataschema": Value(ce_uri="urn:x")}, proto_data=Any(type_url="t/x")), "dataschema", "type URL"),
        (message(text_data="a\0b"), "data", "U.0000"),
        (message({"datacontenttype": Value(ce_string="text/plain")}, text_data="\0"), "data", "U.0000"),
        (
            message({"datacontentencoding": Value(ce_string="gzip")}, spec_version="0.3"),
            "datacontentencoding",
            "base64",
        ),
        (
            message({"datacontentencoding": Value(ce_string="gzip")}, spec_version="0.3", text_data="x"),
            "datacontentencoding",
            "base64",
        ),
    ],
)
def test_what_is_wrong_is_named(wrong, attribute, rule):
    with pytest.raises(EventError, match=rule) as raised:
        from_message(wrong)
    assert raised.value.attribute == attribute
    with pytest.raises(EventError, match=rule) as raised:
        from_messages([message(), wrong, message()])
    assert (raised.value.attribute, raised.value.index) == (attribute, 1)


@pytest.mark.parametrize("room", [0, 1])
def test_an_event_has_a_largest_size(room):
    frame = message(binary_data=b"x" * EVENT_BYTES_MAX).ByteSize() - EVENT_BYTES_MAX
    large = message(binary_data=b"x" * (EVENT_BYTES_MAX - frame + room))
    if room == 0:
        assert len(from_message(large).data) == EVENT_BYTES_MAX - frame
    else:
        with pytest.raises(EventTooLargeError):
            from_message(large)


value = st.one_of(
    st.builds(Value),
    st.text(max_size=5).map(lambda text: Value(ce_string=text)),
    st.binary(max_size=5).map(lambda data: Value(ce_bytes=data)),
    st.integers(-(2**31), 2**31 - 1).map(lambda number: Value(ce_integer=number)),
    st.builds(
        lambda seconds, nanos: Value(ce_timestamp=Timestamp(seconds=seconds, nanos=nanos)),
        st.integers(-(2**63), 2**63 - 1),
        st.integers(-(2**31), 2**31 - 1),
    ),
)
any_names = st.sampled_from(["id", "time", "subject", "dataschema", "schemaurl", "datacontenttype", "x", "é", "data"])


@given(
    st.dictionaries(any_names | st.text(max_size=3), value, max_size=3),
    st.sampled_from(["1.0", "0.3", "", "x"]),
    st.sampled_from(
        [{}, {"text_data": "{}"}, {"binary_data": b"\xff"}, {"proto_data": Any(type_url="a/b")}, {"proto_data": Any()}]
    ),
)
def test_whatever_comes_is_an_event_or_named(attributes, version, data):
    try:
        event = from_message(message(attributes, spec_version=version, **data))
    except EventError:
        return
    assert from_message(over_the_wire(event)) == with_media_type(event)
