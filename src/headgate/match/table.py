"""What is broadcast to the join? One row per conjunction: its key, its shape's number, its target and its constants.

Constants stand in columns by type: the first string of a row in `string_0`, its second in `string_1`, and so on, so
that sixty shapes share a dozen columns.
"""

from __future__ import annotations

import math
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from headgate.filter.plan import CompiledFilter, Constant, ConstantKind, PlanRow, Signature
from headgate.limits import SIGNATURES_COMPILED_MAX
from headgate.match.keys import broker_state, check_of, key_of, parts_state
from headgate.match.shapes import SCAN, Fit, Shape, choose, fit, readable_part

_SETTINGS: Final = {
    # Names that differ in case only are different members of an object.
    "spark.sql.caseSensitive": "true",
    # Ingress refuses two members of one name; should one slip through, the last wins, as in Python.
    "spark.sql.variant.allowDuplicateKeys": "true",
    # Many places make many columns; above this number Spark would give up whole-stage code generation.
    "spark.sql.codegen.maxFields": "4000",
}
_NUMBER_MAX: Final = 2.0**64
"""Integer constants of CEL lie below."""
_NOBODY: Final = -1
"""Target and shape of the row that keeps the table from ever being empty, which would change the plan."""

_CONSTANT_TYPES: Final = {ConstantKind.STRING: "string", ConstantKind.NUMBER: "number", ConstantKind.BOOL: "flag"}
_ARROW: Final[dict[str, pa.DataType]] = {
    "string": pa.string(),
    "number": pa.float64(),
    "flag": pa.bool_(),
    "strings": pa.list_(pa.string()),
    "numbers": pa.list_(pa.float64()),
    "flags": pa.list_(pa.bool_()),
}


@dataclass(frozen=True, slots=True)
class CompiledShape:
    """A shape in the plan.

    Attributes:
        shape: What is compared.
        key_number: Shapes with the same key parts have the same number, see `keys.py`.
        columns: The table's column that holds the constant of each residual; "" where it needs none.
    """

    shape: Shape
    key_number: int
    columns: tuple[str, ...]


_SEED, _SECRET = secrets.randbits(63), secrets.randbits(31)
"""Drawn once a process. They stand in the code that Spark generates: drawn anew for each table, they made every
generation compile and warm up the same code again."""


@dataclass(frozen=True, slots=True)
class MatchTable:
    """The filters of one generation, ready to be joined.

    Attributes:
        rows: `row_key` BIGINT, `row_check` INT, `shape` INT, `target` INT, `exact` BOOLEAN and columns of constants.
        shapes: By number, the one with the most rows first.
        seed: Random, int64: where the chain of every key starts.
        secret: Random, int32: the same for checks.
        row_count: Rows of `rows`.
    """

    rows: DataFrame
    shapes: tuple[CompiledShape, ...]
    seed: int
    secret: int
    row_count: int


@dataclass(slots=True)
class _Rows:
    """The conjunctions of one signature, column by column."""

    part: Fit
    targets: list[int] = field(default_factory=list)
    brokers: list[str] = field(default_factory=list)
    rows: list[PlanRow] = field(default_factory=list)


def build_table(
    spark: SparkSession,
    targets: Iterable[tuple[int, str, CompiledFilter]],
    *,
    shapes_max: int = SIGNATURES_COMPILED_MAX,
) -> MatchTable:
    """The broadcast table of all filters.

    Args:
        spark: Settings that the match depends on are set on this session.
        targets: Target (int32, not negative), its broker's name, its filter.
        shapes_max: Shapes that the Spark plan may hold.
    """
    for name, value in _SETTINGS.items():
        spark.conf.set(name, value)
    seed, secret = _SEED, _SECRET
    groups = _grouped(targets)
    rows_by_shape: Counter[Shape] = Counter()
    for group in groups:
        rows_by_shape[group.part.shape] += len(group.rows)
    chosen = choose(rows_by_shape, shapes_max=shapes_max) or {SCAN: SCAN}
    sizes: Counter[Shape] = Counter()
    for shape, compiled in chosen.items():
        sizes[compiled] += rows_by_shape[shape]
    ordered = [shape for shape, _ in sizes.most_common()]
    key_numbers = {key: number for number, key in enumerate(dict.fromkeys(shape.key for shape in ordered))}
    shapes = tuple(_compiled(shape, key_numbers[shape.key]) for shape in ordered)
    numbers = {compiled.shape: number for number, compiled in enumerate(shapes)}
    columns = _Columns(shapes)
    for group in groups:
        part = fit(group.part, chosen[group.part.shape])
        columns.add(group, part, numbers[part.shape], seed, secret)
    table = columns.table()
    return MatchTable(spark.createDataFrame(table), shapes, seed, secret, table.num_rows)


