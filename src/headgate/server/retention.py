"""When do old segments go? Each process trims the files that it writes, down to what unfinished work needs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

import structlog

from headgate.dispatch.dispatcher import OUTBOX_PARTITION
from headgate.dispatch.needed import Needed, needed
from headgate.errors import HeadgateError
from headgate.limits import RETENTION_EVERY_S
from headgate.log.retention import retain
from headgate.log.writer import PartitionWriter
from headgate.settings import Settings

_log = structlog.get_logger(__name__)


async def trim_log(settings: Settings, writers: Mapping[int, PartitionWriter]) -> None:
    """Trims the event log's partitions now and then, until it is cancelled."""
    while True:
        await asyncio.sleep(RETENTION_EVERY_S)
        await asyncio.to_thread(_trim_log, settings, writers)


async def trim_outbox(settings: Settings, writer: PartitionWriter) -> None:
    """Trims the outbox now and then, until it is cancelled."""
    while True:
        await asyncio.sleep(RETENTION_EVERY_S)
        await asyncio.to_thread(_trim_outbox, settings, writer)


def _trim_log(settings: Settings, writers: Mapping[int, PartitionWriter]) -> None:
    offsets = _needed(settings).offsets
    for partition, writer in writers.items():
        _trim(settings, writer, offsets.get(partition, 0))


def _trim_outbox(settings: Settings, writer: PartitionWriter) -> None:
    _trim(settings, writer, _needed(settings).position)


def _needed(settings: Settings) -> Needed:
    return needed(settings.data / "dispatch.db", settings.data / "outbox" / OUTBOX_PARTITION)


def _trim(settings: Settings, writer: PartitionWriter, floor_offset: int) -> None:
    try:
        done = retain(
            writer,
            now_us=time.time_ns() // 1000,
            floor_offset=floor_offset,
            age_us_max=int(settings.retain_hours * 3_600_000_000),
            bytes_max=None if settings.retain_mb is None else settings.retain_mb << 20,
        )
    except (OSError, HeadgateError) as error:  # files that stay a while longer are no reason to stop
        _log.error("old segments cannot be removed", directory=str(writer.directory), error=str(error))
        return
    if done.segments_removed:
        _log.info(
            "old segments removed",
            directory=str(writer.directory),
            segments=done.segments_removed,
            bytes=done.bytes_removed,
            first_offset=done.first_offset,
        )
