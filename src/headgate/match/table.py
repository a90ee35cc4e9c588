"""The table broadcast to the join: a row per conjunction (key, constants, targets); and a key spec per broker.

Constants stand in columns by type: the first string of a row in `string_0`, its second in `string_1`, and so on, so
that all patterns share a dozen columns.
"""

from __future__ import annotations

import secrets
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import Final, NamedTuple, Protocol

import msgspec
import pyarrow as pa
from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame, SparkSession

from headgate.filter.compile.plan import CompiledFilter, ConstantKind, Op
from headgate.match.key_specs import LIKELY, BrokerTable, Pattern, Row, Rows, takes_constant
from headgate.match.keys import Secrets
from headgate_api.limits import MATCH_LIKELY_ROWS_MAX, MATCH_OVERLAY_ROWS_MAX, PATTERNS_COMPILED_MAX

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


class Filtered(Protocol):
    """What a table needs of a target (`objects.kinds.routing.Target`)."""

    @property
    def broker(self) -> str: ...

    @property
    def filter(self) -> CompiledFilter: ...


class Wanted(NamedTuple):
    """A target that is nothing else."""

    broker: str
    filter: CompiledFilter


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
        return self.is_coarse or {one.pattern for one in self.patterns}.issuperset(patterns)


@dataclass(frozen=True, slots=True)
class _Overlaid:
    """What the JVM is told of a base's changes: by pattern, all rows of changed keys, and such keys without rows."""

    rows: _Grouped
    empty: Collection[object]


_NOTHING: Final = _Overlaid({}, [])


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
    row_count: int  # of its base
    overlaid_rows: int  # how many stand over those of the base


def wanted(targets: Iterable[tuple[int, str, CompiledFilter]]) -> dict[int, Wanted]:
    """Targets by their numbers: number, its broker's name, its filter."""
    return {target: Wanted(broker, compiled) for target, broker, compiled in targets}


def build_table(
    spark: SparkSession,
    targets: Iterable[tuple[int, str, CompiledFilter]],
    *,
    patterns_max: int = PATTERNS_COMPILED_MAX,
) -> MatchTable:
    """The table of targets: number (int32, not negative), its broker's name, its filter; see `TableBuilder`."""
    return TableBuilder(spark, patterns_max=patterns_max).build(wanted(targets))