def _grouped(targets: Iterable[tuple[int, str, CompiledFilter]]) -> list[_Rows]:
    groups: dict[tuple[Signature, bool], _Rows] = {}
    # Equal filters share their signatures, and to hash one costs more than all else here. The groups keep them alive.
    by_identity: dict[tuple[int, bool], _Rows] = {}
    for target, broker, compiled in targets:
        for row in compiled.rows:
            usable = _usable(row)
            group = by_identity.get((id(row.signature), usable)) or groups.get((row.signature, usable))
            if group is None:
                part = readable_part(row.signature) if usable else Fit(SCAN, (), (), exact=False)
                group = groups[row.signature, usable] = _Rows(part)
            by_identity[id(row.signature), usable] = group
            group.targets.append(target)
            group.brokers.append(broker)
            group.rows.append(row)
    return list(groups.values())


def _usable(row: PlanRow) -> bool:
    """Whether every constant can be stored: text that UTF-8 can hold, numbers that a double can."""
    return all(map(_storable, row.key)) and all(
        all(map(_storable, constant)) if isinstance(constant, tuple) else _storable(constant)
        for constant in row.constants
    )


def _storable(constant: Constant) -> bool:
    match constant:
        case str():
            return constant.isascii() or not any("\ud800" <= character <= "\udfff" for character in constant)
        case float():
            return not math.isnan(constant)
        case int():
            return abs(constant) <= _NUMBER_MAX
        case _:
            return True


def _compiled(shape: Shape, key_number: int) -> CompiledShape:
    """Gives each constant of a shape the next free column of its type."""
    used: Counter[str] = Counter()

    def column(kind: str) -> str:
        used[kind] += 1
        return f"{kind}_{used[kind] - 1}"

    columns = tuple(
        column(_CONSTANT_TYPES[test.kind] + ("s" if test.op == "in" else "")) if test.kind in _CONSTANT_TYPES else ""
        for test in shape.residual
    )
    return CompiledShape(shape, key_number, columns)


class _Columns:
    """Collects rows of all shapes as Arrow columns."""

    def __init__(self, shapes: Sequence[CompiledShape]) -> None:
        self._shapes = shapes
        names = dict.fromkeys(name for shape in shapes for name in shape.columns if name)
        fields = [
            pa.field("row_key", pa.int64(), nullable=False),
            pa.field("row_check", pa.int32(), nullable=False),
            pa.field("shape", pa.int32(), nullable=False),
            pa.field("target", pa.int32(), nullable=False),
            pa.field("exact", pa.bool_(), nullable=False),
            *(pa.field(name, _ARROW[name.rpartition("_")[0]]) for name in sorted(names)),
        ]
        self._schema = pa.schema(fields)
        nobody: dict[str, Sequence[object]] = {
            "row_key": [secrets.randbits(63)],
            "row_check": [0],
            "shape": [_NOBODY],
            "target": [_NOBODY],
            "exact": [True],
        }
        self._batches = [self._batch(nobody, 1)]

    def _batch(self, values: Mapping[str, Sequence[object]], count: int) -> pa.RecordBatch:
        arrays = [
            pa.array(values[name], kind) if name in values else pa.nulls(count, kind)
            for name, kind in zip(self._schema.names, self._schema.types, strict=True)
        ]
        return pa.record_batch(arrays, schema=self._schema)

    def add(self, group: _Rows, part: Fit, number: int, seed: int, secret: int) -> None:
        """The rows of `group` as rows of the compiled shape `number`."""
        compiled = self._shapes[number]
        count = len(group.rows)
        states = {broker: parts_state(broker_state(seed, broker), compiled.key_number) for broker in set(group.brokers)}
        keys = [tuple(row.key[i] for i in part.key) for row in group.rows]
        values: dict[str, Sequence[object]] = {
            "row_key": [key_of(states[broker], key) for broker, key in zip(group.brokers, keys, strict=True)],
            "row_check": [check_of(secret, key) for key in keys],
            "shape": [number] * count,
            "target": group.targets,
            "exact": [part.exact] * count,
        }
        for column, i in zip(compiled.columns, part.residual, strict=True):
            if column:
                values[column] = _stored(column, [row.constants[i] for row in group.rows])
        self._batches.append(self._batch(values, count))

    def table(self) -> pa.Table:
        """All rows, in one chunk, rows of one key and shape together: they are read together, and memory is slow."""
        table = pa.Table.from_batches(self._batches, self._schema)
        return table.sort_by([("row_key", "ascending"), ("shape", "ascending")]).combine_chunks()


def _stored(column: str, constants: Sequence[Constant | tuple[Constant, ...]]) -> Sequence[object]:
    """Constants as their column holds them: numbers as doubles."""
    if column.startswith("number_"):
        return [float(constant) for constant in constants]  # type: ignore[arg-type]
    if column.startswith("numbers_"):
        return [[float(item) for item in constant] for constant in constants]  # type: ignore[arg-type, union-attr]
    return constants
