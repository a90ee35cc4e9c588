"""Publish once on Kafka: fronts share the partitions of `events`, and each sifts what comes for its own.

Events of brokers with a window go to the partition of their source and id, and to the front that has it. Everything
else goes where it always goes. What a front stores once is decided by `window_writer.py`, with the code of one machine.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import pyarrow as pa
import structlog

from headgate.backend.config import KafkaConfig
from headgate.backend.kafka.appender import FencedProducing, KafkaAppender, fenced
from headgate.backend.kafka.election import GroupShare, Loss
from headgate.backend.kafka.window_writer import GROUP, PartitionGoesError, WindowWriter
from headgate.event.arrow import EVENT_SCHEMA
from headgate.ingress.encode import Entries, Forwarded, event_commit
from headgate.ingress.partitions import PartitionedAppender
from headgate.ingress.producers import NumbersMovedError, Producing
from headgate.log.group_commit import Sifted, SubmitChain
from headgate.log.writer import Encoded
from headgate.observe.logs import Recurring
from headgate.storage.threads import Threads
from headgate_api.errors import HeadgateError, UnavailableError
from headgate_api.event.names import path_of
from headgate_api.limits import (
    PARTITION_OWNER_S_MAX,
    PRODUCER_BEGINS_MAX,
    REBALANCE_DRAIN_S_MAX,
    WINDOW_TAKEOVERS_MAX,
)

Forward = Callable[[int, Encoded], Awaitable[int | Sifted]]
"""Has the front that owns a partition store a chunk; UnavailableError when it is not known to be stored."""
_LOOK_S: Final = 0.25
"""Between two looks whether a broker has a window."""
_RETRY_S: Final = 1.0
"""Between two tries to take a partition over, and to join the group."""
_log = structlog.get_logger(__name__)


class WindowNotReadError(UnavailableError):
    """What a partition has of the windows is being read."""

    code = "window-not-read"

    def __init__(self, partition: int, problem: str) -> None:
        why = problem or "the events of its windows are being read"
        super().__init__(f"partition {partition} takes no events now: {why}", hint="try again in a few seconds")


class FrontPartition:
    """A partition that this front has; begins to take it over at once. Lives on one event loop."""

    def __init__(self, number: int, writer: WindowWriter, threads: Threads) -> None:
        self._number = number
        self._writer = writer
        self._threads = threads
        self._commit = event_commit(writer)
        self._ready = asyncio.Event()
        self._held: set[asyncio.Future[int | Sifted]] = set()
        """What waits until it is ready."""
        self._problem = ""
        self._taking = asyncio.create_task(self._take())

    def enqueue(
        self, items: Entries | Forwarded, size_bytes: int, chain: SubmitChain | None = None
    ) -> Awaitable[int | Sifted]:
        """See `EventLog`; before it is ready it waits PARTITION_OWNER_S_MAX, and raises WindowNotReadError."""
        if self._ready.is_set() and not self._held:  # behind those that have waited
            return self._commit.enqueue(items, size_bytes, chain)
        later = asyncio.create_task(self._later(items, size_bytes, chain))
        self._held.add(later)
        later.add_done_callback(self._held.discard)
        return later

    def lacking(self) -> set[str]:
        return self._writer.lacking()

    async def close(self) -> None:
        """Stores what waits, for REBALANCE_DRAIN_S_MAX at most, and gives the partition back."""
        if not self._ready.is_set():
            self._writer.stop()
        ending = self._taking, asyncio.ensure_future(self._commit.close())
        await asyncio.wait(ending, timeout=REBALANCE_DRAIN_S_MAX)
        self._writer.stop()  # what waits still is refused, and what is under way ends with its own time
        await asyncio.wait(ending)
        await self._threads.run(self._writer.close)

    async def _take(self) -> None:
        tries = Recurring(_log, "a partition of the topic events cannot be taken over", HeadgateError)
        while not self._ready.is_set():
            with tries.attempt(partition=self._number):
                try:
                    await self._threads.run(self._writer.take)
                except PartitionGoesError:
                    return
                except HeadgateError as error:
                    self._problem = error.message
                    raise
                self._ready.set()
                _log.info("stores events once", partition=self._number)
                return
            await asyncio.sleep(_RETRY_S)

    async def _later(self, items: Entries | Forwarded, size_bytes: int, chain: SubmitChain | None) -> int | Sifted:
        try:
            async with asyncio.timeout(PARTITION_OWNER_S_MAX):
                await self._ready.wait()
        except TimeoutError:
            error = WindowNotReadError(self._number, self._problem)
            if chain is not None:
                chain.end(error)
            raise error from None
        self._held -= {asyncio.current_task()}
        return await self._commit.enqueue(items, size_bytes, chain)


class WindowPartitions:
    """The partitions that this front has, and ways to the others. Lives on one event loop.

    `writer` makes the writer of a partition, `windows` says which brokers store an event once, `forward` has others
    store.
    """

    def __init__(
        self,
        count: int,
        writer: Callable[[int], WindowWriter],
        windows: Callable[[], Mapping[str, int]],
        forward: Forward,
    ) -> None:
        self._writer = writer
        self._windows = windows
        self._loop = asyncio.get_running_loop()
        self._threads = Threads("takeover", WINDOW_TAKEOVERS_MAX)
        self._owned: dict[int, FrontPartition] = {}
        self._stop = threading.Event()
        self.ways = [_Way(number, self._owned, _Elsewhere(number, forward, self._loop)) for number in range(count)]

    def lacking(self) -> dict[str, int]:
        """Brokers, as "namespace/name", in how many partitions they may store an event twice now."""
        return Counter(path_of(broker) for one in self._owned.values() for broker in one.lacking())

    def store_here(self, partition: int, chunk: Encoded, size_bytes: int) -> Awaitable[int | Sifted] | None:
        """Stores a chunk that another front has encoded; None where the partition is not this one's."""
        owned = self._owned.get(partition)
        return owned.enqueue(Forwarded(chunk), size_bytes) if owned is not None else None

    async def share(self, config: KafkaConfig, name: str, stop: asyncio.Event) -> None:
        """Takes part in the group, as soon as a broker has a window, until it is cancelled or `stop` is set.

        At a stop others have the partitions at once, and what comes here still goes to them.
        """
        while not self._windows():
            await asyncio.sleep(_LOOK_S)
        stopping = asyncio.create_task(stop.wait())
        stopping.add_done_callback(lambda _: self._stop.set())
        tries = Recurring(_log, "events that are stored once are refused: the group cannot be joined", HeadgateError)
        thread = Threads("share")
        try:
            while not self._stop.is_set():
                with tries.attempt():
                    share = GroupShare(
                        config, topic="events", group=GROUP, on_assigned=self._assigned, on_lost=self._lost, name=name
                    )
                    await thread.run(share.run, self._stop)
                    return
                await asyncio.sleep(_RETRY_S)
        finally:
            stopping.cancel()
            self._stop.set()
            await asyncio.to_thread(thread.close)  # it leaves the group

    async def close(self) -> None:
        """Stores what waits; idempotent."""
        self._stop.set()
        for way in self.ways:
            await way.close()
        await self._release(list(self._owned))
        await asyncio.to_thread(self._threads.close)

    async def begin(self, producing: FencedProducing) -> None:
        """Has each owner take a stream for the newest one of its producer, where their broker has a window.

        So nothing of an earlier stream is stored any more, and the stream knows what is. Raises ProducerReplacedError,
        and an error that may be retried when owners do not answer, or still had something of a stream before it.
        """
        if producing.broker not in self._windows():
            return
        moved: list[BaseException] = []
        for _ in range(PRODUCER_BEGINS_MAX):
            asked = [way.enqueue(_beginning(producing, way.number), 0) for way in self.ways]
            found = await asyncio.gather(*asked, return_exceptions=True)
            moved = [one for one in found if isinstance(one, BaseException)]
            for error in moved:
                if not isinstance(error, NumbersMovedError):
                    raise error
            # Behind the owners: a later stream reads its number there, and takes a larger one.
            await producing.check_newest()
            if not moved:
                return
            await producing.learn()
        raise moved[0]

    # --- in the group's thread ------------------------------------------------------------------------

    def _assigned(self, partitions: Sequence[int]) -> None:
        self._on_loop(self._begin(partitions))

    def _lost(self, partitions: Sequence[int], loss: Loss) -> None:
        _log.info("partitions go", partitions=list(partitions), reason=loss.value)
        self._on_loop(self._release(partitions))

    def _on_loop(self, work: Coroutine[Any, Any, None]) -> None:
        """This thread waits for it, and for no more than that: the next owner fences what is left."""
        with suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(work, self._loop).result(2 * REBALANCE_DRAIN_S_MAX)

    # --- on the event loop ----------------------------------------------------------------------------

    async def _begin(self, partitions: Sequence[int]) -> None:
        for number in partitions:
            if number not in self._owned:
                self._owned[number] = FrontPartition(number, self._writer(number), self._threads)

    async def _release(self, partitions: Sequence[int]) -> None:
        going = [self._owned.pop(number) for number in partitions if number in self._owned]
        for ended in await asyncio.gather(*(one.close() for one in going), return_exceptions=True):
            if isinstance(ended, BaseException):
                _log.error("a partition was not given back in order", error=str(ended))


