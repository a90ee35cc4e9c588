"""The contract of scans on the embedded log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backend.scan_contract import Filled, ScanContract, filled_with
from tests.backend.stores import EmbeddedStore


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    store = EmbeddedStore(tmp_path_factory.mktemp("filled"))
    yield filled_with(store)
    store.close()


class TestEmbeddedScan(ScanContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[EmbeddedStore]:
        store = EmbeddedStore(tmp_path)
        yield store
        store.close()
