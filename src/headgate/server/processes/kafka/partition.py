"""The deliveries of one outbox partition, for as long as this process owns it: the same parts as on one machine.

Their rows come from the outbox's pages, with their record's offset as position; a lagging target's from the topic
again; cursors and dead letters from the changelog. docs/adr/0019-deliveries-move-with-their-partition.md has the why.
"""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import structlog
from starlette.routing import Router
from starlette.types import ASGIApp

from headgate.auth.user import User
from headgate.backend.config import KafkaConfig
from headgate.backend.kafka import partition_views
from headgate.backend.kafka.changelog import ChangelogCommitter, ChangelogWriter, restore_all
from headgate.backend.kafka.events import TopicEvents, shared_event
from headgate.backend.kafka.outbox_records import Checkpoint, OutboxEvent, OutboxPage
from headgate.backend.kafka.outbox_walk import CheckpointedCursors, Checkpoints, KnownPlace, TopicBacklog
from headgate.backend.kafka.partition_views import OutboxLookups, PartitionRecords
from headgate.backend.kafka.runs import RunReports
from headgate.backend.kafka.target_reports import PartitionReports
from headgate.deadletters.own import OpaqueIds, opaque_ids
from headgate.delivery.scheduler import Scheduler
from headgate.objects.kinds.routing import Target
from headgate.objects.store.store import Store
from headgate.observe import metrics
from headgate.observe.logs import Recurring, tell_failure
from headgate.outbox.shards import Shard
from headgate.outbox.writer import OutboxChunk, RowGroup
from headgate.server.processes.kafka.partition_answers import PartitionPulls, PartitionRecordsApi
from headgate.server.processes.shard_deliveries import DeliveryMeans, DeliveryOptions, ShardDeliveries, ShardState
from headgate.storage.files import PARENT, DispatcherDirectory
from headgate_api import limits
from headgate_api.errors import HeadgateError, UnavailableError

_EVENTS_PER_TURN: Final = 64
_T = TypeVar("_T")
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class KafkaDispatcherOptions(DeliveryOptions):
    """What a dispatcher on Kafka works with; the group knows it by `name`, `runs` hears which runs count."""

    config: KafkaConfig
    runs: RunReports | None = None
    name: str = ""
    objects: Store | None = None
    drain_s: float = limits.REBALANCE_DRAIN_S_MAX

    @property
    def attempts(self) -> Path:
        return self.data / PARENT / "attempts"

    def ids_below(self, user: User) -> OpaqueIds | None:
        """By which ids a user knows dead letters who may not know of all events; may block. None: by their own."""
        if self.rights is None or self.objects is None:
            return None
        self.rights.refresh()
        is_below = self.rights.authorizer.has_ceilings(user, "")
        return opaque_ids(self.objects.server_secret) if is_below else None


@dataclass(frozen=True, kw_only=True)
class PartitionMeans(DeliveryMeans):
    """What the partitions of a process share; `events` has events by their place."""

    options: KafkaDispatcherOptions
    events: TopicEvents
    lookups: OutboxLookups