def _beginning(producing: Producing, partition: int) -> Forwarded:
    """A chunk without events, see `Numbers`."""
    nothing = pa.RecordBatch.from_pylist([], EVENT_SCHEMA)
    return Forwarded(Encoded(nothing, [], numbers=[producing.numbers(partition, producing.before(partition))]))


class _Way:
    """The `EventLog` of one partition, wherever its owner is."""

    def __init__(self, number: int, owned: Mapping[int, FrontPartition], elsewhere: _Elsewhere) -> None:
        self.number = number
        self._owned = owned
        self._commit = event_commit(elsewhere)

    def enqueue(
        self, items: Entries | Forwarded, size_bytes: int, chain: SubmitChain | None = None
    ) -> Awaitable[int | Sifted]:
        owned = self._owned.get(self.number)
        return (owned or self._commit).enqueue(items, size_bytes, chain)

    async def close(self) -> None:
        await self._commit.close()


class _Elsewhere:
    """Group commit's writer of a partition of another front."""

    def __init__(self, number: int, forward: Forward, loop: asyncio.AbstractEventLoop) -> None:
        self._number = number
        self._forward = forward
        self._loop = loop

    def append(self, chunk: Encoded) -> int | Sifted:
        return asyncio.run_coroutine_threadsafe(self._stored(chunk), self._loop).result()

    async def _stored(self, chunk: Encoded) -> int | Sifted:
        return await self._forward(self._number, chunk)

    def probe(self) -> None:
        """The next chunk looks."""


class OnceAppender:
    """The `EventAppender` of the topic `events` that leaves out what brokers with a window have; see `KafkaAppender`.

    A batch of such a broker that goes to several partitions may be stored in part: who sends it again stores the rest.
    """

    def __init__(self, every: KafkaAppender, once: WindowPartitions) -> None:
        self._every = every
        self._once = PartitionedAppender(once.ways)

    async def append(self, parts: Mapping[int, Entries], size_bytes: int) -> Mapping[int, Sequence[int] | Sifted]:
        if not next(iter(parts.values())).rule.window_us:
            return await self._every.append(parts, size_bytes)
        self._every.check()
        return await self._once.append(parts, size_bytes)

    async def append_numbered(self, producing: Producing, parts: Mapping[int, Entries], size_bytes: int) -> int:
        """Owners store the numbers, too; no stream that is not the newest one, see `WindowPartitions.begin`."""
        if not next(iter(parts.values())).rule.window_us:
            return await self._every.append_numbered(producing, parts, size_bytes)
        try:
            return await self._once.append_numbered(producing, parts, size_bytes)
        except HeadgateError:
            if isinstance(producing.chain.problem, NumbersMovedError):
                await fenced(producing).check_newest()
            raise

    async def close(self) -> None:
        await self._once.close()
