"""The page of limits, from limits.py: every name with its value, its unit and its reason."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from headgate_api import limits
from scripts.pages.cell import row

HEAD: Final = """# Limits

<!-- Written by `make pages` from src/headgate_api/limits.py: edit that. -->

Every queue, body, depth, list and retry has a named limit. The groups are the rooms of the code that use them. [Size](../howto/size.md#limits) lists those that clients meet first, and what happens beyond them.
"""

_SECTION: Final = re.compile(r"# --- (\w+) -")
_UNITS: Final = {
    "BYTES": "bytes",
    "MIB": "MiB",
    "S": "s",
    "SECONDS": "s",
    "CHARS": "characters",
    "CHARACTERS": "characters",
}


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *_sections()])


def _sections() -> Iterator[str]:
    source = Path(limits.__file__).read_text(encoding="utf-8")
    starts = {number: name for number, line in enumerate(source.splitlines(), 1) if (name := _section(line))}
    rows: dict[str, list[list[str]]] = {}
    waiting: list[str] = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            waiting.append(node.target.id)
        elif waiting and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            room = starts[max(line for line in starts if line < node.lineno)]
            for name in waiting:
                rows.setdefault(room, []).append([f"`{name}`", _value(name), str(node.value.value)])
            waiting = []
    for room, cells in rows.items():
        yield f"## {room}\n"
        yield row("limit", "value", "reason")
        yield "|---|---|---|"
        yield from (row(*cell) for cell in cells)
        yield ""


def _section(line: str) -> str:
    found = _SECTION.match(line)
    return found[1] if found else ""


def _value(name: str) -> str:
    value = getattr(limits, name)
    unit = next((_UNITS[word] for word in reversed(name.split("_")) if word in _UNITS), "")
    if unit == "bytes":
        return _bytes(value)
    return f"{value:,} {unit}".rstrip() if isinstance(value, int) else f"{value:,g} {unit}".rstrip()


def _bytes(value: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value >= size and value % (size // 4) == 0:
            return f"{value / size:g} {unit}"
    return f"{value:,} bytes"
