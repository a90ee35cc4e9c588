"""Migrations of the stored objects after a start: filters compiled anew, Secrets encrypted anew.

The process `control` does it, slice by slice; each slice is a short transaction of `recompile.py` or `reseal.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from headgate.control.secret_store import SecretTable
from headgate.control.store import Store
from headgate.errors import UnavailableError
from headgate.limits import RECOMPILED_FILTERS_MAX

RETRY_S: Final = 1.0
"""Between two tries while the store does not work."""
_log = structlog.get_logger("headgate.control")


async def recompile_all(store: Store, note: Callable[[str], None]) -> None:
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
                count = await asyncio.to_thread(store.plans.left)
            if count:
                note(f"compiles stored filters anew: {done:,} of {count:,} done")
            after = await asyncio.to_thread(store.plans.recompile, after)
            done = min(count, done + RECOMPILED_FILTERS_MAX)
        except UnavailableError as error:
            _log.warning("cannot compile stored filters anew", reason=error.message)
            await asyncio.sleep(RETRY_S)
    if count:
        _log.info("stored filters are compiled anew", filters=count)
        note("")


async def reseal_all(secrets: SecretTable) -> None:
    """Encrypt every stored Secret by the first key that another one encrypted."""
    after: int | None = 0
    count = 0
    while after is not None:
        try:
            after, done = await asyncio.to_thread(secrets.reseal, after)
            count += done
        except UnavailableError as error:
            _log.warning("cannot encrypt stored Secrets anew", reason=error.message)
            await asyncio.sleep(RETRY_S)
    if count:
        _log.info("stored Secrets are encrypted by the first key now", rows=count)
