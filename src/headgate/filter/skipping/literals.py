r"""Texts that must stand in an event's bytes for a filter to be true of it, to look for before decoding.

A *clause* is a set of texts of which at least one occurs, byte for byte in UTF-8, in every event that satisfies the
filter: in the event's attributes as the log's columns hold them, or in its JSON data. A reader that finds none of them
in a whole chunk need not decode it.

JSON may write a character in more than one way. Texts that JSON has to escape are never in a clause; any character may
be written as `\uXXXX`, so bytes that hold `\u` prove nothing where a clause is about data.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from headgate.filter.cel.ast import (
    Call,
    Compare,
    Comparison,
    In,
    ListOf,
    Literal,
    Macro,
    MacroKind,
    Name,
    Node,
    Select,
    root_of,
)
from headgate.filter.cel.fold import Fold
from headgate.filter.cel.parsing import simplified_tree
from headgate.limits import FILTERS_CACHED_MAX, LITERAL_BYTES_MIN, LITERAL_CLAUSES_MAX, LITERAL_STRINGS_MAX

ESCAPE: Final = b"\\u"
"""In bytes that hold it, a clause about data proves nothing."""
_ESCAPED: Final = re.compile(r'["\\\x00-\x1f\x7f]')
"""What our own encoder of extensions escapes."""
ESCAPED_IN_DATA: Final = re.compile(r'["\\/\x00-\x1f\x7f]')
"""What some producer's encoder escapes."""
_METHODS: Final = frozenset({"startsWith", "endsWith", "contains"})
_ROOTS: Final = frozenset({"ce", "data"})


@dataclass(frozen=True, slots=True)
class Clause:
    """One of these texts occurs.

    Attributes:
        texts: UTF-8, in order.
        in_data: Whether the data is where one of them may have to be found.
    """

    texts: tuple[bytes, ...]
    in_data: bool

    def occurs(self, body: bytes) -> bool:
        """Whether one of the texts stands in these bytes."""
        return any(body.find(text) >= 0 for text in self.texts)


@lru_cache(maxsize=FILTERS_CACHED_MAX)
def literals(cel: str) -> tuple[Clause, ...]:
    """The clauses of a filter, each a condition by itself; empty when nothing can be promised.

    Args:
        cel: CEL text as admission took it, or canonical.

    Raises:
        FilterError: It is no expression.
    """
    clauses = dict.fromkeys(_clauses(None)(simplified_tree(cel)))
    return tuple(sorted(clauses, key=_worth, reverse=True)[:LITERAL_CLAUSES_MAX])


def _worth(clause: Clause) -> tuple[int, int]:
    """Long texts are rare, and few are soon looked for."""
    return min(map(len, clause.texts)), -len(clause.texts)


def _clauses(element: str | None) -> Callable[[Node], list[Clause]]:
    """Clauses of a condition; `element` names an element of JSON data, inside a macro over it."""
    return Fold(lambda node: _of_leaf(node, element), lambda parts: list(itertools.chain(*parts)), _any_of)


def _of_leaf(node: Node, element: str | None) -> list[Clause]:
    match node:
        case Compare(Comparison.EQ, left, right):
            return _clause(_in_data(left, element), (right,))
        case In(left, ListOf(items)):
            return _clause(_in_data(left, element), items)
        case In(left, container) if _in_data(container, element):
            return _clause(True, (left,))  # an element of a list, or a member's name
        case Call(method, target, (text,)) if method in _METHODS and target is not None:
            return _clause(_in_data(target, element), (text,))
        case Macro(MacroKind.EXISTS, source, variable, predicate, None) if variable not in _ROOTS:
            inside = predicate is not None and (_in_data(source, element) or _are_values(source))
            return _clauses(variable)(predicate) if inside and predicate is not None else []
        case _:
            return []


def _in_data(node: Node, element: str | None) -> bool | None:
    """Whether a path leads into the data; None when it leads nowhere that texts can be looked for."""
    if isinstance(node, Select) and node.operand == Name("ce"):
        return None if node.field == "time" else False  # a time is compared as an instant, however it is written
    match root_of(node):
        case Name(name) if name in {"data", element}:
            return True
        case _:
            return None


def _are_values(node: Node) -> bool:
    """`json.values(data, [...])`: scalars somewhere in the data."""
    match node:
        case Call("values", Name("json"), (Name("data"), _)) | Call("json.values", None, (Name("data"), _)):
            return True
        case _:
            return False


def _clause(in_data: bool | None, items: Sequence[Node]) -> list[Clause]:
    if in_data is None or not 0 < len(items) <= LITERAL_STRINGS_MAX:
        return []
    escaped = ESCAPED_IN_DATA if in_data else _ESCAPED
    texts: dict[bytes, None] = {}
    for item in items:
        if not isinstance(item, Literal) or not isinstance(item.value, str):
            return []
        text = item.value.encode()
        if len(text) < LITERAL_BYTES_MIN or escaped.search(item.value):
            return []
        texts[text] = None
    return [Clause(tuple(texts), in_data)]


def _any_of(parts: list[list[Clause]]) -> list[Clause]:
    """A clause of every branch, joined; none when a branch promises nothing."""
    if not all(parts):
        return []
    best = [max(clauses, key=_worth) for clauses in parts]
    texts = tuple(dict.fromkeys(text for clause in best for text in clause.texts))
    return [Clause(texts, any(clause.in_data for clause in best))] if 0 < len(texts) <= LITERAL_STRINGS_MAX else []
