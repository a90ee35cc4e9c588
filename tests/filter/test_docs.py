"""The limits that docs/filters.md names are the limits that hold, and its examples are filters."""

from __future__ import annotations

import re

from headgate import limits
from headgate.filter.compiler import compile_cel
from headgate.filter.dialects.cesql import cesql
from tests.support import REPOSITORY

TEXT = (REPOSITORY / "docs" / "filters.md").read_text(encoding="utf-8")


def test_limits() -> None:
    rows = re.findall(r"^\| `(FILTERS?_\w+)`.*\| ([0-9,]+) \|$", TEXT, re.MULTILINE)
    assert len(rows) == 13
    for name, value in rows:
        assert getattr(limits, name) == int(value.replace(",", "")), name
    assert f"beyond {limits.FILTER_CONJUNCTIONS_MAX} alternatives" in TEXT
    assert f"{limits.FILTER_ROWS_MAX:,} rows" in TEXT


def test_cesql() -> None:
    section = TEXT.split("### CloudEvents SQL\n")[1].split("\n### ")[0]
    rows = re.findall(r"^\| `(.*?)` \| `(.*)` \|$", section, re.MULTILINE)
    assert len(rows) == 8
    for text, cel in rows:
        assert cesql(text, "filter.cesql") == cel


def test_examples() -> None:
    examples = TEXT.split("## CEL\n")[1].split("* `ce.<name>`")[0].strip().splitlines()
    assert len(examples) == 5
    for example in examples:
        assert compile_cel(example.strip()).rows
