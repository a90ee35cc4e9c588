"""Evaluation of a filter on an event. cel-cpp decides: every other part is measured by it."""

from __future__ import annotations

from functools import lru_cache

from headgate.event.model import Event
from headgate.filter.cel.ast import Node, reads_publish_time
from headgate.filter.cel.budget import Budget, is_unlimited
from headgate.filter.cel.engine import Expression, FilterOutcome, OutcomeKind, compile_expression
from headgate.filter.cel.functions.json import data_at_hand
from headgate.filter.cel.rewrite import resolve
from headgate.filter.cel.unparse import unparse
from headgate.filter.cel.view import EventView
from headgate.limits import FILTER_CANONICAL_CHARACTERS_MAX, FILTERS_CACHED_MAX

__all__ = ["EventView", "FilterOutcome", "OutcomeKind", "Program", "program"]


class Program:
    """A filter, ready to be evaluated on any number of events.

    Attributes:
        cel: What it means.
        reads_publish_time: Whether its value depends on when an event was stored.
    """

    __slots__ = ("_budget", "_expression", "cel", "reads_publish_time")

    def __init__(self, cel: str, expression: Expression, tree: Node) -> None:
        self.cel = cel
        self.reads_publish_time = reads_publish_time(tree)
        self._expression = expression
        self._budget = None if is_unlimited(tree) else Budget(tree)

    def evaluate(self, event: Event, stored_us: int | None = None) -> FilterOutcome:
        """The filter's value on `event`. Never raises; whatever is not true or false is an ERROR with its reason.

        Args:
            event: What it is.
            stored_us: See `EventView`.
        """
        return self.evaluate_view(EventView(event, stored_us))

    def evaluate_view(self, view: EventView) -> FilterOutcome:
        """The same on a view that several programs share: the event is decoded and converted once. Never raises."""
        if self._budget is not None and (refusal := self.refusal(view)):
            return FilterOutcome(OutcomeKind.ERROR, refusal)
        return self._expression.evaluate(view.activation)

    @property
    def is_unlimited(self) -> bool:
        """Whether the filter is evaluated on every event: none is so large that it would take too long."""
        return self._budget is None

    def refusal(self, view: EventView) -> str:
        """Why the filter is not evaluated on this event, which it might take too long on; empty when it is."""
        return "" if self._budget is None else self._budget.refuses(view.rough_size, lambda: view.size)


@lru_cache(maxsize=FILTERS_CACHED_MAX)
def program(cel_text: str) -> Program:
    """The program of a CEL text, canonical or not.

    Limits are admission's business: what comes from a client goes through `compile_cel` first.

    Raises:
        FilterError: The text is no expression; canonical text always is one.
    """
    expression = compile_expression(cel_text, characters_max=FILTER_CANONICAL_CHARACTERS_MAX)
    tree = expression.tree()
    resolved = resolve(tree)
    meaning = cel_text if resolved == tree else unparse(resolved)
    evaluated = data_at_hand(resolved)
    if evaluated != tree:
        expression = compile_expression(unparse(evaluated), characters_max=2 * FILTER_CANONICAL_CHARACTERS_MAX)
    return Program(meaning, expression, evaluated)