class TableBuilder:
    """Builds the table of one generation after the other; only filters that changed cost anything.

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
        self._forget()

    def _forget(self) -> None:
        self._targets: Mapping[int, Filtered] | None = None
        """Those of the last table; None: nothing is known."""
        self._brokers: dict[str, BrokerTable] = {}
        self._base: _Base | None = None
        self._columns: frozenset[str] | None = None
        """What the plan of the last table reads; None where it lacks something, and a query of another plan is due."""
        self._changed: defaultdict[str, set[object]] = defaultdict(set)
        """By broker, keys whose rows are not as the JVM has them."""
        self._carried = Counter[tuple[str, object]]()
        """By broker and key, rows that stand over the base; one for a key without rows."""
        self._untold: set[str] = set()
        """Brokers whose key specs may be others than the JVM was told."""
        self._numbers: dict[str, int] = {}
        """Of key specs."""

    def build(
        self, targets: Mapping[int, Filtered], generation: int = 0, *, changed: Set[int] | None = None
    ) -> MatchTable:
        """The table of these targets (int32, not negative) for a new query.

        `changed` has all that may differ from the targets of the last call; None: all are looked at.
        """
        self._take(targets, changed)
        base, overlaid = self._base, self._overlaid()
        if base is None or overlaid is None:
            base, overlaid = self._new_base(), _NOTHING
        table = _arrow(base.patterns, overlaid.rows, overlaid.empty)
        name = str(next(self._tables))
        kept = base.kept.table(name, generation, _stream(table), self._news(base))
        columns = frozenset(chain.from_iterable(one.columns for one in self._brokers.values()))
        self._targets, self._base, self._columns = targets, base, columns
        return MatchTable(
            name,
            DataFrame(kept, self._spark),
            base.patterns,
            columns,
            _SECRETS,
            1 + base.row_count,
            self._carried.total(),
        )

    def offer(self, targets: Mapping[int, Filtered], generation: int, *, changed: Set[int] | None = None) -> bool:
        """Have the queries of the last table go on to these targets, each task between two events of its own.

        False where they cannot, because their plan lacks a pattern or a column: then `build` and a new query do it.
        """
        self._take(targets, changed)
        base = self._base
        if base is None or self._columns is None:
            self._targets = targets
            return False
        overlaid = self._overlaid()
        if overlaid is None:
            base, overlaid = self._renewed(base), _NOTHING
        table = _arrow(base.patterns, overlaid.rows, overlaid.empty)
        base.kept.offer(generation, _stream(table), self._news(base))
        self._targets, self._base = targets, base
        return True

    def _take(self, targets: Mapping[int, Filtered], changed: Set[int] | None) -> None:
        """Bring the brokers' tables up to date.

        `_targets` is none until what follows has gone well as well: after a failure all begins anew.
        """
        if (before := self._targets) is None:
            self._forget()
            before, changed = {}, None
        self._targets = None
        left: defaultdict[str, list[int]] = defaultdict(list)
        joined: defaultdict[str, dict[int, CompiledFilter]] = defaultdict(dict)
        for target in before.keys() | targets.keys() if changed is None else changed:
            old, new = before.get(target), targets.get(target)
            if old is not None and new is not None and old.broker == new.broker and old.filter is new.filter:
                continue
            if old is not None:
                left[old.broker].append(target)
            if new is not None:
                joined[new.broker][target] = new.filter
        for broker in left.keys() | joined.keys():
            self._change(broker, joined[broker], left[broker])

    def _change(self, broker: str, joined: Mapping[int, CompiledFilter], left: Sequence[int]) -> None:
        table = self._brokers.get(broker)
        if table is None:
            table = self._brokers[broker] = BrokerTable(broker, _SECRETS)
        change = table.change(joined, left)
        self._changed[broker] |= change.keys
        self._untold.add(broker)
        if not table:
            del self._brokers[broker]
        if self._base is not None and not self._base.holds(change.patterns):
            self._base = None
        if self._columns is not None and not table.columns <= self._columns:
            self._columns = None

    def _overlaid(self) -> _Overlaid | None:
        """The rows of changed keys; None when they need a new base, or it costs less than to carry so many along."""
        if self._base is None:
            return None
        rows_max = min(MATCH_OVERLAY_ROWS_MAX, self._base.row_count // 2)
        if sum(map(len, self._changed.values())) > rows_max:
            return None
        found: list[Rows] = []
        empty: list[object] = []
        for broker, keys in self._changed.items():
            rows = self._brokers[broker].rows_of(keys) if broker in self._brokers else {}
            found.append(rows)
            counts = Counter(row[0] for some in rows.values() for row in some)
            empty += keys - counts.keys()
            self._carried.update({(broker, key): max(1, counts[key]) - self._carried[broker, key] for key in keys})
        if self._carried.total() > rows_max:
            return None
        self._changed.clear()
        return _Overlaid(_together(found), empty)

    def _new_base(self) -> _Base:
        rows = self._rows()
        sizes = _sizes(rows)
        ranked = sorted(sizes, key=lambda pattern: (-sizes[pattern], pattern))
        is_coarse = len(ranked) > self._patterns_max
        row_count = sum(sizes.values())
        if is_coarse:
            ranked = [*ranked[: self._patterns_max - 1], ()]
        elif row_count <= MATCH_LIKELY_ROWS_MAX:
            ranked = [*ranked, *LIKELY][: self._patterns_max]
        patterns = [_compiled(pattern) for pattern in dict.fromkeys(ranked)] or [_compiled(())]
        jvm = self._spark._jvm
        assert jvm is not None
        stream = _stream(_arrow(patterns, rows))
        kept = jvm.dev.headgate.connector.rows.KeptRows.of(self._spark._jsparkSession, stream)
        return _Base(tuple(patterns), is_coarse, row_count, kept, {})

    def _renewed(self, base: _Base) -> _Base:
        """A base of the same patterns, for the same queries."""
        rows = self._rows()
        base.kept.renew(_stream(_arrow(base.patterns, rows)))
        return replace(base, row_count=sum(_sizes(rows).values()))

    def _rows(self) -> _Grouped:
        """All rows, for a base: nothing stands over it yet."""
        self._changed.clear()
        self._carried.clear()
        return _together([one.rows for one in self._brokers.values()])

    def _news(self, base: _Base) -> bytes:
        """What has changed of the brokers' key specs since the base was told, as `rows/BrokerSpec.java` reads it."""
        if len(self._numbers) > 2 * len(self._brokers):
            used = {one.key_spec for one in self._brokers.values()}
            self._numbers = {spec: number for spec, number in self._numbers.items() if spec in used}
        specs: dict[int, str] = {}
        brokers: list[tuple[str, int, int]] = []
        gone: list[str] = []
        for name in self._untold if base.told else self._brokers:
            table = self._brokers.get(name)
            if table is None:
                if base.told.pop(name, None) is not None:
                    gone.append(name)
                continue
            number = self._numbers.get(table.key_spec)
            if number is None:
                number = self._numbers[table.key_spec] = next(self._specs)
            if base.told.get(name) != number:
                base.told[name] = number
                specs[number] = table.key_spec
                brokers.append((name, number, table.state))
        self._untold.clear()
        return msgspec.json.encode({"specs": list(specs.items()), "brokers": brokers, "gone": gone})


