"""The deliveries of one shard's targets: the parts of a dispatcher that are the same wherever matches come from."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import structlog
from starlette.routing import Route

from headgate.deadletters.api import DeadLettersApi, PendingApi
from headgate.deadletters.own import LetterRights
from headgate.deadletters.pending import Pending
from headgate.deadletters.sink_sender import DeadLetters
from headgate.delivery.attempt_service import AttemptService, IngressReplies
from headgate.delivery.authentication import IdentityTokens
from headgate.delivery.circuit import SubscriberHealth
from headgate.delivery.cursors import CursorStore, Flusher
from headgate.delivery.events import Events
from headgate.delivery.journal import Journal
from headgate.delivery.post import Transport
from headgate.delivery.retry import SYSTEM, Clocks
from headgate.delivery.scheduler import Scheduler, SchedulerListener
from headgate.delivery.verdicts import FilterErrors, FinalCheck, evaluate
from headgate.delivery.webhook_handshake import Handshakes
from headgate.filter.skipping.prune import FilterValueRule
from headgate.objects.api.grants import Grants
from headgate.objects.kinds.egress import UrlPolicy
from headgate.objects.kinds.routing import RoutingTable, Target, TargetReport
from headgate.objects.store.handshake_grants import HandshakeGrants
from headgate.objects.store.secret_store import SecretTable
from headgate.objects.store.signing_keys import SigningKeys
from headgate.objects.store.store import Store
from headgate.objects.views.shared_quotas import SharedQuotas
from headgate.observe.logs import Recurring, tell_failure
from headgate.observe.tracing import Tracing
from headgate.outbox.reader import Backlog, OutboxView, RowPlaces
from headgate.outbox.shards import Shard
from headgate.outbox.writer import WhenDurable, always_durable
from headgate.replay.api import ReplaysApi
from headgate.replay.sender import Replaying
from headgate.scan.pages import Scanner
from headgate.scan.source import ReadableLog
from headgate.server.listening import url_policy
from headgate.server.peers.inward import inside, transports
from headgate.server.peers.target_stats import TargetStatsApi
from headgate.settings import Settings
from headgate.storage.commit import Committer
from headgate.storage.files import DispatcherDirectory
from headgate.subscriptions.registry import SubscriptionResources
from headgate.subscriptions.service import Subscriptions
from headgate.subscriptions.store import SubscriptionStore
from headgate_api import limits
from headgate_api.errors import UnavailableError
from headgate_api.event.names import path_of

# --- routing cache --------------------------------------------------------------------------------


class TargetReports(Protocol):
    """Where a dispatcher tells what it sees of its targets."""

    def report(self, reports: list[TargetReport]) -> None:
        """Add what was seen of filters and subscribers; may block."""

    def forget_trouble(self, owns: Callable[[int], bool]) -> None:
        """What an earlier dispatcher reported of its own targets no longer counts; may block."""


class RoutingCache:
    """A dispatcher's copy of the routing table, of a shard's targets alone; `on_table` gets each newer one."""

    def __init__(self, store: Store, on_table: Callable[[RoutingTable], None], shard: Shard) -> None:
        self._store = store
        self._on_table = on_table
        self._shard = shard
        self._version = -1
        self._table: RoutingTable | None = None
        self._whole: RoutingTable | None = None

    async def refresh(self) -> None:
        version = self._store.data_version()
        if version != self._version:
            self._apply(version, await asyncio.to_thread(self._store.snapshot))

    def refresh_now(self) -> None:
        """As `refresh`, at once, for a row of an unknown target: a `refresh` under way would end after it. Blocks."""
        version = self._store.data_version()
        if version != self._version:
            self._apply(version, self._store.snapshot())

    def trigger(self, name: str) -> Target | None:
        """A trigger by `namespace/name`; None for one of another dispatcher."""
        return self._table.trigger(name) if self._table is not None else None

    def any_trigger(self, name: str) -> Target | None:
        return self._whole.trigger(name) if self._whole is not None else None

    def find(self, target: int) -> Target | None:
        """The target of an id, whichever dispatcher's it is."""
        return self._whole.targets.get(target) if self._whole is not None else None

    def rule_of(self, broker: str) -> FilterValueRule | None:
        """What the filter values of the events of a broker (its identity) are; may block. None when it is no more."""
        found = self._store.served(path_of(broker))
        return found.rule.value if found is not None and found.identity == broker else None

    @property
    def generation(self) -> int:
        return self._table.generation if self._table is not None else -1

    def _apply(self, version: int, table: RoutingTable) -> None:
        self._version = version
        # Two snapshots may be under way: the older one must not win.
        if self._table is None or table.version > self._table.version:
            self._whole, self._table = table, self._own(table)
            self._on_table(self._table)

    def _own(self, table: RoutingTable) -> RoutingTable:
        if self._shard.count == 1:
            return table
        own = dict(self._table.targets) if self._table is not None else {}
        for id_ in table.changed_since(self._whole):
            own.pop(id_, None)
            if id_ in table.targets and self._shard.owns(id_):
                own[id_] = table.targets[id_]
        return dataclasses.replace(table, targets=own)


