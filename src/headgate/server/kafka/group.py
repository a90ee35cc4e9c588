"""A dispatcher on Kafka: the outbox partitions that the group gives to this process, each with its deliveries.

One thread reads the outbox and hears which partitions come and go; one event loop delivers. A partition comes: a new
writer of its changelog fences the one before it, its commit is read, its state is read into files, and rows follow. It
goes: attempts in flight end or are broken off, cursors and commit are stored, and then Kafka gives it to another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import structlog

from headgate import limits
from headgate.control.store import Store
from headgate.delivery.clock import SYSTEM, Clocks
from headgate.delivery.journal import Journal
from headgate.delivery.post import Transport
from headgate.delivery.replies import IngressReplies
from headgate.delivery.verdicts import Judge, evaluate
from headgate.errors import HeadgateError
from headgate.observe.tracing import Tracing
from headgate.scan.pages import LogScanner
from headgate.server import child
from headgate.server.inward import transports
from headgate.server.kafka.partition import PartitionDispatcher, PartitionOptions
from headgate.server.routing_cache import RoutingStore
from headgate.server.shard_deliveries import DeliveryMeans, SenderIdentity
from headgate.storage.dispatcher_directory import PARENT
from headgate.store.config import KafkaConfig
from headgate.store.kafka.changelog import ChangelogWriter, group_identity
from headgate.store.kafka.events import TopicEvents
from headgate.store.kafka.outbox_reader import OutboxMember
from headgate.store.kafka.outbox_records import OutboxPage, OutboxState
from headgate.store.kafka.partition_views import OutboxLookups
from headgate.store.kafka.records import RecordError
from headgate.store.kafka.scan import KafkaLog

_READ_S: Final = 0.2
_READ_PAUSED_S: Final = 0.02
_WRITERS_AT_ONCE: Final = 8
_log = structlog.get_logger(__name__)


class RunObserver(Protocol):
    """Hears which runs count in the partitions of this process. Every method returns at once; one thread calls."""

    def assigned(self, partition: int, state: OutboxState) -> None:
        """This process has the partition now."""

    def take(self, page: OutboxPage) -> None:
        """A page was read; nothing of it is delivered yet."""

    def revoked(self, partition: int) -> None:
        """Another process may have the partition from here on."""


class NoRunObserver:
    """Hears nothing."""

    def assigned(self, partition: int, state: OutboxState) -> None:
        """See `RunObserver`."""

    def take(self, page: OutboxPage) -> None:
        """See `RunObserver`."""

    def revoked(self, partition: int) -> None:
        """See `RunObserver`."""


@dataclass(frozen=True, kw_only=True)
class KafkaDispatcherOptions:
    """What a dispatcher on Kafka works with.

    Attributes:
        config: Of the deployment.
        data: The data directory.
        store: Routing, as new as this process's cache of the objects is.
        token: What front knows a dispatcher by.
        identity: What receivers are shown: the server's own address, where replies are stored, and Secrets.
        judge_filter: Decides CANDIDATE rows.
        transport: The HTTP client; None for the real one.
        inward: The way to the fronts; None for plain HTTP.
        runs: Hears which runs count.
        tracing: Makes spans; None for none.
        on_ready: Called when the process is in the group.
        on_look: Called as long as the loop turns, with what is wrong; empty for nothing.
        name: By which the group knows this process: the URL of its server; empty for none.
        objects: Which replays ask for; None where nobody asks.
        drain_s: How long attempts in flight may last when a partition goes.
        clocks: Time, and the jitter of pauses.
    """

    config: KafkaConfig
    data: Path
    store: RoutingStore
    token: bytes = b""
    identity: SenderIdentity = field(default_factory=SenderIdentity)
    judge_filter: Judge = evaluate
    transport: Transport | None = None
    inward: Transport | None = None
    runs: RunObserver = field(default_factory=NoRunObserver)
    tracing: Tracing | None = None
    on_ready: Callable[[], None] = lambda: None
    on_look: Callable[[str], object] = lambda _: None
    name: str = ""
    objects: Store | None = None
    drain_s: float = limits.REBALANCE_DRAIN_S_MAX
    clocks: Clocks = SYSTEM


def without_room(waiting_bytes: Mapping[int, int], paused: Set[int]) -> frozenset[int]:
    """The partitions of which nothing more is read for now. Pure.

    A partition that was paused stays so until all of it is walked: resuming costs a wait for Kafka.

    Args:
        waiting_bytes: Of each partition, the memory of what was read and not walked.
        paused: Those of which nothing is read already.
    """
    if sum(waiting_bytes.values()) >= limits.OUTBOX_WAITING_BYTES_MAX:
        return frozenset(waiting_bytes)
    bound = limits.OUTBOX_PARTITION_WAITING_BYTES_MAX
    return frozenset(
        number for number, size in waiting_bytes.items() if size >= bound or (size > 0 and number in paused)
    )


@asynccontextmanager
async def kafka_dispatcher(options: KafkaDispatcherOptions, stop: asyncio.Event) -> AsyncIterator[KafkaDispatcher]:
    """A dispatcher that is about to join the group; at the block's end it has left it, and everything is stored.

    Args:
        options: What it works with.
        stop: Set to end it; it sets it by itself when a part fails.

    Raises:
        HeadgateError: It could not start.
        Exception: What a part failed with unexpectedly.
    """
    with child.failing(stop, "dispatcher fails"):
        async with AsyncExitStack() as stack:
            ways = transports(options.identity.policy, options.token, options.inward, options.transport)
            inward, transport = await stack.enter_async_context(ways)
            attempts = options.data / PARENT / "attempts"
            journal = stack.enter_context(closing(Journal(attempts, clock_us=options.clocks.now_us)))
            means = DeliveryMeans(
                store=options.store,
                transport=transport,
                replies=IngressReplies(inward, options.identity.url),
                journal=journal,
                identity=options.identity,
                judge_filter=options.judge_filter,
                tracing=options.tracing,
                clocks=options.clocks,
            )
            events = stack.enter_context(closing(TopicEvents(options.config)))
            thread = stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="outbox"))
            log = stack.enter_context(closing(KafkaLog(options.config, "skip")))
            scans = stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="scan"))
            shared = PartitionOptions(
                config=options.config,
                data=options.data,
                means=means,
                events=events,
                log=log,
                scanner=LogScanner(log, scans),
                lookups=stack.enter_context(closing(OutboxLookups(options.config))),
                attempts=attempts,
                objects=options.objects,
            )
            dispatcher = KafkaDispatcher(options, shared, thread, stop)
            stack.push_async_callback(dispatcher.leave)
            await dispatcher.join()
            yield dispatcher


class KafkaDispatcher:
    """A member of the group with its partitions. `kafka_dispatcher` makes it.

    Attributes:
        partitions: Those that it has now, by number.
    """

    def __init__(
        self,
        options: KafkaDispatcherOptions,
        shared: PartitionOptions,
        thread: ThreadPoolExecutor,
        stop: asyncio.Event,
    ) -> None:
        self._options = options
        self._config = options.config
        self._shared = shared
        self._thread = thread
        self._stop = stop
        self._loop = asyncio.get_running_loop()
        self._member: OutboxMember | None = None
        self._group: object = None
        self._writers: dict[int, ChangelogWriter] = {}
        self._paused: set[int] = set()
        self.partitions: dict[int, PartitionDispatcher] = {}

    async def join(self) -> None:
        """Asks for a place in the group; partitions come while `run` reads."""
        await self._loop.run_in_executor(self._thread, self._join)

    def _join(self) -> None:
        self._group = group_identity(self._config)
        self._member = OutboxMember(self._config, self, self._options.name)

    async def run(self) -> None:
        """Delivers until the stop."""
        is_ready = False
        while not self._stop.is_set():
            waiting = {number: each.waiting_bytes for number, each in self.partitions.items()}
            full = without_room(waiting, self._paused)
            for page in await self._loop.run_in_executor(self._thread, self._read, full):
                if (partition := self.partitions.get(page.checkpoint.partition)) is not None:
                    partition.take(page)
            if not is_ready:
                is_ready = True
                self._options.on_ready()
            self._options.on_look("")

    async def leave(self) -> None:
        """Gives every partition back, and leaves the group."""
        await self._loop.run_in_executor(self._thread, self._leave)
        await self._end(list(self.partitions), is_lost=True)  # those that a failing close has left

    # --- in the member's thread -------------------------------------------------------------------------

    def _read(self, full: Set[int]) -> list[OutboxPage]:
        """The next pages, but none of the partitions that have no room for more."""
        member = self._member
        assert member is not None, "`join` made it"
        if resumed := self._paused - full:
            member.resume(resumed)
        if paused := full - self._paused:
            member.pause(paused)
        self._paused = set(full)
        pages = member.read(_READ_PAUSED_S if full else _READ_S)
        for page in pages:
            self._options.runs.take(page)
        return pages

    def _leave(self) -> None:
        try:
            if self._member is not None:
                self._member.close()
        finally:
            for writer in self._writers.values():
                writer.close()
            self._writers.clear()

    def taking(self, partitions: Sequence[int]) -> None:
        """See `OutboxListener`: former owners are fenced."""
        with ThreadPoolExecutor(_WRITERS_AT_ONCE, thread_name_prefix="fence") as pool:
            made = pool.map(lambda number: ChangelogWriter(self._config, number, self._group), partitions)
            self._writers.update(zip(partitions, made, strict=True))

    def assigned(self, partition: int, state: OutboxState) -> None:
        """See `OutboxListener`."""
        self._options.runs.assigned(partition, state)
        self._on_loop(self._begin(partition, self._writers.pop(partition)))

    def revoked(self, partitions: Sequence[int], *, is_lost: bool) -> None:
        """See `OutboxListener`: their deliveries end before this returns."""
        for partition in partitions:
            self._options.runs.revoked(partition)
        if (paused := self._paused & set(partitions)) and self._member is not None:
            self._member.resume(paused)  # it may come back
            self._paused -= paused
        self._on_loop(self._end(partitions, is_lost=is_lost))

    def passed_over(self, partition: int, offset: int, error: RecordError) -> None:
        """See `OutboxListener`."""
        _log.error("a record of the outbox is passed over", partition=partition, offset=offset, error=error.message)

    def removed(self, partition: int, first: int, end: int) -> None:
        """See `OutboxListener`."""
        _log.error("the outbox was trimmed before it was read", partition=partition, first=first, end=end)

    def _on_loop(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs on the event loop; this thread waits for it."""
        asyncio.run_coroutine_threadsafe(work, self._loop).result(limits.REBALANCE_S_MAX)

    # --- on the event loop ------------------------------------------------------------------------------

    async def _begin(self, partition: int, writer: ChangelogWriter) -> None:
        self.partitions[partition] = PartitionDispatcher(partition, writer, self._shared)

    async def _end(self, partitions: Sequence[int], *, is_lost: bool) -> None:
        ending = [self.partitions.pop(number) for number in partitions if number in self.partitions]
        drain_s = self._options.drain_s
        ended = await asyncio.gather(
            *(each.close(is_lost=is_lost, drain_s=drain_s) for each in ending), return_exceptions=True
        )
        for error in ended:
            if isinstance(error, BaseException):
                _log.error("a partition was not given back in order", error=str(error))
                if not isinstance(error, HeadgateError):
                    raise error
