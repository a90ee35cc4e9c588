"""The process that clients talk to: ingress and its log, health and metrics; what others own it passes on to them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import structlog
import uvloop
from starlette.applications import Starlette
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from headgate.auth.configuration import read
from headgate.console.routes import ConsoleRoutes, sign_in_of
from headgate.event.arrow import EVENT_SCHEMA
from headgate.ingress.deduplication import DeduplicatingWriter
from headgate.ingress.encode import Entries, Forwarded, check_events, event_commit
from headgate.ingress.event_gate import EventGate
from headgate.ingress.front_link import FrontOwner, OwnerLink, RemotePartition
from headgate.ingress.http_connection import BoundedHttpProtocol, Connections, TlsAcceptor, http_config
from headgate.ingress.intake import Intake
from headgate.ingress.partitions import EventPartitions, Partitions
from headgate.ingress.producers import Producers, ProducerStreams
from headgate.ingress.publish_http import Ingress
from headgate.ingress.publish_quota import PublishQuotas
from headgate.ingress.publish_rpc import PublishRpc
from headgate.ingress.stored_bytes import CountingWriter, StoredBytes
from headgate.inspect.api import OF_BROKERS, WHY_TRIGGER
from headgate.log.directory import LogDirectory
from headgate.log.group_commit import ChunkCommit
from headgate.log.wakeups import Wakeups
from headgate.log.writer import PartitionWriter
from headgate.objects.api.grants import Grants
from headgate.objects.api.http import ERROR_HANDLERS
from headgate.objects.store.quota_usage import QuotaBoard
from headgate.objects.store.store import Store
from headgate.objects.views.copies import ServedBrokers, follow
from headgate.observe import metrics, tracing
from headgate.rpc.service import ServiceCalls
from headgate.server import child, health, listening, parts, ready, retention, rpc
from headgate.server.authentication import Authentication, UsersOfFronts, audit_log_of, authenticator_of
from headgate.server.authorization import Authorization, Rights
from headgate.server.hosts import HostCheck, Hosts
from headgate.server.listening import ListenAddress, addresses_of
from headgate.server.parts import Role, front_of
from headgate.server.peers import local_http
from headgate.server.peers.dead_letters import DeadLettersFront, ReplaysFront
from headgate.server.peers.dispatcher_group import DispatcherGroup, DispatcherReach, LocalDispatchers
from headgate.server.peers.local_http import KeptConnections, ProcessProxy
from headgate.server.peers.notify_fronts import news_route
from headgate.server.peers.target_stats import SUMMARY, SUMMARY_OF_NAMESPACE, stats_paths
from headgate.server.processes.filter_workers import FilterWorkers, filter_routes
from headgate.server.refusals import Gate, NoDeliveries, RoleAbsent
from headgate.server.tls import CertificateKeeper, TlsFiles
from headgate.settings import Settings, TlsMode
from headgate.subscriptions.api import METHODS as PULL_METHODS
from headgate.subscriptions.api import PREFIX as PULL_PATH
from headgate_api.event.names import path_of
from headgate_api.limits import CONNECTIONS_MAX, DEDUPLICATION_EVENTS_MAX, LOG_PROBE_S, METRICS_WRITE_S, THREAD_SWITCH_S
from headgate_api.objects.kinds import Kind

# --- http listeners -------------------------------------------------------------------------------


class HttpListeners:
    """The HTTP addresses of a front, with one bound on the connections of all; served from `serve` on."""

    def __init__(self, settings: Settings) -> None:
        is_tls = settings.mode is not TlsMode.DISABLED
        self.certificate = CertificateKeeper(TlsFiles.of(settings)) if is_tls else None
        self._bound: list[tuple[ListenAddress, list[socket.socket]]] = []
        self._servers: list[child.UvicornServer] = []
        self._serving: list[asyncio.Task[None]] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._proxies = settings.proxies
        try:
            for address in addresses_of(settings):
                if not address.is_grpc:
                    sockets = listening.bind(address.host, address.port, address.option, shared=settings.fronts > 1)
                    self._bound.append((address, sockets))
        except listening.AddressError:
            self.close()
            raise

    def serve(self, app: ASGIApp) -> list[asyncio.Task[None]]:
        connections = Connections()
        protocol = functools.partial(BoundedHttpProtocol, connections)
        for address, sockets in self._bound:
            server = child.UvicornServer(http_config(app, address.host, address.port, protocol, self._proxies))
            self._servers.append(server)
            # uvicorn has the connections over TLS from the end of their handshakes on.
            self._serving.append(asyncio.create_task(server.serve([] if address.is_tls else sockets)))
            if address.is_tls:
                assert self.certificate is not None
                make_http = functools.partial(
                    protocol, config=server.config, server_state=server.server_state, app_state={}
                )
                acceptor = TlsAcceptor(connections, self.certificate.context, make_http)
                for one in sockets:
                    one.listen(server.config.backlog)
                    one.setblocking(False)
                    self._accepting.append(asyncio.create_task(acceptor.run(one)))
        return [*self._serving, *self._accepting]

    async def started(self) -> None:
        for server, serving in zip(self._servers, self._serving, strict=True):
            while not (server.started or serving.done()):
                await asyncio.sleep(0.01)
            if serving.done():
                await serving

    def connections(self) -> int:
        return sum(len(server.server_state.connections) for server in self._servers)

    async def watch(self) -> None:
        if self.certificate is not None:
            await self.certificate.watch()
        await asyncio.Event().wait()

    async def stop(self) -> None:
        """Ends serving: requests under way may end within FRONT_DRAIN_S_MAX; raises what an address failed with."""
        for accepting in self._accepting:
            accepting.cancel()
        accepted = await asyncio.gather(*self._accepting, return_exceptions=True)
        for address, sockets in self._bound:
            if address.is_tls:
                listening.close(sockets)
        for server in self._servers:
            server.should_exit = True
        await asyncio.gather(*self._serving)
        for result in accepted:
            if isinstance(result, Exception):
                raise result

    def close(self) -> None:
        for _, sockets in self._bound:
            listening.close(sockets)


# --- front log ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FrontLog:
    """The event log as one of several fronts has it: over each of its writers is a commit that many requests share."""

    writers: Mapping[int, PartitionWriter]
    commits: Mapping[int, ChunkCommit[Entries | Forwarded]]
    partitions: Partitions
    producers: Producers
    stored: StoredBytes
    once: Mapping[int, DeduplicatingWriter]

    def lacking(self) -> dict[str, int]:
        """Brokers, as "namespace/name", in how many partitions they may store an event twice now."""
        return Counter(path_of(broker) for one in self.once.values() for broker in one.lacking())

    def ends(self) -> dict[int, int]:
        return {partition: writer.next_offset for partition, writer in self.writers.items()}

    @property
    def problem(self) -> str:
        return next((commit.problem for commit in self.commits.values() if commit.problem), "")

    async def probe(self) -> None:
        """Notices that a disk has room again, also when no event comes; until it is cancelled."""
        while True:
            await asyncio.sleep(LOG_PROBE_S)
            for commit in self.commits.values():
                await commit.probe()


@contextlib.asynccontextmanager
async def front_log(
    settings: Settings, number: int, windows: Mapping[str, int] = MappingProxyType({})
) -> AsyncIterator[FrontLog]:
    """Opens the log for a front; at the block's end everything that waits is stored and closed.

    `windows` are those of the brokers that store an event once, by their identities, microseconds.
    """
    directory = LogDirectory(settings.log_directory, settings.on_corrupt)
    async with contextlib.AsyncExitStack() as stack:
        writers = {}
        for one in range(settings.partitions):
            if front_of(one, settings.fronts) == number:
                wakeups, partition = Wakeups(), directory.partition(one)
                check_events(partition)
                size = settings.segment_mb << 20
                writer = PartitionWriter(partition, EVENT_SCHEMA, segment_bytes_max=size, on_growth=wakeups.grown)
                writers[one] = stack.enter_context(contextlib.closing(writer))
                await stack.enter_async_context(wakeups.listening(settings.log_wakeups(one)))
        stored = StoredBytes(directory, number, writers)
        once = {
            one: DeduplicatingWriter(
                CountingWriter(writer, stored, one), events_max=DEDUPLICATION_EVENTS_MAX // len(writers)
            )
            for one, writer in writers.items()
        }
        commits = {one: event_commit(writer) for one, writer in once.items()}
        owners = {
            one: OwnerLink(settings.front_log_socket(one), number) for one in range(settings.fronts) if one != number
        }

        async def elsewhere(broker: str, producer: str) -> dict[int, int]:
            asked = [asyncio.to_thread(owner.newest, broker, producer) for owner in owners.values()]
            return {partition: number for one in await asyncio.gather(*asked) for partition, number in one.items()}

        producers = Producers(directory, number, elsewhere if owners else None)
        every = []
        for one in range(settings.partitions):
            if (commit := commits.get(one)) is None:
                remote = RemotePartition(owners[front_of(one, settings.fronts)], one)
                stack.callback(remote.close)
                commit = event_commit(remote)
                stack.push_async_callback(commit.close)
            every.append(commit)
        log = FrontLog(writers, commits, Partitions(every, tuple(commits)), producers, stored, once)
        await asyncio.to_thread(producers.recover, log.ends())
        for one, known in once.items():
            await asyncio.to_thread(known.recover, directory.partition(one), windows)
        stack.push_async_callback(_close, log)
        if owners:
            others = FrontOwner(commits, producers)
            await stack.enter_async_context(others.listening(settings.front_log_socket(number)))
        yield log


async def _close(log: FrontLog) -> None:
    for commit in log.commits.values():
        await commit.close()
    await log.producers.try_snapshot(log.ends())
    await asyncio.to_thread(log.stored.close)


# --- the process ----------------------------------------------------------------------------------

_log = structlog.get_logger(__name__)


async def sample(
    writers: Sequence[PartitionWriter], part: str, http: HttpListeners, on_sample: Callable[[], None]
) -> None:
    """Sets the front's gauges every METRICS_WRITE_S; `writers` is empty where Kafka has the log."""
    while True:
        on_sample()
        metrics.CONNECTIONS.set(http.connections())
        if http.certificate is not None:
            metrics.CERTIFICATE_EXPIRES.labels(part).set(http.certificate.ends_s())
        if writers:
            metrics.LOG_RECORDS.labels("events").set(sum(w.next_offset - w.first_offset for w in writers))
            try:
                metrics.LOG_BYTES.labels("events").set(await asyncio.to_thread(bytes_on_disk, writers))
            except OSError as error:
                _log.debug("gauges not sampled", error=str(error))
        await asyncio.sleep(METRICS_WRITE_S)