# --- shard deliveries -----------------------------------------------------------------------------

_log = structlog.get_logger(__name__)


class TargetReporter:
    """Tells filter errors, troubled subscribers and drops, for the status of triggers, every REPORT_S_MIN at most."""

    def __init__(self, reports: TargetReports, errors: FilterErrors) -> None:
        self._reports = reports
        self._errors = errors
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None

    def wake(self) -> None:
        if self._errors and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(limits.REPORT_S_MIN, self._start)

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._writing is not None:
            await asyncio.wait([self._writing])
        if self._errors:
            await self._report()

    def _start(self) -> None:
        self._writing = asyncio.create_task(self._report())
        self._writing.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._timer = self._writing = None
        self.wake()
        tell_failure(task, "reporting on targets failed")

    async def _report(self) -> None:
        reports = self._errors.take()
        try:
            await asyncio.to_thread(self._reports.report, reports)
        except UnavailableError as error:  # numbers for people: worth a line, not a restart
            _log.warning("reports on targets were not written", error=str(error), targets=len(reports))
            self._errors.untold(reports)


@dataclass(frozen=True, kw_only=True)
class SenderIdentity:
    """What this server shows to receivers; replies are stored at its own `url`.

    None means: no `secrets` for deliveries, no `signer` of tokens for subscribers, nobody is asked for `grants`.
    """

    url: str = ""
    policy: UrlPolicy = field(default_factory=UrlPolicy)
    secrets: SecretTable | None = None
    signer: SigningKeys | None = None
    grants: HandshakeGrants | None = None

    @classmethod
    def of(cls, settings: Settings, store: Store) -> SenderIdentity:
        return cls(
            url=settings.url,
            policy=url_policy(settings),
            secrets=store.secrets,
            signer=store.signing_keys,
            grants=store.handshakes,
        )

    def handshakes(self, transport: Transport, clocks: Clocks) -> Handshakes | None:
        if self.grants is None:
            return None
        return Handshakes(
            transport,
            self.grants,
            self.url,
            clocks,
            is_own=lambda url: bool(inside(self.policy, url)),
            always=self.policy.reach == "public",
        )


@dataclass(frozen=True, kw_only=True)
class DeliveryOptions:
    """What a dispatcher works with, wherever its matches come from; for `token`, see `child.Context`.

    None for `transport` is the real HTTP client, for the way `inward` plain HTTP to the server's own address, and for
    `rights` to events: nobody is asked who he is.
    `on_ready` is called once, when matches can come; `on_look` hears what is wrong as long as the loop turns.
    """

    data: Path
    token: bytes
    store: Store
    identity: SenderIdentity = field(default_factory=SenderIdentity)
    transport: Transport | None = None
    inward: Transport | None = None
    rights: Grants | None = None
    tracing: Tracing | None = None
    on_ready: Callable[[], None] = lambda: None
    on_look: Callable[[str], object] = lambda _: None
    clocks: Clocks = SYSTEM

    def ways(self) -> AbstractAsyncContextManager[tuple[Transport, Transport]]:
        """The way into this server and the way to receivers, open for as long as the block lasts."""
        return transports(self.identity.policy, self.token, self.inward, self.transport)


