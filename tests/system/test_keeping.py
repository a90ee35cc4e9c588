"""No dead letters are another answer than that nobody can say."""

from __future__ import annotations

from typing import Any, cast

import pytest

from headgate.testing.server import ApiError, Server
from tests.system.keeping import Keeping
from tests.system.subscriber import Subscriber


class Answering:
    """A server that answers with these, the last one again and again; None is a 503."""

    url = ""

    def __init__(self, *answers: list[Any] | None) -> None:
        self._answers = [*answers]

    def call(self, *_: object) -> Any:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if answer is None:
            raise ApiError(503, {"message": "an owner moves"})
        return {"items": answer}


def keeping(*answers: list[Any] | None) -> Keeping:
    return Keeping([cast(Server, Answering(*answers))], cast(Subscriber, None), ["one"])


def test_what_nobody_can_say_is_asked_again() -> None:
    assert keeping(None, [1], None, []).letters(lambda found: not found, "some are left") == []


def test_what_nobody_can_say_is_not_none() -> None:
    with pytest.raises(AssertionError, match="some are left: nobody can say"):
        keeping(None).letters(lambda found: not found, "some are left", seconds=0)
    with pytest.raises(AssertionError, match=r"some are left: \[1\]"):
        keeping([1]).letters(lambda found: not found, "some are left", seconds=0)
