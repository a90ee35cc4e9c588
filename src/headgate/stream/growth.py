"""The growth of the log, watched once for all readers that wait at its end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

from headgate.limits import READ_POLL_S
from headgate.log.directory import LogDirectory
from headgate.log.ends import LogEnds


class LogGrowth:
    """Wakes readers when the log has grown.

    One task looks at the partitions' ends for as long as anybody waits: a reader that waits costs nothing by itself.
    For one event loop.

    Args:
        log: What is watched.
    """

    def __init__(self, log: LogDirectory) -> None:
        self._ends = LogEnds(log)
        self._waiting = 0
        self._grown = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None

    async def beyond(self, positions: Mapping[int, int], timeout_s: float) -> None:
        """Wait until a partition has a record at or behind its position, or the time is over.

        Args:
            positions: Where the reader stands, by partition.
            timeout_s: At most so long.
        """
        self._waiting += 1
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    while all(self._ends.end_offset(partition) <= at for partition, at in positions.items()):
                        await self._grown.wait()
        finally:
            self._waiting -= 1

    async def close(self) -> None:
        """Close the files; no reader waits any more."""
        if self._watching is not None:
            self._watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watching
        self._ends.close()

    async def _watch(self) -> None:
        seen: dict[int, int] = {}
        while self._waiting:
            ends = {partition: self._ends.end_offset(partition) for partition in self._ends.partitions()}
            if ends != seen:
                seen = ends
                grown, self._grown = self._grown, asyncio.Event()
                grown.set()
            await asyncio.sleep(READ_POLL_S)
        self._watching = None
