"""The log's growth, for readers that wait at its end: one look at a time for all of them, however many there are."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from headgate.limits import READ_POLL_S
from headgate.log.files import Committed


class Growth:
    """Looks whether partitions have grown while somebody waits for it. Belongs to one event loop.

    Args:
        directory: Directory of the log's partitions.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: dict[int, Committed] = {}
        self._waiting = 0
        self._grown = asyncio.Event()
        """Set once and replaced whenever a partition has grown."""
        self._looking: asyncio.Task[None] | None = None

    async def beyond(self, positions: Mapping[int, int], at_most_s: float) -> None:
        """Returns when a partition holds a record at its position or behind it, or the time is over."""
        self._waiting += 1
        try:
            async with asyncio.timeout(at_most_s):
                while True:
                    grown = self._grown
                    if any(self._end(partition) > at for partition, at in positions.items()):
                        return
                    if self._looking is None:
                        self._looking = asyncio.create_task(self._look())
                    await grown.wait()
        except TimeoutError:
            return
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """Close the files; nobody waits any more."""
        if self._looking is not None:
            self._looking.cancel()
        for file in self._files.values():
            file.close()

    def _end(self, partition: int) -> int:
        file = self._files.get(partition)
        if file is None:
            file = self._files[partition] = Committed(self._directory / str(partition))
        return file.next_offset()

    async def _look(self) -> None:
        """Looks until nobody waits."""
        ends: dict[int, int] = {}
        try:
            while self._waiting:
                now = {partition: self._end(partition) for partition in self._files}
                if now != ends:
                    ends, grown, self._grown = now, self._grown, asyncio.Event()
                    grown.set()
                await asyncio.sleep(READ_POLL_S)
        finally:
            self._looking = None
