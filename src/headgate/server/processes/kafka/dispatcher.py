"""The process that delivers in a deployment on Kafka: its share of the outbox's partitions, and their deliveries.

Replies go to the fronts of its own server; those of any server ask it about its partitions (`partition_answers.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, closing
from typing import Any, Final

import structlog
import uvloop

from headgate.backend.kafka.changelog import ChangelogWriter, group_identity
from headgate.backend.kafka.events import TopicEvents
from headgate.backend.kafka.objects import open_cache
from headgate.backend.kafka.outbox_reader import OutboxMember
from headgate.backend.kafka.outbox_records import OutboxPage, OutboxState
from headgate.backend.kafka.partition_views import OutboxLookups
from headgate.backend.kafka.records import RecordError
from headgate.backend.kafka.runs import RunReports
from headgate.backend.kafka.scan import KafkaLog
from headgate.delivery.journal import Journal
from headgate.observe import tracing
from headgate.scan.pages import LogScanner
from headgate.server import child, parts, ready, rpc
from headgate.server.authentication import UsersOfFronts
from headgate.server.authorization import rights_to_events
from headgate.server.parts import Role
from headgate.server.peers import instance, local_http
from headgate.server.peers.inward import inward_of
from headgate.server.processes.kafka.partition import KafkaDispatcherOptions, PartitionDispatcher, PartitionMeans
from headgate.server.processes.kafka.partition_answers import PartitionCalls, partitions_api
from headgate.server.processes.shard_deliveries import SenderIdentity
from headgate.storage.keyring import keyring_of
from headgate.storage.threads import Threads
from headgate_api import limits
from headgate_api.errors import FatalError, HeadgateError

# --- group ----------------------------------------------------------------------------------------
# One thread reads the outbox and hears which partitions come and go; one event loop delivers. A partition comes: a new
# writer of its changelog fences the one before it, its commit is read, its state is read into files, and rows follow.
# It goes: attempts in flight end or are broken off, cursors and commit are stored, and then Kafka gives it to another
# one.

_READ_S: Final = 0.2
_READ_PAUSED_S: Final = 0.02
_WRITERS_AT_ONCE: Final = 8
_log = structlog.get_logger(__name__)


def without_room(waiting_bytes: Mapping[int, int], paused: Set[int]) -> frozenset[int]:
    """The partitions not to be read for now. One that was paused stays so: resuming costs a wait for Kafka. Pure."""
    if sum(waiting_bytes.values()) >= limits.OUTBOX_WAITING_BYTES_MAX:
        return frozenset(waiting_bytes)
    bound = limits.OUTBOX_PARTITION_WAITING_BYTES_MAX
    return frozenset(
        number for number, size in waiting_bytes.items() if size >= bound or (size > 0 and number in paused)
    )


@asynccontextmanager
async def kafka_dispatcher(options: KafkaDispatcherOptions, stop: asyncio.Event) -> AsyncIterator[KafkaDispatcher]:
    """A dispatcher that is about to join the group, until `stop`; at the block's end it has left, and all is stored."""
    with child.failing(stop, "dispatcher fails"):
        async with AsyncExitStack() as stack:
            ways = await stack.enter_async_context(options.ways())
            journal = stack.enter_context(closing(Journal(options.attempts, clock_us=options.clocks.now_us)))
            events = stack.enter_context(closing(TopicEvents(options.config)))
            thread = stack.enter_context(closing(Threads("outbox")))
            log = stack.enter_context(closing(KafkaLog(options.config, "skip")))
            scans = stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="scan"))
            means = PartitionMeans(
                options=options,
                ways=ways,
                journal=journal,
                events=events,
                log=log,
                scanner=LogScanner(log, scans),
                lookups=stack.enter_context(closing(OutboxLookups(options.config))),
            )
            dispatcher = KafkaDispatcher(means, thread, stop)
            stack.push_async_callback(dispatcher.leave)
            await dispatcher.join()
            yield dispatcher


