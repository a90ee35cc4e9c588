"""What stands at a place of an event, typed, without ever throwing?

SQL NULL stands for "no value of this type"; whether there is a value at all is a column of its own (`mismatch`, `has`).
Context attributes are columns of the log, extensions are cut out of the log's compact JSON (`extensions.py`), and the
data is parsed (`json_data.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from headgate.filter.plan import Form, Place, Root
from headgate.match import extensions, json_data
from headgate.match.reads import PlaceColumns, Want, Wanted

ATTRIBUTES: Final = frozenset(
    {"specversion", "id", "source", "type", "subject", "time", "datacontenttype", "dataschema"}
)
"""Context attributes with a column of their own."""
_UNTYPED: Final = frozenset({"time"})
"""Attributes whose column holds text that is not their value: `ce.time` is a timestamp."""


def readable(place: Place, want: Want) -> bool:
    """Whether `read_places` can say this exactly; if not, the comparison is cel-cpp's.

    A nested attribute (`ce.a.b`) is not: no attribute has fields, so what it means is the evaluator's business.
    """
    if place.form is not Form.VALUE:
        return False
    if place.root is Root.DATA:
        return bool(place.path)
    if len(place.path) != 1:
        return False
    name = place.path[0]
    if name in ATTRIBUTES:
        return name not in _UNTYPED or want is Want.HAS
    return extensions.is_plain(name)


def read_places(
    events: DataFrame, wants: Mapping[Place, Want], keep: Sequence[str]
) -> tuple[DataFrame, dict[Place, PlaceColumns]]:
    """Adds the typed reads of `wants` to the columns `keep`.

    Args:
        events: Columns of `event.arrow.EVENT_SCHEMA`.
        wants: Only what is `readable`.
        keep: Columns of `events` to carry along; attributes that are read are carried as well.

    Returns:
        The frame and, for every place, where its reads are.
    """
    wanted = [_wanted(number, place, wants[place]) for number, place in enumerate(sorted(wants))]
    data = [item for item in wanted if item.place.root is Root.DATA]
    context = [item for item in wanted if item.place.root is Root.CE]
    attributes = [item for item in context if item.place.path[0] in ATTRIBUTES]
    added = [item for item in context if item.place.path[0] not in ATTRIBUTES]
    carried = list(dict.fromkeys([*keep, *(item.place.path[0] for item in attributes)]))
    frame = json_data.read(events, data, [*carried, *(["extensions"] if added else [])])
    columns = [
        *(column for item in attributes for column in _attribute(item)),
        *(column for item in added for column in extensions.read(item)),
    ]
    known = [name for name in frame.columns if name != "extensions"]
    return frame.select(*known, *columns), {item.place: item.columns for item in wanted}


def _wanted(number: int, place: Place, want: Want) -> Wanted:
    def name(flag: Want, suffix: str) -> str:
        return f"p{number}_{suffix}" if flag in want else ""

    attribute = place.root is Root.CE and place.path[0] in ATTRIBUTES
    columns = PlaceColumns(
        text=place.path[0] if attribute and Want.TEXT in want else name(Want.TEXT, "text"),
        number=name(Want.NUMBER, "number"),
        flag=name(Want.FLAG, "flag"),
        is_null=name(Want.IS_NULL, "null"),
        mismatch=name(Want.MISMATCH, "mismatch"),
        has=name(Want.HAS, "has"),
        only_text=attribute,
    )
    return Wanted(place, want, columns, number)


def _attribute(item: Wanted) -> list[Column]:
    """An attribute is a string or not there."""
    names = item.columns
    present = F.col(item.place.path[0]).isNotNull()
    false_if_present = F.when(present, F.lit(False))
    columns = {
        names.number: F.lit(None).cast("double"),
        names.flag: F.lit(None).cast("boolean"),
        names.is_null: false_if_present,
        names.mismatch: false_if_present,
        names.has: present,
    }
    return [column.alias(name) for name, column in columns.items() if name]
