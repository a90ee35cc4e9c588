"""The growth of the log, watched once for all readers that wait at its end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

from headgate.errors import UnavailableError
from headgate.limits import READ_POLL_S
from headgate.scan.source import ReadableLog


class LogGrowth:
    """Wakes readers when the log has grown.

    One task looks at the partitions' ends for as long as anybody waits: a reader that waits costs nothing by itself.
    For one event loop.

    Args:
        log: What is watched.
    """

    def __init__(self, log: ReadableLog) -> None:
        self._log = log
        self._ends: dict[int, int] = {}
        """As they were at the last look; empty while nobody looks."""
        self._waiting = 0
        self._looked = asyncio.Event()
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
                    while all(self._ends.get(partition, 0) <= at for partition, at in positions.items()):
                        await self._looked.wait()
        finally:
            self._waiting -= 1

    async def close(self) -> None:
        """Stop watching; no reader waits any more."""
        if self._watching is not None:
            self._watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watching

    async def _watch(self) -> None:
        try:
            while self._waiting:
                ends = self._ends
                with contextlib.suppress(UnavailableError):  # a reader that reads on says so
                    ends = await self._log.current_ends()
                if ends != self._ends:
                    self._ends = ends
                    looked, self._looked = self._looked, asyncio.Event()
                    looked.set()
                await asyncio.sleep(READ_POLL_S)
        finally:
            # Also after an error that nobody expects: the next reader that waits starts the watch again.
            self._ends = {}
            self._watching = None