class KafkaDispatcher:
    """A member of the group with its partitions by number. `kafka_dispatcher` makes it."""

    def __init__(self, means: PartitionMeans, thread: Threads, stop: asyncio.Event) -> None:
        self._means = means
        self._options = means.options
        self._config = means.options.config
        self._thread = thread
        self._stop = stop
        self._loop = asyncio.get_running_loop()
        self._member: OutboxMember | None = None
        self._group: object = None
        self._writers: dict[int, ChangelogWriter] = {}
        self._paused: set[int] = set()
        self.partitions: dict[int, PartitionDispatcher] = {}

    async def join(self) -> None:
        await self._thread.run(self._join)

    def _join(self) -> None:
        self._group = group_identity(self._config)
        self._member = OutboxMember(self._config, self, self._options.name)

    async def run(self) -> None:
        is_ready = False
        while not self._stop.is_set():
            waiting = {number: each.waiting_bytes for number, each in self.partitions.items()}
            full = without_room(waiting, self._paused)
            for page in await self._thread.run(self._read, full):
                if (partition := self.partitions.get(page.checkpoint.partition)) is not None:
                    partition.take(page)
            if not is_ready:
                is_ready = True
                self._options.on_ready()
            self._options.on_look("")

    async def leave(self) -> None:
        await self._thread.run(self._leave)
        await self._end(list(self.partitions), is_lost=True)  # those that a failing close has left

    # --- in the member's thread -------------------------------------------------------------------------

    def _read(self, full: Set[int]) -> list[OutboxPage]:
        member = self._member
        assert member is not None, "`join` made it"
        if resumed := self._paused - full:
            member.resume(resumed)
        if paused := full - self._paused:
            member.pause(paused)
        self._paused = set(full)
        pages = member.read(_READ_PAUSED_S if full else _READ_S)
        if (runs := self._options.runs) is not None:
            for page in pages:
                runs.take(page)
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
        if (runs := self._options.runs) is not None:
            runs.assigned(partition, state)
        self._on_loop(self._begin(partition, self._writers.pop(partition)))

    def revoked(self, partitions: Sequence[int], *, is_lost: bool) -> None:
        """See `OutboxListener`: their deliveries end before this returns."""
        if (runs := self._options.runs) is not None:
            for partition in partitions:
                runs.revoked(partition)
        if (paused := self._paused & set(partitions)) and self._member is not None:
            self._member.resume(paused)  # it may come back
            self._paused -= paused
        self._on_loop(self._end(partitions, is_lost=is_lost))

    def passed_over(self, partition: int, offset: int, error: RecordError) -> None:
        _log.error("a record of the outbox is passed over", partition=partition, offset=offset, error=error.message)

    def removed(self, partition: int, first: int, end: int) -> None:
        _log.error("the outbox was trimmed before it was read", partition=partition, first=first, end=end)

    def _on_loop(self, work: Coroutine[Any, Any, None]) -> None:
        """This thread waits for it."""
        asyncio.run_coroutine_threadsafe(work, self._loop).result(limits.REBALANCE_S_MAX)

    # --- on the event loop ------------------------------------------------------------------------------

    async def _begin(self, partition: int, writer: ChangelogWriter) -> None:
        self.partitions[partition] = PartitionDispatcher(partition, writer, self._means)

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


# --- the process ----------------------------------------------------------------------------------

_OTHER_FILES: Final = 4_096
"""Sockets to brokers, and files of partitions."""
_REPORTS_S: Final = 5.0


class FrontMissingError(FatalError):
    """The server has no front that would store what subscribers answer."""

    code = "front-missing"


def run(context: child.Context) -> None:
    """Delivers until told to stop."""
    uvloop.run(_dispatch(context))


async def _dispatch(context: child.Context) -> None:
    child.raise_file_limit(2 * limits.ATTEMPTS_MAX + _OTHER_FILES)
    settings, config = context.settings, context.on_kafka.kafka
    if Role.FRONT not in parts.roles_of(settings):
        raise FrontMissingError(
            "a server with the role dispatcher has the role front, too: replies of subscribers go there",
            hint="start the server with --role front,dispatcher",
        )
    stop = asyncio.Event()
    child.on_stop(child.setter(stop))
    report = ready.PartReport(settings.run_directory, context.part.name)
    tracer = tracing.configure(context.part.name)
    report.note("waits for the objects")
    store = await asyncio.to_thread(open_cache, settings.data / "control.db", stop.is_set, keyring_of(settings))
    runs = RunReports(config)

    def on_ready() -> None:
        child.spare_collector()
        report.begun()

    options = KafkaDispatcherOptions(
        config=config,
        data=settings.data / context.part.name,
        store=store,
        token=context.token,
        identity=SenderIdentity.of(settings, store),
        inward=inward_of(settings, context.part.index),
        rights=rights_to_events(settings, store),
        runs=runs,
        name=instance.advertised_name(settings),
        objects=store,
        tracing=tracer,
        on_ready=on_ready,
        on_look=report.turn,
    )
    try:
        async with kafka_dispatcher(options, stop) as dispatcher:
            number, partitions = context.part.index, dispatcher.partitions
            async with (
                local_http.answering(UsersOfFronts(partitions_api(partitions)), settings.dispatcher_socket(number)),
                rpc.serving([PartitionCalls(partitions)], f"unix:{settings.dispatcher_rpc(number)}"),
            ):
                await dispatcher.run()
    finally:
        await asyncio.to_thread(runs.close, _REPORTS_S)
        store.close()
        if tracer is not None:
            await asyncio.to_thread(tracer.close)
