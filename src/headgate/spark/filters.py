"""The filters of a match: named, of any dialect, compiled by the one compiler."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.types import StringType

from headgate.filter.cel.errors import FilterError
from headgate.filter.compile.compiler import compile_filter
from headgate.filter.compile.plan import CompiledFilter
from headgate.filter.compile.request import filter_of
from headgate.limits import SPARK_FILTERS_MAX, SPARK_REFUSALS_SHOWN
from headgate.spark.errors import FiltersRefusedError

Filters = DataFrame | Mapping[str, str | Mapping[str, object]]
"""By id, each CEL text, or an object as a trigger's `spec.filter`, or its JSON text. As a DataFrame: the columns
`filter_id` and `filter`, both STRING."""

COLUMNS: Final = ("filter_id", "filter")


@dataclass(frozen=True, slots=True)
class NamedFilter:
    """A filter and what its rows are called.

    Attributes:
        id: Its name.
        compiled: What it means.
    """

    id: str
    compiled: CompiledFilter


def compiled_filters(filters: Filters) -> tuple[NamedFilter, ...]:
    """Compiles all filters; a DataFrame's are brought to the driver.

    Raises:
        FiltersRefusedError: Some do not compile; an id is missing or given twice; or there are more than
            SPARK_FILTERS_MAX.
    """
    found: dict[str, NamedFilter] = {}
    refused: dict[str, FilterError] = {}
    for name, given in _given(filters):
        if name in found or name in refused:
            raise FiltersRefusedError(f"two filters have the id {name!r}")
        if len(found) + len(refused) >= SPARK_FILTERS_MAX:
            raise FiltersRefusedError(
                f"there are more filters than {SPARK_FILTERS_MAX} (SPARK_FILTERS_MAX)", hint="match them in parts"
            )
        try:
            found[name] = NamedFilter(name, compile_filter(filter_of(given)))
        except FilterError as error:
            refused[name] = error
    if refused:
        raise _refusal(refused)
    return tuple(found.values())


def _refusal(refused: Mapping[str, FilterError]) -> FiltersRefusedError:
    (first, error), *others = refused.items()
    more = ", ".join(map(repr, [name for name, _ in others[:SPARK_REFUSALS_SHOWN]]))
    rest = f"; nor do {len(others)} others: {more}{', ...' if len(others) > SPARK_REFUSALS_SHOWN else ''}"
    what = f"filter {first!r} does not compile: {error}{rest if others else ''}"
    return FiltersRefusedError(f"{what}\n{error.caret}".rstrip("\n"), hint=error.hint)


def _given(filters: Filters) -> Iterator[tuple[str, str | Mapping[str, object]]]:
    if not isinstance(filters, DataFrame):
        for name, given in filters.items():
            if not isinstance(name, str) or not isinstance(given, str | Mapping):
                raise FiltersRefusedError(
                    f"filter {name!r} is a {type(given).__name__}", hint="give CEL text, or an object as in spec.filter"
                )
            yield name, given
        return
    types = {field.name: field.dataType for field in filters.schema.fields}
    wrong = [name for name in COLUMNS if not isinstance(types.get(name), StringType)]
    if wrong:
        raise FiltersRefusedError(
            f"the DataFrame of filters has no column {' and no column '.join(wrong)} of type STRING",
            hint=f"its columns are {', '.join(types)}; expected are filter_id STRING, filter STRING",
        )
    rows = filters.select(*COLUMNS).limit(SPARK_FILTERS_MAX + 1).toArrow()
    for name, given in zip(*(column.to_pylist() for column in rows.columns), strict=True):
        if name is None or given is None:
            raise FiltersRefusedError(f"a filter has no {COLUMNS[name is not None]}: filter_id {name!r}")
        yield name, given
