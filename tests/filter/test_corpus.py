"""Filters as people write them: which ones does the matcher decide by itself, found by an index?

`corpus/<dialect>.jsonl` holds filters after the documentation of the systems they come from, one a line: `name`,
`filter` (a `spec.filter`) or `filters`, and `source`. They are written down as they are there, whatever comes of it.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

from headgate.filter.compile.compiler import compile_filter
from headgate.filter.tools.explain import explain

FOLDER: Final = Path(__file__).parent / "corpus"
FILTERS_MIN: Final = 300
DIALECT_FILTERS_MIN: Final = 30
SHARE_MIN: Final = 0.95
"""Of all filters: decided by the matcher and found by an index. It may rise and never fall."""

ROWS: Final[list[tuple[str, dict[str, Any]]]] = [
    (path.stem, json.loads(line))
    for path in sorted(FOLDER.glob("*.jsonl"))
    for line in path.read_text(encoding="utf-8").splitlines()
]


def obstacle(row: dict[str, Any]) -> str:
    """Why a filter is not decided by the matcher and found by an index; empty when it is."""
    explanation = explain(compile_filter(row.get("filter"), row.get("filters", ())))
    missing = [] if explanation.decided_by == "matcher" else ["decided by cel-cpp"]
    missing += ["a scan"] if explanation.cost.scans else []
    return f"{' and '.join(missing)}: {explanation.cel}" if missing else ""


def test_there_are_enough_of_every_dialect() -> None:
    counts = Counter(dialect for dialect, _ in ROWS)
    assert counts.total() >= FILTERS_MIN
    assert min(counts.values()) >= DIALECT_FILTERS_MIN, counts
    assert counts.keys() >= {"attributes", "cel", "cesql", "eventPattern", "filters", "jms", "pulsar", "tags"}


@pytest.mark.parametrize("dialect", sorted({dialect for dialect, _ in ROWS}))
def test_every_line_is_named_once_and_says_where_it_is_from(dialect: str) -> None:
    rows = [row for of, row in ROWS if of == dialect]
    assert len({row["name"] for row in rows}) == len(rows)
    for row in rows:
        assert row["source"]
        assert ("filter" in row) != ("filters" in row)
        assert "filters" in row or dialect in row["filter"]


def test_the_matcher_decides_nearly_all_by_an_index(capsys: pytest.CaptureFixture[str]) -> None:
    obstacles = {f"{dialect}/{row['name']}": obstacle(row) for dialect, row in ROWS}
    failing = {name: why for name, why in obstacles.items() if why}
    share = 1 - len(failing) / len(ROWS)
    with capsys.disabled():
        print(f"\n{share:.1%} of {len(ROWS)} filters are decided by the matcher and found by an index; the others:")
        for name, why in failing.items():
            print(f"  {name}: {why}")
    assert share >= SHARE_MIN
