"""Compiled filters as they are stored beside their triggers, as msgpack: a restart compiles nothing."""

from __future__ import annotations

import functools
import importlib.metadata
import sqlite3
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from headgate.filter.cel.errors import FilterError
from headgate.filter.compile.conjunctions import preserve_errors
from headgate.filter.compile.plan import (
    PLAN_VERSION,
    SCAN_CANDIDATE,
    CompiledFilter,
    Constant,
    PlanRow,
    Signature,
    filter_cost,
)
from headgate.filter.tools.advice import is_never_true
from headgate.objects.kinds.specs import keeps_filter_errors
from headgate.objects.store.database import Database, Table
from headgate.objects.store.rows import bump
from headgate_api.errors import InvalidInputError
from headgate_api.limits import RECOMPILED_FILTERS_MAX
from headgate_api.objects.kinds import DeliverySpec


class _Row(msgspec.Struct, array_like=True, frozen=True):
    signature: msgspec.Raw
    key: tuple[Constant, ...]
    constants: tuple[Constant | tuple[Constant, ...], ...]


class _Plan(msgspec.Struct, array_like=True, frozen=True):
    cel: str
    rows: tuple[_Row, ...]
    notes: tuple[str, ...]
    sure_bytes: int


class _CelAlone(msgspec.Struct, array_like=True, frozen=True):
    """The beginning of a plan; msgspec passes over what follows."""

    cel: str


DUE: Final = "(compiler != ? OR cost IS NULL)"
"""Of targets whose filters are to be compiled anew; its parameter is the version of the compiler."""
_ENCODER: Final = msgspec.msgpack.Encoder()
_SIGNATURE: Final = msgspec.msgpack.Decoder(Signature)
_CEL: Final = msgspec.msgpack.Decoder(_CelAlone)
_PLAN: Final = msgspec.msgpack.Decoder(_Plan)


def encode_plan(plan: CompiledFilter) -> bytes:
    """A plan as msgpack."""
    rows = tuple(
        _Row(msgspec.Raw(_ENCODER.encode(row.signature)), tuple(row.key), tuple(row.constants)) for row in plan.rows
    )
    return _ENCODER.encode(_Plan(plan.cel, rows, tuple(plan.notes), plan.sure_bytes))


def outdated_plan(body: bytes) -> CompiledFilter:
    """A plan that another version of the compiler wrote: its CEL text, and rows that leave every event to cel-cpp.

    The text is the first element in every version. Rows of another version may mean something else.
    """
    return CompiledFilter(_CEL.decode(body).cel, (PlanRow(SCAN_CANDIDATE, (), ()),), sure_bytes=0)


class PlanDecoder:
    """Decodes plans; equal signatures become one object, for thousands of filters have tens of shapes."""

    def __init__(self) -> None:
        self._signatures: dict[bytes, Signature] = {}

    def decode(self, body: bytes) -> CompiledFilter:
        plan = _PLAN.decode(body)
        return CompiledFilter(
            cel=plan.cel,
            rows=tuple(PlanRow(self._signature(row.signature), row.key, row.constants) for row in plan.rows),
            notes=plan.notes,
            sure_bytes=plan.sure_bytes,
        )

    def _signature(self, raw: msgspec.Raw) -> Signature:
        body = bytes(raw)
        signature = self._signatures.get(body)
        if signature is None:
            signature = self._signatures[body] = _SIGNATURE.decode(body)
        return signature


# --- compiling ------------------------------------------------------------------------------------

Compile = Callable[..., CompiledFilter]
"""`filter.compile.compiler.compile_filter`."""


@dataclass(frozen=True, slots=True)
class FilterCompiler:
    """A compiler, which raises InvalidInputError; its version, an int32 from 0, changes whenever its output may."""

    version: int
    compile: Compile

    def below(
        self, filter_object: Mapping[str, object] | None, filters: Sequence[object], ceiling: str
    ) -> CompiledFilter:
        """A filter as `compile` takes it, joined to a ceiling (empty: none), and how it stands to it."""
        own = self.compile(filter_object, filters)
        if not ceiling:
            return own
        from headgate.filter.tools.ceiling import within

        try:
            joined = self.compile(filter_object, filters, ceiling)
        except FilterError as error:
            reason = f"{error.reason}, together with the ceiling of the right to the broker's events"
            raise FilterError(reason, hint="write a smaller filter", limit=error.limit) from None
        return replace(joined, ceiling=ceiling, within=within(own, ceiling))


