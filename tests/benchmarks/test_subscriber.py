"""The subscriber of the benchmarks counts what comes right behind an answer."""

from __future__ import annotations

import pytest
from benchmarks.dispatch import Sink, answer


class Pipe:
    """Questions in order; an arrival comes as soon as an answer is out."""

    def __init__(self, *questions: str | None) -> None:
        self._questions = iter(questions)
        self.answers: list[object] = []

    def recv(self) -> str | None:
        return next(self._questions)

    def send(self, said: object) -> None:
        self.answers.append(list(said) if isinstance(said, list) else said)
        Sink.arrivals.append((len(self.answers), 0.0))


def test_an_arrival_behind_an_answer_belongs_to_the_next_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sink, "arrivals", [(0, 0.0)])
    pipe = Pipe("all", "count", "all", None)
    answer(pipe)
    assert pipe.answers == [[(0, 0.0)], 1, [(1, 0.0), (2, 0.0)]]
