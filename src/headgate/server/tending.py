"""What a process tends beside its requests: work that lasts as long as the process, and ends it when it fails."""

from __future__ import annotations

import asyncio

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
