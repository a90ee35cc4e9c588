"""What a filter sees of an event, and that nothing in an event makes an evaluation raise."""

from __future__ import annotations

import pytest

from headgate.filter.cel.errors import FilterError
from headgate.filter.cel.evaluate import EventView, OutcomeKind, decode_json, program
from headgate.filter.compile.compiler import compile_cel, compile_filter
from headgate.filter.compile.plan import Verdict
from headgate_api.event.model import DataKind, Event
from tests.filter.reference.rows import row_verdicts


def event(data: bytes | None = None, kind: DataKind | None = None, **attributes: object) -> Event:
    if kind is None:
        kind = DataKind.NONE if data is None else DataKind.JSON
    required: dict[str, object] = {"specversion": "1.0", "id": "1", "source": "/a", "type": "t"}
    return Event(**(required | attributes), data_kind=kind, data=data)  # type: ignore[arg-type]


def outcome(text: str, of: Event) -> OutcomeKind:
    return program(text).evaluate(of).kind


def holds(text: str, of: Event) -> bool:
    kind = outcome(text, of)
    assert kind is not OutcomeKind.ERROR, program(text).evaluate(of).message
    return kind is OutcomeKind.TRUE


def test_attributes_have_their_types() -> None:
    of = event(
        subject="s",
        time="2026-11-21T10:00:00.123456789+01:00",
        datacontenttype="text/plain",
        dataschema="urn:x",
        extensions={"n": 5, "b": True, "s": "5", "in": "x"},
    )
    assert holds("ce.type == 't' && ce.source == '/a' && ce.id == '1' && ce.specversion == '1.0'", of)
    assert holds("ce.subject == 's' && ce.datacontenttype == 'text/plain' && ce.dataschema == 'urn:x'", of)
    assert holds(
        "ce.n == 5 && ce.n > 4.5 && ce.n != '5' && ce.s == '5' && ce.b && ce.`in` == 'x' && ce['in'] == 'x'", of
    )
    assert holds("ce.time == timestamp('2026-11-21T09:00:00.123456789Z')", of)
    assert holds("ce.time.getHours() == 9", of)
    assert not holds("ce.time == '2026-11-21T10:00:00.123456789+01:00'", of)
    assert outcome("ce.time < '2027'", of) is OutcomeKind.ERROR


def test_what_is_absent_is_an_error_and_has_tells() -> None:
    of = event()
    assert outcome("ce.subject == 's'", of) is OutcomeKind.ERROR
    assert not holds("has(ce.subject) || has(ce.time) || has(ce.nosuch)", of)
    assert outcome("has(ce.nosuch.x)", of) is OutcomeKind.FALSE
    assert outcome("has(data.nosuch.x)", of) is OutcomeKind.ERROR
    assert holds("has(ce.type) && !('subject' in ce)", of)


@pytest.mark.parametrize(
    "of",
    [
        event(),
        event(b'{"a": 1}', DataKind.TEXT),
        event(b'{"a": 1}', DataKind.BINARY),
        event(b"\xff\x00", DataKind.BINARY),
        event(b'{"a": ', DataKind.JSON),
        event(b'{"a": "\\u0000"}', DataKind.JSON),
        event(b'{"a": "\\\\\\u0000"}', DataKind.JSON),
        event(b'{"a": "\\ud800"}', DataKind.JSON),
        event(b'{"a": NaN}', DataKind.JSON),
        event(b"[" * 100_000 + b"]" * 100_000, DataKind.JSON),
    ],
)
def test_data_that_is_no_json_is_an_error_where_it_is_read(of: Event) -> None:
    assert outcome("data.a == 1", of) is OutcomeKind.ERROR
    assert outcome("has(data.a)", of) is OutcomeKind.ERROR
    assert outcome("data == null", of) is OutcomeKind.ERROR
    assert holds("ce.type == 't'", of)
    assert holds("ce.type == 't' || data.a == 1", of)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"9223372036854775807", 2**63 - 1),
        (b"-9223372036854775808", -(2**63)),
        (b"9223372036854775808", 2**63),
        (b"18446744073709551615", 2**64 - 1),
        (b"18446744073709551616", 2.0**64),
        (b"-9223372036854775809", -(2.0**63)),
        (b"1" + b"0" * 400, float("inf")),
        (b"-1" + b"0" * 400, float("-inf")),
        (b"1e400", float("inf")),
        (b"1.0", 1.0),
        (b"1e2", 100.0),
        (b"null", None),
        (b'{"a": 1, "a": 2}', {"a": 2}),
        (b'{"json": "{\\"text\\": \\"a\\\\u0000b\\"}"}', {"json": r'{"text": "a\u0000b"}'}),
        (b'[99999999999999999999, {"k": -99999999999999999999}]', [1e20, {"k": -1e20}]),
    ],
)
def test_json_as_cel_reads_it(text: bytes, value: object) -> None:
    decoded = decode_json(text)
    assert decoded is not None
    assert repr(decoded[0]) == repr(value)


@pytest.mark.parametrize("number", [b"18446744073709551616", b"18446744073709551615", b"1e400"])
def test_a_long_number_is_read_at_any_depth(number: bytes) -> None:
    depth = 700  # a walk by calls through what was read would need more than Python's stack
    decoded = decode_json(b"[" * depth + number + b"]" * depth)
    assert decoded is not None
    (value,) = decoded
    while isinstance(value, list):
        (value,) = value
    assert repr(value) == repr(decode_json(number)[0])  # type: ignore[index]


