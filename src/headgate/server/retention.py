"""Removal of old segments: each process trims its own files; the front by the floors that dispatchers reported last."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Mapping
from typing import Final

import msgspec
import structlog

from headgate.log.retention import retain
from headgate.log.writer import PartitionWriter
from headgate.observe.logs import Recurring
from headgate.retention.floor import FloorFinder, RetentionFloor
from headgate.settings import Settings
from headgate.storage.files import DispatcherDirectory
from headgate_api.errors import HeadgateError
from headgate_api.limits import RETENTION_EVERY_S

_log = structlog.get_logger(__name__)

_EXPECTED: Final = (OSError, HeadgateError, sqlite3.Error, msgspec.DecodeError)
"""What disks and damaged files make of a look: files that stay a while longer are no reason to stop."""


async def trim_log(settings: Settings, writers: Mapping[int, PartitionWriter]) -> None:
    """Trims the event log's partitions now and then, until it is cancelled."""
    partitions = [(partition, _Partition(settings, writer)) for partition, writer in writers.items()]

    def trim() -> None:
        floors = [RetentionFloor.reported(settings.run_directory, one) for one in range(settings.dispatchers)]
        for number, partition in partitions:
            partition.trim(min(floor.offsets.get(number, 0) for floor in floors))

    await _repeat(trim)


async def trim_outbox(settings: Settings, dispatcher: int, writer: PartitionWriter) -> None:
    """Trims a dispatcher's outbox now and then, and reports its floor, until it is cancelled."""
    finder = FloorFinder(DispatcherDirectory.of(settings.data, dispatcher), writer.partition)
    outbox = _Partition(settings, writer)

    def trim() -> None:
        floor = finder.find()
        outbox.trim(floor.position)  # first: it may make the room that the report needs
        floor.report(settings.run_directory, dispatcher)

    await _repeat(trim)


async def _repeat(trim: Callable[[], None]) -> None:
    looks = Recurring(_log, "the retention floor cannot be read or reported", *_EXPECTED)
    while True:
        await asyncio.sleep(RETENTION_EVERY_S)
        with looks.attempt():
            await asyncio.to_thread(trim)


class _Partition:
    """A partition that is trimmed; what cannot be removed now is tried again with the next call."""

    def __init__(self, settings: Settings, writer: PartitionWriter) -> None:
        self._settings = settings
        self._writer = writer
        self._removals = Recurring(_log, "old segments cannot be removed", *_EXPECTED)

    def trim(self, floor_offset: int) -> None:
        settings, directory = self._settings, str(self._writer.directory)
        with self._removals.attempt(directory=directory):
            done = retain(
                self._writer,
                now_us=time.time_ns() // 1000,
                floor_offset=floor_offset,
                age_us_max=int(settings.retain_hours * 3_600_000_000),
                bytes_max=None if settings.retain_mb is None else settings.retain_mb << 20,
            )
            if done.segments_removed:
                facts = {"segments": done.segments_removed, "bytes": done.bytes_removed}
                _log.info("old segments removed", directory=directory, **facts, first_offset=done.first_offset)
