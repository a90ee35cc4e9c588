"""The process that clients talk to: ingress and its log, health and metrics, on one port with everything else.

What other processes own they answer themselves: the front passes such requests on.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import structlog
import uvloop
from starlette.applications import Starlette
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from headgate.auth.configuration import read
from headgate.console.routes import ConsoleRoutes, sign_in_of
from headgate.control.copies import ServedBrokers
from headgate.control.grants import Grants
from headgate.control.http import ERROR_HANDLERS
from headgate.control.quotas import QuotaBoard
from headgate.control.store import Store
from headgate.ingress.app import Ingress
from headgate.ingress.event_gate import EventGate
from headgate.ingress.intake import Intake
from headgate.ingress.partitions import EventPartitions
from headgate.ingress.producers import ProducerStreams
from headgate.ingress.publish_quota import PublishQuotas
from headgate.ingress.publish_rpc import PublishRpc
from headgate.inspect.api import OF_BROKERS, WHY_TRIGGER
from headgate.log.writer import PartitionWriter
from headgate.observe import metrics, tracing
from headgate.rpc.service import ServiceCalls
from headgate.server import child, health, local_http, parts, ready, retention, rpc
from headgate.server.authentication import Authentication, UsersOfFronts, audit_log_of, authenticator_of
from headgate.server.authorization import Authorization, Rights
from headgate.server.broker_news import news_route
from headgate.server.dead_letters import DeadLettersFront
from headgate.server.dispatcher_group import DispatcherGroup, DispatcherReach, LocalDispatchers
from headgate.server.filter_workers import FiltersApi, FilterWorkers
from headgate.server.front_log import front_log
from headgate.server.hosts import HostCheck, Hosts
from headgate.server.http_listeners import HttpListeners
from headgate.server.parts import Role
from headgate.server.proxy import ProcessProxy
from headgate.server.refusals import Gate, NoDeliveries, RoleAbsent
from headgate.server.replays import ReplaysFront
from headgate.server.target_stats import SUMMARY, SUMMARY_OF_NAMESPACE, stats_paths
from headgate.settings import Settings
from headgate.subscriptions.api import METHODS as PULL_METHODS
from headgate.subscriptions.api import PREFIX as PULL_PATH
from headgate_api.control.objects import Kind
from headgate_api.limits import CONNECTIONS_MAX, METRICS_WRITE_S, THREAD_SWITCH_S

_log = structlog.get_logger(__name__)


async def sample(
    writers: Sequence[PartitionWriter], part: str, http: HttpListeners, on_sample: Callable[[], None]
) -> None:
    """Sets the front's gauges once a second, until it is cancelled; `writers` is empty where Kafka has the log."""
    while True:
        on_sample()
        metrics.CONNECTIONS.set(http.connections())
        if http.certificate is not None:
            metrics.CERTIFICATE_EXPIRES.labels(part).set(http.certificate.ends_s())
        if not writers:
            await asyncio.sleep(METRICS_WRITE_S)
            continue
        metrics.LOG_RECORDS.labels("events").set(sum(w.next_offset - w.first_offset for w in writers))
        try:
            size_bytes = await asyncio.to_thread(lambda: sum(map(bytes_on_disk, writers)))
            metrics.LOG_BYTES.labels("events").set(size_bytes)
        except OSError as error:
            _log.debug("gauges not sampled", error=str(error))
        await asyncio.sleep(METRICS_WRITE_S)


def bytes_on_disk(writer: PartitionWriter) -> int:
    """Bytes of a partition's segments."""
    return sum(path.stat().st_size for path in writer.directory.glob("*.seg"))


_OTHER_FILES = 1_024
"""Segments, the database, the event loop's own."""


@dataclass(frozen=True, kw_only=True)
class FrontStore:
    """Where a front's events go.

    `checks` is what /readyz looks at in this process; each of `work` lasts until it is cancelled. Where they are None:
    `api` is this server's process `control`, `inquiries` (what became of an event) is `api`, `dispatchers` and `calls`
    are this server's, `fronts` (who share the quotas of namespaces) are as many as it has, and nobody counts `stored`,
    the bytes of a namespace in the partitions of this front.
    """

    objects: Store
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
    calls: ServiceCalls | None = None


OpenStore = Callable[[child.Context, asyncio.Event], AbstractAsyncContextManager[FrontStore]]
"""Opens the store of a front for as long as a block lasts; the event says that the process is told to stop."""


def run(context: child.Context) -> None:
    """Serves until told to stop, with a log of its own."""
    run_with(context, _own_log)


def run_with(context: child.Context, opened: OpenStore) -> None:
    """Serves until told to stop."""
    sys.setswitchinterval(THREAD_SWITCH_S)
    uvloop.run(_serve(context, opened))


