"""With and without the compiled part: who has it gets the same events and the same errors."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

from headgate_api.event import json_text
from tests.support import missing


@pytest.fixture(scope="module", params=["compiled", "in Python"])
def json_checks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test of the module twice."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "in Python":
            patch.setattr(json_text, "is_plain", lambda text: False)
        elif importlib.util.find_spec("headgate_native") is None:
            missing("headgate-native is not installed: make setup, with a C compiler")
        yield
