"""Partitioning: which partition an event goes to, and when it is stored, in our own log or elsewhere.

An event with the extension `partitionkey` goes to the partition of its key's hash, always. One without goes to the
partition of its source and id where its broker stores it once, to that of its producer's name when that numbers its
events, else to the partition whose turn it is. Under load a turn lasts longer than a request, as Kafka's sticky
partitioner does it: what comes together shares a chunk, and a chunk costs more than its events.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final, Protocol

import xxhash

from headgate.ingress.encode import Entries
from headgate.ingress.errors import PartlyStoredError
from headgate.ingress.producers import Producing, produced
from headgate.log.group_commit import Sifted, SubmitChain
from headgate.objects.kinds.specs import LogRule, ServedBroker
from headgate.shares import FairPlaces
from headgate_api import limits
from headgate_api.errors import HeadgateError
from headgate_api.event.http import canonical
from headgate_api.event.model import Event, may_have_extension
from headgate_api.event.names import namespace_of

_KEY: Final = frozenset(["partitionkey"])


class EventAppender(Protocol):
    """Appends events. Belongs to the event loop that first calls it.

    Two stores have it: the embedded log (`PartitionedAppender`) and Kafka (`backend/kafka/once.py`). One suite of
    tests holds both to what is said here (`tests/backend/contract.py`).
    """

    async def append(self, parts: Mapping[int, Entries], size_bytes: int) -> Mapping[int, Sequence[int] | Sifted]:
        """Stores the events of one request, by partition; returns their offsets in order when all are durable.

        They are `Sifted` where the rule of their broker has a window and some of them were there before.

        Waits for nothing before it has them. They can be read then. In Kafka a batch can be read some milliseconds
        later: Kafka writes the end of a transaction into its partitions after it has answered for it.

        What goes to one partition becomes readable as a whole or not at all, whatever fails, this process included.
        Calls for one partition take effect in the order in which they were answered: who waits for the answer keeps his
        order. `size_bytes` is about the memory that all of them take while they wait.

        OverloadedError (too much waits already) and TooLargeError (it is more than the store takes at once): nothing is
        stored. UnavailableError: the store did not answer for it; each part is there as a whole or not at all, and a
        Kafka that was asked may still have stored it. PartlyStoredError: some parts are stored; in Kafka only of a
        broker with a window, which knows them when they come again.
        """

    async def append_numbered(self, producing: Producing, parts: Mapping[int, Entries], size_bytes: int) -> int:
        """Stores events of a producer that numbers them, which are not stored yet; returns when all are durable.

        They have `numbers`. Returns how many of them a broker with a window had, with other numbers or none.

        Nothing is waited for before they are enqueued. What fails ends the stream's chain: nothing is stored behind it.
        Raises as `append` does, and ProducerReplacedError, with nothing stored, where the producer has another stream.
        """

    async def close(self) -> None:
        """Stores what waits, and takes nothing more; idempotent."""


class EventLog(Protocol):
    """What ingress needs of a partition of the embedded log; `ChunkCommit` is one."""

    def enqueue(self, items: Entries, size_bytes: int, chain: SubmitChain | None = None) -> Awaitable[int | Sifted]:
        """Stores events, all or none; done, with what `ChunkCommit` gives, once they are on disk."""

    async def close(self) -> None:
        """Stores what waits, and takes nothing more; idempotent."""


class WaitingEvents:
    """What waits to be stored in one queue, which namespaces share. Every event passes here twice, so it is cheap.

    Who is over his share is refused; the order of what waits stays as it is, for it is soon over.
    """

    def __init__(self) -> None:
        self._total = 0
        self._held: dict[str, int] = {}
        """By broker."""

    def enter(self, broker: str, count: int, size_bytes: int) -> int:
        """Events of a broker begin to wait; gives what `leave` takes. Large ones count as several."""
        size = max(count, size_bytes * limits.COMMIT_QUEUE_EVENTS_MAX // limits.COMMIT_QUEUE_BYTES_MAX)
        if self._total > limits.COMMIT_QUEUE_EVENTS_MAX // 2:  # before that nobody can have his share
            self._check(namespace_of(broker), size)
        self._total += size
        self._held[broker] = self._held.get(broker, 0) + size
        return size

    def leave(self, broker: str, size: int) -> None:
        self._total -= size
        if left := self._held[broker] - size:
            self._held[broker] = left
        else:
            del self._held[broker]

    def _check(self, namespace: str, size: int) -> None:
        own = sum(held for broker, held in self._held.items() if namespace_of(broker) == namespace)
        places = FairPlaces("waiting-events", "COMMIT_QUEUE_EVENTS_MAX", limits.COMMIT_QUEUE_EVENTS_MAX, "events")
        places.take("", "", self._total - own)
        places.take(namespace, "", own)
        places.check(namespace, "", size)


class PartitionedAppender:
    """Appends to partitions one by one, and closes them, not their writers. No chunk divides what is one part."""

    def __init__(self, commits: Sequence[EventLog]) -> None:
        self._commits = commits
        self._waiting = [WaitingEvents() for _ in commits]

    async def append(self, parts: Mapping[int, Entries], size_bytes: int) -> Mapping[int, Sequence[int] | Sifted]:
        if len(parts) == 1:  # nearly always, and waiting for one is much cheaper than for a list
            ((partition, entries),) = parts.items()
            waiting, broker, count = self._waiting[partition], entries.broker, len(entries)
            size = waiting.enter(broker, count, size_bytes)
            try:
                stored = await self._commits[partition].enqueue(entries, size_bytes)
            finally:
                waiting.leave(broker, size)
            return {partition: _offsets(stored, count)}
        total = sum(len(entries) for entries in parts.values())
        with ExitStack() as stack:
            self._enter(stack, parts, size_bytes, total)
            # Each part is charged its share; the shares need not be exact, only their sum.
            every = await all_stored(
                [
                    self._commits[partition].enqueue(entries, size_bytes * len(entries) // total)
                    for partition, entries in parts.items()
                ]
            )
        return {
            partition: _offsets(stored, len(entries))
            for (partition, entries), stored in zip(parts.items(), every, strict=True)
        }

    async def append_numbered(self, producing: Producing, parts: Mapping[int, Entries], size_bytes: int) -> int:
        under_way = []
        total = sum(map(len, parts.values()))
        with ExitStack() as stack:
            try:
                self._enter(stack, parts, size_bytes, total)
            except HeadgateError as error:
                producing.chain.end(error)
                raise
            for index, part in parts.items():
                share_bytes = size_bytes * len(part) // total
                done = asyncio.ensure_future(self._commits[index].enqueue(part, share_bytes, producing.chain))
                producing.submitted(index, part.numbers[-1].last, done)
                under_way.append(done)
            return sum(sum(one.was_there) for one in await all_stored(under_way) if isinstance(one, Sifted))

    def _enter(self, stack: ExitStack, parts: Mapping[int, Entries], size_bytes: int, total: int) -> None:
        """All parts wait until the stack is left, or none does."""
        for partition, entries in parts.items():
            waiting, count = self._waiting[partition], len(entries)
            size = waiting.enter(entries.broker, count, size_bytes * count // total)
            stack.callback(waiting.leave, entries.broker, size)

    async def close(self) -> None:
        for commit in self._commits:
            await commit.close()


def _offsets(stored: int | Sifted, count: int) -> Sequence[int] | Sifted:
    return range(stored, stored + count) if isinstance(stored, int) else stored


@dataclass(frozen=True, slots=True)
class Stored:
    """The events of a request are on disk: `before` of them were so before; of a single event, the place."""

    before: int = 0
    place: tuple[int, int] | None = None  # partition and offset


NEW: Final = Stored()
"""What a broker gives that stores all events."""


def partition_of_key(key: str | bytes, count: int) -> int:
    """The partition of a key: XXH64 of its UTF-8 bytes, modulo the number of partitions."""
    return xxhash.xxh64_intdigest(key.encode() if isinstance(key, str) else key) % count


def key_of(rule: LogRule, event: Event) -> str | None:
    """The key that decides an event's partition; None when it may go to any."""
    key = event.extensions.get("partitionkey")
    if key is not None and key != "":
        return canonical(key)
    return f"{event.source}\0{event.id}" if rule.window_us else None


