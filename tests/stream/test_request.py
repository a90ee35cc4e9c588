from __future__ import annotations

from functools import partial

import pytest

from headgate.objects.kinds.specs import DEFAULT_RULE, ServedBroker
from headgate.scan.source import Query
from headgate.stream.request import ReadRequest, read_request
from headgate_api.errors import HeadgateError


def asked(*parameters: tuple[str, str], follow: bool = False) -> ReadRequest:
    return read_request(ServedBroker("ns/b/1", DEFAULT_RULE), parameters, follow=follow)


def test_nothing_asked_is_everything_from_the_beginning():
    assert asked() == ReadRequest(Query("ns/b/1", DEFAULT_RULE.value), "earliest")
    assert asked(follow=True).follow


@pytest.mark.parametrize("name", ["filter", "first", "filters"])
def test_a_filter_that_repeats_a_member_is_refused(name: str):
    text = (
        '{"attributes": {"type": "a", "type": "b"}}' if name != "filters" else '[{"exact": {"type": "a", "type": "b"}}]'
    )
    with pytest.raises(HeadgateError, match="type' twice"):
        asked((name, text))


def test_everything_asked():
    found = asked(
        ("from", "0:7"),
        ("filter", 'ce.type == "a"'),
        ("filterValue", "a"),
        ("filterValue", "b"),
        ("matchUnfiltered", ""),
        ("limit", "5"),
        ("follow", "true"),
        ("wait", "2.5"),
        ("first", "data.x > 1"),
    )
    query = Query("ns/b/1", DEFAULT_RULE.value, frozenset({"a", "b"}), True, 'ce.type == "a"')
    assert found == ReadRequest(query, "0:7", "data.x > 1", 5, True, 2.5)


@pytest.mark.parametrize(
    ("name", "value", "cel"),
    [
        ("filter", '{"attributes": {"type": "a"}}', 'has(ce.type) && ce.type == "a"'),
        ("filters", '[{"prefix": {"type": "a"}}]', 'has(ce.type) && ce.type.startsWith("a")'),
        ("filter", "true", "true"),
    ],
)
def test_a_filter_may_be_of_any_dialect(name: str, value: str, cel: str):
    assert asked((name, value)).query.cel == asked(("filter", cel)).query.cel


def test_an_end_is_no_end_for_who_follows():
    found = asked(("to", "2026-01-02T00:00:00Z"), ("stored", "true"))
    assert (found.end, found.with_time) == ("2026-01-02T00:00:00Z", True)
    for follow in (asked, partial(asked, follow=True)):
        with pytest.raises(HeadgateError, match="where the answer ends"):
            follow(("to", "next"), *([("follow", "true")] if follow is asked else []))


def test_only_events_without_a_value():
    assert asked(("matchUnfiltered", "true")).query.values == frozenset()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("form", "x", "unknown parameter 'form'"),
        ("limit", "0", "limit='0'"),
        ("last", "0", "last='0'"),
        ("last", "501", "last='501'"),
        ("limit", "many", "limit='many'"),
        ("limit", "nan", "limit='nan'"),
        ("wait", "61", "wait='61'"),
        ("follow", "yes", "follow='yes'"),
        ("filter", "ce.type ==", "filter"),
        ("filter", '{"cel": ', "filter"),
        ("filter", '{"nosuch": 1}', "nosuch"),
        ("filters", "{}", "filters"),
        ("filters", "[[", "filters"),
        ("first", "1 + 1", "type int"),
        ("filter", "\ud800", "surrogate"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(name: str, value: str, said: str):
    with pytest.raises(HeadgateError) as refused:
        asked((name, value))
    assert refused.value.http_status in (400, 422)
    assert said in str(refused.value)


def test_the_last_events():
    assert asked(("last", "50")).last == 50
    assert asked(("limit", "5")).last is None
    for other in (("from", "earliest"), ("first", "true")):
        with pytest.raises(HeadgateError, match="each say where to begin"):
            asked(("last", "5"), other)


def test_twice_and_too_many():
    with pytest.raises(HeadgateError, match="limit is given twice"):
        asked(("limit", "1"), ("limit", "2"))
    with pytest.raises(HeadgateError, match="READ_VALUES_MAX"):
        asked(*[("filterValue", str(number)) for number in range(257)])