@dataclass(frozen=True, kw_only=True)
class DeliveryMeans:
    """What the shards of a process share; `scanner` reads the `log`. The `ways` are as `DeliveryOptions.ways` says."""

    options: DeliveryOptions
    ways: tuple[Transport, Transport]
    journal: Journal
    log: ReadableLog
    scanner: Scanner

    def attempts(self, errors: FilterErrors) -> AttemptService:
        options, (inward, transport) = self.options, self.ways
        identity, clocks = options.identity, options.clocks
        return AttemptService(
            transport,
            IngressReplies(inward, identity.url),
            self.journal,
            SubscriberHealth(errors.trouble, clocks),
            secrets=identity.secrets,
            identities=IdentityTokens(identity.signer, identity.url, clocks),
            handshakes=identity.handshakes(transport, clocks),
            tracing=options.tracing,
            clocks=clocks,
        )


@dataclass(frozen=True, kw_only=True)
class ShardState:
    """Where a shard's events, rows and state are.

    Lagging targets read `backlog`, subscriptions `rows`, which are where `places` says; rows below `durable` are on
    disk. `in_force` gives, of each partition that is matched, where that stands and by which generation. Each file in
    `own` gets a committer for its transactions; None: SQLite alone. Those of cursors are `flush_s` apart, behind
    `when_durable`.
    """

    own: DispatcherDirectory
    events: Events
    backlog: Backlog
    rows: Backlog
    places: RowPlaces
    cursors: CursorStore
    reports: TargetReports
    in_force: Callable[[], dict[int, tuple[int, int]]]
    durable: Callable[[], int] = lambda: sys.maxsize
    committer: Callable[[], Committer | None] = lambda: None
    quotas: SharedQuotas | None = None
    flush_s: float = limits.CURSOR_FLUSH_S
    when_durable: WhenDurable = always_durable


