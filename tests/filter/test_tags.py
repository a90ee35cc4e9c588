"""Tags: one of any, all of all, values compared and names only enumerating."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance import dialects
from headgate.filter.cel.errors import FilterError
from headgate.filter.cel.evaluate import EventView, OutcomeKind, program
from headgate.filter.compile.compiler import compile_filter
from headgate.filter.dialects.attributes import tags, tags_of
from headgate_api.event.model import Event
from headgate_conformance.broker import CaseStatus
from tests.filter.reference.rows import row_verdicts
from tests.filter.test_exactness import ALLOWED
from tests.support import conformance, examples


def test_public_cases() -> None:
    with conformance("pulsar.jsonl").open("rb") as lines:
        results = list(dialects.tags(lines))
    assert [result for result in results if result.verdict is not CaseStatus.PASSED] == []
    assert len(results) >= 7


def test_a_wrong_expectation_fails() -> None:
    case = {"name": "n", "predicate": {"anytag": "a"}, "properties": {"tag": "a"}}
    for expect, verdict in (("match", CaseStatus.PASSED), ("no_match", CaseStatus.FAILED)):
        (result,) = dialects.tags([json.dumps({**case, "expect": expect}).encode()])
        assert result.verdict is verdict


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        ({"anytag1": "red"}, 'ce.exists(name, name.startsWith("tag") && ce[name] == "red")'),
        (
            {"anytag1": "red", "anytagb": "blue", "anytag3": "red"},
            'ce.exists(name, name.startsWith("tag") && ce[name] in ["red", "blue"])',
        ),
        (
            {"alltag1": "red", "alltag2": "5"},
            'ce.exists(name, name.startsWith("tag") && ce[name] == "red") && '
            'ce.exists(name, name.startsWith("tag") && ce[name] in ["5", 5])',
        ),
        (
            {f"anytag{i}": str(i) for i in range(600)},
            'ce.exists(name, name.startsWith("tag") && string(ce[name]) in ['
            + ", ".join(f'"{i}"' for i in range(600))
            + "])",
        ),
        ({"alltag": "true"}, 'ce.exists(name, name.startsWith("tag") && ce[name] in ["true", true])'),
    ],
)
def test_becomes_cel(wanted: dict[str, str], text: str) -> None:
    assert tags(wanted, "filter.tags") == text


@settings(max_examples=examples(300))
@given(
    wanted=st.dictionaries(
        st.sampled_from(["anytag", "anytag1", "anytagx", "alltag", "alltag1", "alltag2"]),
        st.sampled_from(["a", "b", "5", "true", ""]),
        min_size=1,
    ),
    carried=st.dictionaries(
        st.sampled_from(["tag", "tag1", "tagx", "xtag", "colour"]),
        st.sampled_from(["a", "b", "c", "5", "true", 5, 1, True, False]),
    ),
)
def test_one_of_any_and_all_of_all(wanted: dict[str, str], carried: dict[str, str | int | bool]) -> None:
    event = Event(specversion="1.0", id="1", source="a", type="b", subject="a", extensions=carried)
    written = {True: "true", False: "false"}
    found = {
        written[value] if isinstance(value, bool) else str(value)
        for name, value in carried.items()
        if name.startswith("tag")
    }
    any_of = {value for name, value in wanted.items() if name.startswith("anytag")}
    all_of = {value for name, value in wanted.items() if name.startswith("alltag")}
    expected = (not any_of or bool(any_of & found)) and all_of <= found
    compiled, view = compile_filter({"tags": wanted}), EventView(event)
    kind = program(compiled.cel).evaluate_view(view).kind
    assert kind is (OutcomeKind.TRUE if expected else OutcomeKind.FALSE)
    assert (kind, row_verdicts(compiled, view)) in ALLOWED


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        ({}, "filter.tags"),
        ({"tag1": "a"}, "filter.tags.tag1"),
        ({"AnyTag1": "a"}, "filter.tags.AnyTag1"),
        ({"anytag1": "a", "other": "b"}, "filter.tags.other"),
        ({"anytag1": 1}, "filter.tags.anytag1"),
        ({"anytag1": ["a"]}, "filter.tags.anytag1"),
        ({1: "a"}, "filter.tags.1"),
        ({f"alltag{i}": "a" for i in range(1001)}, "filter.tags"),
        ({f"alltag{i}": str(i) for i in range(1000)}, "filter.tags"),
        ({"anytag1": "a\ud800"}, "filter.tags"),
        ({"anytag1": "a" * 1_000_000}, "filter.tags.anytag1"),
        ("anytag1", "filter.tags"),
    ],
)
def test_refusals(wanted: object, field: str) -> None:
    with pytest.raises(FilterError) as refused:
        compile_filter({"tags": wanted})
    assert refused.value.field == field


def test_the_tags_of_a_consumer() -> None:
    assert tags_of({"anytag1": "a", "owner": "x", "alltag": "b"}) == {"anytag1": "a", "alltag": "b"}
    assert tags_of({"owner": "x"}) == {}
