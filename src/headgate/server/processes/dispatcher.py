"""The process that delivers: match link -> outbox -> scheduler -> subscribers, and a clean stop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import structlog
import uvloop
from starlette.applications import Starlette
from starlette.routing import Route

from headgate.delivery.cursors import Cursors, CursorStore
from headgate.delivery.events import LogEvents
from headgate.delivery.journal import Journal
from headgate.delivery.scheduler import Gauges, Scheduler
from headgate.log.directory import LogDirectory, OnCorrupt, Partition
from headgate.log.files import FileOps
from headgate.log.reader import LogEnds, PartitionReader
from headgate.log.writer import PartitionWriter
from headgate.objects.api.http import ERROR_HANDLERS
from headgate.objects.store.quota_usage import QuotaBoard
from headgate.objects.store.store import Store
from headgate.objects.views.copies import follow
from headgate.objects.views.shared_quotas import SharedQuotas
from headgate.observe import metrics, tracing
from headgate.observe.logs import tell_failure
from headgate.outbox.link import MatchLinkServer
from headgate.outbox.reader import ChunkRowPlaces, DurableBacklog, OutboxReader
from headgate.outbox.shards import WHOLE, Shard
from headgate.outbox.takeover import Accepted, Takeover
from headgate.outbox.writer import OUTBOX_SCHEMA, Outbox, decode_chunk
from headgate.retention.expiry import BacklogBounds, Expiry
from headgate.scan.chunks import ChunkLog
from headgate.scan.pages import LogScanner, Scanner
from headgate.server import child, ready, retention, rpc
from headgate.server.authentication import UsersOfFronts
from headgate.server.authorization import rights_to_events
from headgate.server.peers import local_http
from headgate.server.peers.inward import inward_of
from headgate.server.peers.reader_client import ReaderScanner
from headgate.server.processes.shard_deliveries import (
    DeliveryMeans,
    DeliveryOptions,
    RoutingCache,
    SenderIdentity,
    ShardDeliveries,
    ShardState,
    TargetReports,
)
from headgate.storage.files import DispatcherDirectory
from headgate.storage.keyring import keyring_of
from headgate.storage.threads import cancel_all
from headgate.subscriptions.api import SubscriptionsApi
from headgate.subscriptions.rpc import SubscriptionsRpc
from headgate_api import limits

# --- composition ----------------------------------------------------------------------------------
# Start: files are opened, every part is made, and what the outbox holds above the cursors is handed to the scheduler
# again; only then the link opens. Stop: the link closes, the outbox becomes durable, attempts in flight may end,
# cursors are flushed. An unexpected error ends the process: after a restart everything is where the files say it is.

_log = structlog.get_logger(__name__)


class MatchReceiver:
    """Takes matches into the outbox: the link's `MatchSink`. Before a row of newer filters it refreshes the routing."""

    def __init__(
        self, outbox: Outbox, scheduler: Scheduler, routing: RoutingCache, takeover: Takeover, ends: LogEnds
    ) -> None:
        self._outbox = outbox
        self._scheduler = scheduler
        self._routing = routing
        self._takeover = takeover
        self._ends = ends
        self._passed: dict[int, int] = {}

    def recovered(self, watermarks: dict[int, int]) -> None:
        """The outbox has been read: every event below these offsets, by partition, has passed."""
        self._passed.update(watermarks)
        for partition, watermark in watermarks.items():
            self._takeover.raise_floor(partition, watermark)

    def resume(self) -> dict[int, int]:
        """Where the next run must start; a partition that has never been matched starts at its first event."""
        for partition in self._ends.partitions():
            self._takeover.raise_floor(partition, self._ends.first_offset(partition))
        watermarks = self._takeover.watermarks()
        for partition, watermark in watermarks.items():
            if watermark > self._ends.end_offset(partition):
                _log.error("matching is ahead of the log: events are missing", partition=partition, offset=watermark)
        return watermarks

    def take(self, accepted: Accepted) -> None:
        if accepted.generation > self._routing.generation:
            self._routing.refresh_now()  # the broker and the filter that a row was matched by
        passed = self.passed(accepted.partition)
        wanted = len({row[0] for row in accepted.rows})
        metrics.EVENTS_EVALUATED.labels("wanted").inc(wanted)
        metrics.EVENTS_EVALUATED.labels("unwanted").inc(max(0, accepted.passed - passed - wanted))
        self._passed[accepted.partition] = max(passed, accepted.passed)
        self._outbox.add(accepted)

    def is_full(self) -> bool:
        return self._outbox.rows_pending + self._scheduler.rows_waiting > limits.OUTBOX_PENDING_ROWS_MAX

    def end_offset(self, partition: int) -> int:
        return self._ends.end_offset(partition)

    def passed(self, partition: int) -> int:
        return self._passed.get(partition, 0)


@dataclass(frozen=True)
class DispatcherFiles:
    """What is open; `writer` is the outbox's, which `outbox` reads for targets that lag."""

    log: LogDirectory
    writer: PartitionWriter
    outbox: OutboxReader
    cursors: CursorStore
    ends: LogEnds
    events: LogEvents
    journal: Journal


