"""The contract of scans on the embedded log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.store.scan_contract import ScanContract
from tests.store.stores import EmbeddedStore


class TestEmbeddedScan(ScanContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[EmbeddedStore]:
        store = EmbeddedStore(tmp_path)
        yield store
        store.close()
