"""The matcher runs exactly the rows of a plan: what the compiler calls exact is decided without cel-cpp."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from headgate.filter.compile.compiler import compile_cel, compile_filter
from headgate.filter.compile.conjunctions import preserve_errors
from headgate.filter.compile.plan import CompiledFilter
from headgate.match.key_specs import BrokerTable
from headgate.match.keys import Secrets
from headgate_api.limits import BROKER_KEYS_MAX
from tests.filter.strategies import random_filter, random_hard_filter, random_shaped_filter

CORPUS: Final = Path(__file__).parents[1] / "filter" / "corpus"
ODD: Final = (
    "data == 5",
    "data == null || ce.type == 'a'",
    "data in ['a', 'b']",
    "!(data == 'x') && ce.source == 's'",
    "data.startsWith('a')",
    "data && ce.type == 'a'",
    "ce['@time'] == '2026-01-01T00:00:00Z'",
    "ce['@time'].startsWith('2026') && ce.type == 'a'",
    'ce["a\\"b"] == "x"',
    'ce["labels.app\\\\.io"] == "x"',
    "ce.exists(n, n.startsWith('a\"') && ce[n] == 'x')",
    "data.n == 9007199254740993 && data.n == 9007199254740992",
    "has(ce.time) && ce.time > timestamp('2026-01-01T00:00:00Z')",
    "true",
    "false",
)


def corpus() -> list[CompiledFilter]:
    lines = [json.loads(line) for path in CORPUS.glob("*.jsonl") for line in path.read_text("utf-8").splitlines()]
    return [compile_filter(line.get("filter"), line.get("filters", ())) for line in lines]


def same_rows(compiled: CompiledFilter) -> None:
    """Same keys, and as many rows, each with as many residuals and as exact."""
    made = BrokerTable("default/main", Secrets(1, 1))
    made.change({1: compiled})
    planned = [row.signature for row in dict.fromkeys(compiled.rows)]
    sizes = sorted(len(parts) for _, parts in json.loads(made.key_spec)["keys"])
    assert sizes == sorted(map(len, {one.key for one in planned})), compiled.cel
    rows = sorted((len(pattern), bool(row[2])) for pattern, some in made.rows.items() for row in some)
    assert rows == sorted((len(one.residual), one.exact) for one in planned), compiled.cel


def test_of_filters_as_people_write_them() -> None:
    filters = corpus()
    assert len(filters) > 300
    for one in filters:
        same_rows(one)
        same_rows(preserve_errors(one))


@pytest.mark.parametrize("text", ODD)
def test_of_filters_of_odd_operands(text: str) -> None:
    same_rows(compile_cel(text))


@pytest.mark.parametrize("write", [random_filter, random_shaped_filter, random_hard_filter])
def test_of_filters_by_chance(write: Callable[[random.Random, int], str]) -> None:
    rng = random.Random(3)
    for _ in range(500):
        compiled = compile_cel(write(rng, rng.randrange(4)))
        if len({row.signature.key for row in compiled.rows}) <= BROKER_KEYS_MAX:
            same_rows(compiled)
