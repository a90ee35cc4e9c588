"""Which events could a filter be an error for? A plan that names them all, for triggers that bury such events.

An event without a value for an indexed operand makes no key, so the usual plan stays silent where the filter is an
error. What can never be an error stays in these rows: comparisons of the attributes that every event has. They are
false or true, and false decides a conjunction whatever errors stand beside it. Everything else is left to cel-cpp: each
event that passes is a CANDIDATE.
"""

from __future__ import annotations

from typing import Final

from headgate.event.attributes import REQUIRED_ATTRIBUTES
from headgate.filter.compile.plan import CompiledFilter, Form, Operand, PlanRow, Root, Signature

NOTE: Final = "candidate: onFilterError asks for every event for which the filter may be an error"


def preserve_errors(compiled: CompiledFilter) -> CompiledFilter:
    """The same filter, with rows that no event escapes for which it is true or an error."""
    rows = dict.fromkeys(map(_row, compiled.rows))
    return CompiledFilter(compiled.cel, tuple(rows), (*compiled.notes, NOTE), compiled.sure_bytes)


def _row(row: PlanRow) -> PlanRow:
    shape = row.signature
    keys = [(part, value) for part, value in zip(shape.key, row.key, strict=True) if _is_safe(part.operand)]
    residuals = [
        (residual, constant)
        for residual, constant in zip(shape.residual, row.constants, strict=True)
        if _is_safe(residual.operand) and not residual.probes
    ]
    signature = Signature(tuple(part for part, _ in keys), tuple(residual for residual, _ in residuals), exact=False)
    return PlanRow(signature, tuple(value for _, value in keys), tuple(constant for _, constant in residuals))


def _is_safe(operand: Operand) -> bool:
    return operand.root is Root.CE and operand.path[0] in REQUIRED_ATTRIBUTES and operand.form is Form.VALUE
