"""The contract of numbered producers on the embedded log."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headgate.event.arrow import StoredEvent
from headgate.ingress.producers import FILE
from tests.backend.numbered_contract import ONCE, NumberedContract, NumberedStore
from tests.calls import Client
from tests.ingress.publisher import Log, publishing, stored_of


class _Front:
    def __init__(self, log: Log) -> None:
        self._log = log
        self.brokers = log.brokers

    async def serve_once(self) -> None:
        self.brokers["ns/once"] = ONCE

    async def stop_in_order(self) -> None:
        await self._log.producers.snapshot(self._log.ends())
        assert (self._log.directory / f"{FILE}-0").exists()


class _Store:
    count = 3

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @contextlib.asynccontextmanager
    async def publishing(self) -> AsyncIterator[tuple[_Front, Client]]:
        windows = {ONCE.identity: ONCE.rule.window_us}
        async with publishing(self._directory, partitions=self.count, windows=windows) as (log, client):
            yield _Front(log), client

    def stored(self) -> list[list[StoredEvent]]:
        return [stored_of(self._directory / str(number)) for number in range(self.count)]


class TestEmbeddedNumbered(NumberedContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> NumberedStore:
        return _Store(tmp_path)
