"""The table broadcast to the join: a row per conjunction (key, constants, targets); and a key spec per broker.

Constants stand in columns by type: the first string of a row in `string_0`, its second in `string_1`, and so on, so
that all patterns share a dozen columns.
"""

from __future__ import annotations

import secrets
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import Final

import msgspec
import pyarrow as pa
from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame, SparkSession

from headgate.filter.compile.plan import CompiledFilter, ConstantKind, Op
from headgate.match.key_specs import BrokerTable, BrokerTableBuilder, Pattern, Row, takes_constant
from headgate.match.keys import Secrets
from headgate_api.limits import MATCH_OVERLAY_ROWS_MAX, PATTERNS_COMPILED_MAX

_SETTINGS: Final = {
    # Many patterns make many columns; above this number Spark would give up whole-stage code generation.
    "spark.sql.codegen.maxFields": "4000",
}
MARK: Final = -1
"""Target and pattern of the mark: the row of a key that every event has where marks are asked for, and else none.

It also keeps the table from ever being empty, which would change the plan."""

_CONSTANT_TYPES: Final = {ConstantKind.STRING: "string", ConstantKind.NUMBER: "number", ConstantKind.BOOL: "flag"}
_ARROW: Final[dict[str, pa.DataType]] = {
    "operand": pa.int32(),
    "string": pa.string(),
    "number": pa.float64(),
    "flag": pa.bool_(),
    "strings": pa.list_(pa.string()),
    "numbers": pa.list_(pa.float64()),
    "flags": pa.list_(pa.bool_()),
}

_SECRETS: Final = Secrets(secrets.randbits(63), secrets.randbits(31))
"""Drawn once a process: Spark generates code with them in it, which new ones would make it compile and warm up anew."""
MARK_KEY: Final = secrets.randbits(63)
"""The key of the mark, drawn once like the secrets: no event has it by chance."""
MARK_CHECK: Final = 0
"""The check of the mark."""


@dataclass(frozen=True, slots=True)
class CompiledPattern:
    """A pattern in the plan: for each residual the columns of its operand's number and of its constant, "" for none."""

    pattern: Pattern
    operands: tuple[str, ...]
    constants: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Base:
    """Rows that are broadcast once for many generations, kept in the JVM (`KeptRows`)."""

    patterns: tuple[CompiledPattern, ...]
    is_coarse: bool  # there were more patterns than the plan may hold
    row_count: int
    kept: JavaObject
    told: dict[str, int]  # of each broker the number of the key spec that the JVM has

    def holds(self, patterns: Iterable[Pattern]) -> bool:
        """Whether rows of these patterns can stand over it, as exact as in a base of their own."""
        known = {one.pattern for one in self.patterns}
        return self.is_coarse or known.issuperset(patterns)


@dataclass(frozen=True, slots=True)
class _Overlaid:
    """What stands over a base: by pattern, all rows of keys that are not as in the base, and such keys without rows."""

    rows: Mapping[Pattern, Sequence[Mapping[Row, list[int]]]]
    empty: Sequence[object]


_NOTHING: Final = _Overlaid({}, [])


