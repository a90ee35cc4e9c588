"""From a filter to rows of the matcher's table: parse, check limits, rewrite, split, choose an index.

What the matcher cannot read or compare is dropped here and nowhere else: the rows of a plan are those that it runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from headgate.filter.cel.ast import Node
from headgate.filter.cel.budget import sure_bytes
from headgate.filter.cel.errors import FilterError, over_limit
from headgate.filter.cel.parsing import checked, parse
from headgate.filter.cel.rewrite import flatten_all, macros_last_all, resolve, rewrite
from headgate.filter.cel.unparse import unparse
from headgate.filter.compile.atoms import TYPES, Atom
from headgate.filter.compile.conjunctions import Conjunction, conjunctions
from headgate.filter.compile.plan import (
    DOUBTFUL,
    MANY,
    CompiledFilter,
    Constant,
    ConstantKind,
    Form,
    KeyKind,
    KeyPart,
    Op,
    PlanRow,
    Probe,
    Residual,
    Signature,
)
from headgate.filter.dialects import to_cel, written_in
from headgate_api.limits import FILTER_CANONICAL_CHARACTERS_MAX, FILTER_ROWS_MAX, FILTERS_CACHED_MAX

KEY_KINDS: Final = {
    ConstantKind.STRING: KeyKind.STRING,
    ConstantKind.NUMBER: KeyKind.NUMBER,
    ConstantKind.BOOL: KeyKind.BOOL,
}
AFFIXES: Final = {KeyKind.PREFIX: Op.STARTS, KeyKind.SUFFIX: Op.ENDS}
_AFFIX_LENGTHS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Lengths at which prefixes and suffixes are indexed: each length is a signature, so there are few of them."""

_WEAK: Final = frozenset({Form.TYPE, Form.SIZE})
"""Forms that few values differ in."""
_FOUND: Final = frozenset({Form.VALUE, Form.LOWER, Form.UPPER, Form.SIZE, Form.ELEMENTS, Form.ELEMENTS_LOWER})
"""Forms that have a value only where there is one at the path."""
_TYPED: Final = frozenset({Form.VALUE, Form.LOWER, Form.UPPER})
"""Of these, forms whose value has the type of the one at the path."""
_KEY_TYPES: Final = {
    **dict.fromkeys((KeyKind.STRING, KeyKind.PREFIX, KeyKind.SUFFIX), TYPES[ConstantKind.STRING]),
    KeyKind.BOOL: TYPES[ConstantKind.BOOL],
    KeyKind.NUMBER: TYPES[ConstantKind.NUMBER],
}
"""Types of what a key of this kind finds."""


def compile_filter(
    filter_object: Mapping[str, object] | None, filters: Sequence[object] = (), ceiling: str = ""
) -> CompiledFilter:
    """Compiles `spec.filter` and `spec.filters`, which win unless empty; a FilterError names the field below `spec`.

    A ceiling, CEL, empty for none, is one more filter that must hold. Both are parsed apart: no text of the one ends in
    the other.
    """
    if filters and filter_object:
        compile_filter(filter_object)  # it has no effect, but nothing that is wrong is stored
    if ceiling:
        written = filters or ((filter_object,) if filter_object else ())
        filter_object, filters = None, ({"cel": ceiling}, *written)
    text = to_cel(filter_object, filters)
    try:
        return compile_cel(text, ceiling)
    except FilterError as error:
        raise error.at_field(written_in(filter_object, filters)) from None


