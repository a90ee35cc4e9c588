"""Does a bound never deny an event that the filter is true of? Against cel-cpp, on generated data and filters."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headgate.filter.cel.evaluate import OutcomeKind, program
from headgate.filter.skipping.literals import ESCAPE, NumberRange, number_ranges
from headgate_api.event.model import DataKind, Event

BIG = 2**53
NUMBERS = st.one_of(
    st.integers(-20, 20),
    st.integers(BIG - 2, BIG + 3),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0.5, -0.0, 1e21, 3.0]),
)
VALUES = st.one_of(NUMBERS, st.sampled_from([None, True, "3", [3], {"n": 3}]))


def constant(number: float) -> str:
    if isinstance(number, float):
        return repr(number) if "." in repr(number) or "e" in repr(number) else f"{number!r}.0"
    return f"{number}u" if number >= 2**63 else str(number)


def event(data: bytes) -> Event:
    return Event("1.0", "1", "/s", "t", data_kind=DataKind.JSON, data=data)


@given(
    data=st.fixed_dictionaries({}, optional={"n": VALUES, "m": VALUES, "o": st.fixed_dictionaries({"n": VALUES})}),
    path=st.sampled_from(["n", "m", "o.n"]),
    operator=st.sampled_from(["==", "!=", "<", "<=", ">", ">="]),
    number=NUMBERS,
    turned=st.booleans(),
    more=st.sampled_from(["", " && data.n < 10", " || data.m == 3", " && has(data.m)", " && data.n in [3, 4.5]"]),
    indent=st.sampled_from([None, 1]),
    escaped=st.booleans(),
)
def test_no_event_that_the_filter_takes_is_denied(
    data: dict[str, object],
    path: str,
    operator: str,
    number: float,
    turned: bool,
    more: str,
    indent: int | None,
    escaped: bool,
) -> None:
    sides = (constant(number), f"data.{path}") if turned else (f"data.{path}", constant(number))
    cel = f"{sides[0]} {operator} {sides[1]}{more}"
    text = json.dumps(data, indent=indent).encode()
    if escaped:
        text = text.replace(b'"n"', b'"\\u006e"')
    if program(cel).evaluate(event(text)).kind is OutcomeKind.TRUE:
        for bound in number_ranges(cel):
            assert bound.occurs(text) or ESCAPE in text
            assert bound.occurs_within(text, 0, len(text)) == bound.occurs(text)


@pytest.mark.parametrize(
    ("cel", "expected"),
    [
        ("data.tso >= 5", [NumberRange(b"tso", 5.0, math.inf)]),
        ("5 > data.a.b && ce.type == 'x'", [NumberRange(b"b", -math.inf, 5.0)]),
        ("data.n == 1.5 && data.m in [3, 1]", [NumberRange(b"n", 1.5, 1.5), NumberRange(b"m", 1.0, 3.0)]),
        ("!(data.n < 3)", [NumberRange(b"n", 3.0, math.inf)]),
        ("data.n > 1 || data.m > 1", []),
        ("data.n != 1", []),
        ("data.n == true", []),
        ("ce.n > 1", []),
        ('data.n == "1"', []),
        ("int(data.n) == 1", []),
    ],
)
def test_what_a_filter_asks_of_numbers(cel: str, expected: list[NumberRange]) -> None:
    assert list(number_ranges(cel)) == expected


@given(st.from_regex(r"-?[0-9]{1,400}(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,20})?", fullmatch=True))
@example("1e999")
@example("-1e-999")
@example("2.4703282292062328e-324")
@example("9007199254740993")
def test_every_spelling_of_a_number_is_the_double_that_python_makes_of_it(text: str) -> None:
    number = float(text)
    data = b'{"n": %s}' % text.encode()
    assert NumberRange(b"n", number, number).occurs(data)
    assert NumberRange(b"n", number, number).occurs_within(data, 0, len(data))
    assert not NumberRange(b"n", math.nextafter(number, math.inf), math.inf).occurs(data) or number == math.inf


def test_bytes_of_other_members_and_kinds_are_no_number_of_it() -> None:
    (bound,) = number_ranges("data.tso >= 5")
    for text in (b'{"tsoo":9}', b'{"xtso":9}', b'{"tso":"9"}', b'{"tso":4}', b'{"a":"tso","b":9}', b"[9]", b""):
        assert not bound.occurs(text)
    for text in (b'{"tso" :\n 9}', b'{"a":{"tso":5e0}}', b'{"tso":-1}{"tso":12.5}', b'{"tso":5}'):
        assert bound.occurs(text)
