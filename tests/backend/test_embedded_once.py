"""The contract of brokers with a window on the embedded log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headgate.event.arrow import from_batch_all
from headgate.ingress.partitions import EventPartitions
from headgate.log.directory import LogDirectory
from headgate.log.reader import PartitionReader
from headgate.server.processes.front import front_log
from headgate.settings import Settings
from tests.backend.contract import PARTITIONS
from tests.backend.once_contract import WINDOWS, OnceContract, OnceStore


class _Store:
    def __init__(self, directory: Path) -> None:
        self._settings = Settings(data=directory, partitions=PARTITIONS)

    @asynccontextmanager
    async def front(self) -> AsyncIterator[EventPartitions]:
        async with front_log(self._settings, 0, WINDOWS) as log:
            yield log.partitions

    def stored(self) -> Mapping[tuple[int, int], tuple[str, str]]:
        found, log = dict[tuple[int, int], tuple[str, str]](), LogDirectory(self._settings.log_directory, "stop")
        for number in range(PARTITIONS):
            with PartitionReader(log.partition(number), start=0) as reader:
                while (chunk := reader.read()) is not None:
                    for offset, row in enumerate(from_batch_all(chunk.batch), chunk.first_offset):
                        found[number, offset] = row.broker, row.event.id
        return found


class TestEmbeddedOnce(OnceContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> OnceStore:
        return _Store(tmp_path)
