"""Which event of a key may go next? Of an ordered target, one delivery of each partition key at a time. Pure.

A key's lane is busy from its first delivery's start until that one has ended, retries, burial and all; what comes
meanwhile waits behind it, in the order in which it came. Other keys go on. Events without a partition key share a lane.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headgate.delivery.targets import Delivery


class KeyQueues:
    """The key_queues of one target. What waits is in memory anyway: at most a queue's length."""

    def __init__(self) -> None:
        self._busy: dict[str, deque[Delivery]] = {}

    def enter(self, delivery: Delivery, key: str) -> bool:
        """Whether the delivery may start; else it waits in its lane until `leave` brings it back."""
        delivery.key = key
        waiting = self._busy.get(key)
        if waiting is None:
            self._busy[key] = deque()
            return True
        waiting.append(delivery)
        return False

    def leave(self, key: str) -> Delivery | None:
        """A delivery of the key has ended: the next one, whose lane it is now; None leaves the lane free."""
        waiting = self._busy[key]
        if waiting:
            return waiting.popleft()
        del self._busy[key]
        return None

    def drain(self) -> list[Delivery]:
        """Everything that waits, taken out; the key_queues stay with those that have them."""
        waiting = [delivery for lane in self._busy.values() for delivery in lane]
        for lane in self._busy.values():
            lane.clear()
        for delivery in waiting:
            delivery.key = None
        return waiting
