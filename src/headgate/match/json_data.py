"""What stands at the paths of an event's JSON data?

Spark reads JSON leniently (`"5"` casts to 5, `5` to `'5'`), CEL does not, so the real type of a value must be known:

* A place where a string is expected is read as STRING, which is fast. A value that is no string comes as its JSON text,
  which a string can look like (`5` and `"5"`), and null comes like a missing value. Only for an event where that
  happens the data is parsed a second time, as VARIANT, to tell the two apart.
* Any other place is read as VARIANT and written as JSON text, whose first character tells the type.

The data is parsed by one `from_json` for just the paths in use; it steps over the rest. It would throw and catch an
exception where the root is no object, so such data never reaches it: every read is NULL then, an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from headgate.event.model import DataKind
from headgate.filter.plan import Place
from headgate.limits import EVENT_BYTES_MAX, JSON_DEPTH_MAX
from headgate.match.reads import Want, Wanted

_STRICT: Final = {
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
    "maxNestingDepth": str(JSON_DEPTH_MAX + 1),
    "maxNumLen": str(EVENT_BYTES_MAX),
    "maxStringLen": str(EVENT_BYTES_MAX),
}
"""Options of `from_json`: RFC 8259 only, and whatever ingress lets in."""
_TEXT: Final = "json_text"
_PARSED: Final = "json"
_AGAIN: Final = "json_again"
_SPACE: Final = " \t\n\r"
_LIKE_NUMBER: Final = "^[-+.eE0-9]+$"
_WITH_TEXT: Final = Want.TEXT | Want.MISMATCH | Want.HAS


def read(events: DataFrame, wanted: Sequence[Wanted], keep: Sequence[str]) -> DataFrame:
    """The columns `keep` of events and the typed columns of `wanted`."""
    if not wanted:
        return events.select(*keep)
    tree = _tree(wanted)
    json = F.col("data").cast("string")
    is_object = F.startswith(json, F.lit("{")) | F.startswith(F.ltrim(json, F.lit(_SPACE)), F.lit("{"))
    is_json = F.col("data_kind") == int(DataKind.JSON)
    frame = events.select(*keep, F.when(is_json, F.when(is_object, json)).alias(_TEXT))
    frame = frame.select(*keep, _TEXT, F.from_json(_TEXT, tree.ddl(), _STRICT).alias(_PARSED))
    frame, values = _spread(frame, _PARSED, tree)
    fast = [item for item in wanted if tree.at(item.place.path).as_string]
    typed = [item for item in wanted if not tree.at(item.place.path).as_string]
    frame, checked = _read_strings(frame, fast, values)
    frame = frame.select(
        "*", *[F.to_json(values[item.place.path]).alias(_raw(item)) for item in typed if item.want & ~Want.HAS]
    )
    columns = [column for item in typed for column in _typed(item, values)]
    return frame.select(*keep, *checked, *columns)


# --- the paths as a tree --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Tree:
    """Names below a value.

    A name that is a leaf and a parent is read as VARIANT first, and what is below it is read from that.
    """

    children: dict[str, _Tree] = field(default_factory=dict)
    is_leaf: bool = False
    as_string: bool = False

    @property
    def is_struct(self) -> bool:
        return bool(self.children) and not self.is_leaf

    def ddl(self) -> str:
        """The struct type whose fields are the children."""
        fields = (f"{_quoted(name)}: {child.type()}" for name, child in self.children.items())
        return f"struct<{', '.join(fields)}>"

    def type(self) -> str:
        if self.is_struct:
            return self.ddl()
        return "string" if self.as_string else "variant"

    def at(self, path: tuple[str, ...]) -> _Tree:
        return reduce(lambda node, name: node.children[name], path, self)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _tree(wanted: Sequence[Wanted]) -> _Tree:
    root = _Tree()
    for item in wanted:
        node, below_variant = root, False
        for name in item.place.path:
            below_variant |= node.is_leaf
            node = node.children.setdefault(name, _Tree())
        node.is_leaf = True
        # Places come sorted, a parent before its children: what follows below a string makes it a VARIANT.
        node.as_string = Want.TEXT in item.want and not (item.want & ~_WITH_TEXT) and not below_variant
    _no_strings_above(root)
    return root


def _no_strings_above(node: _Tree) -> None:
    if node.children:
        node.as_string = False
    for child in node.children.values():
        _no_strings_above(child)


_Path = tuple[str, ...]


def _object_at(path: _Path) -> _Path:
    """Where `_spread` keeps the struct of a value (NULL unless it is an object), beside the value itself."""
    return ("object", *path, "")


def _spread(frame: DataFrame, root: str, tree: _Tree) -> tuple[DataFrame, dict[_Path, Column]]:
    """The columns of every node of the tree by its path, and of every object by `_object_at`."""
    columns: dict[_Path, Column] = {}
    pending = _collect(F.col(root), (), tree, columns)
    depth = 0
    while pending:
        structs = [f"{root}_{depth}_{number}" for number in range(len(pending))]
        # A VARIANT that is not an object is NULL as a struct, and a field that is not there is NULL.
        casts = [
            F.try_variant_get(columns[path], "$", node.ddl()).alias(name)
            for name, (path, node) in zip(structs, pending, strict=True)
        ]
        frame = frame.select("*", *casts)
        again: list[tuple[_Path, _Tree]] = []
        for name, (path, node) in zip(structs, pending, strict=True):
            again += _collect(F.col(name), path, node, columns)
        pending, depth = again, depth + 1
    return frame, columns


def _collect(struct: Column, path: _Path, node: _Tree, columns: dict[_Path, Column]) -> list[tuple[_Path, _Tree]]:
    """Fills in the columns below one struct; returns the VARIANTs that have something below them."""
    pending: list[tuple[_Path, _Tree]] = []
    columns[_object_at(path)] = struct
    for name, child in node.children.items():
        below, column = (*path, name), struct.getField(name)
        if child.is_struct:
            pending += _collect(column, below, child, columns)
        else:
            columns[below] = column
            if child.children:
                pending.append((below, child))
    return pending


# --- strings --------------------------------------------------------------------------------------------------------


def _read_strings(
    frame: DataFrame, wanted: Sequence[Wanted], values: dict[_Path, Column]
) -> tuple[DataFrame, list[Column]]:
    """The typed columns of places that were read as STRING."""
    if not wanted:
        return frame, []
    open_questions = {item.place: f"p{item.number}_open" for item in wanted}
    frame = frame.select(
        "*", *[_is_open(item, values[item.place.path]).alias(open_questions[item.place]) for item in wanted]
    )
    any_open = reduce(or_, [F.col(name) for name in open_questions.values()])
    frame = frame.select("*", F.when(any_open, F.try_parse_json(F.col(_TEXT))).alias(_AGAIN))
    tree = _variants([item.place for item in wanted])
    frame = frame.select("*", F.try_variant_get(F.col(_AGAIN), "$", tree.ddl()).alias(f"{_AGAIN}_0"))
    variants: dict[_Path, Column] = {}
    _collect(F.col(f"{_AGAIN}_0"), (), tree, variants)
    columns = []
    for item in wanted:
        names, value, variant = item.columns, values[item.place.path], variants[item.place.path]
        parent = variants[_object_at(item.place.path[:-1])]
        of_type_string = F.when(F.schema_of_variant(variant) == "STRING", value)
        typed = {
            names.text: F.when(F.col(open_questions[item.place]), of_type_string).otherwise(value),
            names.mismatch: F.when(value.isNotNull() | variant.isNotNull(), F.lit(False)),
            names.has: F.when(value.isNotNull(), F.lit(True)).when(parent.isNotNull(), variant.isNotNull()),
        }
        columns += [column.alias(name) for name, column in typed.items() if name]
    return frame, columns


def _variants(places: Sequence[Place]) -> _Tree:
    root = _Tree()
    for place in places:
        node = root
        for name in place.path:
            node = node.children.setdefault(name, _Tree())
        node.is_leaf = True
    return root


def _is_open(item: Wanted, value: Column) -> Column:
    """Whether a STRING may be the text of a number, boolean, object or array, or a NULL a null. Never NULL."""
    looks_otherwise = (
        F.when((value >= "-") & (value < ":"), F.rlike(value, F.lit(_LIKE_NUMBER)))
        .when(F.startswith(value, F.lit("{")), F.endswith(value, F.lit("}")))
        .when(F.startswith(value, F.lit("[")), F.endswith(value, F.lit("]")))
        .otherwise(value.isin("true", "false"))
    )
    is_open = F.coalesce(looks_otherwise, F.lit(False))
    if item.columns.mismatch or item.columns.has:
        is_open = is_open | (value.isNull() & F.col(_TEXT).isNotNull())
    return is_open


# --- any type -------------------------------------------------------------------------------------------------------


def _raw(item: Wanted) -> str:
    return f"p{item.number}_raw"


def _typed(item: Wanted, values: dict[_Path, Column]) -> list[Column]:
    """Typed columns of a VARIANT from its JSON text, which is NULL when there is no value.

    Ingress refuses numbers beyond a double, so that text in quotes is always a string (an infinite double is quoted).
    """
    names, value, raw = item.columns, values[item.place.path], F.col(_raw(item))
    parent = values[_object_at(item.place.path[:-1])]
    unescaped = F.when(F.contains(raw, F.lit("\\")), F.try_variant_get(value, "$", "string")).otherwise(
        F.substring(raw, F.lit(2), F.char_length(raw) - 2)
    )
    columns = {
        names.text: F.when(F.startswith(raw, F.lit('"')), unescaped),
        # "-" and the digits lie between "-" and ":"; the other types start with one of "[{tfn.
        names.number: F.when((raw >= "-") & (raw < ":"), raw.try_cast("double")),
        names.flag: F.when(raw == "true", F.lit(True)).when(raw == "false", F.lit(False)),
        names.is_null: raw == "null",
        names.mismatch: F.when(raw.isNotNull(), F.lit(False)),
        names.has: F.when(parent.isNotNull(), value.isNotNull()),
    }
    return [column.alias(name) for name, column in columns.items() if name]
