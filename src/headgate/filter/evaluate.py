"""Is a filter true of this event? cel-cpp decides: the meaning that every other part is measured by."""

from __future__ import annotations

from functools import lru_cache

from headgate.event.model import Event
from headgate.filter.cel import Expression, Outcome, OutcomeKind, compile_expression
from headgate.filter.compiler import compile_cel
from headgate.filter.view import EventView
from headgate.limits import FILTERS_CACHED_MAX

__all__ = ["EventView", "Outcome", "OutcomeKind", "Program", "program"]


class Program:
    """A filter, ready to be evaluated on any number of events."""

    __slots__ = ("_expression", "cel")

    def __init__(self, cel: str, expression: Expression) -> None:
        self.cel = cel
        self._expression = expression

    def evaluate(self, event: Event) -> Outcome:
        """The filter's value on `event`. Never raises; whatever is not true or false is an ERROR with its reason."""
        return self.evaluate_view(EventView(event))

    def evaluate_view(self, view: EventView) -> Outcome:
        """The same on a view that several programs share: the event is decoded and converted once. Never raises."""
        return self._expression.evaluate(view.activation)


@lru_cache(maxsize=FILTERS_CACHED_MAX)
def program(cel_text: str) -> Program:
    """The program of a CEL text, canonical or not.

    Raises:
        FilterError: The text is no filter; a text that `compile_cel` has accepted always is one.
    """
    meaning = compile_cel(cel_text).cel
    return Program(meaning, compile_expression(meaning))
