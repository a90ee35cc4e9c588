"""Where other engines take a filter otherwise: each place of the table is seen, and what is written plainly is not."""

from __future__ import annotations

import json
import re

import pytest

from headgate.filter.compile.compiler import compile_filter
from headgate.filter.tools.advice import PLACES, advice, differences

EXAMPLES: dict[str, tuple[object, tuple[object, ...]]] = {
    "_null_compared": ("data.n == null", ('ce.subject == "x == null"', "has(data.n) // == null")),
    "_duration_milliseconds": (
        'duration("3723.4s").getMilliseconds() == 400',
        ("ce.time.getMilliseconds() == 400", 'timestamp("2026-01-01T00:00:00Z").getMilliseconds() == 0'),
    ),
    "_class_of_letters": (
        r'ce.subject.matches("^\\d+$")',
        (r'ce.subject.matches("^[0-9]+\\.$")', r'ce.subject == "\\d"', r'ce.subject.matches(r"^\p{L}+$")'),
    ),
    "_lax_conversion": (
        'ce.time > timestamp("2026-01-01T00:00:00+0100")',
        ('ce.time > timestamp("2026-01-01T00:00:00.5+01:00")', 'data.n == int("5")', 'data.n < double("-1.5e3")'),
    ),
    "_mixed_operators": (
        "type = 'a' OR type = 'b' AND source = 'c'",
        ("(type = 'a' OR type = 'b') AND source = 'c'", "type IN ('AND', 'OR')"),
    ),
    "_missing_before_or": (
        "tenant = 'a' OR type = 'b'",
        ("type = 'b' OR tenant = 'a'", "(EXISTS tenant AND tenant = 'a') OR type = 'b'", "tenant = 'a' AND TRUE"),
    ),
    "_one_character_of_many_bytes": (
        "subject LIKE 'é_'",
        ("subject LIKE 'e_'", "subject LIKE 'é%'", r"subject LIKE 'é\_'"),
    ),
    "_compared_with_each_other": (
        "a = b",
        ("a = 'b'", "type = source", "a IS NOT NULL AND a = b AND b IS NOT NULL", "a < b"),
    ),
    "_unequal": ("a <> 1", ("a = 1", "type <> 'x'", "a IS NOT NULL AND a <> 1", "NOT (a = 1)")),
    "_case_beyond_ascii": (
        {"detail": {"v": [{"equals-ignore-case": "straße"}]}},
        ({"detail": {"v": [{"equals-ignore-case": "abc"}, "straße"]}},),
    ),
    "_wildcard_beside_case": (
        {"detail": {"v": [{"wildcard": "*x"}, {"equals-ignore-case": "x"}]}},
        ({"detail": {"v": [{"wildcard": "*x"}, "x"], "w": [{"equals-ignore-case": "x"}]}},),
    ),
    "_whole_address": ({"detail": {"ip": [{"cidr": "::1/128"}]}}, ({"detail": {"ip": [{"cidr": "10.0.0.0/24"}]}},)),
}

ENGINES = {
    "_null_compared": "dev.cel",
    "_duration_milliseconds": "cel-go",
    "_class_of_letters": "cel-js",
    "_lax_conversion": "engines that follow RFC 3339 strictly",
    "_mixed_operators": "the SDKs of Go and Java",
    "_missing_before_or": "the SDK of Java",
    "_one_character_of_many_bytes": "the SDK of Go",
    "_compared_with_each_other": "ActiveMQ and Qpid",
    "_unequal": "Qpid",
    "_case_beyond_ascii": "EventBridge",
    "_wildcard_beside_case": "EventBridge",
    "_whole_address": "EventBridge",
}


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.seen.__name__.lstrip("_"))
def test_a_place_is_seen_in_a_valid_filter_and_names_its_engines(place):
    value, others = EXAMPLES[place.seen.__name__]
    template = re.sub(r"\\\{found(!r)?\\\}", ".+", re.escape(place.says))

    def said(of: object) -> list[str]:
        compile_filter({place.dialect: of})
        return [one for one in differences(place.dialect, of) if re.fullmatch(template, one)]

    (sentence,) = said(value)
    assert ENGINES[place.seen.__name__] in sentence
    assert [said(one) for one in others] == [[] for _ in others]


def test_advice_names_the_field_and_every_form_of_a_filter_is_looked_at() -> None:
    for filters in ([{"expression": "data.n != null"}], [{"all": [{"not": {"cel": "data.n != null"}}]}]):
        (one,) = advice(None, filters)
        assert one.reason == "EnginesDiffer"
        assert one.message.startswith("spec.filters[0]")
        assert "dev.cel" in one.message
    pattern = {"detail": {"ip": [{"cidr": "10.0.0.1/32"}]}}
    assert differences("eventPattern", json.dumps(pattern)) == differences("eventPattern", pattern) != ()


def test_what_is_no_filter_of_the_language_has_no_advice() -> None:
    assert differences("cesql", "type =") == differences("jms", 5) == differences("exact", {"type": "a"}) == ()
    assert differences("eventPattern", {"a": 1}) == ()
