"""Plans change only together with their version: a stored plan of the same number means the same for ever."""

from __future__ import annotations

from headgate.filter.compile.plan import PLAN_VERSION
from tests.filter.golden_plans import changed, golden, plans

WRITE = "run `.venv/bin/python -m tests.filter.golden_plans` to write the golden plans"


def test_plans_change_only_with_the_plan_version() -> None:
    version, known = golden()
    made = dict(plans())
    assert version == PLAN_VERSION, f"golden plans are of version {version}, plans of version {PLAN_VERSION}: {WRITE}"
    different = changed(made, known)
    assert not different, f"plans changed: raise PLAN_VERSION and {WRITE}; {len(different)}, first: {different[0]}"
    assert made.keys() == known.keys(), f"other filters: {WRITE}"