@contextlib.asynccontextmanager
async def dispatcher_files(options: DispatcherOptions) -> AsyncIterator[DispatcherFiles]:
    """Opens them, the outbox is recovered first; HeadgateError when one is damaged or taken."""
    own, log, clocks = options.own, options.log, options.clocks
    partition = Partition(own.outbox, log.on_corrupt)
    writer = await asyncio.to_thread(partial(PartitionWriter, files=options.files), partition, OUTBOX_SCHEMA)
    with (
        closing(writer),
        closing(OutboxReader(partition)) as backlog,
        closing(CursorStore(own.cursors, clock=clocks.now)) as cursors,
        closing(LogEnds(log)) as ends,
        closing(LogEvents(log)) as events,
        closing(Journal(own.attempts, clock_us=clocks.now_us)) as journal,
    ):
        yield DispatcherFiles(log, writer, backlog, cursors, ends, events, journal)


@dataclass(frozen=True, kw_only=True)
class DispatcherOptions(DeliveryOptions):
    """What a dispatcher of one machine works with; without a `scanner` it scans in a thread of its own.

    `retention` trims the outbox; `pause` waits between two looks at the routing.
    """

    store: Store
    reports: TargetReports
    on_corrupt: OnCorrupt
    shard: Shard = WHOLE
    scanner: Scanner | None = None
    bounds: BacklogBounds = field(default_factory=BacklogBounds)
    drain_s: float = limits.DISPATCHER_DRAIN_S_MAX
    retention: Callable[[PartitionWriter], Coroutine[Any, Any, None]] | None = None
    quotas: SharedQuotas | None = None
    files: FileOps | None = None
    pause: Callable[[], Coroutine[Any, Any, None]] = lambda: asyncio.sleep(limits.ROUTING_POLL_S)

    @property
    def log(self) -> LogDirectory:
        return LogDirectory(self.data / "log", self.on_corrupt)

    @property
    def own(self) -> DispatcherDirectory:
        return DispatcherDirectory.of(self.data, self.shard.index)


@contextlib.asynccontextmanager
async def opened(options: DispatcherOptions, stop: asyncio.Event) -> AsyncIterator[Dispatcher]:
    """A dispatcher that has read what is unfinished; at the block's end everything is written down and closed.

    `stop` ends it. It sets that by itself when a part fails, and the block's end raises that failure.
    """
    with child.failing(stop, "dispatcher fails"):
        async with contextlib.AsyncExitStack() as stack:
            files = await stack.enter_async_context(dispatcher_files(options))
            threads = stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="scan"))
            log = ChunkLog(files.log)
            means = DeliveryMeans(
                options=options,
                ways=await stack.enter_async_context(options.ways()),
                journal=files.journal,
                log=log,
                scanner=options.scanner or LogScanner(log, threads),
            )
            dispatcher = Dispatcher(options, files, means, stop)
            stack.push_async_callback(dispatcher.deliveries.close)
            await dispatcher.recover()
            stack.push_async_callback(dispatcher.close)  # not before: what has not been read must not be written
            yield dispatcher


