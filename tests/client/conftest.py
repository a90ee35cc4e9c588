"""What all tests of the client share."""

import pytest

from headgate_api import limits


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two tries; nothing here is about how long they are."""
    monkeypatch.setattr(limits, "CLIENT_BACKOFF_S_MIN", 0.001)
    monkeypatch.setattr(limits, "CLIENT_BACKOFF_S_MAX", 0.01)
