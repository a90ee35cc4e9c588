"""The limits that the pages on filters name are the limits that hold, and their examples are filters."""

from __future__ import annotations

import json
import re

import pytest

from headgate.filter.cel.evaluate import OutcomeKind, program
from headgate.filter.compile.compiler import compile_cel, compile_filter
from headgate.filter.dialects import _OURS, to_cel
from headgate_api import limits
from headgate_api.event.model import Event
from tests.support import REPOSITORY

FOLDER = REPOSITORY / "docs/reference/filters"
TEXT = (FOLDER / "index.md").read_text(encoding="utf-8")


def test_limits() -> None:
    rows = re.findall(r"^\| `(FILTERS?_\w+)`.*\| ([0-9,]+) \|$", TEXT, re.MULTILINE)
    assert len(rows) == 13
    for name, value in rows:
        assert getattr(limits, name) == int(value.replace(",", "")), name
    assert f"beyond {limits.FILTER_CONJUNCTIONS_MAX} alternatives" in TEXT
    assert f"{limits.FILTER_ROWS_MAX:,} rows" in TEXT


def page(name: str) -> str:
    return (FOLDER / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("dialect", "count"), [("cesql", 8), ("jms", 7)])
def test_texts(dialect: str, count: int) -> None:
    examples = page(dialect).split("```text\n")[1].split("```")[0].splitlines()
    assert len(examples) == count
    for example in examples:
        assert compile_filter({dialect: example}).rows


def test_the_table_of_dialects() -> None:
    rows = re.findall(r"^\| (.*?) \| `(.*?)` \| .* \|$", TEXT, re.MULTILINE)
    fields = {field: json.loads(value) for cell, value in rows for field in re.findall(r"`([a-zA-Z]+)`", cell)[:1]}
    assert fields.keys() | {"cel"} == {*_OURS, "exact"}
    for field, value in fields.items():
        compiled = compile_filter(None, [{field: value}]) if field == "exact" else compile_filter({field: value})
        assert compiled.rows


def test_lists() -> None:
    rows = re.findall(r"^\| `(exact|prefix|suffix|not)` \| `(.*?)` \| .* \| `(.*)` \|$", page("lists"), re.MULTILINE)
    assert [field for field, _, _ in rows] == ["exact", "prefix", "suffix", "not"]
    for field, value, cel in rows:
        assert to_cel(None, [{field: json.loads(value)}]) == cel


def test_tags() -> None:
    (value,), (cel,) = (
        re.findall(pattern, page("pulsar").split("## Tags")[1], re.MULTILINE)
        for pattern in (r"`(\{.*\})` is$", r"^(ce\..*)")
    )
    assert to_cel({"tags": json.loads(value)}) == cel


@pytest.mark.parametrize(
    ("filters", "value", "negated"),
    [
        (({"cel": "ce.x == 'a'"}, {"cel": "!(ce.x == 'a')"}), OutcomeKind.ERROR, OutcomeKind.ERROR),
        (({"cesql": "x = 'a'"}, {"cesql": "NOT (x = 'a')"}), OutcomeKind.ERROR, OutcomeKind.ERROR),
        (({"attributes": {"x": "a"}}, {"not": {"attributes": {"x": "a"}}}), OutcomeKind.FALSE, OutcomeKind.TRUE),
        (({"prefix": {"x": "a"}}, {"not": {"prefix": {"x": "a"}}}), OutcomeKind.FALSE, OutcomeKind.TRUE),
        (({"jms": "x = 'a'"}, {"jms": "NOT (x = 'a')"}), OutcomeKind.FALSE, OutcomeKind.FALSE),
        (
            ({"eventPattern": {"x": ["a"]}}, {"eventPattern": {"x": [{"anything-but": ["a"]}]}}),
            OutcomeKind.FALSE,
            OutcomeKind.FALSE,
        ),
    ],
)
def test_an_absent_attribute(filters: tuple[object, object], value: OutcomeKind, negated: OutcomeKind) -> None:
    absent = Event("1.0", "1", "/a", "t")
    assert [program(compile_filter(None, [one]).cel).evaluate(absent).kind for one in filters] == [value, negated]


def test_examples() -> None:
    examples = page("cel").split("```text\n")[1].split("```")[0].splitlines()
    assert len(examples) == 5
    for example in examples:
        assert compile_cel(example.strip()).rows


@pytest.mark.parametrize(
    ("filters", "counted"),
    [
        ({"cel": 'data.stuff == "value"'}, False),
        ({"cel": 'data.stuff in ["value", "x"]'}, False),
        ({"cel": 'ce.region.startsWith("eu")'}, False),
        ({"cesql": "region = 'eu'"}, False),
        ({"cesql": "region LIKE 'eu%'"}, False),
        ({"eventPattern": {"detail": {"stuff": ["value"]}}}, False),
        ({"cel": "data.n > 1"}, True),
        ({"cel": 'ce.region != "eu"'}, True),
        ({"cesql": "LENGTH(region) = 2"}, True),
    ],
)
def test_errors_are_counted_where_no_value_is_looked_up(filters: dict[str, object], counted: bool) -> None:
    rows = compile_filter(filters).rows
    assert any(not row.signature.key for row in rows) is counted
