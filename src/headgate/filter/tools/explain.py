"""How a filter will be matched, what it costs, and why: its rows in words, for people and as data."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from headgate.filter.cel.budget import static_cost
from headgate.filter.cel.parsing import tree_of
from headgate.filter.cel.unparse import is_plain_field, string_literal
from headgate.filter.compile.atoms import COMPARISONS, METHODS
from headgate.filter.compile.compiler import AFFIXES
from headgate.filter.compile.plan import CompiledFilter, Constant, Form, KeyPart, Op, Operand, PlanRow, Residual
from headgate.filter.skipping.prune import FILTER_VALUE, Pruning, pruning

_SIGNS: Final = {**COMPARISONS, Op.EQ: "==", Op.IN: "in"}
_METHODS: Final = {op: name.lstrip("@") for name, op in METHODS.items()}
_FORMS: Final = {
    Form.LOWER: "{}.lowerAscii()",
    Form.UPPER: "{}.upperAscii()",
    Form.SIZE: "size({})",
    Form.TYPE: "type({})",
    Form.TO_INT: "int({})",
    Form.TO_DOUBLE: "double({})",
    Form.TO_STRING: "string({})",
    Form.PRESENT: "has({})",
    Form.ELEMENTS: "any of {}",
    Form.ELEMENTS_LOWER: "any of {} in lower case",
    Form.VALUES: "any at {}",
    Form.VALUES_LOWER: "any at {} in lower case",
    Form.NAMED: "any of {}*",
}
VALUES_SHOWN: Final = 8
"""Filter values that a sentence names; the data names them all."""


@dataclass(frozen=True, slots=True)
class ExplainedRow:
    """One row of the matcher's table: one conjunction, with one constant of each list that is looked up."""

    verdict: str  # what an event gets that meets the row: "match", or "candidate" when cel-cpp has the last word
    index: tuple[str, ...]  # comparisons that find the row; empty for a scan
    compare: tuple[str, ...]  # comparisons made on every event that the index finds


@dataclass(frozen=True, slots=True)
class Cost:
    """What a filter costs, counted, not measured."""

    lookups: int  # keys that each event of the broker makes for it, one for each shape that has an index
    scans: int  # rows that are compared with every event of the broker
    steps: int  # of one evaluation by cel-cpp, some 0.1 us each; a macro over data counts as 100 rounds


@dataclass(frozen=True, slots=True)
class Skips:
    """What a reader of the log may pass over."""

    filter_value: str  # CEL text that makes the events' filter values
    values: tuple[str, ...] | None  # chunks with none of these are skipped; None: none is skipped for its values
    time_range_us: tuple[int | None, int | None] | None  # chunks with all events outside are skipped; None: open end
    published_us: tuple[int | None, int | None] | None  # chunks stored outside are skipped; None: open end
    says: str  # the same as a sentence


@dataclass(frozen=True, slots=True)
class FilterExplanation:
    """A filter as the matcher sees it.

    `decided_by` is "matcher" when no event is left to cel-cpp but those whose values it cannot tell, "cel" when all
    that the index finds are, "both", or "nobody" for a filter that is false for every event.
    """

    cel: str
    decided_by: str
    rows: tuple[ExplainedRow, ...]
    signatures: int  # how many shapes of comparison the rows have
    cost: Cost
    skips: Skips
    notes: tuple[str, ...]  # why cel-cpp must decide, or why nothing is indexed; empty where an index decides


def explain(compiled: CompiledFilter, *, filter_value: str = FILTER_VALUE) -> FilterExplanation:
    """A compiled filter in words; FilterError when `filter_value` is no expression."""
    signatures = {row.signature for row in compiled.rows}
    exact = {row.signature.exact for row in compiled.rows if not row.is_of_doubt}
    return FilterExplanation(
        cel=compiled.cel,
        decided_by="both"
        if len(exact) > 1
        else {True: "matcher", False: "cel", None: "nobody"}[next(iter(exact), None)],
        rows=tuple(map(_row, compiled.rows)),
        signatures=len(signatures),
        cost=Cost(
            lookups=sum(bool(signature.key) for signature in signatures),
            scans=sum(not row.signature.key for row in compiled.rows),
            steps=static_cost(tree_of(compiled.cel)),
        ),
        skips=skips_of(pruning(compiled.cel, filter_value), filter_value),
        notes=compiled.notes,
    )


