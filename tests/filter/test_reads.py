"""An expression has the same value on what it reads of an event as on the whole event."""

from __future__ import annotations

import random

import pytest

from headgate.filter.cel.engine import compile_expression
from headgate.filter.cel.errors import EvaluationError
from headgate.filter.cel.evaluate import EventView
from headgate.filter.cel.functions import data_at_hand
from headgate.filter.cel.reads import EVERYTHING, Reads, reads_of
from headgate.filter.cel.rewrite import resolve
from headgate.filter.cel.unparse import unparse
from headgate_api.event.model import DataKind, Event
from tests.filter.hostile_events import random_view
from tests.filter.strategies import random_hard_filter
from tests.support import times


def reads(text: str) -> Reads:
    return reads_of(resolve(compile_expression(text).tree()))


def value(text: str, view: EventView, read: Reads) -> object:
    try:
        return compile_expression(text).value(view.variables(read))
    except EvaluationError as error:
        return error.message


def test_what_is_not_read_changes_no_value_and_no_error() -> None:
    rng = random.Random(21)
    views = [random_view(rng) for _ in range(40)]
    partial = 0
    for _ in range(times(200, 5_000)):
        text = unparse(data_at_hand(resolve(compile_expression(random_hard_filter(rng)).tree())))
        read = reads(text)
        partial += read.decode is not None
        for view in rng.sample(views, 6):
            fresh = EventView(view.event)
            fresh.publish_time_us = view.publish_time_us
            assert value(text, fresh, read) == value(text, view, EVERYTHING), (text, view.event)
    assert partial > 50


@pytest.mark.parametrize(
    ("text", "decoded"),
    [
        ("data.a.b == 1 || data.c > 2", b'{"a":{"b":1},"c":[{"d":1}]}'),
        ('data["a"]["b"] == 1', b'{"a":{"b":1}}'),
        ("data.a.b == 1 || has(data.a)", b'{"a":{"b":1,"x":2}}'),
        ("data.c.exists(one, one.d == 1)", b'{"c":[{"d":1}]}'),
        ("has(data.a.nothing)", b'{"a":{}}'),
    ],
)
def test_of_data_it_decodes_what_is_read(text: str, decoded: bytes) -> None:
    whole = b'{"\\u0061":{"b":1,"x":2},"c":[{"d":1}],"e":[' + b'{"f":1},' * 99 + b"0]}"
    event = Event("1.0", "1", "/s", "t", data_kind=DataKind.JSON, data=whole)
    expected = EventView(Event("1.0", "1", "/s", "t", data_kind=DataKind.JSON, data=decoded)).json
    assert expected is not None
    assert EventView(event).variables(reads(text)) == {"data": expected[0]}


NO_OBJECT = [b"null", b"[1]", b'"a"', b"1.5", b'{"a":null}', b'{"a":[1]}', b'{"a":18446744073709551616}']


@pytest.mark.parametrize("data", NO_OBJECT)
def test_what_is_no_object_where_one_is_read_stays_what_it_is(data: bytes) -> None:
    view = EventView(Event("1.0", "1", "/s", "t", data_kind=DataKind.JSON, data=data))
    read = reads("data.a.b == 1")
    assert view.json is not None
    assert read.decode is not None
    assert read.decode(data) == view.json[0]
    assert view.variables(read) == {"data": view.json[0]}


def test_variables_that_are_not_read_are_not_made() -> None:
    event = Event("1.0", "1", "/s", "t", time="2026-01-02T03:04:05Z", data_kind=DataKind.JSON, data=b'{"a":1}')
    view = EventView(event, 1_700_000_000_000_000)
    assert view.variables(reads("ce.type == 't' || ce.nothing == 1")) == {"ce": {"type": "t"}}
    assert view.variables(reads("1 == 1")) == {}
    assert view.variables(reads("publish_time < ce.time")).keys() == {"publish_time", "ce"}
    assert "json" not in vars(view)
    assert view.variables(reads("'a' in ce || 'a' in data")) == {
        name: found for name, found in view.variables(EVERYTHING).items() if name != "publish_time"
    }


def test_what_others_have_had_made_is_used_again() -> None:
    view = EventView(Event("1.0", "1", "/s", "t", data_kind=DataKind.JSON, data=b'{"a":1}'))
    read = reads("data.a == 1")
    assert view.for_one(read) == {"data": {"a": 1}}
    shared = view.activation
    assert view.for_one(read) is shared
    assert compile_expression("data.a == 1").value(shared) is True
