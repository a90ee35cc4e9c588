"""What filters mean where other engines of the same language answer otherwise; docs/reference/interoperability.md."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headgate.filter.cel.errors import FilterError
from headgate.filter.cel.evaluate import OutcomeKind, program
from headgate.filter.compile.compiler import compile_filter
from headgate.filter.tools.advice import advice
from headgate_api.event.model import DataKind, Event

TRUE, FALSE, ERROR = OutcomeKind.TRUE, OutcomeKind.FALSE, OutcomeKind.ERROR
FACE = "\U0001f600"


def outcome(filter_object: dict[str, Any], data: Any = None, **extensions: str | int | bool) -> OutcomeKind:
    """What a filter says of an event of the type `order` with these."""
    text = None if data is None else json.dumps(data).encode()
    kind = DataKind.NONE if text is None else DataKind.JSON
    event = Event("1.0", "1", "/a", "order", extensions=extensions, data=text, data_kind=kind)
    return program(compile_filter(filter_object).cel).evaluate(event).kind


@pytest.mark.parametrize("cel", ["data.n > 4", "data.n + 1 == 6", "int(data.n) == 5", 'string(data.n) == "5"'])
def test_a_small_json_integer_is_an_int_of_cel(cel: str) -> None:
    assert outcome({"cel": cel}, {"n": 5}) is TRUE


@pytest.mark.parametrize("cel", ["data.n == null", "has(data.n)"])
def test_a_null_member_is_there_and_is_null(cel: str) -> None:
    assert outcome({"cel": cel}, {"n": None}) is TRUE


def test_milliseconds_of_a_duration_are_those_below_a_second() -> None:
    assert outcome({"cel": "duration(ce.took).getMilliseconds() == 400"}, took="3723.4s") is TRUE


@pytest.mark.parametrize(
    "cel",
    [
        "size(data.word) == 1",
        'data.faces.indexOf("c") == 3',
        'data.faces.substring(3) == "c"',
        r'data.faces > "ab\uFFFD"',
    ],
)
def test_text_is_counted_and_ordered_in_code_points(cel: str) -> None:
    assert outcome({"cel": cel}, {"word": "é", "faces": f"ab{FACE}c"}) is TRUE


def test_a_digit_of_a_regular_expression_is_one_of_ascii_and_a_letter_any() -> None:
    digit, letter = r'data.v.matches("^\\d$")', r'data.v.matches("^\\pL$")'
    assert [outcome({"cel": digit}, {"v": text}) for text in ("3", "٣", "d")] == [TRUE, FALSE, FALSE]
    assert [outcome({"cel": letter}, {"v": text}) for text in ("é", "3")] == [TRUE, FALSE]


@pytest.mark.parametrize(
    ("cel", "text"),
    [
        ('timestamp(ce.v) == timestamp("2017-01-01T00:00:00Z")', "2016-12-31T23:59:60Z"),
        ('timestamp(ce.v) == timestamp("2026-01-31T11:00:00Z")', "2026-01-31T12:00:00+0100"),
        ('timestamp(ce.v) == timestamp("2026-01-31T12:00:00Z")', "2026-01-31t12:00:00z"),
        ("int(ce.v) == 5", " 5"),
        ("double(ce.v) == 8.0", "0x1p3"),
    ],
)
def test_conversions_take_what_cel_cpp_takes(cel: str, text: str) -> None:
    assert outcome({"cel": cel}, v=text) is TRUE


def test_integers_divide_to_integers() -> None:
    assert outcome({"cel": "data.n / 2 == 2"}, {"n": 5}) is TRUE


@pytest.mark.parametrize(
    ("cesql", "expected"),
    [
        ("FALSE AND FALSE OR TRUE", TRUE),
        ("TRUE OR FALSE AND FALSE", FALSE),
        ("type = 'order' OR type = 'x' AND type = 'y'", FALSE),
        ("type = 'order' OR (type = 'x' AND type = 'y')", TRUE),
    ],
)
def test_cesql_groups_from_the_left(cesql: str, expected: OutcomeKind) -> None:
    assert outcome({"cesql": cesql}) is expected
    assert bool(advice({"cesql": cesql})) is ("(" not in cesql)


@pytest.mark.parametrize("word", ["é", FACE])
@pytest.mark.parametrize("cesql", ["LENGTH(word) = 1", "word LIKE '_'"])
def test_cesql_counts_code_points(cesql: str, word: str) -> None:
    assert outcome({"cesql": cesql}, word=word) is TRUE


@pytest.mark.parametrize(
    ("cesql", "expected"),
    [
        ("missing = 'a' OR TRUE", ERROR),
        ("missing = 'a' OR type = 'order'", ERROR),
        ("type = 'order' OR missing = 'a'", TRUE),
        ("2147483647 + 1 > 0", ERROR),
        ("n + 1 < 0", ERROR),
    ],
)
def test_cesql_hides_no_error_and_wraps_no_sum(cesql: str, expected: OutcomeKind) -> None:
    assert outcome({"cesql": cesql}, n=2**31 - 1) is expected


@pytest.mark.parametrize("jms", ["a = b", "a <> b", "n <> a", "a <> n", "a <> 1", "NOT a = b", "NOT a <> 1"])
def test_a_selector_selects_nothing_by_comparing_a_missing_property(jms: str) -> None:
    assert outcome({"jms": jms}, n=5) is FALSE


@pytest.mark.parametrize(
    ("jms", "expected"),
    [
        ("big + big = 4294967294", TRUE),
        ("big + 1 > 2147483647", TRUE),
        ("n / 2 = 2.5", TRUE),
        ("n -- 2 = 7", TRUE),
        ("n -- 2 = 3", FALSE),
    ],
)
def test_a_selector_computes_in_doubles_and_has_no_comments(jms: str, expected: OutcomeKind) -> None:
    assert outcome({"jms": jms}, big=2**31 - 1, n=5) is expected


MATCHERS = [{"wildcard": "*x"}, {"equals-ignore-case": "x"}]


@pytest.mark.parametrize("matchers", [MATCHERS, MATCHERS[::-1]])
def test_matchers_of_one_pattern_do_not_change_each_other(matchers: list[Any]) -> None:
    texts = {"x": TRUE, "X": TRUE, "zx": TRUE, "y": FALSE, "zz": FALSE, "zX": FALSE}
    assert {text: outcome({"eventPattern": {"detail": {"v": matchers}}}, {"v": text}) for text in texts} == texts


@pytest.mark.parametrize(
    ("pattern", "data", "expected"),
    [
        ({"v": [0.1]}, '{"v": 0.10000000000000001}', TRUE),
        ({"v": [1]}, '{"v": 1.0}', TRUE),
        ({"v": [9007199254740993]}, '{"v": 9007199254740992}', FALSE),
    ],
)
def test_numbers_of_a_pattern_are_doubles_or_exact_integers(pattern: Any, data: str, expected: OutcomeKind) -> None:
    event = Event("1.0", "1", "/a", "t", data=data.encode(), data_kind=DataKind.JSON)
    assert program(compile_filter({"eventPattern": {"detail": pattern}}).cel).evaluate(event).kind is expected


@pytest.mark.parametrize(
    ("cidr", "address", "expected"),
    [
        ("10.0.0.0/24", "10.0.0.5", TRUE),
        ("10.0.0.0/24", "010.0.0.5", FALSE),
        ("::1/128", "::1", TRUE),
        ("::1/128", "::2", FALSE),
    ],
)
def test_a_cidr_takes_plain_addresses_and_every_length(cidr: str, address: str, expected: OutcomeKind) -> None:
    assert outcome({"eventPattern": {"detail": {"ip": [{"cidr": cidr}]}}}, {"ip": address}) is expected


@pytest.mark.parametrize(
    ("pattern", "data", "expected"),
    [
        ({"items": {"a": ["x"]}}, {"items": [{"a": "x"}]}, TRUE),
        ({"items": {"a": ["x"], "b": ["y"]}}, {"items": [{"a": "x", "b": "z"}, {"a": "z", "b": "y"}]}, FALSE),
        ({"v": [{"wildcard": "a*"}]}, {"v": "a"}, TRUE),
        ({"v": [{"anything-but": ["x"]}]}, {"w": 1}, FALSE),
    ],
)
def test_patterns_answer_where_emulators_err(pattern: Any, data: Any, expected: OutcomeKind) -> None:
    assert outcome({"eventPattern": {"detail": pattern}}, data) is expected
    with pytest.raises(FilterError, match="at least two"):
        compile_filter({"eventPattern": {"$or": [{"source": ["/a"]}]}})


def test_a_members_dots_are_its_own() -> None:
    assert outcome({"cel": 'data["a.b"] == 1'}, {"a.b": 1, "a": {"b": 2}}) is TRUE
    assert outcome({"cel": "data.a.b == 2"}, {"a.b": 1, "a": {"b": 2}}) is TRUE
