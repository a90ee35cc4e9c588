"""Are the events, filters and places that users give what the server is asked? What they cannot be is refused."""

import inspect
import json
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from hypothesis import given, reject

from headgate.expr import property
from headgate_api import limits
from headgate_api.errors import EventError, HeadgateError, InvalidInputError, OverloadedError
from headgate_api.event.json_format import decode_event, encode_event
from headgate_api.event.model import DataKind
from headgate_client.aio import AsyncClient
from headgate_client.connection import Retry
from headgate_client.sync import Client
from headgate_client.values import condition_text, filter_message, json_of, new_event, place_text
from tests.event.strategies import json_values


@given(json_values)
def test_what_json_can_say_is_an_event_with_that_data(value):
    try:
        event = new_event("t", "/s", value)
    except EventError:
        reject()  # NUL, integers above 64 bits
    assert decode_event(encode_event(event)) == event
    if value is None:
        assert event.data_kind is DataKind.NONE
    else:
        assert event.datacontenttype == "application/json"
        assert json_of(event) == json.loads(json.dumps(value))


def test_an_event_has_what_it_is_given():
    event = new_event(
        "t",
        "/s",
        "<a/>",
        id="1",
        subject="x",
        time=datetime(2026, 1, 2, tzinfo=UTC),
        datacontenttype="application/xml",
        dataschema="urn:x",
        extensions={"tenant": "a", "n": 1, "flag": True},
    )
    assert (event.data_kind, event.data, event.time, event.id) == (DataKind.TEXT, b"<a/>", "2026-01-02T00:00:00Z", "1")
    assert event.extensions == {"tenant": "a", "n": 1, "flag": True}
    assert new_event("t", "/s").id != new_event("t", "/s").id
    assert new_event("t", "/s", b"{}", datacontenttype="text/json").data_kind is DataKind.JSON
    assert new_event("t", "/s", b"{}").data_kind is DataKind.BINARY


@pytest.mark.parametrize(
    ("given", "attribute"),
    [
        ({"id": ""}, "id"),
        ({"subject": ""}, "subject"),
        ({"source": "a b"}, "source"),
        ({"time": "yesterday"}, "time"),
        ({"datacontenttype": "json"}, "datacontenttype"),
        ({"dataschema": "relative"}, "dataschema"),
        ({"extensions": {"Upper": "x"}}, "Upper"),
        ({"extensions": {"id": "x"}}, "id"),
        ({"extensions": {"subject": "x"}}, "subject"),
        ({"extensions": {"x": 1.5}}, "x"),
        ({"data": {1, 2}.__iter__()}, "data"),
        ({"data": {"a": "\0"}}, "data"),
        ({"data": {"a": 1}, "datacontenttype": "text/plain"}, "data"),
        ({"data": b'{"a":1,"a":1}', "datacontenttype": "application/json"}, "data"),
    ],
)
def test_what_is_wrong_with_an_event_is_named(given, attribute):
    with pytest.raises(EventError) as refused:
        new_event(**{"type": "t", "source": "/s", **given})
    assert refused.value.attribute == attribute


def test_filters_and_places_are_what_the_server_takes():
    assert filter_message(None) is None
    assert filter_message("ce.id == '1'").cel == "ce.id == '1'"
    assert json.loads(filter_message({"cesql": "id = '1'"}).filter) == {"cesql": "id = '1'"}
    assert json.loads(filter_message([{"exact": {"id": "1"}}]).filters) == [{"exact": {"id": "1"}}]
    assert filter_message(property("id") == "1").cel == (property("id") == "1").cel()
    assert condition_text(None) == ""
    assert condition_text("ce.id == '1'") == "ce.id == '1'"
    assert condition_text(property("id") == "1") == 'ce.id == "1"'
    assert json.loads(condition_text({"cesql": "id = '1'"})) == {"cesql": "id = '1'"}
    with pytest.raises(InvalidInputError, match="one filter"):
        condition_text([{"exact": {"id": "1"}}])
    with pytest.raises(InvalidInputError, match="cannot be JSON"):
        filter_message({"cesql": object()})
    assert place_text("0:12,1:0") == "0:12,1:0"
    assert place_text(datetime(2026, 1, 2, 3, tzinfo=UTC)) == "2026-01-02T03:00:00Z"
    with pytest.raises(InvalidInputError, match="time zone"):
        place_text(datetime(2026, 1, 2))


def pauses(retry: Retry, now: list[float], fail: Callable[[], HeadgateError]) -> list[float]:
    """Until it gives up."""
    found: list[float] = []
    try:
        while True:
            found.append(retry.pause_s(fail()))
            now[0] += found[-1]
    except HeadgateError:
        return found


def test_pauses_grow_to_a_bound_and_patience_ends():
    now = [0.0]
    busy = OverloadedError("busy")
    retry = Retry(20.0, clock_s=lambda: now[0], chance=lambda: 1.0)
    retry.worked()
    found = pauses(retry, now, lambda: busy)
    least, most = limits.CLIENT_BACKOFF_S_MIN, limits.CLIENT_BACKOFF_S_MAX
    assert found[:3] == [least, 2 * least, 4 * least]
    assert max(found) == most
    assert 20 <= now[0] <= 20 + most
    retry.worked()
    assert retry.pause_s(busy) == least
    with pytest.raises(InvalidInputError, match="final"):
        retry.pause_s(InvalidInputError("final"))


def test_a_server_that_agrees_and_soon_refuses_is_not_taken_for_one_that_works():
    now = [0.0]
    busy = OverloadedError("busy")
    retry = Retry(20.0, clock_s=lambda: now[0], chance=lambda: 1.0)

    def open_and_refuse() -> HeadgateError:
        retry.opened()
        now[0] += limits.CLIENT_LASTED_S_MIN / 2
        return busy

    found = pauses(retry, now, open_and_refuse)
    assert found == sorted(found)
    assert 20 <= now[0] <= 20 + limits.CLIENT_LASTED_S_MIN + limits.CLIENT_BACKOFF_S_MAX
    retry.opened()
    now[0] += limits.CLIENT_LASTED_S_MIN
    assert retry.pause_s(busy) == limits.CLIENT_BACKOFF_S_MIN, "it lasted"


def test_a_first_connection_is_given_up_sooner():
    now = [0.0]
    retry = Retry(1_000.0, clock_s=lambda: now[0], chance=lambda: 0.0)
    assert pauses(retry, now, lambda: OverloadedError("busy"))
    assert now[0] <= limits.CLIENT_CONNECT_S_MAX + limits.CLIENT_BACKOFF_S_MAX


def test_both_clients_are_made_alike():
    assert inspect.signature(Client) == inspect.signature(AsyncClient)
    with pytest.raises(TypeError, match="nonsense"):
        Client("127.0.0.1:1", nonsense=1)  # type: ignore[call-arg]
    with pytest.raises(InvalidInputError, match=r"client_key key\.pem"):  # not left out
        Client("127.0.0.1:1", client_key="key.pem")
