"""The schema that JSON data has in fact: a sketch of bounded size, of data that anybody may have made. Pure."""

from __future__ import annotations

from collections import Counter
from typing import Final

from headgate.control.objects import JsonObject
from headgate.limits import SCHEMA_DEPTH_MAX, SCHEMA_ITEMS_MAX, SCHEMA_NAME_CHARS_MAX, SCHEMA_NODES_MAX

_TYPES: Final[dict[type, str]] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
    type(None): "null",
}


class _Node:
    """What was seen at one place of the data."""

    __slots__ = ("items", "left_out", "properties", "types")

    def __init__(self) -> None:
        self.types = Counter[str]()
        self.properties: dict[str, _Node] = {}
        self.items: _Node | None = None
        self.left_out = False


class ObservedSchema:
    """Takes one value after the other; knows at most SCHEMA_NODES_MAX places of them."""

    def __init__(self) -> None:
        self.count = 0
        self._root = _Node()
        self._left = SCHEMA_NODES_MAX

    def see(self, value: object) -> None:
        """One more value, decoded from JSON."""
        self.count += 1
        self._see(self._root, value, 0)

    def _see(self, node: _Node, value: object, depth: int) -> None:
        node.types[_TYPES[type(value)]] += 1
        if depth == SCHEMA_DEPTH_MAX:
            node.left_out |= isinstance(value, list | dict) and bool(value)
        elif isinstance(value, dict):
            for name, inner in value.items():
                child = node.properties.get(name)
                if child is None:
                    if not self._left or len(name) > SCHEMA_NAME_CHARS_MAX:
                        node.left_out = True
                        continue
                    self._left -= 1
                    child = node.properties[name] = _Node()
                self._see(child, inner, depth + 1)
        elif isinstance(value, list):
            if value and node.items is None and self._left:
                self._left -= 1
                node.items = _Node()
            if node.items is None:
                node.left_out |= bool(value)
                return
            for inner in value[:SCHEMA_ITEMS_MAX]:
                self._see(node.items, inner, depth + 1)

    def shown(self) -> JsonObject:
        """As JSON Schema (2020-12). `x-seen` counts values; `x-leftOut` says that there was more at a place."""
        return _shown(self._root)


def _shown(node: _Node) -> JsonObject:
    types = sorted(node.types)
    if "number" in types and "integer" in types:
        types.remove("integer")  # every integer is a number
    schema: JsonObject = {"type": types[0] if len(types) == 1 else types, "x-seen": node.types.total()}
    if node.properties:
        schema["properties"] = {name: _shown(child) for name, child in sorted(node.properties.items())}
        objects = node.types["object"]
        required = [name for name, child in sorted(node.properties.items()) if child.types.total() == objects]
        if required:
            schema["required"] = required
    if node.items is not None:
        schema["items"] = _shown(node.items)
    if node.left_out:
        schema["x-leftOut"] = True
    return schema
