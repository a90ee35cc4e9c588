"""What a transform makes of an event, and which texts are none."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.filter.cel.errors import EvaluationError, FilterError
from headgate.filter.cel.evaluate import EventView
from headgate.filter.cel.transform import apply_transform, check_transform
from headgate_api import limits
from headgate_api.event.json_format import decode_event, encode_event

DATA = {"id": 7, "total": 9.5, "big": 2**64 - 1, "note": None, "items": [{"sku": "a"}, {"sku": None}]}
ORDER = {"specversion": "1.0", "id": "1", "source": "/s", "type": "order", "time": "2026-01-02T03:04:05.123456789Z"}
JSON_ORDER = {**ORDER, "datacontenttype": "application/json", "tenant": "x", "data": DATA}
TEXT_ORDER = {**ORDER, "datacontenttype": "text/plain", "data": "hello"}
STORED_US = 1_700_000_000_123_456


def made(text: str, event: dict[str, Any] = JSON_ORDER) -> dict[str, Any]:
    """What a transform that is admitted makes of an event, both as the JSON format has them."""
    check_transform(text)
    view = EventView(decode_event(json.dumps(event).encode()), STORED_US)
    found: dict[str, Any] = json.loads(encode_event(apply_transform(text, view)))
    return found


def without(name: str, event: dict[str, Any] = JSON_ORDER) -> dict[str, Any]:
    return {key: value for key, value in event.items() if key != name}


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ('{"type": "order.v2"}', {"type": "order.v2"}),
        ('{"type": ce.type + ".v2", "customer": data.id}', {"type": "order.v2", "customer": 7}),
        ('{"data": {"id": data.id, "total": data.total}}', {"data": {"id": 7, "total": 9.5}}),
        ('{"data": data.items.map(i, i.sku)}', {"data": ["a", None]}),
        ('{"data": json.values(data, ["items", "sku"])}', {"data": ["a", None]}),
        ('{"data": data}', {}),
        ('{"data": [data.big, -1, true, "x", null, 1.5, 5u]}', {"data": [2**64 - 1, -1, True, "x", None, 1.5, 5]}),
        ('{"data": "text"}', {"data": "text"}),
        ('{"data": {"at": ce.time, "for": duration("90s"), "raw": b"abc"}}',
         {"data": {"at": "2026-01-02T03:04:05.123456Z", "for": "PT90S", "raw": "YWJj"}}),
        ('{"stored": publish_time}', {"stored": "2023-11-14T22:13:20.123000Z"}),
        ('{"time": publish_time}', {"time": "2023-11-14T22:13:20.123000Z"}),
        ('{"subject": has(data.nothing) ? data.nothing : "none"}', {"subject": "none"}),
        ('data.total > 9.0 ? {"type": "big"} : {"type": "small"}', {"type": "big"}),
        ("{}", {}),
    ],
)  # fmt: skip
def test_what_it_names_is_changed_and_everything_else_stays(text: str, changes: dict[str, Any]) -> None:
    assert made(text) == JSON_ORDER | changes


def test_a_text_may_hold_what_is_not_printed_and_not_forbidden() -> None:
    assert made('{"subject": data.said}', {**ORDER, "data": {"said": "\u00a0"}})["subject"] == "\u00a0"


def test_null_removes() -> None:
    assert made('{"tenant": null, "time": null}') == without("tenant", without("time"))
    assert made('{"data": null}') == without("data", without("datacontenttype"))


def test_data_that_is_kept_is_kept_byte_for_byte() -> None:
    body = b'{"specversion":"1.0","id":"1","source":"/s","type":"t","data":{"b" :1.0,  "a":1e2}}'
    event = apply_transform('{"type": "u"}', EventView(decode_event(body)))
    assert event.data == b'{"b" :1.0,  "a":1e2}'


def test_new_data_is_json_or_the_text_that_its_type_says() -> None:
    assert made('{"data": {"said": "x"}}', TEXT_ORDER) == TEXT_ORDER | {
        "datacontenttype": "application/json",
        "data": {"said": "x"},
    }
    wanted = {"datacontenttype": "text/csv", "data": "7,9"}
    assert made('{"datacontenttype": "text/csv", "data": "7,9"}') == JSON_ORDER | wanted
    schema = "application/vnd.acme+json"
    assert made(f'{{"datacontenttype": "{schema}"}}') == JSON_ORDER | {"datacontenttype": schema}


def test_an_event_of_version_0_3_stays_one() -> None:
    old = {**without("datacontenttype"), "specversion": "0.3", "schemaurl": "http://s/1", "data": DATA}
    assert made('{"type": "u"}', old) == old | {"type": "u"}
    assert made('{"dataschema": "http://s/2"}', old) == old | {"schemaurl": "http://s/2"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"x": data.nothing}', "nothing"),
        ('{"x": data.total}', "x: must be a string, an integer or a boolean"),
        ('{"x": data}', "x: must be"),
        ('{"x": duration("1s")}', "not a duration"),
        ('{"type": data.id}', "type: must be a string, not an integer"),
        ('{"type": data.note}', "null cannot remove it"),
        ('{"source": "a" + " b"}', "source: must be a URI-reference"),
        ('{"time": "tomorrow" + ""}', "time: must be a timestamp"),
        ('{"n": data.big}', "n: an integer must be within 32 bits"),
        ('{"data": 1.0 / 0.0}', "the number inf"),
        ('{"data": {1: 2}}', "the key 1"),
        ('{"data": data.id / 0}', "divide by zero"),
        ('{"data": [type(data.id)]}', "which JSON does not have"),
        ('{"subject": string(b"\\x01")}', r"subject: a string must not hold U\+0001"),
        ('{"tenant": string(b"\\xef\\xbf\\xbe")}', r"tenant: a string must not hold U\+FFFE"),
        ('{"datacontenttype": "text/plain"}', "name data, too"),
        ('{"datacontenttype": "text/plain", "data": data.id}', "data: must be a text"),
    ],
)
def test_where_it_makes_no_event_the_reason_is_said(text: str, reason: str) -> None:
    with pytest.raises(EvaluationError, match=reason):
        made(text)


@pytest.mark.parametrize(
    ("text", "reason", "caret"),
    [
        ("data", "a transform is a map", ""),
        ("true", "a transform is a map", ""),
        ('[{"type": "a"}]', "a transform is a map", ""),
        ('data.x ? {"type": "a"} : data', "a transform is a map", ""),
        ("", "empty", ""),
        ('{"type": 5}', "type: must be a string", ""),
        ('{"source": "a b"}', "source: must be a URI-reference", ""),
        ('{"id": null}', "null cannot remove it", '"id"'),
        ('{"Type": "a"}', "no attribute's name", '"Type"'),
        ('{"data_base64": "a"}', "no attribute's name", '"data_base64"'),
        ('{"x": {"y": 1}}', "x is an attribute", '"x"'),
        ('{"x": [1]}', "x is an attribute", '"x"'),
        ('{"x": 1.5}', "x: must be", ""),
        ('{"specversion": "0.3"}', "the broker's own", '"specversion"'),
        ('{"headgatehops": 1}', "the broker's own", '"headgatehops"'),
        ('{"headgateroot": null}', "the broker's own", '"headgateroot"'),
        ('{"data": {"all": [ce]}}', "ce as a whole", '"data"'),
        ('{"type": "a", "type": "b"}', "there twice", '"type"'),
        ("{data.x: 1}", "a text in quotes", ""),
        ('{"type": "a"', "ends too early", '{"type"'),
        ('{"type": typ}', "undeclared|typ", "typ"),
        ('{"data": data.a.map(x, data.b.map(y, data.c.map(z, data.d.map(w, w))))}', "steps|limit", ""),
        ('{"data": ["' + "x" * limits.FILTER_CHARACTERS_MAX + '"]}', "FILTER_CHARACTERS_MAX", ""),
    ],
)
def test_what_can_make_no_event_is_refused_with_its_place(text: str, reason: str, caret: str) -> None:
    with pytest.raises(FilterError, match=reason) as refused:
        check_transform(text)
    assert refused.value.field == "transform"
    assert caret in refused.value.caret


def test_what_is_made_is_not_kept() -> None:
    event = decode_event(json.dumps(JSON_ORDER).encode())
    text = '{"type": "u" + ce.type, "n": data.id, "data": {"n": [data.id, data.total], "x": data.items}}'

    def transform(count: int) -> int:
        for _ in range(count):
            apply_transform(text, EventView(event))
        return sys.getallocatedblocks()

    before = transform(1_000)
    assert transform(1_000) - before < 100


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="None cannot go there")
def test_any_number_of_nulls_may_be_passed_on() -> None:
    """cel-expr-python miscounts references to None: there are more than it can ever take away."""
    assert sys.getrefcount(None) > 1 << 59
    assert made('{"data": [null]}')["data"] == [None]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=3),
        max_leaves=12,
    )
)  # fmt: skip
def test_data_that_is_passed_on_is_the_same(data: Any) -> None:
    """Also many nulls: cel-expr-python must not be asked for the value of one."""
    found = made('{"data": {"all": data, "again": [data]}}', {**ORDER, "data": data})
    assert found["data"] == {"all": data, "again": [data]}
