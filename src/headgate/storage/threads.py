"""Threads beside the event loop: the one that alone touches a file or a connection, or a few for what takes waiting.

Also how tasks on the loop are ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


async def cancel_all(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancels tasks, and waits until they have ended, however that is."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Threads:
    """Threads with one job. Where there is one, it does work in the order in which it comes."""

    def __init__(self, name: str, count: int = 1) -> None:
        self._executor = ThreadPoolExecutor(count, thread_name_prefix=name)

    async def run(self, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Has work done; gives what comes of it. Cancelled after the work has begun, it is done all the same."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, partial(work, *args, **kwargs))

    def begin(self, work: Callable[[], _T], ended: Callable[[Future[_T]], object]) -> None:
        """Has work done, and `ended` called on the loop with what comes of it: one turn of the loop before `run`."""
        loop = asyncio.get_running_loop()
        self._executor.submit(work).add_done_callback(lambda done: loop.call_soon_threadsafe(ended, done))

    def close(self) -> None:
        """Waits for all work that has come, and ends the threads."""
        self._executor.shutdown(wait=True)