_Grouped = Mapping[Pattern, Sequence[Mapping[Row, list[int]]]]
"""By pattern, the rows of each broker."""


def _together(brokers: Iterable[Rows]) -> _Grouped:
    rows: defaultdict[Pattern, list[Mapping[Row, list[int]]]] = defaultdict(list)
    for one in brokers:
        for pattern, some in one.items():
            rows[pattern].append(some)
    return rows


def _sizes(rows: _Grouped) -> dict[Pattern, int]:
    return {pattern: sum(map(len, some)) for pattern, some in rows.items()}


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


def _arrow(patterns: Sequence[CompiledPattern], rows: _Grouped, empty: Collection[object] = ()) -> pa.Table:
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
            pa.field("shared", pa.int64(), nullable=False),
            *(pa.field(name, _ARROW[name.rpartition("_")[0]]) for name in sorted(names)),
        ]
    )
    numbers = {one.pattern: number for number, one in enumerate(patterns)}
    marks: list[Row] = [(MARK_KEY, MARK_CHECK, True, 0), *((key, MARK_CHECK, True, 0) for key in empty)]
    batches = [_batch(schema, MARK, marks, [[MARK], *([] for _ in empty)], ())]
    for pattern, groups in rows.items():
        some, targets = list(chain(*groups)), list(chain.from_iterable(group.values() for group in groups))
        number = numbers.get(pattern)
        if number is None:
            coarse: list[Row] = [(key, check, False, shared) for key, check, _, shared, *_ in some]
            batches.append(_batch(schema, numbers[()], coarse, targets, ()))
        else:
            columns = (*patterns[number].operands, *filter(None, patterns[number].constants))
            batches.append(_batch(schema, number, some, targets, columns))
    table = pa.Table.from_batches(batches, schema)
    return table.sort_by([("row_key", "ascending"), ("pattern", "ascending")]).combine_chunks()


def _batch(
    schema: pa.Schema, pattern: int, rows: Sequence[Row], targets: Sequence[list[int]], columns: Sequence[str]
) -> pa.RecordBatch:
    keys, checks, exact, shared, *rest = zip(*rows, strict=True)
    values: dict[str, Sequence[object]] = {
        "row_key": keys,
        "row_check": checks,
        "pattern": [pattern] * len(rows),
        "targets": targets,
        "exact": exact,
        "shared": shared,
        **dict(zip(columns, rest, strict=True)),
    }
    arrays = [
        pa.array(values[name], kind) if name in values else pa.nulls(len(rows), kind)
        for name, kind in zip(schema.names, schema.types, strict=True)
    ]
    return pa.record_batch(arrays, schema=schema)


def _stream(table: pa.Table) -> bytes:
    """As `rows/KeptRows.java` reads it."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue())
