"""What stands at a place of an event, typed, without ever throwing?

Spark reads JSON leniently (`"5"` casts to 5, `5` to `'5'`), CEL does not. So every JSON value is first written as JSON
text, whose first character tells its real type, and only then becomes a string, a number or a boolean. SQL NULL stands
for "no value of this type"; whether there is a value at all is a column of its own.

The data is parsed once per event, as VARIANT inside whole-stage code generation. `from_json` would cut the stage in
two, throws and catches an exception for a value where it expects an object, and keeps the earlier of two values then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Flag, auto
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from headgate.filter.plan import Place, Root

ATTRIBUTES: Final = frozenset(
    {"specversion", "id", "source", "type", "subject", "time", "datacontenttype", "dataschema"}
)
"""Context attributes with a column of their own."""
_UNTYPED: Final = frozenset({"time"})
"""Attributes whose column holds text that is not their value: `ce.time` is a timestamp."""


class Want(Flag):
    """What is to be known of a place."""

    TEXT = auto()  # the string, NULL when it is none
    NUMBER = auto()  # the number as double, NULL when it is none
    FLAG = auto()  # the boolean, NULL when it is none
    IS_NULL = auto()  # whether it is JSON's null, NULL when there is no value
    MISMATCH = auto()  # FALSE when there is a value, else NULL: what `==` says to a value of another type
    HAS = auto()  # has(): NULL when the parent is not an object


@dataclass(frozen=True, slots=True)
class PlaceColumns:
    """Names of the columns that hold what was wanted of a place; empty where it was not wanted.

    Attributes:
        raw: The value as JSON text, only while the places are read.
        only_text: The value is always a string, so that `==` with a string needs no look at `mismatch`.
    """

    raw: str = ""
    text: str = ""
    number: str = ""
    flag: str = ""
    is_null: str = ""
    mismatch: str = ""
    has: str = ""
    only_text: bool = False


def readable(place: Place, want: Want) -> bool:
    """Whether `read_places` can say this exactly; if not, the comparison is cel-cpp's.

    A nested attribute (`ce.a.b`) is not: no attribute has fields, so what it means is the evaluator's business.
    """
    if place.root is Root.DATA:
        return bool(place.path)
    return len(place.path) == 1 and (place.path[0] not in _UNTYPED or want is Want.HAS)


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
    ordered = sorted(wants)
    found = {place: _names(number, place, wants[place]) for number, place in enumerate(ordered)}
    data = [place for place in ordered if place.root is Root.DATA]
    extensions = [place for place in ordered if place.root is Root.CE and place.path[0] not in ATTRIBUTES]
    attributes = [place for place in ordered if place.root is Root.CE and place.path[0] in ATTRIBUTES]
    carried = list(dict.fromkeys([*keep, *(place.path[0] for place in attributes)]))
    frame = events.select(*carried, *_parsed(data, extensions))
    leaves: dict[Place, Column] = {}
    for root, places in (("data", data), ("ce", extensions)):
        if places:
            frame, columns = _spread(frame, root, _tree(place.path for place in places))
            leaves.update({place: columns[place.path] for place in places})
            frame = _keep_presence(frame, root, places, wants, found, columns)
    json = [place for place in data + extensions if found[place].raw]
    frame = frame.select("*", *[F.to_json(leaves[place]).alias(found[place].raw) for place in json])
    typed = [column.alias(name) for place in json for name, column in _typed(found[place], leaves[place])]
    typed += [column.alias(name) for place in attributes for name, column in _attribute(found[place], place.path[0])]
    presence = [found[place].has for place in data + extensions if found[place].has]
    return frame.select(*carried, *presence, *typed), found


def _names(number: int, place: Place, want: Want) -> PlaceColumns:
    def name(flag: Want, suffix: str) -> str:
        return f"p{number}_{suffix}" if flag in want else ""

    attribute = place.root is Root.CE and place.path[0] in ATTRIBUTES
    return PlaceColumns(
        raw="" if attribute or not want & ~Want.HAS else f"p{number}_raw",
        text=place.path[0] if attribute and Want.TEXT in want else name(Want.TEXT, "text"),
        number=name(Want.NUMBER, "number"),
        flag=name(Want.FLAG, "flag"),
        is_null=name(Want.IS_NULL, "null"),
        mismatch=name(Want.MISMATCH, "mismatch"),
        has=name(Want.HAS, "has"),
        only_text=attribute,
    )


def _parsed(data: Sequence[Place], extensions: Sequence[Place]) -> list[Column]:
    """The VARIANT of the data (NULL unless it is JSON) and of the extensions, where a place of theirs is read."""
    columns = []
    if data:
        text = F.col("data").cast("string")
        columns.append(F.when(F.col("data_kind") == 1, F.try_parse_json(text)).alias("data"))
    if extensions:
        columns.append(F.try_parse_json(F.col("extensions")).alias("ce"))
    return columns


# --- the paths as a tree: one cast to nested structs reads them all -----------------------------------------------


@dataclass(slots=True)
class _Tree:
    """Names below a value; a name that is a leaf and a parent is read as VARIANT first and spread afterwards."""

    children: dict[str, _Tree] = field(default_factory=dict)
    is_leaf: bool = False

    def ddl(self) -> str:
        """The struct type whose fields are the children."""
        fields = (
            f"{_quoted(name)}: {'variant' if child.is_leaf or not child.children else child.ddl()}"
            for name, child in self.children.items()
        )
        return f"struct<{', '.join(fields)}>"


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _tree(paths: Iterable[tuple[str, ...]]) -> _Tree:
    root = _Tree()
    for path in paths:
        node = root
        for name in path:
            node = node.children.setdefault(name, _Tree())
        node.is_leaf = True
    return root


def _spread(frame: DataFrame, root: str, tree: _Tree) -> tuple[DataFrame, dict[tuple[str, ...], Column]]:
    """Casts the VARIANT column `root` to structs; the columns of every node of the tree by its path.

    A cast of a VARIANT that is not an object to a struct is NULL, and so is a field that is not there; a field that is
    JSON's null is not NULL.
    """
    columns: dict[tuple[str, ...], Column] = {}
    pending: list[tuple[tuple[str, ...], Column, _Tree]] = [((), F.col(root), tree)]
    depth = 0
    while pending:
        structs = {path: f"{root}_{depth}_{number}" for number, (path, _, _) in enumerate(pending)}
        casts = [F.try_variant_get(source, "$", node.ddl()).alias(structs[path]) for path, source, node in pending]
        frame = frame.select("*", *casts)
        again: list[tuple[tuple[str, ...], Column, _Tree]] = []
        for path, _, node in pending:
            again += _collect(F.col(structs[path]), path, node, columns)
        pending, depth = again, depth + 1
    return frame, columns


def _collect(
    struct: Column, path: tuple[str, ...], node: _Tree, columns: dict[tuple[str, ...], Column]
) -> list[tuple[tuple[str, ...], Column, _Tree]]:
    """Fills in the columns below one struct; what is leaf and parent at once is returned to be spread next.

    A parent is remembered under its path with a trailing empty slot, see `_parent_of`.
    """
    again: list[tuple[tuple[str, ...], Column, _Tree]] = []
    columns[_object_at(path)] = struct
    for name, child in node.children.items():
        below, column = (*path, name), struct.getField(name)
        if child.is_leaf or not child.children:
            columns[below] = column
            if child.children:
                again.append((below, column, child))
        else:
            again += _collect(column, below, child, columns)
    return again


def _object_at(path: tuple[str, ...]) -> tuple[str, ...]:
    """Where `_spread` keeps the struct (NULL unless it is an object) of a value, beside the value itself."""
    return ("object", *path, "")


def _keep_presence(
    frame: DataFrame,
    root: str,
    places: Sequence[Place],
    wants: Mapping[Place, Want],
    found: Mapping[Place, PlaceColumns],
    columns: Mapping[tuple[str, ...], Column],
) -> DataFrame:
    """Adds has() of every place that wants it: an event's attributes are always an object, the data need not be."""
    added = []
    for place in places:
        if Want.HAS in wants[place]:
            there = columns[place.path].isNotNull()
            parent = columns[_object_at(place.path[:-1])]
            added.append((there if root == "ce" else F.when(parent.isNotNull(), there)).alias(found[place].has))
    return frame.select("*", *added) if added else frame


