"""Extensions that are maps: CloudEvents 0.3 in the JSON formats has them, nothing else does."""

import json

import msgspec
import pytest

from headgate.event.arrow import StoredEvent, from_batch_all, to_batch
from headgate_api.errors import EventError
from headgate_api.event.http import canonical, decode_request
from headgate_api.event.json_format import decode_batch, decode_event, encode_batch, encode_event
from headgate_api.event.model import Event, holds_map
from headgate_api.limits import ATTRIBUTE_NAME_CHARS_MAX, EXTENSION_DEPTH_MAX, EXTENSION_MEMBERS_MAX
from headgate_api.rpc.events import from_messages, to_message

OLD = {"specversion": "0.3", "id": "1", "source": "/s", "type": "t"}
GITHUB = {"repository": "headgate", "": 5, "labels": {"app.kubernetes.io/name": "é", "none": {}}, "fork": False}


def old(**members):
    return decode_event(json.dumps(OLD | members, ensure_ascii=False).encode())


def nested(depth: int) -> object:
    return {"a": nested(depth - 1)} if depth else "x"


def test_a_map_is_kept_as_it_came():
    event = old(github=GITHUB, plain="x")
    assert event.extensions == {"github": GITHUB, "plain": "x"}
    assert holds_map(event)
    assert json.loads(encode_event(event)) == OLD | {"github": GITHUB, "plain": "x"}
    assert [stored.event for stored in from_batch_all(to_batch([StoredEvent("default/b", event)]))] == [event]


def test_a_batch_has_them_too():
    members = [OLD | {"github": GITHUB}, OLD | {"id": "2"}, OLD | {"id": "3", "github": "text"}]
    for _ in range(2):  # the second time the reader of usual events knows the name
        events = list(decode_batch(json.dumps(members).encode()))
        assert [event.extensions for event in events] == [{"github": GITHUB}, {}, {"github": "text"}]
    assert json.loads(encode_batch(events)) == members


def test_unset_members_are_left_out():
    assert old(a={"b": None, "c": {"d": None}}).extensions == {"a": {"c": {}}}


def test_version_1_0_has_none():
    with pytest.raises(EventError, match="must be a string, an integer or a boolean, not an object"):
        old(specversion="1.0", github=GITHUB)


def test_in_a_header_it_stays_text():
    headers = [(f"ce-{name}".encode(), value.encode()) for name, value in OLD.items()]
    (event,) = decode_request([*headers, (b"ce-github", b'{"repository":"x"}')], b"")
    assert event.extensions == {"github": '{"repository":"x"}'}
    assert not holds_map(event)


def test_in_protobuf_it_becomes_text():
    event = old(github={"repository": "x"})
    assert from_messages([to_message(event)])[0].extensions == {"github": '{"repository":"x"}'}
    assert canonical(event.extensions["github"]) == '{"repository":"x"}'


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        ({"a": [1]}, "a member must be a string, an integer, a boolean or a map, not an array"),
        ({"a": 1.5}, "a member must be a string, an integer, a boolean or a map, not a number with fraction"),
        ({"a": {"b": 2**31}}, "an integer must be within 32 bits"),
        ({"a": "\x01"}, "must not hold U\\+0001"),
        ({"a": {"\x01": "b"}}, "must not hold U\\+0001"),
        ({"a" * (ATTRIBUTE_NAME_CHARS_MAX + 1): "b"}, "the name of a member must not be longer"),
        (nested(EXTENSION_DEPTH_MAX + 1), "must not be nested deeper than"),
        ({f"a{number}": 1 for number in range(EXTENSION_MEMBERS_MAX + 1)}, "must not have more than"),
        ({f"a{n}": {f"b{m}": 1 for m in range(16)} for n in range(16)}, "must not have more than"),
        ([], "must be a string, an integer or a boolean, not an array"),
    ],
)
def test_what_is_none_is_refused_by_name(value, rule):
    with pytest.raises(EventError, match=rule) as refused:
        old(github=value)
    assert refused.value.attribute == "github"
    with pytest.raises(EventError, match=rule) as refused:
        decode_batch(json.dumps([OLD, OLD | {"github": value}]).encode())
    assert refused.value.index == 1


def test_limits_are_of_all_maps_of_an_event():
    half = {f"a{number}": 1 for number in range(EXTENSION_MEMBERS_MAX // 2)}
    assert old(github=nested(EXTENSION_DEPTH_MAX)).extensions
    assert old(first=half, second=half).extensions
    with pytest.raises(EventError, match="must not have more than"):
        old(first=half, second=half, third={"a": 1})


def test_a_map_comes_back_from_every_store():
    event = old(github=GITHUB)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(event), type=Event) == event
