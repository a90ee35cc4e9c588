"""Ceilings: filters that rights carry, joined to what their holders write; and how a filter stands to its ceiling.

Whoever has a right below a ceiling gets only events that the ceiling matches. It is a condition beside his own, so the
joined filter is a filter as any other: nothing else evaluates it.
"""

from __future__ import annotations

from enum import StrEnum

from headgate.filter.cel.evaluate import OutcomeKind, program
from headgate.filter.compile.compiler import compile_cel, compile_filter
from headgate.filter.compile.plan import CompiledFilter
from headgate.filter.tools.algebra import Meaning
from headgate.filter.tools.witness import witness


class Within(StrEnum):
    """How a filter stands to a ceiling."""

    INSIDE = "inside"  # every event that it wants is below the ceiling
    CUT = "cut"  # an event is known that it wants, and that is not
    UNKNOWN = "unknown"


def within(own: CompiledFilter, ceiling: str) -> Within:
    """How a filter, compiled without its ceiling, stands to it; FilterError for a ceiling that does not compile."""
    meaning = Meaning(own)
    if meaning.implies(Meaning(compile_cel(ceiling))):
        return Within.INSIDE
    wanted = witness(meaning)
    is_cut = wanted is not None and program(ceiling).evaluate(wanted).kind is not OutcomeKind.TRUE
    return Within.CUT if is_cut else Within.UNKNOWN


def is_inside(ceiling: str, other: str) -> bool:
    """Whether all events below a ceiling are below another one, both CEL, as far as that is known."""
    return within(compile_cel(ceiling), other) is Within.INSIDE


def joined(cel: str, ceiling: str) -> str:
    """A filter (empty: every event) below a ceiling (empty: none), as canonical CEL; FilterError if it is too large."""
    return compile_filter({"cel": cel} if cel else None, (), ceiling).cel if ceiling else cel
