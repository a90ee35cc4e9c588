"""The cost of a compiled filter: what it asks of the matcher, as one number that quotas add up."""

from __future__ import annotations

from typing import NamedTuple

from headgate.filter.compile.plan import CompiledFilter
from headgate.limits import FILTER_COST_COMPARED, FILTER_COST_EVALUATED


class Scans(NamedTuple):
    """Rows that no look-up finds: work for every event of the broker.

    Attributes:
        compared: Comparisons in the matcher.
        evaluated: Evaluations by cel-cpp.
    """

    compared: int
    evaluated: int


def scans_of(plan: CompiledFilter) -> Scans:
    """The rows of a plan that every event of the broker meets; a filter that takes every event asks nothing."""
    rows = [row for row in plan.rows if not row.signature.key]
    compared = sum(row.signature.exact and bool(row.signature.residual) for row in rows)
    return Scans(compared, sum(not row.signature.exact for row in rows))


def filter_cost(plan: CompiledFilter) -> int:
    """The rows of a plan in the matcher's table, where a row that every event meets counts as many."""
    compared, evaluated = scans_of(plan)
    looked_up = len(plan.rows) - compared - evaluated
    return looked_up + compared * FILTER_COST_COMPARED + evaluated * FILTER_COST_EVALUATED