@functools.cache
def filter_compiler() -> FilterCompiler:
    """The real one: its version is a checksum of `PLAN_VERSION` and the packages that bring dialects."""
    checksum = zlib.crc32(str(PLAN_VERSION).encode())
    for point in sorted(importlib.metadata.entry_points(group="headgate.dialects"), key=repr):
        version = point.dist.version if point.dist is not None else ""
        checksum = zlib.crc32(f"{point.name} {point.value} {version}".encode(), checksum)
    return FilterCompiler(checksum & 0x7FFF_FFFF, _compile)


def _compile(
    filter_object: Mapping[str, object] | None, filters: Sequence[object], ceiling: str = ""
) -> CompiledFilter:
    # Imported late: cel-cpp is heavy, and processes that only read the store never compile.
    from headgate.filter.compile.compiler import compile_filter

    return compile_filter(filter_object, filters, ceiling)


# --- compiling anew -------------------------------------------------------------------------------
# Stored filters, a slice at a time, after the compiler has changed. Each slice is one short transaction, so that nobody
# waits for all of them; `api/bootstrap.py` goes through them. Until a filter's turn comes, who reads its target gets an
# `outdated_plan`.


class WrittenFilter(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the compiler is given, as it is stored."""

    filter: dict[str, object] | None
    filters: tuple[dict[str, object], ...]


_DELIVERY: Final = msgspec.json.Decoder(DeliverySpec)
_FILTER: Final = msgspec.json.Decoder(WrittenFilter)


@dataclass(frozen=True, slots=True)
class _StoredPlan:
    """A target's filter and own rules, as JSON, and its plan; None, with an error, when the filter does not compile."""

    target: int
    compiler: int
    plan_version: int
    written: bytes
    delivery: bytes | None
    plan: bytes | None
    error: str
    ceiling: str
    within: str = field(default="", compare=False)
    cost: int = field(default=0, compare=False)
    never: bool = field(default=False, compare=False)


def _compiled(stored: _StoredPlan, compiler: FilterCompiler) -> _StoredPlan:
    """With the plan that the compiler makes now; without one, the filter leaves routing and is named on its object."""
    written = _FILTER.decode(stored.written)
    try:
        plan = compiler.below(written.filter, written.filters, stored.ceiling)
    except InvalidInputError as error:
        return replace(stored, plan=None, error=error.message, cost=0)
    if keeps_filter_errors(_DELIVERY.decode(stored.delivery) if stored.delivery is not None else None):
        plan = preserve_errors(plan)
    found = replace(stored, plan=encode_plan(plan), error="", within=plan.within)
    return replace(found, cost=filter_cost(plan), never=is_never_true(plan))


def _put(
    connection: sqlite3.Connection, before: Sequence[_StoredPlan], anew: Sequence[_StoredPlan], compiler: int
) -> None:
    """Write plans; those that differ share one generation. Objects that were written meanwhile keep their plan."""
    changed, different = [], []
    for old, new in zip(before, anew, strict=True):
        written = connection.execute(
            "UPDATE targets SET compiler = ?, plan_version = ?, plan = ?, plan_error = ?, cost = ?, never = ?,"
            " within = ? WHERE id = ? AND compiler = ? AND ceiling = ?",
            (
                *(compiler, PLAN_VERSION, new.plan, new.error, new.cost, new.never, new.within),
                *(old.target, old.compiler, old.ceiling),
            ),
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


class StoredPlans(Table):
    """The plans of all targets, of which some may be another compiler's."""

    def __init__(self, database: Database, compiler: FilterCompiler) -> None:
        super().__init__(database)
        self._compiler = compiler

    def left(self) -> int:
        """How many filters another compiler has compiled, or one that did not write down what they cost."""
        ((count,),) = self._database.rows(f"SELECT count(*) FROM targets WHERE {DUE}", (self._compiler.version,))
        return int(count)

    def recompile(self, after: int = 0) -> int | None:
        """Compile the filters anew that another compiler compiled, of a slice of targets behind the id `after`.

        Returns the last id of the slice; None when there was nothing left. The owner of the file alone calls this.
        Others wait for one short transaction a slice: filters are compiled outside of it.
        """
        rows = self._database.rows(
            "SELECT id, compiler, plan_version, filter, delivery, plan, plan_error, ceiling FROM targets"
            f" WHERE {DUE} AND id > ? ORDER BY id LIMIT ?",
            (self._compiler.version, after, RECOMPILED_FILTERS_MAX),
        )
        found = [_StoredPlan(*row) for row in rows]
        if not found:
            return None
        anew = [_compiled(one, self._compiler) for one in found]
        with self._database.write() as connection:
            _put(connection, found, anew, self._compiler.version)
        return found[-1].target
