"""The loop of the front, which owns control.db, that compiles stored filters anew after the compiler has changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from headgate.control.database import StoreUnavailableError
from headgate.control.store import Store
from headgate.limits import RECOMPILED_FILTERS_MAX

RETRY_S: Final = 1.0
"""Between two tries while the store does not work."""
_log = structlog.get_logger("headgate.control")


async def recompile(store: Store, note: Callable[[str], None]) -> None:
    """Compile every filter anew that another compiler compiled, slice by slice.

    Args:
        store: The objects.
        note: Called with the progress in a line for people, and with "" at the end.
    """
    count, done = -1, 0
    after: int | None = 0
    while after is not None:
        try:
            if count < 0:
                count = await asyncio.to_thread(store.plans_left)
            if count:
                note(f"compiles stored filters anew: {done:,} of {count:,} done")
            after = await asyncio.to_thread(store.recompile, after)
            done = min(count, done + RECOMPILED_FILTERS_MAX)
        except StoreUnavailableError as error:
            _log.warning("cannot compile stored filters anew", reason=error.message)
            await asyncio.sleep(RETRY_S)
    if count:
        _log.info("stored filters are compiled anew", filters=count)
        note("")