class ShardDeliveries:
    """Everything between a shard's rows and its subscribers and consumers, on one event loop.

    A process may have `sharers` shards: each has that part of its limits. Deliveries begin when `works` run.
    """

    def __init__(
        self, shard: Shard, means: DeliveryMeans, state: ShardState, listener: SchedulerListener, *, sharers: int = 1
    ) -> None:
        errors, options = FilterErrors(), means.options
        self._means = means
        self._state = state
        self._refreshed = -1
        self.final_check = FinalCheck(evaluate, errors, options.clocks.now_us)
        self.routing = RoutingCache(options.store, self._update, shard)
        self.reporter = TargetReporter(state.reports, errors)
        self.service = means.attempts(errors)
        self.dead_letters = DeadLetters(
            state.own.dead_letters,
            self.service,
            lambda id_: self.scheduler.find(id_) or self.routing.find(id_),
            shard,
            state.committer(),
            state.quotas,
            state.when_durable,
            self.routing.any_trigger,
        )
        self.pending = Pending(
            state.own.dead_letters, self.dead_letters, options.clocks, state.when_durable, self._tell_backlog
        )
        self.scheduler = Scheduler(
            listener,
            events=state.events,
            backlog=state.backlog,
            service=self.service,
            final_check=self.final_check,
            dead_letters=self.dead_letters,
            pending=self.pending,
            sharers=sharers,
        )
        take_change, wake = self.scheduler.take_change, self.reporter.wake
        self.flusher = Flusher(state.cursors, take_change, wake, state.when_durable, state.flush_s)
        self._consumers = SubscriptionStore(state.own.subscriptions, state.committer())
        resources = SubscriptionResources(
            outbox=OutboxView(state.places, state.rows, lambda: min(self.scheduler.handed, state.durable())),
            log=means.log,
            scanner=means.scanner,
            rule_of=self.routing.rule_of,
            events=state.events,
            final_check=self.final_check,
            in_force=state.in_force,
            dead_letters=self.dead_letters,
            clock_us=options.clocks.now_us,
        )
        self.subscriptions = Subscriptions(self._consumers, resources, state.quotas)
        self.replays = Replaying(
            state.own.replays,
            scanner=means.scanner,
            events=state.events,
            service=self.service,
            dead_letters=self.dead_letters,
            trigger=self.routing.trigger,
            rule_of=self.routing.rule_of,
            rights=options.rights,
            shard=shard,
            committer=state.committer(),
        )
        letters, now_us = state.own.dead_letters, options.clocks.now_us
        self._target_stats = TargetStatsApi(self.scheduler, state.events, letters, now_us)

    def start(self) -> None:
        """Begin with what dispatchers before this one have kept, now that targets are known."""
        self.dead_letters.start()
        self.pending.start(self.scheduler)

    def routes(self, objects: Store | None) -> Iterator[Route]:
        """What fronts ask of counters, dead letters and replays; no replays where there are no objects."""
        yield from self._target_stats.routes()
        path, options, settled = self._state.own.dead_letters, self._means.options, self.flusher.settled
        rights = None
        if objects is not None and options.rights is not None:
            rights = LetterRights(options.rights, objects.server_secret, options.clocks.now_us)
        yield from DeadLettersApi(path, self.dead_letters, rights, settled).routes()
        yield from PendingApi(path, self.pending, rights, settled).routes()
        if objects is not None:
            policy = options.identity.policy
            yield from ReplaysApi(self.replays, self._means.log, objects, policy, options.rights).routes()

    def works(
        self,
        pause: Callable[[], Coroutine[Any, Any, None]],
        on_look: Callable[[], object] = lambda: None,
        **context: object,
    ) -> dict[str, Coroutine[Any, Any, None]]:
        """What runs until it is cancelled, by what to say when it ends; routing is looked at after each `pause`."""
        return {
            "routing is not watched any more": self._watch(pause, on_look, **context),
            "subscriptions are not looked after any more": self.subscriptions.tend(),
            "replays have ended": self.replays.run(),
        }

    async def _watch(
        self, pause: Callable[[], Coroutine[Any, Any, None]], on_look: Callable[[], object], **context: object
    ) -> None:
        looks = Recurring(_log, "routing cannot be read", UnavailableError)
        while True:
            await pause()
            on_look()
            with looks.attempt(**context):
                await self.refresh()

    async def refresh(self) -> None:
        """Takes up what has changed: routing, Secrets, permissions of receivers."""
        version = self._means.options.store.data_version()
        await self.routing.refresh()
        if version != self._refreshed:
            await self.service.refresh()
            self._refreshed = version

    async def stop(self, drain_s: float) -> None:
        """Starts nothing more, lets attempts in flight end for so long, and writes reports and cursors down."""
        await self.pending.stop()
        await self.scheduler.stop(drain_s)
        await self.reporter.close()
        await self.flusher.close()
        try:
            await self.subscriptions.flush()
        except UnavailableError as error:  # what was acknowledged is stored; the rest is handed out again
            _log.error("cursors of subscriptions cannot be written", error=str(error))

    async def close(self) -> None:
        """What was not read before is not written."""
        try:
            await asyncio.to_thread(self.replays.close)
        finally:
            self._consumers.close()
            try:
                await self.pending.close()
            finally:
                await self.dead_letters.close()

    def _tell_backlog(self, target: int, text: str) -> None:
        self.final_check.errors.backlog(target, text)
        self.reporter.wake()

    def _update(self, table: RoutingTable) -> None:
        self.scheduler.update(table)
        self.subscriptions.update(table)
