"""The pause between two looks at the store: short while it changes, else until somebody writes to it.

The kernel tells of writes to SQLite's write-ahead log (inotify), which every commit begins with. What is written is not
visible yet, so the looks that follow are close together. Where the kernel does not tell they always are.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
from pathlib import Path
from typing import Final

from headgate import limits

_IN_MODIFY: Final = 0x2
_EVENTS_BYTES: Final = 4_096


class StoreChanges:
    """Shared by all who follow one store on one event loop.

    Args:
        path: The database.
    """

    def __init__(self, path: Path) -> None:
        self._log = Path(f"{path}-wal")
        self._watch = -1
        self._loop: asyncio.AbstractEventLoop | None = None
        self._written = asyncio.Event()
        self._quick_until = 0.0

    async def pause(self) -> None:
        """Wait until the next look at the store is due."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self.close()
            self._loop, self._written, self._quick_until = loop, asyncio.Event(), loop.time() + limits.STORE_QUICK_S
        if self._watch < 0:
            self._begin(loop)
        if self._watch < 0 or loop.time() < self._quick_until:
            await asyncio.sleep(limits.ROUTING_POLL_S)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limits.STORE_LOOK_S):
                await self._written.wait()

    def close(self) -> None:
        """Watch no longer."""
        if self._watch >= 0:
            if self._loop is not None and not self._loop.is_closed():
                self._loop.remove_reader(self._watch)
            os.close(self._watch)
            self._watch = -1

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._watch = _watched(self._log)
        if self._watch >= 0:
            loop.add_reader(self._watch, self._hear)

    def _hear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._watch, _EVENTS_BYTES):
                pass
        self._quick_until = asyncio.get_running_loop().time() + limits.STORE_QUICK_S
        written, self._written = self._written, asyncio.Event()
        written.set()


def _watched(path: Path) -> int:
    """A descriptor that is readable when the file was written to; -1 where the kernel has none for us."""
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        watch = int(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    except AttributeError:  # another system than Linux
        return -1
    if watch >= 0 and libc.inotify_add_watch(watch, os.fsencode(path), _IN_MODIFY) < 0:
        os.close(watch)
        return -1
    return watch
