"""Typical mistakes: each is refused in plain words, with a caret under its place and what was probably meant."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.filter.cel.errors import FilterError
from headgate.filter.cel.parsing import parse
from headgate.filter.compile.compiler import compile_filter

MISTAKES = [
    # text, part of the reason, part of the hint, what stands at the caret
    ('not ce.type == "a"', "unexpected 'not'", "negation is written with !", "not"),
    ('NOT ce.type == "a"', "unexpected 'NOT'", "negation is written with !", "NOT"),
    ('ce.type == "a" and data.x > 1', "unexpected 'and'", "written with &&", "and"),
    ('ce.type <> "a"', "unexpected '<>'", "!=", "<>"),
    ("data.total => 100", "unexpected '=>'", ">=", "=>"),
    ('ce.type =~ "a"', "unexpected '=~'", "matches", "=~"),
    ("ce.type == “a”", "unexpected '“'", "quotes", "“"),
    ("ce.type == `a`", "unexpected '`'", "quotes", "`"),
    ('ce.type like "a%"', "unexpected 'like'", "match(", "like"),
    ("data.x is null", "unexpected 'is'", "== null", "is"),
    ("data.x BETWEEN 1 AND 2", "unexpected 'BETWEEN'", ">=", "BETWEEN"),
    ('data.x contains "a"', "unexpected 'contains'", "behind a point", "contains"),
    ('ce.type in ("a", "b")', "unexpected ','", '["a", "b"]', ","),
    ("data.total > 1,000", "unexpected ','", "no commas", ","),
    ("data.total > 100m", "unexpected 'm'", "without units", "m"),
    ("ce.type == 'it's'", "unexpected 's'", r"\'", "s'"),
    ('ce.type.matches("\\d+")', r"\d is no escape", r"\\d", "\\d"),
    ("$.total > 1", "unexpected '$'", "data.<path>", "$"),
    ("data->total > 1", "unexpected '->'", "point", "->"),
    ("data.x == 1; true", "unexpected ';'", "one expression", ";"),
    ("# a comment", "unexpected '#", "//", "#"),
    ("data.x == 1 data.y == 2", "unexpected 'data'", "joined", "data.y"),
    ("data.x == True", "no name True", "did you mean true?", "True"),
    ("data.x == None", "no name None", "did you mean null?", "None"),
    ("ce.type == paid", "no name paid", '"paid"', "paid"),
    ('soruce == "/s"', "no name soruce", "did you mean ce.source?", "soruce"),
    ('event.type == "a"', "no name event.type", "did you mean ce.type?", "event.type"),
    ("event.data.x == 1", "no name event.data.x", "did you mean data.x?", "event.data"),
    ('attributes["type"] == "a"', "no name attributes", "ce.<name>", "attributes"),
    ('type == "a"', "type is a function", "ce.type", "== "),
    ("exists(data.items, i, i.x == 1)", "no name i", "data.items.exists(i, ...)", "i,"),
    ("data.items.any(i, i.x == 1)", "no name i", ".exists(i, ...)", "i,"),
    ("data.items.every(i, i.x == 1)", "no name i", ".all(i, ...)", "i,"),
    ('startsWith(ce.type, "a")', "stands behind", "x.startsWith(...)", "("),
    ('ce.type.startswith("a")', "no function startswith", "did you mean startsWith?", "("),
    ("len(data.items) > 1", "no function len", "did you mean size?", "("),
    ('now() > timestamp("2026-01-01T00:00:00Z")', "no function now", "publish_time", "("),
    ("1 == 1.0", "an int and a double are not compared by ==", "same type", "=="),
    ('"a" < 1', "a string and an int are not compared by <", "same type", "<"),
    ('1 + "a" == 2', "+ does not take an int and a string", "same type", "+"),
    ('!"a"', "! does not take a string", "compare it", "!"),
    ('data.x == "a" && "b"', "&& does not take", "same type", "&&"),
    ("size(data.items > 1)", "size does not take a bool", "types", "("),
    ('ce.type in "abc"', "not into a string", "contains", "in"),
    ('"abc"[0] == "a"', "a string is not read by [int]", "data.list[0]", "["),
    ('{"a": [1]} == 1', "a map and an int", "same type", "=="),
    ('timestamp("2026") < ce.time', "error on every event", "RFC 3339", '("2026")'),
    ('data.x == 1 || bool("maybe")', "error on every event", "true or false", '("maybe")'),
    ('ce.type.matches("[a")', "invalid regular expression", "RE2", '("[a")'),
]


@pytest.mark.parametrize(("text", "reason", "hint", "place"), MISTAKES)
def test_a_mistake_is_told_with_its_place_and_what_was_meant(text: str, reason: str, hint: str, place: str) -> None:
    with pytest.raises(FilterError) as refused:
        parse(text)
    error = refused.value
    assert reason in error.reason
    assert hint in error.hint
    shown, under = error.caret.split("\n")
    assert shown[under.index("^") :].startswith(place)
    for word in ("overload", "undeclared", "expecting", "token"):
        assert word not in error.message, "this is how a compiler speaks"


@pytest.mark.parametrize(
    ("filters", "field", "hint"),
    [
        ([{"exakt": {"type": "a"}}], "filters[0].exakt", "did you mean exact?"),
        ([{"ALL": []}], "filters[0].ALL", "did you mean all?"),
        ({"expresion": "true"}, "filter.expresion", "did you mean expression?"),
        ({"eventPattern": {"type": [{"prefx": "a"}]}}, "filter.eventPattern.type[0].prefx", "did you mean prefix?"),
        (
            {"eventPattern": {"type": [{"anything_but": "a"}]}},
            "filter.eventPattern.type[0].anything_but",
            "anything-but?",
        ),
        ({"pulsar": {"property": "a", "operatr": "EQ"}}, "filter.pulsar.operatr", "did you mean operator?"),
        ([{"cesql": "UPER(type) = 'a'"}], "filters[0].cesql", "did you mean UPPER?"),
        ([{"cesql": "type IS NULL"}], "filters[0].cesql", "EXISTS"),
        ([{"cesql": "x BETWEEN 1 AND 2"}], "filters[0].cesql", "x >= 1 AND x <= 9"),
        ([{"cesql": "SELECT * WHERE x = 1"}], "filters[0].cesql", "without SELECT"),
        ({"jms": "type CONTAINS 'a'"}, "filter.jms", "LIKE"),
    ],
)
def test_other_dialects_tell_what_was_meant(filters: Any, field: str, hint: str) -> None:
    one, several = (filters, ()) if isinstance(filters, dict) else (None, filters)
    with pytest.raises(FilterError) as refused:
        compile_filter(one, several)
    assert refused.value.field == field
    assert hint in refused.value.hint