def _row(row: PlanRow) -> ExplainedRow:
    return ExplainedRow(
        verdict="match" if row.signature.exact else "candidate",
        index=tuple(_key(part, constant) for part, constant in zip(row.signature.key, row.key, strict=True)),
        compare=tuple(
            _residual(r, constant) for r, constant in zip(row.signature.residual, row.constants, strict=True)
        ),
    )


def skips_of(found: Pruning, filter_value: str) -> Skips:
    """What a reader may pass over by a pruning that was derived for these filter values."""
    values = None if found.values is None else tuple(sorted(found.values))
    times, published = found.time_range_us, found.published_us
    skipped = []
    if values is not None:
        some = ", ".join(string_literal(value) if value else "none" for value in values[:VALUES_SHOWN])
        more = f" and {len(values) - VALUES_SHOWN} more" if len(values) > VALUES_SHOWN else ""
        skipped.append(f"chunks without {filter_value} {some}{more}" if values else "every chunk")
    if times is not None:
        skipped.append("chunks whose events' times all lie outside of the range asked for, or that have none")
    if published is not None:
        skipped.append("chunks that were stored outside of the range asked for")
    nothing = f"nothing: the filter is not limited to some values of {filter_value} or a range of times"
    return Skips(filter_value, values, times, published, "; ".join(skipped) or nothing)


def _operand(operand: Operand) -> str:
    steps = (f".{name}" if is_plain_field(name) else f"[{string_literal(name)}]" for name in operand.path)
    return _FORMS.get(operand.form, "{}").format(str(operand.root) + "".join(steps))


def _beside(operand: Operand, constant: Constant | tuple[Constant, ...]) -> str:
    """A constant as CEL writes it beside an operand of this form."""
    match operand.form, constant:
        case Form.TIME, int() | float():
            instant = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=math.floor(constant))
            return f'timestamp("{instant.isoformat().replace("+00:00", "Z")}")'
        case Form.TYPE, tuple():
            return f"[{', '.join(map(str, constant))}]"
        case Form.TYPE, _:
            return str(constant)
        case _:
            return _constant(constant)


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
    operand = _operand(part.operand)
    if part.is_doubt(constant):
        return f"{operand} is in doubt"
    op = AFFIXES.get(part.kind, Op.EQ)
    return _comparison(operand, op, _beside(part.operand, constant), negated=False)


def _residual(residual: Residual, constant: Constant | tuple[Constant, ...]) -> str:
    operand = _operand(residual.operand)
    if residual.op is not Op.EXISTS:
        return _comparison(operand, residual.op, _beside(residual.operand, constant), negated=residual.negated)
    constants = constant if isinstance(constant, tuple) else (constant,)
    text = " && ".join(_probes(operand, residual, constants)) or f"has({operand})"
    return f"!({text})" if residual.negated else text


def _probes(operand: str, residual: Residual, constants: tuple[Constant, ...]) -> Iterator[str]:
    left = iter(constants)
    for probe in residual.probes:
        match probe.op:
            case Op.HAS:
                yield f"{operand} is a {residual.kind}"
            case Op.IN:
                yield _comparison(operand, Op.IN, _constant(constants), negated=probe.negated)
            case _:
                yield _comparison(operand, probe.op, _constant(next(left, None)), negated=probe.negated)


def _comparison(operand: str, op: Op, constant: str, *, negated: bool) -> str:
    if op is Op.HAS:
        text = f"has({operand})"
    elif op in _METHODS:
        text = f"{operand}.{_METHODS[op]}({constant})"
    elif op is Op.EQ and negated:
        return f"{operand} != {constant}"
    else:
        text = f"{operand} {_SIGNS[op]} {constant}"
        return f"!({text})" if negated else text
    return f"!{text}" if negated else text
