"""Outcomes of filters as files of cases write them."""

from __future__ import annotations

from headgate.filter.cel.engine import FilterOutcome, OutcomeKind


def outcome_text(outcome: FilterOutcome) -> str:
    """A filter's value: `match`, `no_match`; an error with its message."""
    match outcome.kind:
        case OutcomeKind.TRUE:
            return "match"
        case OutcomeKind.FALSE:
            return "no_match"
        case OutcomeKind.ERROR:
            return f"error: {outcome.message}"
