"""The deliveries of one shard's targets: the parts that are the same wherever matches come from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from headgate import limits
from headgate.control.egress import UrlPolicy
from headgate.control.routing import RoutingTable
from headgate.control.shared_quotas import SharedQuotas
from headgate.control.store import Store
from headgate.deadletters.sender import DeadLetters
from headgate.delivery.attempt_service import AttemptService
from headgate.delivery.authentication import SecretStore
from headgate.delivery.clock import SYSTEM, Clocks
from headgate.delivery.cursors import CursorStore, Flusher
from headgate.delivery.events import Events
from headgate.delivery.health import SubscriberHealth
from headgate.delivery.identity_tokens import IdentityTokens, NoSigner, Signer
from headgate.delivery.journal import AttemptRecorder
from headgate.delivery.post import Transport
from headgate.delivery.replies import Replies
from headgate.delivery.scheduler import Scheduler, SchedulerListener
from headgate.delivery.spans import AttemptTracing
from headgate.delivery.tasks import tell_failure
from headgate.delivery.verdicts import FilterErrors, Judge, LastLook, evaluate
from headgate.delivery.webhook_handshake import GrantStore, Handshakes
from headgate.errors import UnavailableError
from headgate.observe.tracing import Tracing
from headgate.outbox.reader import Backlog
from headgate.outbox.shards import Shard
from headgate.outbox.writer import WhenDurable, always_durable
from headgate.server.inward import inside
from headgate.server.policy import url_policy
from headgate.server.routing_cache import RoutingCache, RoutingStore, TargetReports
from headgate.settings import Settings
from headgate.storage.commit import Committer

# --- reporting ------------------------------------------------------------------------------------
# Reports of filter errors, of subscribers in trouble and of dropped events, for the status of their triggers.

_log = structlog.get_logger(__name__)


class TargetReporter:
    """Tells what was seen of targets, every REPORT_S_MIN at most.

    Args:
        store: Where they are told.
        errors: What was seen.
    """

    def __init__(self, store: TargetReports, errors: FilterErrors) -> None:
        self._store = store
        self._errors = errors
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None

    def wake(self) -> None:
        """There may be something to report."""
        if self._errors and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(limits.REPORT_S_MIN, self._start)

    async def close(self) -> None:
        """Report what is left."""
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
            await asyncio.to_thread(self._store.report, reports)
        except UnavailableError as error:  # numbers for people: worth a line, not a restart
            _log.warning("reports on targets were not written", error=str(error), targets=len(reports))
            self._errors.untold(reports)


# --- shard deliveries -----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SenderIdentity:
    """What this server shows to receivers, and where.

    Attributes:
        url: The server's own address, where replies are stored.
        policy: Where receivers may be.
        secrets: What deliveries authenticate by; None for nothing.
        signer: Has the key of tokens for subscribers; None for none.
        grants: Permissions of subscribers by callback; None: nobody is asked.
    """

    url: str = ""
    policy: UrlPolicy = field(default_factory=UrlPolicy)
    secrets: SecretStore | None = None
    signer: Signer | None = None
    grants: GrantStore | None = None

    @classmethod
    def of(cls, settings: Settings, store: Store) -> SenderIdentity:
        """What the settings and the objects say."""
        return cls(
            url=settings.url,
            policy=url_policy(settings),
            secrets=store.secrets,
            signer=store.signing_keys,
            grants=store.handshakes,
        )

    def tokens(self, clocks: Clocks) -> IdentityTokens:
        """Makes tokens for subscribers."""
        return IdentityTokens(self.signer or NoSigner(), self.url, clocks)

    def handshakes(self, transport: Transport, clocks: Clocks) -> Handshakes | None:
        """Asks receivers for their permission; None where nobody is asked."""
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
class DeliveryMeans:
    """What deliveries are made with.

    Attributes:
        store: Routing.
        transport: The HTTP client.
        replies: For answers that are events.
        journal: Remembers attempts for people.
        identity: What receivers are shown.
        judge_filter: Decides CANDIDATE rows.
        tracing: Makes spans; None for none.
        clocks: Time, and the jitter of pauses.
    """

    store: RoutingStore
    transport: Transport
    replies: Replies
    journal: AttemptRecorder
    identity: SenderIdentity = field(default_factory=SenderIdentity)
    judge_filter: Judge = evaluate
    tracing: Tracing | None = None
    clocks: Clocks = SYSTEM


@dataclass(frozen=True, kw_only=True)
class ShardState:
    """Where a shard's events, rows and state are.

    Attributes:
        events: The log.
        backlog: The outbox, for targets that lag.
        cursors: Which deliveries have ended.
        dead_letters: `deadletters.db`.
        reports: Where it is told what is seen of targets.
        committer: Ends the transactions of dead letters; None for SQLite alone.
        quotas: How many dead letters a namespace may have; None: any number.
        flush_s: Between two transactions of cursors at least.
        when_durable: Of the outbox: cursors and dead letters are written behind their rows.
    """

    events: Events
    backlog: Backlog
    cursors: CursorStore
    dead_letters: Path
    reports: TargetReports
    committer: Committer | None = None
    quotas: SharedQuotas | None = None
    flush_s: float = limits.CURSOR_FLUSH_S
    when_durable: WhenDurable = always_durable


class ShardDeliveries:
    """Everything between a shard's rows and its subscribers, on one event loop.

    Args:
        shard: Which targets.
        means: What attempts are made with.
        state: Where events, rows and state are.
        listener: Hears what follows from rows and deliveries.
        on_table: Called with each newer routing table, after the scheduler.
        sharers: How many shards a process may have: each has that part of its limits.

    Attributes:
        look: Decides what the matcher left open.
        routing: The shard's targets.
        reporter: Tells what was seen of targets.
        service: Makes attempts.
        dead_letters: The events that were given up.
        scheduler: The deliveries.
        flusher: Writes cursors.
    """

    def __init__(
        self,
        shard: Shard,
        means: DeliveryMeans,
        state: ShardState,
        listener: SchedulerListener,
        *,
        on_table: Callable[[RoutingTable], None] = lambda _: None,
        sharers: int = 1,
    ) -> None:
        errors = FilterErrors()
        self._store = means.store
        self._refreshed = -1
        self._on_table = on_table
        self.look = LastLook(means.judge_filter, errors)
        self.routing = RoutingCache(means.store, self._update, shard)
        self.reporter = TargetReporter(state.reports, errors)
        self.service = AttemptService(
            means.transport,
            means.replies,
            means.journal,
            SubscriberHealth(errors.trouble, means.clocks),
            secrets=means.identity.secrets,
            identities=means.identity.tokens(means.clocks),
            handshakes=means.identity.handshakes(means.transport, means.clocks),
            tracing=AttemptTracing(means.tracing) if means.tracing is not None else None,
            clocks=means.clocks,
        )
        self.dead_letters = DeadLetters(
            state.dead_letters,
            self.service,
            lambda id_: self.scheduler.find(id_),
            shard,
            state.committer,
            state.quotas,
            state.when_durable,
        )
        self.scheduler = Scheduler(
            listener,
            events=state.events,
            backlog=state.backlog,
            service=self.service,
            look=self.look,
            dead_letters=self.dead_letters,
            sharers=sharers,
        )
        self.flusher = Flusher(
            state.cursors,
            self.scheduler.take_change,
            self.reporter.wake,
            state.when_durable,
            state.flush_s,
        )

    async def refresh(self) -> None:
        """Takes up what has changed: routing, Secrets, permissions of receivers."""
        version = self._store.data_version()
        await self.routing.refresh()
        if version != self._refreshed:
            await self.service.refresh()
            self._refreshed = version

    async def stop(self, drain_s: float) -> None:
        """Start nothing more, let attempts in flight end for so long, and write reports and cursors down."""
        await self.scheduler.stop(drain_s)
        await self.reporter.close()
        await self.flusher.close()

    def _update(self, table: RoutingTable) -> None:
        self.scheduler.update(table)
        self._on_table(table)
