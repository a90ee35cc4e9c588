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
    """Counts filter errors per target between two reports; keeps words for one of each, because finding them costs.

    Beside them, what is wrong with subscribers: the same people read it, in the same place.
    """

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._words: dict[int, tuple[str, str]] = {}
        self._troubles: dict[int, str] = {}

    def __bool__(self) -> bool:
        return bool(self._counts or self._troubles)

    def trouble(self, target: int, text: str) -> None:
        """Say what is wrong with a target's subscriber now; empty for nothing."""
        self._troubles[target] = text

    def untold(self, reports: list[TargetReport]) -> None:
        """These reports did not arrive: what is wrong must still be said, unless there is newer word."""
        for report in reports:
            if report.trouble is not None:
                self._troubles.setdefault(report.target, report.trouble)

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
        troubles = self._troubles
        reports = [
            TargetReport(target, self._counts.get(target, 0), *self._words.get(target, ("", "")), troubles.get(target))
            for target in dict.fromkeys([*self._counts, *troubles])
        ]
        self._counts.clear()
        self._words.clear()
        self._troubles = {}
        return reports