class Dispatcher:
    """All parts of the dispatcher, on one event loop. `opened` makes it."""

    def __init__(
        self, options: DispatcherOptions, files: DispatcherFiles, means: DeliveryMeans, stop: asyncio.Event
    ) -> None:
        self._options = options
        self._files = files
        self._stop = stop
        self._takeover = Takeover({})
        self._outbox = outbox = Outbox(files.writer, lambda chunk: self.scheduler.hand(chunk), self.rows_walked)
        state = ShardState(
            own=options.own,
            events=files.events,
            backlog=DurableBacklog(files.outbox, outbox.when_durable),
            rows=files.outbox,
            places=ChunkRowPlaces(files.writer.partition),
            cursors=files.cursors,
            reports=options.reports,
            in_force=self._takeover.in_force,
            durable=lambda: outbox.durable,
            quotas=options.quotas,
            when_durable=outbox.when_durable,
        )
        self.deliveries = deliveries = ShardDeliveries(options.shard, means, state, self)
        self.scheduler, self.subscriptions = deliveries.scheduler, deliveries.subscriptions
        self.matches = MatchReceiver(outbox, self.scheduler, deliveries.routing, self._takeover, files.ends)
        self._link = MatchLinkServer(options.token, self._takeover, self.matches, self.matches.resume, options.shard)
        self._expiry = Expiry(
            files.log,
            files.writer.partition,
            options.bounds,
            scheduler=self.scheduler,
            subscriptions=self.subscriptions,
            events=files.events,
            final_check=deliveries.final_check,
            dead_letters=deliveries.dead_letters,
            on_change=deliveries.flusher.wake,
            clock_us=options.clocks.now_us,
        )
        self._gauges = Gauges(self.scheduler, files.events, files.writer, clock_us=options.clocks.now_us)

    def routes(self, objects: Store) -> list[Route]:
        return [*SubscriptionsApi(self.subscriptions).routes(), *self.deliveries.routes(objects)]

    @property
    def unfinished(self) -> int:
        """Deliveries in memory that have not ended; what lags is not among them."""
        return self.scheduler.live_count

    async def recover(self) -> None:
        files = self._files
        cursors = files.cursors.load()
        if cursors.position > files.writer.next_offset:
            _log.warning("cursors are ahead of the outbox, dropped", position=cursors.position)
            files.cursors.clear()
            cursors = Cursors()
        await asyncio.to_thread(self._options.reports.forget_trouble, self._options.shard.owns)
        await self.deliveries.routing.refresh()
        self.scheduler.restore(cursors.position, cursors.targets)
        watermarks, rows = dict(cursors.watermarks), 0
        with PartitionReader(files.writer.partition, start=cursors.position) as reader:
            while (chunk := await asyncio.to_thread(reader.read)) is not None:
                durable = decode_chunk(chunk.first_offset, chunk.batch)
                watermarks.update(durable.watermarks)
                rows += chunk.record_count
                self.scheduler.hand(durable)
                while self.scheduler.rows_waiting > limits.OUTBOX_PENDING_ROWS_MAX:
                    await asyncio.sleep(0)
        self.matches.recovered(watermarks)
        self.deliveries.start()
        _log.info(
            "the dispatcher starts",
            outbox_position=cursors.position,
            rows_read_again=rows,
            targets_behind=len(cursors.targets),
        )

    async def run(self) -> None:
        options = self._options
        works = [*self.deliveries.works(options.pause, self._tell).values(), self._gauges.run(), self._expiry.run()]
        if options.quotas is not None:
            works += [follow(options.quotas), options.quotas.share()]
        if options.retention is not None:
            works.append(options.retention(self._files.writer))
        parts = [asyncio.create_task(work) for work in works]
        for part in parts:  # each lasts as long as the dispatcher: an error that ends it ends the process
            part.add_done_callback(partial(tell_failure, what="a part has ended"))
        try:
            await self._link.start(options.data / "run")
            options.on_ready()
            await self._stop.wait()
        finally:
            await cancel_all(parts)
            await self._link.close()

    async def close(self) -> None:
        await self._outbox.close()
        await self.deliveries.stop(self._options.drain_s)
        _log.info("the dispatcher has stopped", unfinished=self.unfinished)

    # --- what the scheduler tells ---------------------------------------------------------------------

    def target_unknown(self) -> None:
        self.deliveries.routing.refresh_now()

    def cursors_changed(self) -> None:
        self.deliveries.flusher.wake()

    def rows_walked(self) -> None:
        self._link.resume_reading()

    def row_kept(self, target: int) -> None:
        self._outbox.when_durable(self._outbox.end, partial(self.subscriptions.wake, target))

    def _tell(self) -> None:
        self._options.on_look("the outbox does not take rows: matches wait" if self._outbox.failing else "")


# --- the process ----------------------------------------------------------------------------------


def run(context: child.Context) -> None:
    """Delivers until told to stop."""
    uvloop.run(_dispatch(context))


async def _dispatch(context: child.Context) -> None:
    child.raise_file_limit(2 * limits.ATTEMPTS_MAX + limits.LINK_CONNECTIONS_MAX)
    settings, stop = context.settings, asyncio.Event()
    shard = Shard(context.part.index, settings.dispatchers)
    child.on_stop(child.setter(stop))
    report = ready.PartReport(settings.run_directory, context.part.name)
    tracer = tracing.configure(context.part.name)
    report.note("reads what is unfinished")
    store = Store.open(settings.data / "control.db", keys=keyring_of(settings))
    quotas = SharedQuotas(store, QuotaBoard(settings.usage_directory, context.part.name))
    await asyncio.to_thread(quotas.refresh)

    def on_ready() -> None:
        child.spare_collector()
        report.begun()

    options = DispatcherOptions(
        data=settings.data,
        on_corrupt=settings.on_corrupt,
        token=context.token,
        store=store,
        reports=store.reports,
        shard=shard,
        identity=SenderIdentity.of(settings, store),
        inward=inward_of(settings, shard.index),
        rights=rights_to_events(settings, store),
        scanner=ReaderScanner(settings.reader_socket),
        tracing=tracer,
        bounds=BacklogBounds(settings.backlog_hours * 3_600, settings.backlog_mb << 20),
        quotas=quotas,
        pause=store.change_watch.follow(),
        on_ready=on_ready,
        on_look=report.turn,
        retention=partial(retention.trim_outbox, settings, shard.index),
    )
    try:
        async with (
            opened(options, stop) as dispatcher,
            local_http.answering(
                UsersOfFronts(Starlette(routes=dispatcher.routes(store), exception_handlers=ERROR_HANDLERS)),
                settings.dispatcher_socket(shard.index),
            ),
            rpc.serving(
                [SubscriptionsRpc(dispatcher.subscriptions).service()], f"unix:{settings.dispatcher_rpc(shard.index)}"
            ),
        ):
            await dispatcher.run()
    finally:
        store.close()
        if tracer is not None:
            await asyncio.to_thread(tracer.close)
