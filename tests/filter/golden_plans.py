"""Golden plans: what the compiler makes of a representative set of filters, by the plan version that made them.

`python -m tests.filter.golden_plans` writes them, when `PLAN_VERSION` is not the one that they were written with.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Final

import msgspec

from headgate.filter.compile.compiler import compile_cel, compile_filter
from headgate.filter.compile.conjunctions import preserve_errors
from headgate.filter.compile.plan import PLAN_VERSION, CompiledFilter

GOLDEN: Final = Path(__file__).parent / "golden_plans.jsonl"
"""The version on the first line; then, line after line, a filter and its plan."""
_CORPUS: Final = Path(__file__).parent / "corpus"
_EVERY: Final = 3
"""One in so many filters of the corpus is in the set."""

EXPRESSIONS: Final = (
    "true",
    "false",
    "ce.type == 'a' && ce.source in ['b', 'c'] || has(ce.tenant)",
    "ce.type.startsWith('com.example.orders.') && !ce.subject.endsWith('.tmp')",
    "ce.time > timestamp('2026-01-01T00:00:00.0000005Z') && publish_time < timestamp('2027-01-01T00:00:00Z')",
    "ce['@time'].startsWith('2026')",
    "ce['labels.app'] == 'x' && !has(ce.none)",
    "data == 5 || data.a == data.b",
    "data.n * 2 + 1 > 10 && data.m in [1, 2.5, 'x', true, null]",
    "data.n == 9007199254740993 || data.n != 18446744073709551615u",
    "int(data.n) == 5 || double(data.n) < 1.5 || string(data.n) == '5' || type(data.n) == int",
    "size(data.l) > 3 && data.s.lowerAscii() == 'x' && data.s.upperAscii().contains('Y')",
    "data.l.exists(i, i == 'a' || i == 'b') && data.l.all(i, i != 'c')",
    "json.values(data, ['a', 'b']).exists(v, type(v) == string && v.startsWith('x'))",
    "ce.exists(n, n.startsWith('tag') && ce[n] == 'x')",
    "data.s.matches('^a.*b$') || data.s.matches('[0-9]+')",
    "data.ok ? data.n > 1 : data.m < 2",
    "!(data.a == 1 && (data.b == 'x' || data.c > 2))",
    "publish_time.getHours() == 3",
)


def plans() -> Iterator[tuple[str, str]]:
    """Every filter of the set, and its plan, as JSON."""
    for text in EXPRESSIONS:
        yield json.dumps({"cel": text}), _text(compile_cel(text))
        yield json.dumps({"cel": text, "onFilterError": True}), _text(preserve_errors(compile_cel(text)))
    for path in sorted(_CORPUS.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines()[::_EVERY]:
            written = json.loads(line)
            plan = compile_filter(written.get("filter"), written.get("filters", ()))
            yield json.dumps(written.get("filter") or written["filters"]), _text(plan)


def _text(plan: CompiledFilter) -> str:
    # Notes are for people: a stored one in older words does no harm. A ceiling is no part of the plan that is stored.
    stored = {"cel": plan.cel, "rows": plan.rows, "notes": (), "sure_bytes": plan.sure_bytes}
    return msgspec.json.encode(stored).decode()


def golden() -> tuple[int, dict[str, str]]:
    """The version of the golden plans, and the plan of each filter."""
    version, *lines = GOLDEN.read_text(encoding="utf-8").splitlines()
    return json.loads(version)["plan_version"], dict(zip(lines[::2], lines[1::2], strict=True))


def changed(made: Mapping[str, str], known: Mapping[str, str]) -> list[str]:
    """Filters of which another plan is known than was made."""
    return [filter_ for filter_, plan in made.items() if known.get(filter_, plan) != plan]


def main() -> int:
    """Write the golden plans of this version."""
    made = dict(plans())
    if GOLDEN.exists() and golden()[0] == PLAN_VERSION and changed(made, golden()[1]):
        sys.stderr.write("plans changed: raise PLAN_VERSION in src/headgate/filter/compile/plan.py first\n")
        return 1
    lines = [json.dumps({"plan_version": PLAN_VERSION}), *chain.from_iterable(made.items())]
    GOLDEN.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
