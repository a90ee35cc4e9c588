"""What is kept in memory of one subscription? Its target, its cursor, and who is busy with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

from headgate import limits
from headgate.control.routing import PullRules, Target
from headgate.outbox.reader import Backlog, OutboxRow
from headgate.subscriptions.cursor import Cursor, Saved

if TYPE_CHECKING:
    from headgate.subscriptions.seek import Seeking


class State:
    """One subscription.

    Attributes:
        target: As routing has it now.
        cursor: Where it stands.
        reading: Held by whoever reads its rows.
        changed: Set when there may be something new, and then replaced.
        seeking: The seek that is under way.
    """

    def __init__(self, target: Target, saved: Saved) -> None:
        self.target = target
        self.cursor = Cursor(saved)
        self.reading = asyncio.Lock()
        self.changed = asyncio.Event()
        self.seeking: Seeking | None = None

    @property
    def rules(self) -> PullRules:
        """How consumers share it."""
        assert self.target.pull is not None
        return self.target.pull

    def wake(self) -> None:
        """Whoever waits looks again."""
        self.changed.set()
        self.changed = asyncio.Event()


async def unread(state: State, backlog: Backlog, handed: Callable[[], int]) -> AsyncIterator[OutboxRow]:
    """The rows that its cursor has not read; the cursor stays where it is."""
    at, upto = state.cursor.next, handed()
    while at < upto:
        page = await backlog.read(state.target.id, at, upto, limits.BACKLOG_READ_ROWS)
        for row in page.rows:
            yield row
        at = page.reached
