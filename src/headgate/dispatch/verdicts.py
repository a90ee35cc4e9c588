"""Is this event wanted after all? cel-cpp's word on what the matcher left open, and words for filter errors."""

from __future__ import annotations

from collections.abc import Callable

from headgate.control.routing import TargetReport
from headgate.dispatch.events import SharedEvent
from headgate.filter.errors import FilterError
from headgate.filter.evaluate import Outcome, OutcomeKind, program

Judge = Callable[[str, SharedEvent], Outcome]
"""Evaluates canonical CEL text on an event; never raises."""


def evaluate(cel: str, event: SharedEvent) -> Outcome:
    """cel-cpp's answer; the event is decoded once for all filters that ask."""
    try:
        return program(cel).evaluate_view(event.view)
    except FilterError as error:  # the store holds a text that this version no longer takes: closed, and told
        return Outcome(OutcomeKind.ERROR, error.message)


class FilterErrors:
    """Counts filter errors per target between two reports; keeps words for one of each, because finding them costs."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._words: dict[int, tuple[str, str]] = {}

    def __bool__(self) -> bool:
        return bool(self._counts)

    def add(self, target: int) -> bool:
        """Count one error; True when the caller should `describe` it, as the first since the last report."""
        count = self._counts.get(target, 0)
        self._counts[target] = count + 1
        return count == 0

    def describe(self, target: int, message: str, event: SharedEvent) -> None:
        """Say what the error was and of which event."""
        self._words[target] = (message, f"{event.event.source} {event.event.id}")

    def take(self) -> list[TargetReport]:
        """Everything since the last call."""
        reports = [TargetReport(target, n, *self._words.get(target, ("", ""))) for target, n in self._counts.items()]
        self._counts.clear()
        self._words.clear()
        return reports
