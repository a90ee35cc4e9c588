"""Streams that outlive their connection: a task opens one, and opens it again when it ends."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Any, Self

from headgate.client.connection import Connection, Retry
from headgate.client.errors import ClosedError
from headgate.errors import HeadgateError


class Session(ABC):
    """Something that lasts over reconnects, with one task of its own.

    Args:
        connection: The way to the server.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._retry = connection.retry()
        self._task: asyncio.Task[None] | None = None
        self._error: HeadgateError | None = None
        self._begun = asyncio.Event()
        self._wake = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    @property
    def error(self) -> HeadgateError | None:
        """What ended it; None while it lasts."""
        return self._error

    async def start(self) -> None:
        """Opens it; returns when the server has agreed. Idempotent.

        Raises:
            HeadgateError: The server has not, or there is none.
        """
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        await self._begun.wait()
        self._check()

    async def stop(self) -> None:
        """Ends it at once; idempotent."""
        self._end(ClosedError(f"{self} is closed"))
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _end(self, error: HeadgateError) -> None:
        if self._error is None:
            self._error = error
            self._ended(error)
        self._begun.set()
        self._wake.set()

    async def _run(self) -> None:
        try:
            while True:
                try:
                    await self._talk(self._retry)
                except HeadgateError as error:
                    await asyncio.sleep(self._retry.pause_s(error))
        except HeadgateError as error:
            self._end(error)
        except Exception as error:
            self._end(HeadgateError(f"{self} failed: {error!r}"))
            raise

    @abstractmethod
    async def _talk(self, retry: Retry) -> None:
        """One stream, from its opening to its end; returns to begin the next one at once.

        Raises:
            HeadgateError: It failed; if that is retriable the next one follows.
        """

    @abstractmethod
    def _ended(self, error: HeadgateError) -> None:
        """Wakes everybody who waits."""


async def both(sending: Coroutine[Any, Any, None], receiving: Coroutine[Any, Any, None]) -> None:
    """Runs both until one of them ends; raises what it raised."""
    tasks = [asyncio.create_task(sending), asyncio.create_task(receiving)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        await task