# --- types --------------------------------------------------------------------------------------------------------


def _typed(names: PlaceColumns, value: Column) -> list[tuple[str, Column]]:
    """Typed columns of a VARIANT from its JSON text; both are NULL when there is no value.

    Ingress refuses numbers beyond a double, so that text in quotes is always a string (an infinite double is quoted).
    """
    raw = F.col(names.raw)
    columns = []
    if names.text:
        unescaped = F.when(F.contains(raw, F.lit("\\")), F.try_variant_get(value, "$", "string")).otherwise(
            F.substring(raw, F.lit(2), F.char_length(raw) - 2)
        )
        columns.append((names.text, F.when(F.startswith(raw, F.lit('"')), unescaped)))
    if names.number:
        # "-" and the digits lie between "-" and ":"; the other types start with one of "[{tfn.
        numeric = (raw >= "-") & (raw < ":")
        columns.append((names.number, F.when(numeric, raw.try_cast("double"))))
    if names.flag:
        columns.append((names.flag, F.when(raw == "true", F.lit(True)).when(raw == "false", F.lit(False))))
    if names.is_null:
        columns.append((names.is_null, raw == "null"))
    if names.mismatch:
        columns.append((names.mismatch, F.when(raw.isNotNull(), F.lit(False))))
    return columns


def _attribute(names: PlaceColumns, attribute: str) -> list[tuple[str, Column]]:
    """An attribute is a string or not there."""
    present = F.col(attribute).isNotNull()
    false_if_present = F.when(present, F.lit(False))
    columns: list[tuple[str, Column]] = []
    if names.number:
        columns.append((names.number, F.lit(None).cast("double")))
    if names.flag:
        columns.append((names.flag, F.lit(None).cast("boolean")))
    if names.is_null:
        columns.append((names.is_null, false_if_present))
    if names.mismatch:
        columns.append((names.mismatch, false_if_present))
    if names.has:
        columns.append((names.has, present))
    return columns
