"""How does a filter become rows of the matcher's table? Parse, check limits, rewrite, split, choose an index."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from headgate.filter.ast import Node
from headgate.filter.cel import compile_expression
from headgate.filter.conjunctions import Atom, Conjunction, conjunctions
from headgate.filter.dialects import to_cel, written_in
from headgate.filter.errors import FilterError, over_limit
from headgate.filter.parsing import parse
from headgate.filter.plan import (
    CompiledFilter,
    Constant,
    ConstantKind,
    KeyKind,
    KeyPart,
    Op,
    PlanRow,
    Residual,
    Signature,
)
from headgate.filter.rewrite import flatten_all, resolve, rewrite
from headgate.filter.unparse import unparse
from headgate.limits import FILTER_CANONICAL_CHARACTERS_MAX, FILTER_ROWS_MAX, FILTERS_CACHED_MAX

_KEY_KINDS: Final = {
    ConstantKind.STRING: KeyKind.STRING,
    ConstantKind.NUMBER: KeyKind.NUMBER,
    ConstantKind.BOOL: KeyKind.BOOL,
}
_AFFIX_LENGTHS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Lengths at which prefixes and suffixes are indexed: each length is a signature, so there are few of them."""


def compile_filter(filter_object: Mapping[str, object] | None, filters: Sequence[object] = ()) -> CompiledFilter:
    """Compiles a trigger's `spec.filter` and `spec.filters`, in any dialect; filters that are not empty win.

    Raises:
        FilterError: The filter is malformed, or over a limit; `field` names the place below `spec`.
    """
    if filters and filter_object:
        compile_filter(filter_object)  # it has no effect, but nothing that is wrong is stored
    text = to_cel(filter_object, filters)
    try:
        return compile_cel(text)
    except FilterError as error:
        raise error.at_field(written_in(filter_object, filters)) from None


@lru_cache(maxsize=FILTERS_CACHED_MAX)
def compile_cel(text: str) -> CompiledFilter:
    """Compiles a CEL expression to plan rows. Costs some 200 us; repeated texts are free.

    Raises:
        FilterError: No expression, not boolean, or over a limit (`limit` names it).
    """
    tree = parse(text)
    canonical = rewrite(tree)
    meaning = unparse(canonical)
    if canonical != flatten_all(tree) and not _compiles(meaning):
        # A rewrite can make a type visible that the checker refuses: `!(c ? 1 : data.b)`. The meaning stays as written.
        meaning = unparse(resolve(tree))
    if len(meaning) > FILTER_CANONICAL_CHARACTERS_MAX:
        what = f"the expression's canonical form has {len(meaning)} characters"
        raise over_limit("FILTER_CANONICAL_CHARACTERS_MAX", FILTER_CANONICAL_CHARACTERS_MAX, what)
    rows, notes = plan(canonical)
    return CompiledFilter(cel=meaning, rows=rows, notes=notes)


def _compiles(text: str) -> bool:
    try:
        compile_expression(text, characters_max=FILTER_CANONICAL_CHARACTERS_MAX)
    except FilterError:
        return False
    return True


def plan(tree: Node) -> tuple[tuple[PlanRow, ...], tuple[str, ...]]:
    """Rows of a rewritten tree, and notes for people on what is not decided by an index."""
    rows: dict[PlanRow, None] = {}
    notes: dict[str, None] = {}
    alternatives = conjunctions(tree)
    for left, conjunction in zip(range(len(alternatives) - 1, -1, -1), alternatives, strict=True):
        # Lists of constants take what room for rows the alternatives after them leave.
        made = _rows(conjunction, FILTER_ROWS_MAX - len(rows) - left)
        rows.update(dict.fromkeys(made))
        notes.update(dict.fromkeys(f"candidate: {reason}" for reason in conjunction.dropped))
        if not made[0].signature.key:
            notes["scan: no equality, prefix or suffix to look up; every event of the broker is compared"] = None
    return tuple(rows), tuple(notes)


@dataclass(frozen=True, slots=True)
class _Indexed:
    """A key part and the constants it is looked up by: one row each."""

    part: KeyPart
    constants: tuple[Constant, ...]


def _rows(conjunction: Conjunction, rows_max: int) -> list[PlanRow]:
    indexed, rest = _choose_index(conjunction.atoms, rows_max)
    indexed.sort(key=lambda item: (item.part, repr(item.constants)))
    residuals = sorted(
        ((Residual(atom.place, atom.op, atom.kind, atom.negated), atom.constant) for atom in rest),
        key=lambda item: (item[0], repr(item[1])),
    )
    signature = Signature(
        key=tuple(item.part for item in indexed),
        residual=tuple(residual for residual, _ in residuals),
        exact=not conjunction.dropped,
    )
    constants = tuple(constant for _, constant in residuals)
    return [PlanRow(signature, key, constants) for key in itertools.product(*(item.constants for item in indexed))]


def _choose_index(atoms: tuple[Atom, ...], rows_max: int) -> tuple[list[_Indexed], list[Atom]]:
    """All equalities as one composite key; without any, the longest prefix, else the longest suffix."""
    indexed: list[_Indexed] = []
    rest: list[Atom] = []
    rows = 1
    for atom in sorted(atoms, key=_fan_out):
        if _is_equality(atom) and rows * _fan_out(atom) <= rows_max:
            rows *= _fan_out(atom)
            constants = atom.constant if isinstance(atom.constant, tuple) else (atom.constant,)
            indexed.append(_Indexed(KeyPart(atom.place, _KEY_KINDS[atom.kind]), constants))
        else:
            rest.append(atom)
    if not indexed:
        for op, kind in ((Op.STARTS, KeyKind.PREFIX), (Op.ENDS, KeyKind.SUFFIX)):
            affixes = [atom for atom in rest if atom.op is op and not atom.negated and atom.constant]
            if affixes:
                return _index_affix(max(affixes, key=lambda atom: len(str(atom.constant))), kind, rest)
    return indexed, rest


def _is_equality(atom: Atom) -> bool:
    return atom.op in {Op.EQ, Op.IN} and not atom.negated and atom.kind in _KEY_KINDS


def _fan_out(atom: Atom) -> int:
    return len(atom.constant) if isinstance(atom.constant, tuple) else 1


def _index_affix(atom: Atom, kind: KeyKind, rest: list[Atom]) -> tuple[list[_Indexed], list[Atom]]:
    text = str(atom.constant)
    length = max(candidate for candidate in _AFFIX_LENGTHS if candidate <= len(text))
    looked_up = text[:length] if kind is KeyKind.PREFIX else text[-length:]
    if length == len(text):
        rest = [other for other in rest if other != atom]
    return [_Indexed(KeyPart(atom.place, kind, length), (looked_up,))], rest
