"""The contract of event stores on the embedded log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backend.contract import EventStoreContract, OpenStore
from tests.backend.stores import EmbeddedStore


class TestEmbedded(EventStoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[OpenStore]:
        store = EmbeddedStore(tmp_path / "log")
        yield store
        store.close()
