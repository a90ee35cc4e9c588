"""Compiling stored filters anew, a slice at a time, after the compiler has changed.

Each slice is one short transaction, so that nobody waits for all of them; `bootstrap.py` goes through them.
Until a filter's turn comes, who reads its target sees a plan that leaves every event to cel-cpp, see `plans.py`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from headgate.control.database import Database
from headgate.control.plans import DUE, FilterCompiler, encode_plan
from headgate.control.rows import bump
from headgate.control.specs import keeps_filter_errors
from headgate.control.targets import WrittenFilter
from headgate.filter.compile.conjunctions import preserve_errors
from headgate.filter.compile.plan import PLAN_VERSION, filter_cost
from headgate_api.control.objects import DeliverySpec
from headgate_api.errors import InvalidInputError
from headgate_api.limits import RECOMPILED_FILTERS_MAX

_DELIVERY: Final = msgspec.json.Decoder(DeliverySpec)
_FILTER: Final = msgspec.json.Decoder(WrittenFilter)


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """A target's filter and own rules, as JSON, and its plan; None, with an error, when the filter does not compile."""

    target: int
    compiler: int
    plan_version: int
    written: bytes
    delivery: bytes | None
    plan: bytes | None
    error: str
    cost: int = field(default=0, compare=False)


def count_left(connection: sqlite3.Connection, compiler: int) -> int:
    """How many filters another compiler has compiled, or one that did not write down what they cost."""
    (count,) = connection.execute(f"SELECT count(*) FROM targets WHERE {DUE}", (compiler,)).fetchone()
    return int(count)


def next_slice(connection: sqlite3.Connection, compiler: int, after: int) -> list[StoredPlan]:
    """The next filters, by target id, of those that `count_left` counts."""
    rows = connection.execute(
        "SELECT id, compiler, plan_version, filter, delivery, plan, plan_error FROM targets"
        f" WHERE {DUE} AND id > ? ORDER BY id LIMIT ?",
        (compiler, after, RECOMPILED_FILTERS_MAX),
    )
    return [StoredPlan(*row) for row in rows]


def compiled(stored: StoredPlan, compiler: FilterCompiler) -> StoredPlan:
    """With the plan that the compiler makes now; without one, the filter leaves routing and is named on its object."""
    written = _FILTER.decode(stored.written)
    try:
        plan = compiler.compile(written.filter, written.filters)
    except InvalidInputError as error:
        return replace(stored, plan=None, error=error.message, cost=0)
    if keeps_filter_errors(_DELIVERY.decode(stored.delivery) if stored.delivery is not None else None):
        plan = preserve_errors(plan)
    return replace(stored, plan=encode_plan(plan), error="", cost=filter_cost(plan))


def put(
    connection: sqlite3.Connection, before: Sequence[StoredPlan], anew: Sequence[StoredPlan], compiler: int
) -> None:
    """Write plans; those that differ share one generation. Objects that were written meanwhile keep their plan."""
    changed, different = [], []
    for old, new in zip(before, anew, strict=True):
        written = connection.execute(
            "UPDATE targets SET compiler = ?, plan_version = ?, plan = ?, plan_error = ?, cost = ?"
            " WHERE id = ? AND compiler = ?",
            (compiler, PLAN_VERSION, new.plan, new.error, new.cost, old.target, old.compiler),
        ).rowcount
        if written and new != old:
            different.append(old.target)
        if written and (new != old or old.plan_version != PLAN_VERSION):
            changed.append(old.target)
    if changed:
        routing = bump(connection, "routing")
        rows = [(routing, target) for target in changed]
        connection.executemany("UPDATE targets SET routing = ? WHERE id = ?", rows)
    if different:
        generation = bump(connection, "desired_generation")
        rows = [(generation, target) for target in different]
        connection.executemany("UPDATE targets SET needs = CASE WHEN routed THEN ? ELSE 0 END WHERE id = ?", rows)


class StoredPlans:
    """The plans of all targets, of which some may be another compiler's."""

    def __init__(self, database: Database, compiler: FilterCompiler) -> None:
        self._database = database
        self._compiler = compiler

    def left(self) -> int:
        with self._database.read() as connection:
            return count_left(connection, self._compiler.version)

    def recompile(self, after: int = 0) -> int | None:
        """Compile the filters anew that another compiler compiled, of a slice of targets behind the id `after`.

        Returns the last id of the slice; None when there was nothing left. The owner of the file alone calls this.
        Others wait for one short transaction a slice: filters are compiled outside of it.
        """
        with self._database.read() as connection:
            found = next_slice(connection, self._compiler.version, after)
        if not found:
            return None
        anew = [compiled(one, self._compiler) for one in found]
        with self._database.write() as connection:
            put(connection, found, anew, self._compiler.version)
        return found[-1].target