@contextlib.asynccontextmanager
async def _own_log(context: child.Context, _stop: asyncio.Event) -> AsyncIterator[FrontStore]:
    settings = context.settings
    async with contextlib.AsyncExitStack() as stack:
        objects = stack.enter_context(contextlib.closing(Store.open(settings.data / "control.db")))
        log = await stack.enter_async_context(front_log(settings, context.part.index))
        yield FrontStore(
            objects=objects,
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
        )


async def _serve(context: child.Context, opened: OpenStore = _own_log) -> None:
    settings, number = context.settings, context.part.index
    drain, stop = asyncio.Event(), asyncio.Event()
    child.on_drain(child.setter(drain))
    child.raise_file_limit(2 * CONNECTIONS_MAX + _OTHER_FILES)  # a request that is passed on has two
    child.on_stop(child.setter(stop))
    async with contextlib.AsyncExitStack() as stack:
        # Before anything works: uvicorn would leave the loop by SystemExit where an address is taken.
        http = HttpListeners(settings)
        audit = audit_log_of(settings)
        if audit is not None:
            stack.enter_context(audit)
        authentication = Authentication(authenticator_of(settings), audit)
        stack.callback(http.close)
        store = await stack.enter_async_context(opened(context, stop))
        brokers = ServedBrokers(store.objects)
        board = QuotaBoard(settings.usage_directory, context.part.name)
        quotas = PublishQuotas(store.objects, store.fronts or settings.fronts, board=board, stored=store.stored)
        rights = Rights(settings, store.objects)
        authorization = Authorization(rights.grants.authorizer)
        own = Starlette(routes=[news_route(brokers, quotas, *rights.copies)], exception_handlers=ERROR_HANDLERS)
        await stack.enter_async_context(local_http.answering(own, settings.front_socket(number)))
        await asyncio.to_thread(rights.refresh)
        await asyncio.to_thread(quotas.refresh)
        await asyncio.to_thread(brokers.refresh)  # they are known before the first request, and whatever comes is told
        workers = FilterWorkers()
        stack.push_async_callback(workers.close)
        fallback = NoDeliveries(other_paths(settings, store, rights.grants, workers))
        tracer = tracing.configure(context.part.name)
        events = EventGate(rights.events) if rights.events is not None else None
        intake = Intake(store.partitions, brokers.get, tracing=tracer, quotas=quotas, gate=events)
        ingress = Ingress(intake, fallback, context.token)
        child.spare_collector()
        gate = Gate(ingress, context.token)
        report = ready.PartReport(settings.run_directory, context.part.name)
        await stack.enter_async_context(local_http.answering(UsersOfFronts(gate), settings.front_inward(number)))
        serving = http.serve(HostCheck(authentication.requests(authorization.requests(gate)), Hosts.of(settings)))
        sampling = sample(store.writers, context.part.name, http, report.beat)
        following = (brokers.follow(), quotas.follow(), quotas.share(), rights.follow())
        work = (*following, sampling, *store.work, http.watch(), authentication.keep())
        tasks = [asyncio.create_task(one) for one in work]
        await http.started()
        consuming = store.calls or rpc.to_dispatchers(
            settings, DispatcherGroup(LocalDispatchers(settings), store.objects).owner_of_call
        )
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


def other_paths(settings: Settings, store: FrontStore, grants: Grants, workers: FilterWorkers) -> Starlette:
    """Every path that is no publisher's: health, and what the other processes answer."""
    # Path by path and not as mounts: other paths below the same prefixes are the API's.
    roles = parts.roles_of(settings)
    reach = store.dispatchers or LocalDispatchers(settings)
    group = DispatcherGroup(reach, store.objects)
    owner = reach.subscriptions(group)
    reading = [Route("/{namespace}/{broker}/events", ProcessProxy(settings.reader_socket), methods=["GET"])]
    pulling = [Route(f"{PULL_PATH}/{name}", owner, methods=list(methods)) for name, methods in PULL_METHODS.items()]
    replays = ReplaysFront(group, grants)
    config = settings.authentication_config
    sign_in = sign_in_of(
        read(config) if config is not None else (),
        settings.console_client_id,
        available=settings.has_authentication,
    )
    keeping = [*DeadLettersFront(group).routes(), *replays.routes()]
    control = store.api or ProcessProxy(settings.control_socket)
    asked = (WHY_TRIGGER, *OF_BROKERS, *stats_paths(Kind.TRIGGER), SUMMARY, SUMMARY_OF_NAMESPACE)
    asking = [Route(path, store.inquiries or control, methods=["GET"]) for path in asked]
    return Starlette(
        routes=[
            *health.routes(settings, store.checks),
            *ConsoleRoutes(sign_in, on_open=workers.warm).routes(),
            *(reading if Role.READER in roles else RoleAbsent(Role.READER).routes(reading)),
            *pulling,
            *FiltersApi(workers).routes(),
            *replays.beginning(),
            *reach.routes([*keeping, *asking]),
            Mount("/", control),
        ],
        exception_handlers=ERROR_HANDLERS,
    )
