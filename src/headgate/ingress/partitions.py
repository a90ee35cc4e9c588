"""Into which partition does an event go, and when is it stored?

An event with the extension `partitionkey` goes where its key's hash says, always; one without goes to the next
partition in turn. A batch stays together unless its events have keys of several partitions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

import xxhash

from headgate.control.logrules import LogRule
from headgate.errors import HeadgateError
from headgate.event.http import canonical
from headgate.event.model import Event, may_have_extension
from headgate.ingress.encode import Entries
from headgate.ingress.errors import PartlyStoredError


class EventLog(Protocol):
    """What ingress needs of a partition; `headgate.log.commit.GroupCommit` is one."""

    async def submit(self, items: Entries, size_bytes: int) -> int:
        """Stores events, all or none, and returns the offset of the first one once they are on disk."""
        ...


class Partitions:
    """The partitions of one log.

    Args:
        logs: Every partition by its number. The number is part of the keys' mapping: it may not change lightly.
    """

    def __init__(self, logs: Sequence[EventLog]) -> None:
        if not logs:
            raise ValueError("a log has at least one partition")
        self._logs = tuple(logs)
        self._count = len(self._logs)
        self._turn = 0

    def of_key(self, key: str) -> int:
        """The partition of a key: XXH64 of its UTF-8 bytes, modulo the number of partitions."""
        return xxhash.xxh64_intdigest(key.encode()) % self._count

    async def store(self, broker: str, rule: LogRule, events: Sequence[Event], size_bytes: int) -> None:
        """Stores the events of one request; returns when all of them are on disk.

        Args:
            broker: "namespace/name".
            rule: How the broker's events are stored.
            events: At least one.
            size_bytes: About the memory that they take while they wait.

        Raises:
            OverloadedError: A queue is full. Nothing is stored, unless it is a PartlyStoredError.
            UnavailableError: The log does not take events.
            PartlyStoredError: The batch was split by partition key and only a part of it is stored.
        """
        if len(events) == 1:
            event = events[0]
            index = self._index(event)
            index = self._next() if index is None else index
            await self._logs[index].submit(Entries(broker, rule, events), size_bytes)
            return
        parts = {index: Entries(broker, rule, part) for index, part in self._split(events).items()}
        if len(parts) == 1:
            ((index, part),) = parts.items()
            await self._logs[index].submit(part, size_bytes)
            return
        # Each part is charged its share; the shares need not be exact, only their sum.
        outcomes = await asyncio.gather(
            *[self._logs[index].submit(part, size_bytes * len(part) // len(events)) for index, part in parts.items()],
            return_exceptions=True,
        )
        errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        for error in errors:
            if len(errors) == len(outcomes) or not isinstance(error, HeadgateError):
                raise error
        if errors:
            raise PartlyStoredError(
                f"{len(outcomes) - len(errors)} of {len(outcomes)} parts of the batch are stored: {errors[0]}",
                hint="send the whole batch again; consumers recognise duplicates by source and id",
            ) from errors[0]

    def _split(self, events: Sequence[Event]) -> Mapping[int, Sequence[Event]]:
        """Events by partition, in order; those without a key stay together in the partition whose turn it is."""
        turn = self._next()
        if self._count == 1 or not may_have_extension(events, "partitionkey"):
            return {turn: events}
        parts: dict[int, list[Event]] = {}
        for event in events:
            index = self._index(event)
            parts.setdefault(turn if index is None else index, []).append(event)
        return parts

    def _index(self, event: Event) -> int | None:
        key = event.extensions.get("partitionkey")
        return None if key is None or key == "" else self.of_key(canonical(key))

    def _next(self) -> int:
        self._turn = turn = (self._turn + 1) % self._count
        return turn
