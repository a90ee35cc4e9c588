"""A rewritten tree as a bounded list of conjunctions of comparisons.

Lowering keeps "true" exactly and may turn an error into false, never the other way round: with `!` pushed down
only `&&` and `||` are left, both monotone in false < error < true, so a lowered part never makes the whole truer.
A part that no `Op` expresses is dropped from its conjunction, which is then inexact: it can only match more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from headgate.filter.cel.ast import FALSE, TRUE, Literal, Node, Not
from headgate.filter.cel.rewrite import Fold
from headgate.filter.cel.unparse import unparse
from headgate.filter.compile.atoms import EQUAL_PROBES, Atom, Unsupported, atoms, one_of
from headgate.filter.compile.desugar import desugared
from headgate.filter.compile.operands import EXACT_DOUBLE_MAX
from headgate.filter.compile.plan import CompiledFilter, Constant, ConstantKind, Op, Operand, PlanRow, Probe, Signature
from headgate_api.limits import FILTER_CONJUNCTIONS_MAX

_REASON_CHARACTERS: Final = 80


@dataclass(frozen=True, slots=True)
class Conjunction:
    """Atoms that must all hold."""

    atoms: tuple[Atom, ...] = ()  # without duplicates, in the order in which they were written
    dropped: tuple[str, ...] = ()  # why parts are missing; empty when the atoms are everything


_TRUE: Final = (TRUE, Not(FALSE))
_FALSE: Final = (FALSE, Not(TRUE))
_ALWAYS: Final[tuple[Conjunction, ...]] = (Conjunction(),)


def conjunctions(node: Node) -> tuple[Conjunction, ...]:
    """The disjunction of conjunctions of a rewritten filter; empty when it is never true."""
    known: dict[Node, tuple[Conjunction, ...]] = {}

    def leaf(condition: Node) -> tuple[Conjunction, ...]:
        simpler = desugared(condition)
        if simpler is None:
            return _leaf(condition)
        # Remembered: simpler conditions may hold a part twice, `a == b` of two conditions both of them.
        if condition not in known:
            known[condition] = fold(simpler)
        return known[condition]

    fold = Fold(leaf, _product, _sum)
    return fold(node)


def _leaf(node: Node) -> tuple[Conjunction, ...]:
    if isinstance(node, (Literal, Not)):  # few conditions are constants, and comparing all costs more
        if node in _TRUE:
            return _ALWAYS
        if node in _FALSE:
            return ()
    predicates = atoms(node)
    if isinstance(predicates, Unsupported):
        return (Conjunction(predicates.necessary, (_reason(node, predicates.why),)),)
    return tuple(map(Conjunction, predicates))


def _sum(parts: list[tuple[Conjunction, ...]]) -> tuple[Conjunction, ...]:
    whole = _merge_equalities(tuple(dict.fromkeys(conjunction for part in parts for conjunction in part)))
    if len(whole) > FILTER_CONJUNCTIONS_MAX:
        return (Conjunction(dropped=(f"more than {FILTER_CONJUNCTIONS_MAX} alternatives",)),)
    return whole


def _merge_equalities(alternatives: tuple[Conjunction, ...]) -> tuple[Conjunction, ...]:
    """`p == 1 || p == 2` is `p in [1, 2]`: one conjunction, however many constants there are."""
    merged: list[Conjunction] = []
    groups: dict[tuple[Operand, ConstantKind, bool], dict[Constant, None]] = {}
    for alternative in alternatives:
        match alternative:
            case Conjunction((Atom(operand, Op.EQ | Op.IN, kind, _, False) as atom,), ()):
                groups.setdefault((operand, kind, False), {}).update(dict.fromkeys(atom.constants))
            case Conjunction((Atom(operand, Op.EXISTS, kind, tuple(constants), False, (probe,)),), ()) if (
                constants and probe in EQUAL_PROBES
            ):
                groups.setdefault((operand, kind, True), {}).update(dict.fromkeys(constants))
            case _:
                merged.append(alternative)
    made = (_merged(operand, kind, tuple(group), many) for (operand, kind, many), group in groups.items())
    return (*(Conjunction((atom,)) for atom in made), *merged)


def _merged(operand: Operand, kind: ConstantKind, constants: tuple[Constant, ...], many: bool) -> Atom:
    if not many:
        return one_of(operand, kind, constants)
    probe = Probe(Op.EQ if len(constants) == 1 else Op.IN, lenient=True)
    return Atom(operand, Op.EXISTS, kind, constants, probes=(probe,))


def _product(parts: list[tuple[Conjunction, ...]]) -> tuple[Conjunction, ...]:
    """Distributes `&&` over `||`; what would exceed the bound is dropped, narrowest parts first kept."""
    result: tuple[Conjunction, ...] = _ALWAYS
    for part in sorted(parts, key=len):
        if len(result) * len(part) > FILTER_CONJUNCTIONS_MAX:
            part = (Conjunction(dropped=(f"more than {FILTER_CONJUNCTIONS_MAX} alternatives",)),)
        result = tuple(dict.fromkeys(_both(left, right) for left in result for right in part))
    return tuple(conjunction for conjunction in result if not _contradicts(conjunction))


def _both(left: Conjunction, right: Conjunction) -> Conjunction:
    return Conjunction(
        tuple(dict.fromkeys(left.atoms + right.atoms)), tuple(dict.fromkeys(left.dropped + right.dropped))
    )


def _contradicts(conjunction: Conjunction) -> bool:
    """Whether two equalities of one operand exclude each other: the conjunction is then never true."""
    wanted: dict[Operand, tuple[ConstantKind, Constant | tuple[Constant, ...]]] = {}
    for atom in conjunction.atoms:
        if atom.op is Op.EQ and not atom.negated:
            constant = (atom.kind, atom.constant)
            if isinstance(atom.constant, int) and abs(atom.constant) > EXACT_DOUBLE_MAX:
                continue  # two such integers may both equal one double
            if wanted.setdefault(atom.operand, constant) != constant:
                return True
    return False


def _reason(node: Node, why: str) -> str:
    text = unparse(node)
    if len(text) > _REASON_CHARACTERS:
        text = text[: _REASON_CHARACTERS - 3] + "..."
    return f"{text}: {why}"


# --- error preserving -----------------------------------------------------------------------------
# Plans that name every event for which a filter is true or an error, for triggers that dead-letter such events.
#
# An event without a value for an indexed operand makes no key, so the usual plan stays silent where the filter is an
# error. What can never be an error stays in these rows: comparisons of the attributes that every event has. They are
# false or true, and false decides a conjunction whatever errors stand beside it. Everything else is left to cel-cpp:
# each event that passes is a CANDIDATE.

NOTE: Final = "candidate: onFilterError asks for every event for which the filter may be an error"


def preserve_errors(compiled: CompiledFilter) -> CompiledFilter:
    """The same filter, with rows that no event escapes for which it is true or an error."""
    rows = dict.fromkeys(map(_row, compiled.rows))
    return replace(compiled, rows=tuple(rows), notes=(*compiled.notes, NOTE))


def _row(row: PlanRow) -> PlanRow:
    shape = row.signature
    keys = [(part, value) for part, value in zip(shape.key, row.key, strict=True) if part.operand.is_required]
    residuals = [
        (residual, constant)
        for residual, constant in zip(shape.residual, row.constants, strict=True)
        if residual.operand.is_required and not residual.probes
    ]
    signature = Signature(tuple(part for part, _ in keys), tuple(residual for residual, _ in residuals), exact=False)
    return PlanRow(signature, tuple(value for _, value in keys), tuple(constant for _, constant in residuals))