@lru_cache(maxsize=FILTERS_CACHED_MAX)
def compile_cel(text: str, ceiling: str = "") -> CompiledFilter:
    """Compiles a CEL expression to plan rows; raises FilterError. Costs some 200 us; repeated texts are free.

    What a ceiling says in it is looked up by only where the rest has nothing to be looked up by.
    """
    tree = parse(text)
    canonical = rewrite(tree)
    meaning = unparse(canonical)
    if canonical != flatten_all(tree) and not _compiles(meaning):
        # A rewrite can make a type visible that the checker refuses: `!(c ? 1 : data.b)`. The meaning stays as written.
        meaning = unparse(macros_last_all(resolve(tree)))
    if len(meaning) > FILTER_CANONICAL_CHARACTERS_MAX:
        what = f"the expression's canonical form has {len(meaning)} characters"
        raise over_limit("FILTER_CANONICAL_CHARACTERS_MAX", what)
    rows, notes = plan(canonical, _shared(ceiling) if ceiling else frozenset())
    return CompiledFilter(cel=meaning, rows=rows, notes=notes, sure_bytes=sure_bytes(canonical))


def _compiles(text: str) -> bool:
    try:
        checked(text, characters_max=FILTER_CANONICAL_CHARACTERS_MAX)
    except FilterError:
        return False
    return True


@lru_cache
def _shared(ceiling: str) -> frozenset[Atom]:
    """The comparisons of a ceiling: the filters of many have them, so they tell few of these apart."""
    return frozenset(atom for one in conjunctions(rewrite(parse(ceiling))) for atom in one.atoms)


def plan(tree: Node, shared: frozenset[Atom] = frozenset()) -> tuple[tuple[PlanRow, ...], tuple[str, ...]]:
    """Rows of a rewritten tree, and notes for people on what is not decided by an index."""
    rows: dict[PlanRow, None] = {}
    notes: dict[str, None] = {}
    alternatives = conjunctions(tree)
    for left, conjunction in zip(range(len(alternatives) - 1, -1, -1), alternatives, strict=True):
        # Lists of constants take what room for rows the alternatives after them leave.
        made = _rows(conjunction, FILTER_ROWS_MAX - len(rows) - left, shared)
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


def _rows(conjunction: Conjunction, rows_max: int, shared: frozenset[Atom]) -> list[PlanRow]:
    indexed, rest = _choose_index(conjunction.atoms, rows_max, shared)
    indexed.sort(key=lambda item: (item.part, repr(item.constants)))
    residuals = sorted(
        (
            (Residual(atom.operand, atom.op, atom.kind, atom.negated, atom.probes), atom.constant)
            for atom in _without_implied(rest, indexed)
        ),
        key=lambda item: (item[0], repr(item[1])),
    )
    signature = Signature(
        key=tuple(item.part for item in indexed),
        residual=tuple(residual for residual, _ in residuals),
        exact=not conjunction.dropped,
    )
    unsure = replace(signature, exact=False)
    constants = tuple(constant for _, constant in residuals)
    rows = [PlanRow(signature, key, constants) for key in itertools.product(*(item.constants for item in indexed))]
    return [replace(row, signature=unsure) if row.is_of_doubt else row for row in rows]


def _choose_index(atoms: tuple[Atom, ...], rows_max: int, shared: frozenset[Atom]) -> tuple[list[_Indexed], list[Atom]]:
    """All equalities as one composite key; without any, the longest prefix, else the longest suffix.

    What lets many events through (`has`, and `_WEAK`) is looked up only where there is nothing else, and what many
    filters share only together with what they do not.
    """
    own = tuple(atom for atom in atoms if atom not in shared)
    if len(own) < len(atoms) and not any(map(_equality, own)):
        indexed, rest = _choose_index(own, rows_max, frozenset()) if any(map(_has_affix, own)) else ([], [])
        if indexed:
            return indexed, [*rest, *(atom for atom in atoms if atom in shared)]
    indexed = []
    rest = []
    rows = 1
    for atom in sorted(atoms, key=lambda atom: len(atom.constants)):
        one = _equality(atom)
        many = any(item.part.operand.form in MANY for item in indexed)
        usable = one is not None and atom.operand.form not in _WEAK and not (many and atom.operand.form in MANY)
        if one is not None and usable and rows * len(one.constants) <= rows_max:
            rows *= len(one.constants)
            indexed.append(one)
        if one not in indexed or atom.operand.form in MANY:
            rest.append(atom)
    if indexed:
        return indexed, rest
    for kind, op in AFFIXES.items():
        affixes = [atom for atom in rest if _affix(atom, op) and rows_max > (atom.operand.form in DOUBTFUL)]
        if affixes:
            return _index_affix(max(affixes, key=lambda atom: len(_affix(atom, op))), kind, rest)
    for atom in rest:
        weak = _presence(atom) or (_equality(atom) if atom.operand.form in _WEAK else None)
        if weak is not None and len(weak.constants) <= rows_max:
            return [weak], [other for other in rest if other != atom]
    return indexed, rest