def bytes_on_disk(writers: Sequence[PartitionWriter]) -> int:
    """Bytes of the partitions' segments."""
    return sum(path.stat().st_size for writer in writers for path in writer.directory.glob("*.seg"))


_OTHER_FILES = 1_024
"""Segments, the database, the event loop's own."""


@dataclass(frozen=True, kw_only=True)
class FrontStore:
    """Where a front's events go; `brokers` are those of `objects`, perhaps not as of now.

    `checks` is what /readyz looks at here; each of `work` lasts until it is cancelled. None for `api` is this server's
    process `control`, for `inquiries` (what became of an event) `api`, for `dispatchers`, `calls` and `fronts` (who
    share quotas) this server's; for `stored`, the bytes of a namespace in this front's partitions, nobody counts them.
    `lacking` says which brokers, as "namespace/name", may store an event twice that they are to store once. `routes`
    are for other processes of this server, and `door` takes what other servers send before anybody asks for a user.
    """

    objects: Store
    brokers: ServedBrokers
    partitions: EventPartitions
    producers: ProducerStreams
    checks: Mapping[str, Callable[[], str]]
    work: Sequence[Coroutine[Any, Any, None]]
    writers: Sequence[PartitionWriter] = ()
    api: ASGIApp | None = None
    inquiries: ASGIApp | None = None
    dispatchers: DispatcherReach | None = None
    fronts: int | None = None
    stored: Callable[[str], int] | None = None
    lacking: Callable[[], Mapping[str, int]] = dict
    calls: ServiceCalls | None = None
    routes: Sequence[Route] = ()
    door: Callable[[ASGIApp], ASGIApp] = lambda app: app


