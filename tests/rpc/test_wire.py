"""Is a client's message read in bounded steps, and as the library reads it?"""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor

from headgate.rpc.wire import parsed, publishing
from headgate_api.limits import PUBLISH_EVENTS_MAX, RPC_BYTES_UNCOUNTED, RPC_FIELDS_MAX, RPC_REQUEST_BYTES_MAX
from headgate_api.rpc.cloudevents_pb2 import CloudEvent
from headgate_api.rpc.errors import ProtocolError
from headgate_api.rpc.headgate_pb2 import PublishRequest, SeekRequest, SubscribeRequest

MANY = RPC_REQUEST_BYTES_MAX // 2


def prefixed(tag: bytes, content: bytes) -> bytes:
    """A field with a length before it, of five bytes."""
    size = bytes(len(content) >> shift & 0x7F | 0x80 for shift in (0, 7, 14, 21))
    return tag + size + bytes([len(content) >> 28]) + content


class Never:
    """A type of messages that must not be read."""

    def __init__(self, descriptor: Descriptor) -> None:
        self.DESCRIPTOR = descriptor

    def FromString(self, data: bytes) -> object:
        raise AssertionError(f"{len(data)} bytes were read in one go")


ATTRIBUTES = b"".join(b"\x2a\x06\x0a\x04%04d" % number for number in range(10_000))
EXPRESSIONS = b"\x1a\x02\x08\x01" * RPC_FIELDS_MAX


@pytest.mark.parametrize(
    ("type_", "data"),
    [
        pytest.param(PublishRequest, b"\x1a\0" * MANY, id="empty events"),
        pytest.param(PublishRequest, b"\x22\0" * MANY, id="empty texts"),
        pytest.param(PublishRequest, b"\x0a\0" * MANY, id="one message again and again"),
        pytest.param(PublishRequest, b"\x78\0" * MANY, id="unknown fields"),
        pytest.param(PublishRequest, b"\x7b\x7c" * MANY, id="unknown groups"),
        pytest.param(PublishRequest, prefixed(b"\x0a", b"\x78\0" * MANY), id="unknown fields below"),
        pytest.param(CloudEvent, ATTRIBUTES, id="attributes"),
        pytest.param(SubscribeRequest, b"\x1a\0" * MANY, id="acknowledgements"),
        pytest.param(SubscribeRequest, prefixed(b"\x2a", b"\x0a\0" * MANY), id="acknowledgements below"),
        pytest.param(SeekRequest, prefixed(b"\x32", prefixed(b"\x1a", EXPRESSIONS)), id="expressions"),
    ],
)
def test_a_message_of_too_many_fields_is_refused_unread(type_: Any, data: bytes) -> None:
    with pytest.raises(ProtocolError, match="RPC_FIELDS_MAX"):
        parsed(Never(type_.DESCRIPTOR), data)  # type: ignore[type-var]


def test_as_many_fields_as_there_may_be_are_read() -> None:
    most = b"\x1a\0" * RPC_FIELDS_MAX
    assert len(most) > RPC_BYTES_UNCOUNTED
    assert len(parsed(SubscribeRequest, most).ack) == RPC_FIELDS_MAX
    assert len(publishing(most).events) == RPC_FIELDS_MAX
    for read in (lambda data: parsed(SubscribeRequest, data), publishing):
        with pytest.raises(ProtocolError, match="RPC_FIELDS_MAX"):
            read(most + b"\x1a\0")


def test_a_request_to_publish_is_what_the_library_reads() -> None:
    events = [CloudEvent(id=f"e{number}", text_data="x" * (number % 300)) for number in range(PUBLISH_EVENTS_MAX)]
    whole = PublishRequest(sequence=1 << 63, events=events, filter_values=[str(n) for n in range(PUBLISH_EVENTS_MAX)])
    whole.open.broker = "ns/b"
    # The fields of a message may come in any order, and those that a reader does not know between them.
    pieces = [PublishRequest(events=[event]).SerializeToString() for event in events]
    rest = [
        PublishRequest(open=whole.open).SerializeToString(),
        PublishRequest(sequence=whole.sequence).SerializeToString(),
        PublishRequest(filter_values=whole.filter_values).SerializeToString(),
    ]
    mixed = b"".join(
        [*pieces[:7], rest[0], b"\x7d1234", *pieces[7:500], rest[1], b"\x7912345678", *pieces[500:], rest[2]]
    )
    for data in (whole.SerializeToString(), mixed):
        request = publishing(data)
        assert [CloudEvent.FromString(event) for event in request.events] == events
        head = request.head
        head.DiscardUnknownFields()
        assert (head.open, head.sequence, list(head.filter_values), len(head.events)) == (
            whole.open,
            whole.sequence,
            list(whole.filter_values),
            0,
        )


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(b"\x1a\x05abc", id="a length beyond the end"),
        pytest.param(b"\x1a" + b"\xff" * 9 + b"\x01", id="a length beyond everything"),
        pytest.param(b"\xff" * 11, id="a number without an end"),
        pytest.param(b"\x0f\0", id="no kind of field"),
        pytest.param(b"\x1d\0", id="half a number"),
        pytest.param(b"\x18", id="a field without a value"),
    ],
)
@pytest.mark.parametrize("begin", [b"", prefixed(b"\x1a", b"x" * RPC_BYTES_UNCOUNTED)], ids=["small", "large"])
def test_what_is_no_message_is_refused(begin: bytes, end: bytes) -> None:
    for read in (lambda data: parsed(SubscribeRequest, data), publishing):
        with pytest.raises(ProtocolError, match=r"no headgate\.v1\."):
            read(begin + end)
