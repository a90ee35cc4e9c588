"""One subscription in memory: its target, its cursor, and who is busy with it."""

from __future__ import annotations

import asyncio

from headgate.control.routing import PullRules, Target
from headgate.subscriptions.cursor import Cursor
from headgate.subscriptions.saved import SavedCursor
from headgate.subscriptions.seek import RunningSeek


class SubscriptionState:
    """One subscription.

    Attributes:
        target: As routing has it now.
        cursor: Where it stands.
        reading: Held by whoever reads its rows.
        changed: Set when there may be something new, and then replaced.
        seek: The one under way.
    """

    def __init__(self, target: Target, saved: SavedCursor) -> None:
        self.target = target
        self.cursor = Cursor(saved)
        self.reading = asyncio.Lock()
        self.changed = asyncio.Event()
        self.seek: RunningSeek | None = None

    @property
    def rules(self) -> PullRules:
        """How consumers share it."""
        assert self.target.pull is not None
        return self.target.pull

    def wake(self) -> None:
        """Whoever waits looks again."""
        self.changed.set()
        self.changed = asyncio.Event()