OpenStore = Callable[[child.Context, asyncio.Event], AbstractAsyncContextManager[FrontStore]]
"""The event says that the process is told to stop."""


@contextlib.asynccontextmanager
async def _own_log(context: child.Context, _stop: asyncio.Event) -> AsyncIterator[FrontStore]:
    settings = context.settings
    async with contextlib.AsyncExitStack() as stack:
        objects = stack.enter_context(contextlib.closing(Store.open(settings.data / "control.db")))
        brokers = ServedBrokers(objects)
        await asyncio.to_thread(brokers.refresh)
        log = await stack.enter_async_context(front_log(settings, context.part.index, brokers.windows()))
        yield FrontStore(
            objects=objects,
            brokers=brokers,
            partitions=log.partitions,
            producers=log.producers,
            checks={"log": lambda: log.problem},
            work=(
                retention.trim_log(settings, log.writers),
                log.producers.keep(log.ends),
                log.probe(),
                log.stored.keep(),
            ),
            writers=tuple(log.writers.values()),
            stored=log.stored.of,
            lacking=log.lacking,
        )


def run(context: child.Context, opened: OpenStore = _own_log) -> None:
    """Serves until told to stop."""
    sys.setswitchinterval(THREAD_SWITCH_S)
    uvloop.run(_serve(context, opened))


