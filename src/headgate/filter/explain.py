"""How will a filter be matched, and why so? Its rows in words, for people and as data."""

from __future__ import annotations

from dataclasses import dataclass

from headgate.filter.plan import CompiledFilter, Constant, KeyKind, KeyPart, Op, Place, PlanRow, Residual, Verdict
from headgate.filter.unparse import is_plain_field, string_literal

_SIGNS = {Op.EQ: "==", Op.LT: "<", Op.LE: "<=", Op.GT: ">", Op.GE: ">=", Op.IN: "in"}
_METHODS = {Op.STARTS: "startsWith", Op.ENDS: "endsWith", Op.CONTAINS: "contains"}


@dataclass(frozen=True, slots=True)
class ExplainedRow:
    """One row of the matcher's table.

    Attributes:
        verdict: What an event gets that meets the row: "match", or "candidate" when cel-cpp has the last word.
        index: Comparisons that find the row; empty for a scan.
        compare: Comparisons made on every event that the index finds.
    """

    verdict: str
    index: tuple[str, ...]
    compare: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """A filter as the matcher sees it.

    Attributes:
        cel: Canonical CEL text: the meaning.
        rows: One alternative each; none when the filter is false for every event.
        signatures: How many shapes of comparison the rows have.
        notes: Why cel-cpp must decide, or why nothing is indexed; empty for a filter that an index decides.
    """

    cel: str
    rows: tuple[ExplainedRow, ...]
    signatures: int
    notes: tuple[str, ...]


def explain(compiled: CompiledFilter) -> Explanation:
    """The rows of `compiled` in words."""
    return Explanation(
        cel=compiled.cel,
        rows=tuple(map(_row, compiled.rows)),
        signatures=len({row.signature for row in compiled.rows}),
        notes=compiled.notes,
    )


def _row(row: PlanRow) -> ExplainedRow:
    return ExplainedRow(
        verdict=(Verdict.MATCH if row.signature.exact else Verdict.CANDIDATE).name.lower(),
        index=tuple(_key(part, constant) for part, constant in zip(row.signature.key, row.key, strict=True)),
        compare=tuple(
            _residual(r, constant) for r, constant in zip(row.signature.residual, row.constants, strict=True)
        ),
    )


def _place(place: Place) -> str:
    steps = (f".{name}" if is_plain_field(name) else f"[{string_literal(name)}]" for name in place.path)
    return str(place.root) + "".join(steps)


def _constant(constant: Constant | tuple[Constant, ...]) -> str:
    match constant:
        case tuple():
            return f"[{', '.join(map(_constant, constant))}]"
        case str():
            return string_literal(constant)
        case None:
            return "null"
        case bool():
            return "true" if constant else "false"
        case _:
            return repr(constant)


def _key(part: KeyPart, constant: Constant) -> str:
    match part.kind:
        case KeyKind.PREFIX:
            return f"{_place(part.place)}.startsWith({_constant(constant)})"
        case KeyKind.SUFFIX:
            return f"{_place(part.place)}.endsWith({_constant(constant)})"
        case _:
            return f"{_place(part.place)} == {_constant(constant)}"


def _residual(residual: Residual, constant: Constant | tuple[Constant, ...]) -> str:
    place = _place(residual.place)
    if residual.op is Op.HAS:
        text = f"has({place})"
    elif residual.op is Op.TRUE:
        text = place
    elif residual.op in _METHODS:
        text = f"{place}.{_METHODS[residual.op]}({_constant(constant)})"
    elif residual.op is Op.EQ and residual.negated:
        return f"{place} != {_constant(constant)}"
    else:
        text = f"{place} {_SIGNS[residual.op]} {_constant(constant)}"
        return f"!({text})" if residual.negated else text
    return f"!{text}" if residual.negated else text
