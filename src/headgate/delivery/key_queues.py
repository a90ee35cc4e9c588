"""Queues of an ordered target's deliveries with the same partition key: one of each key at a time. Pure.

A key is taken from its first delivery's start until that one has ended, with all its retries; what comes meanwhile
waits behind it, in the order in which it came. Other keys go on. Events without a partition key share a queue.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class KeyQueues(Generic[T]):
    """The keys of one target. What waits is in memory anyway: at most a queue's length."""

    __slots__ = ("_taken",)

    def __init__(self) -> None:
        self._taken: dict[str, deque[T]] = {}

    def enter(self, key: str, one: T) -> bool:
        """Take the key; when it is taken, wait until `leave` returns this one."""
        waiting = self._taken.get(key)
        if waiting is None:
            self._taken[key] = deque()
            return True
        waiting.append(one)
        return False

    def leave(self, key: str) -> T | None:
        """Who has the key has ended: the next one, who has it now; None leaves the key free."""
        waiting = self._taken[key]
        if waiting:
            return waiting.popleft()
        del self._taken[key]
        return None

    def withdraw(self, key: str, one: T) -> None:
        """One that waits does not any more."""
        self._taken[key].remove(one)
