"""How do the parts of the dispatcher live together? Link -> outbox -> scheduler -> subscribers, and a clean stop.

Start: cursors, outbox (recovered), routing; what the outbox holds above the cursors is handed to the scheduler again;
only then the link opens. Stop: the link closes, the outbox becomes durable, attempts in flight may end, cursors are
flushed. An error nobody expected ends the process: after a restart everything is where the files say it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog

from headgate import limits
from headgate.control.egress import UrlPolicy
from headgate.control.routing import RoutingTable, Target, TargetReport
from headgate.deadletters.sender import DeadLetters
from headgate.delivery.attempt_service import AttemptService
from headgate.delivery.clock import SYSTEM, Clocks
from headgate.delivery.cursors import Cursors, CursorStore, Flusher
from headgate.delivery.events import LogEvents
from headgate.delivery.gauges import Gauges
from headgate.delivery.health import SubscriberHealth
from headgate.delivery.journal import DIRECTORY, Journal
from headgate.delivery.post import HttpTransport, Transport
from headgate.delivery.replies import IngressReplies, Replies
from headgate.delivery.scheduler import Scheduler
from headgate.delivery.spans import AttemptTracing
from headgate.delivery.tasks import tell_failure
from headgate.delivery.verdicts import FilterErrors, Judge, LastLook, evaluate
from headgate.errors import UnavailableError
from headgate.log.ends import LogEnds
from headgate.log.files import FileOps
from headgate.log.reader import PartitionReader
from headgate.log.writer import PartitionWriter
from headgate.observe import metrics
from headgate.observe.logs import Recurring
from headgate.observe.tracing import Tracing
from headgate.outbox.link import Link
from headgate.outbox.reader import OutboxReader
from headgate.outbox.takeover import Accepted, Takeover
from headgate.outbox.writer import OUTBOX_SCHEMA, Outbox, decode_chunk
from headgate.replay.sender import Replaying
from headgate.replay.store import FILE as REPLAYS_FILE
from headgate.retention.expiry import Bounds, Expiry, TriggerExpiry
from headgate.scan.pages import LogScanner, Scanner
from headgate.server.routing_cache import Routed, Routing
from headgate.subscriptions.service import Subscriptions
from headgate.subscriptions.sources import OutboxView, SearchableLog
from headgate.subscriptions.store import FILE as PULL_FILE
from headgate.subscriptions.store import SubscriptionStore

OUTBOX_PARTITION: Final = "0"

_LOCAL: Final = UrlPolicy()
_BOUNDS: Final = Bounds()

_log = structlog.get_logger(__name__)


class Dispatcher:
    """The dispatcher process's work, on one event loop.

    Args:
        data: The data directory.
        token: 32 bytes that the matcher must show.
        store: Routing.
        judge_filter: Decides CANDIDATE rows.
        transport: The HTTP client; None for the real one.
        ingress_url: The server's own address, where replies are stored.
        policy: Which URLs the real one may send to.
        scanner: Looks through the log's past; None for a thread of its own.
        tracing: Makes spans; None for none.
        on_ready: Called when the link listens.
        on_look: Called as long as the loop turns, with what is wrong; empty for nothing.
        bounds: How much a backlog may keep.
        drain_s: How long attempts in flight may last on stop.
        tend: Looks after the outbox's files for as long as the dispatcher works; cancelled on stop.
        clocks: Time, and the jitter of pauses.
        files: The outbox's system calls.
    """

    def __init__(
        self,
        *,
        data: Path,
        token: bytes,
        store: Routing,
        judge_filter: Judge = evaluate,
        transport: Transport | None = None,
        ingress_url: str = "",
        policy: UrlPolicy = _LOCAL,
        scanner: Scanner | None = None,
        tracing: Tracing | None = None,
        on_ready: Callable[[], None] = lambda: None,
        on_look: Callable[[str], object] = lambda _: None,
        bounds: Bounds = _BOUNDS,
        drain_s: float = limits.DISPATCHER_DRAIN_S_MAX,
        tend: Callable[[PartitionWriter], Coroutine[Any, Any, None]] | None = None,
        clocks: Clocks = SYSTEM,
        files: FileOps | None = None,
    ) -> None:
        self._clocks = clocks
        self._files = files
        self._data = data
        self._token = token
        self._store = store
        self._judge_filter = judge_filter
        self._transport = transport
        self._ingress_url = ingress_url
        self._policy = policy
        self._scan_thread = ThreadPoolExecutor(1, thread_name_prefix="scan")
        self._scanner = scanner if scanner is not None else LogScanner(data / "log", self._scan_thread)
        self._tracing = tracing
        self._on_ready = on_ready
        self._on_look = on_look
        self._bounds = bounds
        self._drain_s = drain_s
        self._tend = tend
        self._routed = Routed(store, self._update)
        self._errors = FilterErrors()
        self._failure: BaseException | None = None
        self._link: Link | None = None
        self._attended: Subscriptions | None = None

    def subscriptions(self) -> Subscriptions:
        """Those that consumers come for.

        Raises:
            UnavailableError: Not everything unfinished has been read yet, or the end has come.
        """
        if self._attended is None:
            raise UnavailableError("subscriptions are not ready yet", hint="try again in a few seconds")
        return self._attended

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set.

        Raises:
            HeadgateError: It could not start (the outbox is damaged or taken).
            Exception: Whatever a part failed with that nobody expected.
        """
        loop = self._loop = asyncio.get_running_loop()
        self._stop = stop
        loop.set_exception_handler(self._on_failure)
        self._cursors = CursorStore(self._data / "dispatch.db")
        self._pulls = SubscriptionStore(self._data / PULL_FILE)
        self._logs = LogEnds(self._data / "log")
        self._events = LogEvents(self._data / "log")
        self._backlog = OutboxReader(self._data / "outbox" / OUTBOX_PARTITION)
        self._writer = await asyncio.to_thread(
            partial(PartitionWriter.open, files=self._files), self._data / "outbox" / OUTBOX_PARTITION, OUTBOX_SCHEMA
        )
        try:
            async with HttpTransport() as inward:
                replies = IngressReplies(inward, self._ingress_url, self._token)
                if self._transport is not None:
                    await self._serve(self._transport, replies)
                else:
                    async with HttpTransport(self._policy) as transport:
                        await self._serve(transport, replies)
        finally:
            loop.set_exception_handler(None)
            self._scan_thread.shutdown(wait=True)
            self._backlog.close()
            self._events.close()
            self._logs.close()
            self._writer.close()
            self._cursors.close()
            self._pulls.close()
        if self._failure is not None:
            raise self._failure

    @property
    def unfinished(self) -> int:
        """Deliveries in memory that have not ended; what lags is not among them."""
        return self._scheduler.live_count

    def held_rows(self, run: int, partition: int) -> int:
        """Rows of a run's connection that wait for its turn."""
        return self._takeover.held_rows(run, partition)

    async def _serve(self, transport: Transport, replies: Replies) -> None:
        journal = Journal(self._data / DIRECTORY, clock_us=self._clocks.now_us)
        letters = DeadLetters(
            self._data / "deadletters.db", transport, replies, self._find, journal=journal, clocks=self._clocks
        )
        service = AttemptService(
            transport,
            replies,
            journal,
            SubscriberHealth(self._errors.trouble, self._clocks),
            tracing=AttemptTracing(self._tracing) if self._tracing is not None else None,
            clocks=self._clocks,
        )
        try:
            await self._deliver(transport, replies, letters, journal, service)
        finally:
            await letters.close()
            journal.close()

    def _find(self, target: int) -> Target | None:
        return self._scheduler.find(target)

    async def _deliver(
        self, transport: Transport, replies: Replies, letters: DeadLetters, journal: Journal, service: AttemptService
    ) -> None:
        self._scheduler = Scheduler(
            self,
            events=self._events,
            backlog=self._backlog,
            service=service,
            look=LastLook(self._judge_filter, self._errors),
            dead_letters=letters,
        )
        self._consuming = self._subscriptions(letters)
        self._flusher = Flusher(self._cursors, self._scheduler.take_change, self._flushed)
        self._report_timer: asyncio.TimerHandle | None = None
        watermarks = await self._recover()
        letters.start()
        self._outbox = Outbox(self._writer, self._scheduler.hand, self._relieve)
        self._takeover = Takeover(watermarks)
        self._passed = dict(watermarks)
        link = self._link = Link(self._token, self._takeover, self, self._resume)
        gauges = Gauges(self._scheduler, self._events, self._writer, clock_us=self._clocks.now_us)
        tasks = [self._part(self._look()), self._part(gauges.run()), self._part(self._consuming.tend())]
        tasks.append(self._part(self._expiry(letters).run()))
        replaying = Replaying(
            self._data / REPLAYS_FILE,
            scanner=self._scanner,
            events=self._events,
            transport=transport,
            replies=replies,
            bury=letters.put,
            journal=journal,
            trigger=self._routed.trigger,
            rule_of=self._routed.rule_of,
            clocks=self._clocks,
        )
        tasks.append(self._part(replaying.run()))
        self._attended = self._consuming
        if self._tend is not None:
            tasks.append(self._part(self._tend(self._writer)))
        try:
            await link.start(self._data / "run")
            self._on_ready()
            await self._stop.wait()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._attended = None
            await link.close()
            await self._outbox.close()
            await self._scheduler.stop(self._drain_s)
            if self._report_timer is not None:
                self._report_timer.cancel()
            if self._errors:
                self._report()
            await self._flusher.close()
            await self._close_consuming()
            _log.info("dispatcher stopped", unfinished=self._scheduler.live_count)

    def _subscriptions(self, letters: DeadLetters) -> Subscriptions:
        return Subscriptions(
            store=self._pulls,
            outbox=OutboxView(self._writer.directory, self._backlog, lambda: self._scheduler.handed),
            log=SearchableLog(self._data / "log", self._scanner, self._routed.rule_of),
            events=self._events,
            judge_filter=self._judge_filter,
            errors=self._errors,
            in_force=lambda: self._takeover.in_force(),
            dead_letters=letters,
            clock_us=self._clocks.now_us,
        )

    def _expiry(self, letters: DeadLetters) -> Expiry:
        triggers = TriggerExpiry(
            self._scheduler,
            self._events,
            self._backlog,
            LastLook(self._judge_filter, self._errors),
            self._errors,
            bury=letters.put,
            has_room=letters.has_room,
            bounds=self._bounds,
            clock_us=self._clocks.now_us,
        )
        return Expiry(
            self._data,
            self._writer.directory,
            self._bounds,
            scheduler=self._scheduler,
            subscriptions=self._consuming,
            triggers=triggers,
            errors=self._errors,
            on_change=self._flusher.wake,
            clock_us=self._clocks.now_us,
        )

    async def _close_consuming(self) -> None:
        try:
            await self._consuming.flush()
        except UnavailableError as error:  # what was acknowledged is on disk; the rest is handed out again
            _log.error("cursors of subscriptions cannot be written", error=str(error))

    # --- start ----------------------------------------------------------------------------------------

    async def _recover(self) -> dict[int, int]:
        """Bring scheduler and watermarks to where the files are; returns the watermarks."""
        cursors = self._cursors.load()
        if cursors.position > self._writer.next_offset:
            _log.warning("cursors are ahead of the outbox, dropped", position=cursors.position)
            self._cursors.clear()
            cursors = Cursors()
        await asyncio.to_thread(self._store.forget_trouble)
        await self._routed.look()
        self._scheduler.restore(cursors.position, cursors.targets)
        watermarks = dict(cursors.watermarks)
        rows = 0
        with PartitionReader.open(self._writer.directory, start=cursors.position) as reader:
            while (chunk := await asyncio.to_thread(reader.read)) is not None:
                durable = decode_chunk(chunk.first_offset, chunk.batch)
                watermarks.update(durable.watermarks)
                rows += chunk.record_count
                self._scheduler.hand(durable)
                while self._scheduler.rows_waiting > limits.OUTBOX_PENDING_ROWS_MAX:
                    await asyncio.sleep(0)
        _log.info("dispatcher starts", position=cursors.position, rows_again=rows, behind=len(cursors.targets))
        return watermarks

    def _resume(self) -> dict[int, int]:
        """Where the next run must start; a partition that has never been matched starts at its first event."""
        for partition in self._logs.partitions():
            self._takeover.raise_floor(partition, self._logs.first_offset(partition))
        watermarks = self._takeover.watermarks()
        for partition, watermark in watermarks.items():
            if watermark > self._logs.end_offset(partition):
                _log.error("matching is ahead of the log: events are missing", partition=partition, offset=watermark)
        return watermarks

    # --- what the link needs --------------------------------------------------------------------------

    def take(self, accepted: Accepted) -> None:
        """See `link.Sink`."""
        if accepted.generation > self._routed.generation:
            self._routed.look_now()  # the broker and the filter that a row was matched by
        passed = self._passed.get(accepted.partition, 0)
        wanted = len({row[0] for row in accepted.rows})
        metrics.EVENTS_EVALUATED.labels("wanted").inc(wanted)
        metrics.EVENTS_EVALUATED.labels("unwanted").inc(max(0, accepted.passed - passed - wanted))
        self._passed[accepted.partition] = max(passed, accepted.passed)
        self._outbox.add(accepted)

    def is_full(self) -> bool:
        """See `link.Sink`."""
        return self._outbox.rows_pending + self._scheduler.rows_waiting > limits.OUTBOX_PENDING_ROWS_MAX

    def end_offset(self, partition: int) -> int:
        """See `link.Sink`."""
        return self._logs.end_offset(partition)

    def _relieve(self) -> None:
        if self._link is not None:
            self._link.relieve()

    # --- what the scheduler tells -------------------------------------------------------------------------

    def target_unknown(self) -> None:
        """See `scheduler.SchedulerListener`."""
        self._routed.look_now()

    def cursors_changed(self) -> None:
        """See `scheduler.SchedulerListener`."""
        self._flusher.wake()

    def rows_walked(self) -> None:
        """See `scheduler.SchedulerListener`."""
        self._relieve()

    def row_kept(self, target: int) -> None:
        """See `scheduler.SchedulerListener`."""
        self._consuming.wake(target)

    # --- routing --------------------------------------------------------------------------------------

    async def _look(self) -> None:
        looks = Recurring(_log, "routing cannot be read", UnavailableError)
        while True:
            await asyncio.sleep(limits.ROUTING_POLL_S)
            self._on_look("the outbox does not take rows: matches wait" if self._outbox.failing else "")
            with looks.attempt():
                await self._routed.look()

    def _update(self, table: RoutingTable) -> None:
        self._scheduler.update(table)
        self._consuming.update(table)

    # --- cursors and reports --------------------------------------------------------------------------

    def _flushed(self) -> None:
        """Cursors have been written: now and then is a good time for what else is told."""
        if self._errors and self._report_timer is None:
            loop = asyncio.get_running_loop()
            self._report_timer = loop.call_later(limits.REPORT_S_MIN, self._report)

    def _report(self) -> None:
        self._report_timer = None
        reports = self._errors.take()
        self._flusher.run(lambda: self._send(reports))

    def _send(self, reports: list[TargetReport]) -> None:
        try:
            self._store.report(reports)
        except UnavailableError as error:  # numbers for people: worth a line, not a restart
            _log.warning("filter errors were not reported", error=str(error), targets=len(reports))
            self._loop.call_soon_threadsafe(self._errors.untold, reports)

    def _part(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task that lasts as long as the dispatcher: an error that ends it ends the process."""
        task = asyncio.create_task(work)
        task.add_done_callback(partial(tell_failure, what="a part has ended"))
        return task

    def _on_failure(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        _log.error("dispatcher fails", reason=context.get("message"), exc_info=error)
        if self._failure is None:
            self._failure = error if isinstance(error, BaseException) else RuntimeError(context.get("message"))
        self._stop.set()
