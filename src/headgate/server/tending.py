"""What a process tends beside its requests: work that lasts as long as the process, and ends it when it fails."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import structlog

_log = structlog.get_logger(__name__)


async def ended(*tending: asyncio.Task[None]) -> BaseException | None:
    """Cancels what works beside the requests, and waits for it; returns an error nobody expected.

    Whoever raises it ends the process, which begins anew: none of this may stay undone for as long as it lives.
    """
    for task in tending:
        task.cancel()
    ends = await asyncio.gather(*tending, return_exceptions=True)
    failures = [end for end in ends if end is not None and not isinstance(end, asyncio.CancelledError)]
    for failure in failures:
        _log.error("the process fails", exc_info=failure)
    return failures[0] if failures else None


@contextlib.contextmanager
def failing(stop: asyncio.Event, what: str) -> Iterator[None]:
    """What fails in the running loop without anybody who awaits it sets `stop`; the block's end raises the first of it.

    Args:
        stop: Tells the block to end.
        what: The line of the log.
    """
    loop = asyncio.get_running_loop()
    failures: list[BaseException] = []

    def on_failure(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        _log.error(what, reason=context.get("message"), exc_info=error)
        failures.append(error if isinstance(error, BaseException) else RuntimeError(context.get("message")))
        stop.set()

    loop.set_exception_handler(on_failure)
    try:
        yield
    finally:
        loop.set_exception_handler(None)
    if failures:
        raise failures[0]