class EventPartitions:
    """The partitions of a store, and which of them an event goes to.

    `count` is part of the keys' mapping: it may not change lightly. Events without a key go to `own`; None for all.
    """

    def __init__(self, appender: EventAppender, count: int, own: Sequence[int] | None = None) -> None:
        if not count:
            raise ValueError("a log has at least one partition")
        self._appender = appender
        self._count = count
        self._own = tuple(range(count) if own is None else own)
        self._turn = 0
        self._turn_events = 0
        self._under_way = 0

    def of_key(self, key: str) -> int:
        return partition_of_key(key, self._count)

    async def store(self, broker: ServedBroker, events: Sequence[Event], size_bytes: int) -> Stored:
        """Stores the events of one request; returns when all are on disk. Raises as `EventAppender.append` does."""
        if len(events) == 1:
            index = self._index(broker.rule, events[0])
            index = self._in_turn(1) if index is None else index
            parts = {index: Entries(broker.identity, broker.rule, events, size_bytes=size_bytes)}
        else:
            parts = {
                index: Entries(broker.identity, broker.rule, part, size_bytes=size_bytes * len(part) // len(events))
                for index, part in self._split(broker.rule, events).items()
            }
        self._under_way += 1
        try:
            stored = await self._appender.append(parts, size_bytes)
        finally:
            self._under_way -= 1
        return _of_request(stored) if broker.rule.window_us else NEW

    async def store_numbered(
        self, producing: Producing, rule: LogRule, first: int, events: Sequence[Event], size_bytes: int
    ) -> int:
        """Stores those events of a producer that are not stored yet; returns how many were, once all are on disk.

        Nothing is waited for before they are enqueued: calls take effect in the order in which they begin. `first` is
        the number of the first event, the others follow. Raises as `EventAppender.append_numbered` does.
        """
        producing.check_in_force()
        own = self.of_key(producing.producer)
        wanted: dict[int, tuple[list[int], list[Event]]] = {}
        for number, event in enumerate(events, first):
            index = self._index(rule, event)
            index = own if index is None else index
            if not producing.is_stored(index, number):
                numbers, part = wanted.setdefault(index, ([], []))
                numbers.append(number)
                part.append(event)
        parts = {
            index: Entries(
                producing.broker,
                rule,
                part,
                produced(producing.producer, numbers),
                size_bytes * len(part) // len(events),
                [producing.numbers(index, numbers[-1])],
            )
            for index, (numbers, part) in wanted.items()
        }
        count = sum(map(len, parts.values()))
        before = len(events) - count
        if parts:
            before += await self._appender.append_numbered(producing, parts, size_bytes * count // len(events))
        return before

    def _split(self, rule: LogRule, events: Sequence[Event]) -> Mapping[int, Sequence[Event]]:
        """Events by partition, in order; those that may go to any stay together in the one whose turn it is."""
        turn = self._in_turn(len(events))
        if self._count == 1 or not (rule.window_us or may_have_extension(events, _KEY)):
            return {turn: events}
        parts: dict[int, list[Event]] = {}
        for event in events:
            index = self._index(rule, event)
            parts.setdefault(turn if index is None else index, []).append(event)
        return parts

    def _index(self, rule: LogRule, event: Event) -> int | None:
        """The partition of an event, None when it may go to any."""
        key = key_of(rule, event)
        return None if key is None else self.of_key(key)

    def _in_turn(self, events: int) -> int:
        """The partition of a request whose events have no key."""
        if self._under_way < limits.PARTITION_TURN_UNDER_WAY or self._turn_events >= limits.PARTITION_TURN_EVENTS_MAX:
            self._turn = (self._turn + 1) % len(self._own)
            self._turn_events = 0
        self._turn_events += events
        return self._own[self._turn]


class Partitions(EventPartitions):
    """The partitions of the embedded log. `logs` has every one by its number."""

    def __init__(self, logs: Sequence[EventLog], own: Sequence[int] | None = None) -> None:
        super().__init__(PartitionedAppender(logs), len(logs), own)


def _of_request(stored: Mapping[int, Sequence[int] | Sifted]) -> Stored:
    before, count, place = 0, 0, None
    for partition, part in stored.items():
        if isinstance(part, Sifted):
            before += sum(part.was_there)
        offsets = part.offsets if isinstance(part, Sifted) else part
        count += len(offsets)
        place = partition, offsets[0]
    return Stored(before, place if count == 1 else None)


async def all_stored(parts: Sequence[Awaitable[int | Sifted]]) -> list[int | Sifted]:
    """Waits for the parts of one request; returns what each gives. PartlyStoredError: only some are stored."""
    if len(parts) == 1:
        return [await parts[0]]
    outcomes = await asyncio.gather(*parts, return_exceptions=True)
    errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    for error in errors:
        if len(errors) == len(outcomes) or not isinstance(error, HeadgateError):
            raise error
    if errors:
        raise PartlyStoredError(
            f"{len(outcomes) - len(errors)} of {len(outcomes)} parts of the batch are stored: {errors[0]}",
            hint="send the whole batch again; consumers recognise duplicates by source and id",
        ) from errors[0]
    return [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
