"""A client's credits: how many more events it may be sent. For one event loop."""

from __future__ import annotations

import asyncio


class Credits:
    """The credits of one client."""

    def __init__(self) -> None:
        self._left = 0
        self._ended = False
        self._changed = asyncio.Event()

    def add(self, count: int) -> None:
        """Adds credits."""
        self._left += count
        self._changed.set()

    def end(self) -> None:
        """No more will be added."""
        self._ended = True
        self._changed.set()

    async def left(self, wait_s: float | None = None) -> int:
        """Waits while there are none; 0 when none will come, or none have come in time."""
        try:
            async with asyncio.timeout(wait_s):
                while not self._left and not self._ended:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return 0
        return self._left

    def take(self, count: int) -> None:
        """Uses credits: so many events were sent."""
        self._left -= count