def _overlaid(
    base: _Base | None, rows: Mapping[Pattern, Sequence[Mapping[Row, list[int]]]], changed: Set[object]
) -> _Overlaid | None:
    """The rows of changed keys; None when they need a new base, or it costs less than to carry so many along."""
    if base is None or not base.holds(rows):
        return None
    rows_max = min(MATCH_OVERLAY_ROWS_MAX, base.row_count // 2)
    if len(changed) > rows_max:
        return None
    found = {
        pattern: [{row: targets for row, targets in some.items() if row[0] in changed} for some in groups]
        for pattern, groups in rows.items()
    }
    found = {pattern: taken for pattern, groups in found.items() if (taken := [one for one in groups if one])}
    if sum(len(some) for groups in found.values() for some in groups) > rows_max:
        return None
    there = {row[0] for groups in found.values() for some in groups for row in some}
    return _Overlaid(found, [key for key in changed if key not in there])


@dataclass(frozen=True, slots=True)
class MatchTable:
    """The filters of one generation, ready to be joined.

    `name` is that by which the tasks of a plan find it, with the key specs. `rows` has `row_key` BIGINT, `row_check`
    BIGINT, `pattern` INT, `targets` ARRAY of INT, `exact` BOOLEAN; operands, constants.
    """

    name: str
    rows: DataFrame
    patterns: tuple[CompiledPattern, ...]  # by number, the one with the most rows first
    columns: frozenset[str]  # those of events that a key spec reads
    secrets: Secrets
    row_count: int
    overlaid_rows: int  # how many of `rows` stand over those that an earlier generation broadcast; 0: it was none


def build_table(
    spark: SparkSession,
    targets: Iterable[tuple[int, str, CompiledFilter]],
    *,
    patterns_max: int = PATTERNS_COMPILED_MAX,
) -> MatchTable:
    """The broadcast tables of all filters; see `TableBuilder`."""
    return TableBuilder(spark, patterns_max=patterns_max).build(targets)


class TableBuilder:
    """Builds the table of one generation after the other; only filters that changed cost much.

    Sets on the session what the match depends on. The Spark plan holds `patterns_max` patterns at most.
    """

    # One process, one JVM, in which a number always means the same.
    _tables = count()
    _specs = count()

    def __init__(self, spark: SparkSession, *, patterns_max: int = PATTERNS_COMPILED_MAX) -> None:
        for name, value in _SETTINGS.items():
            spark.conf.set(name, value)
        self._spark = spark
        self._patterns_max = patterns_max
        self._known: dict[str, tuple[_Filters, BrokerTable, BrokerTableBuilder]] = {}
        self._base: _Base | None = None
        self._columns: frozenset[str] = frozenset()
        """What the plan of the last table reads."""
        self._changed: set[object] = set()
        """Keys whose rows are not as in the base."""
        self._numbered: dict[str, int] = {}

    def build(self, targets: Iterable[tuple[int, str, CompiledFilter]], generation: int = 0) -> MatchTable:
        """The table of these targets, for a new query: target (int32, not negative), its broker's name, its filter."""
        base, self._base = self._base, None  # after a failure no row of it may count: what has changed is not known
        tables, rows = self._updated(targets)
        overlaid = _overlaid(base, rows, self._changed)
        if base is None or overlaid is None:
            base, overlaid = self._new_base(rows), _NOTHING
        table = _arrow(base.patterns, overlaid.rows, overlaid.empty)
        frame = self._spark.createDataFrame(table)
        name = str(next(self._tables))
        kept = base.kept.table(name, generation, frame._jdf, self._brokers(base, tables))
        self._base = base
        self._columns = _columns(tables)
        return MatchTable(
            name,
            DataFrame(kept, self._spark),
            base.patterns,
            self._columns,
            _SECRETS,
            1 + sum(len(some) for groups in rows.values() for some in groups),
            table.num_rows - 1,
        )

    def offer(self, targets: Iterable[tuple[int, str, CompiledFilter]], generation: int) -> bool:
        """Have the queries of the last table go on to these targets, each task between two events of its own.

        False where they cannot, because their plan lacks a pattern or a column: then `build` and a new query do it.
        """
        base, self._base = self._base, None
        tables, rows = self._updated(targets)
        if base is None or not base.holds(rows) or not _columns(tables) <= self._columns:
            self._base = base
            return False
        overlaid = _overlaid(base, rows, self._changed)
        if overlaid is None:
            base, overlaid = self._renewed(base, rows), _NOTHING
        frame = self._spark.createDataFrame(_arrow(base.patterns, overlaid.rows, overlaid.empty))
        base.kept.offer(generation, frame._jdf, self._brokers(base, tables))
        self._base = base
        return True

    def _updated(self, targets: Iterable[tuple[int, str, CompiledFilter]]) -> tuple[_Tables, _Grouped]:
        """The tables of all brokers, and their rows by pattern."""
        tables = self._broker_tables(targets)
        rows: defaultdict[Pattern, list[Mapping[Row, list[int]]]] = defaultdict(list)
        for one in tables.values():
            for pattern, some in one.rows.items():
                rows[pattern].append(some)
        return tables, rows

    def _new_base(self, rows: _Grouped) -> _Base:
        sizes = _sizes(rows)
        ranked = sorted(sizes, key=lambda pattern: (-sizes[pattern], pattern))
        whole = ranked if len(ranked) <= self._patterns_max else ranked[: self._patterns_max - 1]
        patterns = [_compiled(pattern) for pattern in (whole if len(whole) == len(ranked) else [*whole, ()])]
        patterns = list({one.pattern: one for one in patterns}.values()) or [_compiled(())]
        jvm = self._spark._jvm
        assert jvm is not None
        frame = self._spark.createDataFrame(_arrow(patterns, rows))
        kept = jvm.dev.headgate.connector.rows.KeptRows.of(frame._jdf)
        self._changed = set()
        return _Base(tuple(patterns), len(whole) < len(ranked), sum(sizes.values()), kept, {})

    def _renewed(self, base: _Base, rows: _Grouped) -> _Base:
        """A base of the same patterns, for the same queries."""
        base.kept.renew(self._spark.createDataFrame(_arrow(base.patterns, rows))._jdf)
        self._changed = set()
        return replace(base, row_count=sum(_sizes(rows).values()))

    def _broker_tables(self, targets: Iterable[tuple[int, str, CompiledFilter]]) -> dict[str, BrokerTable]:
        brokers: defaultdict[str, _Filters] = defaultdict(list)
        for target, broker, compiled in targets:
            brokers[broker].append((target, compiled))
        known = self._known
        self._known = {}
        for broker, filters in brokers.items():
            before = known.pop(broker, None)
            builder = BrokerTableBuilder(broker, _SECRETS) if before is None else before[2]
            if before is not None and _same(before[0], filters):
                self._known[broker] = filters, before[1], builder
            else:
                table = builder.build(filters)
                self._known[broker] = filters, table, builder
                self._changed |= table.changed
        for _, table, _ in known.values():
            self._changed.update(row[0] for some in table.rows.values() for row in some)
        return {broker: table for broker, (_, table, _) in self._known.items()}

    def _brokers(self, base: _Base, tables: _Tables) -> bytes:
        """What has changed of the brokers' key specs since the base was told, as `rows/BrokerSpec.java` reads it."""
        before, self._numbered = self._numbered, {}
        for one in tables.values():
            if one.key_spec not in self._numbered:
                number = before.get(one.key_spec)
                self._numbered[one.key_spec] = next(self._specs) if number is None else number
        numbers = {name: self._numbered[one.key_spec] for name, one in tables.items()}
        changed = {name: number for name, number in numbers.items() if base.told.get(name) != number}
        texts = {number: tables[name].key_spec for name, number in changed.items()}
        gone = [name for name in base.told if name not in numbers]
        base.told.clear()
        base.told.update(numbers)
        return msgspec.json.encode(
            {
                "specs": list(texts.items()),
                "brokers": [(name, number, tables[name].state) for name, number in changed.items()],
                "gone": gone,
            }
        )


_Filters = list[tuple[int, CompiledFilter]]
_Tables = Mapping[str, BrokerTable]
_Grouped = Mapping[Pattern, Sequence[Mapping[Row, list[int]]]]


def _columns(tables: _Tables) -> frozenset[str]:
    """Columns of events that the key specs read."""
    return frozenset(chain.from_iterable(one.columns for one in tables.values()))


def _sizes(rows: _Grouped) -> dict[Pattern, int]:
    return {pattern: sum(map(len, some)) for pattern, some in rows.items()}


def _same(before: _Filters, now: _Filters) -> bool:
    return len(before) == len(now) and all(
        old == new and one is other for (old, one), (new, other) in zip(before, now, strict=True)
    )


def _compiled(pattern: Pattern) -> CompiledPattern:
    """Gives each constant of a pattern the next free column of its type."""
    used: Counter[str] = Counter()

    def column(kind: str) -> str:
        used[kind] += 1
        return f"{kind}_{used[kind] - 1}"

    constants = tuple(
        column(_CONSTANT_TYPES[test.kind] + ("s" if test.op in {Op.IN, Op.EXISTS} else ""))
        if takes_constant(test)
        else ""
        for test in pattern
    )
    return CompiledPattern(pattern, tuple(column("operand") for _ in pattern), constants)


def _arrow(
    patterns: Sequence[CompiledPattern],
    rows: Mapping[Pattern, Sequence[Mapping[Row, list[int]]]],
    empty: Sequence[object] = (),
) -> pa.Table:
    """All rows, in one chunk, rows of one key and pattern together: they are read together, and memory is slow.

    The rows of a pattern that is not compiled lose their residuals and become candidates. A key of `empty` has a row
    without targets.
    """
    names = dict.fromkeys(name for one in patterns for name in (*one.operands, *one.constants) if name)
    schema = pa.schema(
        [
            pa.field("row_key", pa.int64(), nullable=False),
            pa.field("row_check", pa.int64(), nullable=False),
            pa.field("pattern", pa.int32(), nullable=False),
            pa.field("targets", pa.list_(pa.field("target", pa.int32(), nullable=False)), nullable=False),
            pa.field("exact", pa.bool_(), nullable=False),
            *(pa.field(name, _ARROW[name.rpartition("_")[0]]) for name in sorted(names)),
        ]
    )
    numbers = {one.pattern: number for number, one in enumerate(patterns)}
    marks: list[Row] = [(MARK_KEY, MARK_CHECK, True), *((key, MARK_CHECK, True) for key in empty)]
    batches = [_batch(schema, MARK, marks, [[MARK], *([] for _ in empty)], ())]
    for pattern, groups in rows.items():
        some, targets = list(chain(*groups)), list(chain.from_iterable(group.values() for group in groups))
        number = numbers.get(pattern)
        if number is None:
            coarse: list[Row] = [(key, check, False) for key, check, *_ in some]
            batches.append(_batch(schema, numbers[()], coarse, targets, ()))
        else:
            columns = (*patterns[number].operands, *filter(None, patterns[number].constants))
            batches.append(_batch(schema, number, some, targets, columns))
    table = pa.Table.from_batches(batches, schema)
    return table.sort_by([("row_key", "ascending"), ("pattern", "ascending")]).combine_chunks()


def _batch(
    schema: pa.Schema, pattern: int, rows: Sequence[Row], targets: Sequence[list[int]], columns: Sequence[str]
) -> pa.RecordBatch:
    keys, checks, exact, *rest = zip(*rows, strict=True)
    values: dict[str, Sequence[object]] = {
        "row_key": keys,
        "row_check": checks,
        "pattern": [pattern] * len(rows),
        "targets": targets,
        "exact": exact,
        **dict(zip(columns, rest, strict=True)),
    }
    arrays = [
        pa.array(values[name], kind) if name in values else pa.nulls(len(rows), kind)
        for name, kind in zip(schema.names, schema.types, strict=True)
    ]
    return pa.record_batch(arrays, schema=schema)