async def _serve(context: child.Context, opened: OpenStore = _own_log) -> None:
    settings, number = context.settings, context.part.index
    drain, stop = asyncio.Event(), asyncio.Event()
    child.on_drain(child.setter(drain))
    child.raise_file_limit(2 * CONNECTIONS_MAX + _OTHER_FILES)  # a request that is passed on has two
    child.on_stop(child.setter(stop))
    async with contextlib.AsyncExitStack() as stack:
        # Before anything works: uvicorn would leave the loop by SystemExit where an address is taken.
        http = HttpListeners(settings)
        if (audit := audit_log_of(settings)) is not None:
            stack.enter_context(audit)
        authentication = Authentication(authenticator_of(settings), audit)
        stack.callback(http.close)
        store = await stack.enter_async_context(opened(context, stop))
        brokers = store.brokers
        board = QuotaBoard(settings.usage_directory, context.part.name)
        quotas = PublishQuotas(
            store.objects, store.fronts or settings.fronts, board=board, stored=store.stored, lacking=store.lacking
        )
        rights = Rights(settings, store.objects)
        authorization = Authorization(rights.grants.authorizer, store.objects.targets.ceiling_of)
        routes = [news_route(brokers, quotas, *rights.copies), *store.routes]
        own = Starlette(routes=routes, exception_handlers=ERROR_HANDLERS)
        await stack.enter_async_context(local_http.answering(own, settings.front_socket(number)))
        await asyncio.to_thread(rights.refresh)
        await asyncio.to_thread(quotas.refresh)
        await asyncio.to_thread(brokers.refresh)  # they are known before the first request, and whatever comes is told
        workers = FilterWorkers()
        stack.push_async_callback(workers.close)
        kept = stack.enter_context(contextlib.closing(KeptConnections()))
        fallback = NoDeliveries(other_paths(settings, store, rights.grants, workers, kept))
        tracer = tracing.configure(context.part.name)
        events = EventGate(rights.events) if rights.events is not None else None
        intake = Intake(store.partitions, brokers.get, tracing=tracer, quotas=quotas, gate=events)
        ingress = Ingress(intake, fallback, context.token)
        child.spare_collector()
        gate = Gate(ingress, context.token)
        report = ready.PartReport(settings.run_directory, context.part.name)
        await stack.enter_async_context(local_http.answering(UsersOfFronts(gate), settings.front_inward(number)))
        asked = authentication.requests(authorization.requests(gate))
        serving = http.serve(HostCheck(store.door(asked), Hosts.of(settings)))
        sampling = sample(store.writers, context.part.name, http, report.beat)
        following = follow(brokers, quotas, *rights.copies)
        work = (following, quotas.share(), sampling, *store.work, http.watch(), authentication.keep())
        tasks = [asyncio.create_task(one) for one in work]
        await http.started()
        group = DispatcherGroup(LocalDispatchers(settings), store.objects)
        consuming = store.calls or rpc.to_dispatchers(settings, group.owner_of_call)
        publishing = PublishRpc(intake, store.producers).service()
        async with rpc.front(settings, publishing, consuming, number, http.certificate, authentication, authorization):
            report.ready(True)
            stopped = asyncio.create_task(stop.wait())
            ends = [*serving, stopped, *tasks]
            await asyncio.wait([*ends, asyncio.create_task(drain.wait())], return_when=asyncio.FIRST_COMPLETED)
            gate.close()
            report.ready(False)
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        await http.stop()
        failure = await child.ended(*tasks)
        if tracer is not None:
            await asyncio.to_thread(tracer.close)
        if failure is not None:
            raise failure


def other_paths(
    settings: Settings, store: FrontStore, grants: Grants, workers: FilterWorkers, kept: KeptConnections
) -> Starlette:
    """Every path that is no publisher's: health, and what the other processes answer."""
    # Path by path and not as mounts: other paths below the same prefixes are the API's.
    roles = parts.roles_of(settings)
    reach = store.dispatchers or LocalDispatchers(settings, kept)
    group = DispatcherGroup(reach, store.objects)
    owner = reach.subscriptions(group)
    reader: ASGIApp = ProcessProxy(settings.reader_socket, kept) if Role.READER in roles else RoleAbsent(Role.READER)
    pulling = [Route(f"{PULL_PATH}/{name}", owner, methods=list(methods)) for name, methods in PULL_METHODS.items()]
    replays = ReplaysFront(group, grants)
    config = settings.authentication_config
    issuers = read(config) if config is not None else ()
    sign_in = sign_in_of(issuers, settings.console_client_id, available=settings.has_authentication)
    keeping = [*DeadLettersFront(group).routes(), *replays.routes()]
    control = store.api or ProcessProxy(settings.control_socket, kept)
    asked = (WHY_TRIGGER, *OF_BROKERS, *stats_paths(Kind.TRIGGER), SUMMARY, SUMMARY_OF_NAMESPACE)
    asking = [Route(path, store.inquiries or control, methods=["GET"]) for path in asked]
    return Starlette(
        routes=[
            *health.routes(settings, store.checks),
            *ConsoleRoutes(sign_in, on_open=workers.warm).routes(),
            Route("/{namespace}/{broker}/events", reader, methods=["GET"]),
            *pulling,
            *filter_routes(workers),
            *replays.beginning(),
            *reach.routes([*keeping, *asking]),
            Mount("/", control),
        ],
        exception_handlers=ERROR_HANDLERS,
    )
