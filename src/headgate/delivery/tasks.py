"""Tasks that end by an unexpected error: the loop's exception handler hears of it at once."""

from __future__ import annotations

import asyncio
from typing import Any


def tell_failure(task: asyncio.Task[Any], what: str) -> None:
    """Hand the error of a task that has ended, if there is one, to the loop's handler, which ends the dispatcher.

    Args:
        task: Has ended. That it was cancelled is no error.
        what: Has failed, for people.
    """
    if not task.cancelled() and (error := task.exception()) is not None:
        task.get_loop().call_exception_handler({"message": what, "exception": error})