def _presence(atom: Atom) -> _Indexed | None:
    if atom.op is not Op.HAS:
        return None
    return _Indexed(KeyPart(replace(atom.operand, form=Form.PRESENT), KeyKind.BOOL), (not atom.negated,))


def _equality(atom: Atom) -> _Indexed | None:
    match atom:
        case Atom(operand, Op.EQ | Op.IN, kind, _, False) if kind in KEY_KINDS and operand.form is not Form.TIME:
            constants = atom.constants
        case Atom(operand, Op.EXISTS, kind, tuple(constants), False, (Probe(Op.EQ | Op.IN, False),)) if (
            kind in KEY_KINDS
        ):
            pass
        case _:
            return None
    return _looked_up(KeyPart(operand, KEY_KINDS[kind]), constants)


def _looked_up(part: KeyPart, constants: tuple[Constant, ...]) -> _Indexed | None:
    """One row for each constant, and one for events of which the matcher does not know the value."""
    if part.operand.form not in DOUBTFUL:
        return _Indexed(part, constants)
    if part.kind is KeyKind.BOOL:
        return None  # nothing is left that would say "not known"
    return _Indexed(part, (*constants, part.doubt))


def _affix(atom: Atom, op: Op) -> str:
    """The text that a prefix or suffix test asks for; empty when the atom is none."""
    match atom:
        case Atom(_, found, ConstantKind.STRING, str(text), False) if found is op:
            return text
        case Atom(_, Op.EXISTS, ConstantKind.STRING, (str(text),), False, (Probe(found, False),)) if found is op:
            return text
        case _:
            return ""


def _has_affix(atom: Atom) -> bool:
    return any(_affix(atom, op) for op in AFFIXES.values())


def _index_affix(atom: Atom, kind: KeyKind, rest: list[Atom]) -> tuple[list[_Indexed], list[Atom]]:
    text = _affix(atom, AFFIXES[kind])
    length = max(candidate for candidate in _AFFIX_LENGTHS if candidate <= len(text))
    end = text[:length] if kind is KeyKind.PREFIX else text[-length:]
    looked_up = _looked_up(KeyPart(atom.operand, kind, length), (end,))
    assert looked_up is not None
    if length == len(text) and atom.operand.form not in MANY:
        rest = [other for other in rest if other != atom]
    return [looked_up], rest


def _without_implied(atoms: list[Atom], indexed: list[_Indexed]) -> list[Atom]:
    """What an event that the key finds fulfils anyway: that the value is there, and that it is a string."""
    found = [item.part for item in indexed if item.part.operand.form in _FOUND]

    def implied(atom: Atom) -> bool:
        root, path = atom.operand.root, atom.operand.path
        if atom.op is Op.HAS and not atom.negated:
            return any(part.operand.root is root and part.operand.path[: len(path)] == path for part in found)
        if atom.operand.form is Form.TYPE and atom.op in {Op.EQ, Op.IN} and not atom.negated:
            return any(
                part.operand.path == path and part.operand.root is root and _KEY_TYPES[part.kind] <= set(atom.constants)
                for part in found
                if part.operand.form in _TYPED
            )
        return False

    return [atom for atom in atoms if not implied(atom)]
