"""The contract of the store of objects on SQLite alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.objects.store.store import Store
from tests.backend.objects_contract import ObjectStoreContract, OpenObjects


class _Embedded:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = Store.open(path)

    def reopen(self) -> None:
        self.store.close()
        self.store = Store.open(self.path)


class TestEmbedded(ObjectStoreContract):
    @pytest.fixture
    def objects(self, tmp_path: Path) -> Iterator[OpenObjects]:
        objects = _Embedded(tmp_path / "control.db")
        yield objects
        objects.store.close()