class PartitionDispatcher:
    """Begins at once; `close` ends it. Lives on one event loop. The writer of its changelog is its own.

    `api` and `pulls` are as `OwnedPartition` says; `deliveries` are None until its state is read. `waiting_bytes` is
    the memory of pages that were read and not walked to their end.
    """

    api: ASGIApp | None
    pulls: PartitionPulls | None
    waiting_bytes: int

    def __init__(self, number: int, writer: ChangelogWriter, means: PartitionMeans) -> None:
        self._number = number
        self._writer = writer
        self._means = means
        self._options = options = means.options
        self._loop = asyncio.get_running_loop()
        self._count = options.config.topics.outbox.partitions
        self.api = self.pulls = None
        self._pulls: PartitionPulls | None = None
        self._checkpoints = Checkpoints()
        self._cursors: CheckpointedCursors | None = None
        self.deliveries: ShardDeliveries | None = None
        self._begins_at = self._position = 0
        self._pages: deque[OutboxPage] = deque()
        self._page_came = asyncio.Event()
        self.waiting_bytes = 0
        self._is_progress_alone = False
        self._progress_timer: asyncio.TimerHandle | None = None
        self._stack = AsyncExitStack()
        self._stack.callback(writer.close)
        writer.on_failure = self._not_written
        self._stopped = threading.Event()
        self._drain_s = 0.0
        self._task = self._loop.create_task(self._run())
        self._task.add_done_callback(partial(tell_failure, what="a partition of the outbox has ended"))

    @property
    def _at_work(self) -> ShardDeliveries:
        assert self.deliveries is not None, "`_begin` made it"
        return self.deliveries

    def take(self, page: OutboxPage) -> None:
        self._pages.append(page)
        self.waiting_bytes += page.size_bytes
        self._page_came.set()

    async def close(self, *, is_lost: bool, drain_s: float) -> None:
        """Attempts may end for `drain_s`, then what is known is stored; nothing where it `is_lost` to another one."""
        self._stopped.set()
        self.api = self.pulls = None
        if self._pulls is not None:
            await self._pulls.break_off()  # not later: what is not stored any more must not be answered
        if is_lost:
            self._writer.lose()
        self._drain_s = 0.0 if is_lost else drain_s
        self._task.cancel()
        await asyncio.wait([self._task])
        if self._progress_timer is not None:
            self._progress_timer.cancel()
        await self._stack.aclose()

    # --- start ------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        own = DispatcherDirectory.of(self._options.data, self._number)
        records = await self._on_files(partial(self._restore, own))
        await self._begin(own, records)
        while True:
            await self._page_came.wait()
            self._page_came.clear()
            while self._pages:
                page = self._pages.popleft()
                await self._walk(page)
                self.waiting_bytes -= page.size_bytes

    async def _on_files(self, work: Callable[[], _T]) -> _T:
        """Does it in a thread, and ends with it also where it is cancelled: the thread works on the files."""
        working = self._loop.run_in_executor(None, work)
        try:
            return await asyncio.shield(working)
        finally:
            await asyncio.wait([working])

    def _restore(self, own: DispatcherDirectory) -> int:
        with suppress(FileNotFoundError):
            shutil.rmtree(own.path)
        return restore_all(self._options.config, self._number, own, self._stopped)

    async def _begin(self, own: DispatcherDirectory, records: int) -> None:
        means, stack = self._means, self._stack
        config, checkpoints = self._options.config, self._checkpoints
        backlog = TopicBacklog(config, self._number, checkpoints, on_event=self._keep_soon, on_removed=self._removed)
        stack.push_async_callback(asyncio.to_thread, backlog.close)
        committer = ChangelogCommitter(self._writer, self._place)
        cursors = self._cursors = CheckpointedCursors(own.cursors, checkpoints, committer)
        stack.callback(cursors.close)
        _, stored_end = await backlog.bounds()
        reports = PartitionReports(own.reports, self._find, ChangelogCommitter(self._writer))
        stack.callback(reports.close)
        state = ShardState(
            own=own,
            events=means.events,
            backlog=backlog,
            rows=partition_views.RowsAhead(backlog),
            places=partition_views.CheckpointRowPlaces(checkpoints, stored_end),
            cursors=cursors,
            reports=reports,
            in_force=partial(partition_views.in_force, checkpoints),
            committer=partial(ChangelogCommitter, self._writer),
            flush_s=limits.CHANGELOG_FLUSH_S,
        )
        deliveries = ShardDeliveries(Shard(self._number, self._count), means, state, self, sharers=self._count)
        stack.push_async_callback(deliveries.close)
        self.deliveries = deliveries
        self._pulls = pulls = PartitionPulls(deliveries.subscriptions)
        found = cursors.load()
        await self._routed(cursors.generation)
        await self._on_files(partial(reports.forget_trouble, lambda _: True))
        deliveries.scheduler.restore(found.position, found.targets)
        self._begins_at = self._position = found.position
        deliveries.start()
        # Not before: what has not been read must not be written.
        stack.push_async_callback(lambda: deliveries.stop(self._drain_s))
        works = deliveries.works(lambda: asyncio.sleep(limits.ROUTING_POLL_S), partition=self._number)
        works["subscriptions are not moved on any more"] = pulls.pass_others()
        for failure, work in works.items():
            self._tend(work, failure)
        self.api, self.pulls = self._answers(own, deliveries, pulls), pulls
        _log.info(
            "partition begins", partition=self._number, position=found.position, behind=len(found.targets), rows=records
        )

    def _answers(self, own: DispatcherDirectory, deliveries: ShardDeliveries, pulls: PartitionPulls) -> ASGIApp:
        """The same paths as those of a dispatcher of one machine; and, for `why` and `trace`, its records."""
        means, options = self._means, self._options
        records = PartitionRecords(self._number, own, options.attempts, self._checkpoints, means.lookups, self._count)
        routes = [
            *pulls.routes(),
            *deliveries.routes(options.objects),
            *PartitionRecordsApi(records, means.lookups, means.events, options.store, options.ids_below).routes(),
        ]
        return Router(routes)  # its errors are those of `partitions_api`

    def _tend(self, work: Coroutine[Any, Any, None], failure: str) -> None:
        task = self._loop.create_task(work)
        task.add_done_callback(partial(tell_failure, what=failure))

        async def end() -> None:
            task.cancel()
            await asyncio.wait([task])

        self._stack.push_async_callback(end)

    def _find(self, target: int) -> Target | None:
        """For any thread."""
        return self.deliveries.scheduler.find(target) if self.deliveries is not None else None

    def _not_written(self, error: HeadgateError) -> None:
        """Nothing of the partition can be stored any more: the dispatcher begins anew. In any thread."""
        if not self._stopped.is_set():
            context = {"message": "the state of a partition cannot be written", "exception": error}
            self._loop.call_soon_threadsafe(self._loop.call_exception_handler, context)

    def _place(self) -> Checkpoint | None:
        """What the group commits with the cursors; in their thread."""
        place = self._cursors.place if self._cursors is not None else None
        return None if place is None else Checkpoint(self._number, place.offset, place.state)

    # --- routing ----------------------------------------------------------------------------------------

    async def _routed(self, generation: int) -> None:
        """Waits until the targets of a generation are known: their rows would end as those of deleted ones."""
        routing, told = self._at_work.routing, False
        looks = Recurring(_log, "routing cannot be read", UnavailableError)
        while True:
            with looks.attempt(partition=self._number):
                await routing.refresh()
            if routing.generation >= generation:
                return
            if not told:
                told = True
                _log.info("waits for newer objects", partition=self._number, generation=generation)
            await asyncio.sleep(limits.ROUTING_POLL_S)

    # --- rows -------------------------------------------------------------------------------------------

    async def _walk(self, page: OutboxPage) -> None:
        """Hands a page's rows over; returns when all of them have a place in their targets' queues, or none."""
        scheduler, cursors = self._at_work.scheduler, self._cursors
        assert cursors is not None, "`_begin` made it"
        generation = max((event.generation for event in page.events), default=0)
        await self._routed(generation)
        cursors.generation = max(cursors.generation, generation)
        for number, event in enumerate(page.events):
            if event.position < self._begins_at:
                continue  # the cursors know of it: its place in the group was committed later than it was read
            self._keep(event)
            metrics.MATCH_SECONDS.observe((self._options.clocks.now_us() - event.stored_us) / 1e6)
            rows = [(event.offset, target, verdict) for target, verdict in event.targets]
            group = RowGroup(event.source, event.generation, rows)
            self._position = event.position + 1
            scheduler.hand(OutboxChunk(event.position, [group], self._position, {}, row_step=0))
            if number % _EVENTS_PER_TURN == 0 or scheduler.rows_waiting > limits.HAND_ROWS_PER_TURN:
                await self._walked(scheduler)
        await self._walked(scheduler)
        checkpoint = page.checkpoint
        self._position = end = max(self._position, checkpoint.offset)
        self._checkpoints.add(KnownPlace(end, checkpoint.offset, checkpoint.state))
        self._is_progress_alone = not page.events
        scheduler.hand(OutboxChunk(end, [], end, {}, row_step=0))
        self._is_progress_alone = False

    async def _walked(self, scheduler: Scheduler) -> None:
        await asyncio.sleep(0)
        while scheduler.rows_waiting:
            await asyncio.sleep(0)

    def _keep(self, event: OutboxEvent) -> None:
        events = self._means.events
        if events.kept(event.source, event.offset) is None:
            shared = shared_event(event.stored, event.source, event.offset, event.stored_us)
            events.keep(event.source, event.offset, shared)

    def _keep_soon(self, event: OutboxEvent) -> None:
        self._loop.call_soon_threadsafe(self._keep, event)

    def _removed(self, target: int, start: int, end: int) -> None:
        """Retention has taken rows that a target had not read; how many of them were its own is not known."""
        if start == 0 and self._pulls is not None and self._pulls.subscriptions.has(target):
            return  # it goes to the earliest row that is kept
        words = f"the outbox was trimmed from offset {start} to {end} before it was read"
        _log.error("events of a lagging target are lost", partition=self._number, target=target, why=words)
        self._at_work.final_check.errors.dropped(target, words)
        self._at_work.reporter.wake()

    # --- what the scheduler tells -----------------------------------------------------------------------

    def target_unknown(self) -> None:
        self._at_work.routing.refresh_now()

    def cursors_changed(self) -> None:
        if not self._is_progress_alone:
            self._wake_flusher()
        elif self._progress_timer is None:
            self._progress_timer = self._loop.call_later(limits.CHANGELOG_PROGRESS_S, self._wake_flusher)

    def _wake_flusher(self) -> None:
        if self._progress_timer is not None:
            self._progress_timer.cancel()
            self._progress_timer = None
        self._at_work.flusher.wake()

    def rows_walked(self) -> None:
        """See `scheduler.SchedulerListener`."""

    def row_kept(self, target: int) -> None:
        if self._pulls is not None:
            self._pulls.subscriptions.wake(target)
