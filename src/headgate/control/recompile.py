"""Compiling stored filters anew, a slice at a time, after the compiler has changed.

The front does it, which owns control.db: each slice is one short transaction, so that nobody waits for all of them.
Until a filter's turn comes, who reads its target sees a plan that leaves every event to cel-cpp, see `plans.py`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from headgate.control.compiling import FilterCompiler
from headgate.control.delivery_spec import keeps_filter_errors
from headgate.control.objects import DeliverySpec
from headgate.control.plans import encode_plan
from headgate.control.rows import bump
from headgate.control.targets import WrittenFilter
from headgate.errors import InvalidInputError
from headgate.filter.compile.error_preserving import preserve_errors
from headgate.filter.compile.plan import PLAN_VERSION
from headgate.limits import RECOMPILED_FILTERS_MAX

_DELIVERY: Final = msgspec.json.Decoder(DeliverySpec)
_FILTER: Final = msgspec.json.Decoder(WrittenFilter)


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """A target's filter with the plan that some compiler made of it.

    Attributes:
        target: The target's id.
        compiler: Version of the compiler.
        plan_version: Of the plan.
        written: The filter as JSON.
        delivery: The target's own rules as JSON; None without.
        plan: The plan; None when the filter does not compile.
        error: Why it does not; empty when it does.
    """

    target: int
    compiler: int
    plan_version: int
    written: bytes
    delivery: bytes | None
    plan: bytes | None
    error: str


@dataclass(frozen=True, slots=True)
class Recompiled:
    """A stored plan, and what the compiler makes of the filter now."""

    stored: StoredPlan
    plan: bytes | None
    error: str

    @property
    def differs(self) -> bool:
        """Whether the filter is matched in another way than before."""
        return (self.plan, self.error) != (self.stored.plan, self.stored.error)


def count_left(connection: sqlite3.Connection, compiler: int) -> int:
    """How many filters another compiler has compiled."""
    (count,) = connection.execute("SELECT count(*) FROM targets WHERE compiler != ?", (compiler,)).fetchone()
    return int(count)


def next_slice(connection: sqlite3.Connection, compiler: int, after: int) -> list[StoredPlan]:
    """The next filters, by target id, that another compiler has compiled."""
    rows = connection.execute(
        "SELECT id, compiler, plan_version, filter, delivery, plan, plan_error FROM targets"
        " WHERE id > ? AND compiler != ? ORDER BY id LIMIT ?",
        (after, compiler, RECOMPILED_FILTERS_MAX),
    )
    return [StoredPlan(*row) for row in rows]


def compiled(stored: StoredPlan, compiler: FilterCompiler) -> Recompiled:
    """The plan that the compiler makes now; without one, the filter leaves routing and is named on its object."""
    written = _FILTER.decode(stored.written)
    try:
        plan = compiler.compile(written.filter, written.filters)
    except InvalidInputError as error:
        return Recompiled(stored, None, error.message)
    if keeps_filter_errors(_DELIVERY.decode(stored.delivery) if stored.delivery is not None else None):
        plan = preserve_errors(plan)
    return Recompiled(stored, encode_plan(plan), "")


def put(connection: sqlite3.Connection, anew: Iterable[Recompiled], compiler: int) -> None:
    """Write plans; those that differ share one generation. Objects that were written meanwhile keep their plan."""
    changed = []
    for one in anew:
        written = connection.execute(
            "UPDATE targets SET compiler = ?, plan_version = ?, plan = ?, plan_error = ? WHERE id = ? AND compiler = ?",
            (compiler, PLAN_VERSION, one.plan, one.error, one.stored.target, one.stored.compiler),
        ).rowcount
        if written and (one.differs or one.stored.plan_version != PLAN_VERSION):
            changed.append(one)
    if not changed:
        return
    routing = bump(connection, "routing")
    rows = [(routing, one.stored.target) for one in changed]
    connection.executemany("UPDATE targets SET routing = ? WHERE id = ?", rows)
    different = [one.stored.target for one in changed if one.differs]
    if different:
        generation = bump(connection, "desired_generation")
        rows = [(generation, target) for target in different]
        connection.executemany("UPDATE targets SET needs = CASE WHEN routed THEN ? ELSE 0 END WHERE id = ?", rows)