def test_numbers_of_every_size_are_readable() -> None:
    of = event(b'{"big": 99999999999999999999, "uint": 18446744073709551615, "int": -9223372036854775808, "x": 1}')
    assert holds("data.big == 1e20 && data.big > 18446744073709551615u", of)
    assert holds("data.uint == 18446744073709551615u && data.uint > 9223372036854775807 && data.uint > -1", of)
    assert holds("data.int == -9223372036854775808 && data.int < 0u", of)
    assert holds("type(data.big) == double && type(data.uint) == uint && type(data.x) == int", of)


def test_data_need_not_be_an_object() -> None:
    assert holds("data == null", event(b"null"))
    assert holds("data == 'a'", event(b'"a"'))
    assert holds("data[1] == 2", event(b"[1, 2]"))
    assert outcome("has(data.a)", event(b"[1, 2]")) is OutcomeKind.ERROR


def test_deep_data_is_readable() -> None:
    of = event(b'{"a":' * 900 + b"1" + b"}" * 900)
    assert holds("has(data.a.a.a)", of)


LABELS = {"app.kubernetes.io/name": "web", "app": {"kubernetes": {"io/name": "other"}}, "": 1, "a\\b": True}


@pytest.mark.parametrize(
    "text",
    [
        "ce.a.b == 'x' && ce['a.b'] == 'x' && ce.`a.b` == 'x' && ce['a'].b == 'x' && has(ce.a.b)",
        "ce.a.b == 'x' && has(ce.a) && ce.a == {'b': 'x'} && size(ce.a) == 1 && type(ce.a) == map",
        "'a.b' in ce && 'b' in ce.a && ce.a.exists(k, ce.a[k] == 'x')",
        "!has(ce.a.x) && !has(ce.nosuch.x) && !has(ce.c.d) && !has(ce.type.x)",
        "ce.labels['app.kubernetes.io/name'] == 'web' && has(ce.labels.`app.kubernetes.io/name`)",
        "ce.labels.app.kubernetes['io/name'] == 'other' && ce['labels.app.kubernetes.io/name'] == 'other'",
        r"ce['labels.app\\.kubernetes\\.io/name'] == 'web' && ce.labels['a\\b'] && ce.labels[''] == 1",
        "data.exists(k, k == 'github') && ce[data.github].b == 'x'",
    ],
)
def test_members_of_extensions(text: str) -> None:
    of = event(b'{"github": "a"}', extensions={"a": {"b": "x"}, "c": "y", "labels": LABELS})
    view = EventView(of)
    assert holds(text, of)
    assert holds(compile_cel(text).cel, of)
    assert row_verdicts(compile_cel(text), view) in (Verdict.MATCH, Verdict.CANDIDATE)
    assert outcome("ce.a.x == 'x'", of) is OutcomeKind.ERROR
    assert outcome("ce.c.x == 'x'", of) is OutcomeKind.ERROR


def test_all_ways_to_write_a_member_are_one_row() -> None:
    ways = ["ce.a.b == 'x'", "ce['a.b'] == 'x'", "ce.a['b'] == 'x'", "ce['a'].b == 'x'"]
    compiled = [compile_cel(way) for way in ways] + [compile_filter({"cel": "ce.`a.b` == 'x'"})]
    assert len({one.rows for one in compiled}) == 1
    assert compiled[0].rows[0].signature.exact
    assert compile_filter({"attributes": {"a.b": "x"}}).cel == 'has(ce.`a.b`) && ce["a.b"] == "x"'


def test_times_outside_cels_years_are_present_without_order() -> None:
    of = event(time="0000-01-01T00:00:00Z")
    assert holds("has(ce.time)", of)
    assert outcome("ce.time > timestamp('2000-01-01T00:00:00Z')", of) is OutcomeKind.ERROR


def test_a_view_is_shared_by_programs() -> None:
    view = EventView(event(b'{"a": 1}'))
    assert program("data.a == 1").evaluate_view(view).kind is OutcomeKind.TRUE
    assert program("data.a == 2").evaluate_view(view).kind is OutcomeKind.FALSE
    assert program("data.a").evaluate_view(view).kind is OutcomeKind.ERROR
    assert view.activation is view.activation


def test_a_dollar_is_the_very_end_of_the_text() -> None:
    of = event(subject="a\n")
    assert not holds("ce.subject.matches('a$')", of)
    assert not holds("ce.subject.matches('^a.*b$') || ce.subject.endsWith('a')", of)


def test_programs_are_cached_and_refuse_what_is_no_filter() -> None:
    assert program("data.a == 1") is program("data.a == 1")
    assert program("ce['a'].b == 1").cel == 'ce["a.b"] == 1'
    with pytest.raises(FilterError):
        program("data.a ==")


def test_filters_that_mean_the_same_share_one_program() -> None:
    texts = ["ce.type == 'a' && data.n > 1", "'a' == ce[\"type\"] && (1 < data.n)", 'ce.type == "a" && !(data.n <= 1)']
    assert len({program(compile_cel(text).cel) for text in texts}) == 1
