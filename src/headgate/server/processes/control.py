"""The process of the objects: API, admission, statuses, compiling. Alone, so that no large list delays a producer."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import structlog
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount
from starlette.types import ASGIApp

from headgate.auth.authorizer import Authorizer
from headgate.deadletters.own import opaque_ids
from headgate.inspect.api import InspectApi
from headgate.inspect.backtest import Backtests
from headgate.inspect.catalogue import Catalogues, EventTypeCreator
from headgate.inspect.file_records import FileRecords
from headgate.inspect.find import Records, RecordsBelow
from headgate.inspect.log_follower import LogFollower
from headgate.log.directory import LogDirectory
from headgate.objects.api.admission import Admission
from headgate.objects.api.api import ControlApi
from headgate.objects.api.bootstrap import bootstrap, load, recompile_all, reseal_all
from headgate.objects.api.http import ERROR_HANDLERS
from headgate.objects.api.queries import user_of
from headgate.objects.kinds.status import ServerUrls
from headgate.objects.store.database import StoreUnavailableError
from headgate.objects.store.quota_usage import usage_in
from headgate.objects.store.reconciler import Reconciler
from headgate.objects.store.signing_keys import tend_signing_keys
from headgate.objects.store.store import Store
from headgate.objects.views.copies import ServedBrokers, follow
from headgate.observe import metrics
from headgate.observe.history import NumbersHistory, counted_by
from headgate.scan.chunks import ChunkLog
from headgate.scan.pages import Scanner
from headgate.server import child, ready, tls
from headgate.server.authentication import UsersOfFronts
from headgate.server.authorization import Rights, default_mode
from headgate.server.listening import url_policy
from headgate.server.peers import local_http
from headgate.server.peers.dispatcher_group import DispatcherReach, LocalDispatchers
from headgate.server.peers.notify_fronts import tell_fronts
from headgate.server.peers.reader_client import ReaderScanner
from headgate.server.peers.target_stats import RemoteStats, matches
from headgate.server.stopped_filters import StoppedFiltersWatch
from headgate.server.summary import ObjectStatsApi, PartView, SummaryApi, keep, parts_of
from headgate.settings import Settings
from headgate.storage.files import directories_of
from headgate.storage.keyring import keyring_of
from headgate_api.limits import CONNECTIONS_MAX, METRICS_WRITE_S

_OTHER_FILES = 1_024
"""The database, files that are looked into, the event loop's own."""
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class ControlStore:
    """Where the objects are, and what else the process answers of: `answers` is what the fronts pass on.

    `works` and `loops` are for `child.until_stopped`.
    """

    objects: Store
    history: NumbersHistory
    catalogues: Catalogues
    answers: Callable[[ControlApi], ASGIApp]
    works: Callable[[ControlState], Sequence[Coroutine[Any, Any, None]]]
    loops: Sequence[Callable[[threading.Event], None]] = ()
    on_kafka: bool = False
    note: Callable[[], str] = lambda: ""


OpenStore = Callable[[child.Context, asyncio.Event], AbstractAsyncContextManager[ControlStore]]
"""Opens the store for as long as a block lasts, and lets the event hear that the process is told to stop."""


async def _serve(context: child.Context, opened: OpenStore) -> None:
    settings, stop = context.settings, asyncio.Event()
    child.raise_file_limit(CONNECTIONS_MAX + _OTHER_FILES)
    async with opened(context, stop) as store:
        rights = Rights(settings, store.objects)
        await asyncio.to_thread(rights.refresh)
        api = ControlApi(
            store.objects, url_policy(settings), rights.grants, on_kafka=store.on_kafka, seen=store.catalogues.names
        )
        report = ready.PartReport(settings.run_directory, context.part.name)
        state = ControlState(report, store.objects, store.note)

        def on_end() -> None:
            report.ready(False)
            api.close()

        async with local_http.answering(UsersOfFronts(store.answers(api)), settings.control_socket):
            followed = follow(*rights.copies), store.catalogues.follower.run()
            works = (*followed, state.show(), keep(store.history), *store.works(state))
            await child.until_stopped(stop, works, store.loops, on_end)


@contextlib.asynccontextmanager
async def _own_store(context: child.Context, stop: asyncio.Event) -> AsyncIterator[ControlStore]:
    settings = context.settings
    child.on_stop(child.setter(stop))
    with contextlib.closing(Store.open(settings.data / "control.db", keys=keyring_of(settings))) as store:
        store.secrets.check_keys()
        tell_fronts(store, settings)
        store.public_url.set(settings.url)
        policy = url_policy(settings)
        await asyncio.to_thread(bootstrap, Admission(store, policy))
        await apply_manifests(settings, Admission(store, policy))
        reconciler = Reconciler(
            store,
            server=urls_of(settings),
            usage=partial(usage_in, settings.usage_directory),
            rights=Rights(settings, store).grants,
        )
        await asyncio.to_thread(reconciler.step)
        await asyncio.to_thread(store.signing_keys.tend)
        await asyncio.to_thread(store.server_secret.prepare)
        history = own_history(settings)
        follower = LogFollower(ChunkLog(LogDirectory(settings.log_directory, settings.on_corrupt)))
        catalogues = Catalogues(follower, store)

        def works(state: ControlState) -> list[Coroutine[Any, Any, None]]:
            found = [
                reconciler.run(stop),
                child.lasting(recompile_all(store, state.compiling)),
                child.lasting(reseal_all(store.secrets)),
                tend_signing_keys(store.signing_keys),
                StoppedFiltersWatch(store, partial(matches, LocalDispatchers(settings).sockets), history).run(),
            ]
            if settings.eventtype_auto_create:
                found.append(EventTypeCreator(Admission(store, policy), follower).run())
            return found

        yield ControlStore(
            objects=store,
            history=history,
            catalogues=catalogues,
            answers=lambda api: paths(settings, store, api, history, catalogues),
            works=works,
        )


def run(context: child.Context, opened: OpenStore = _own_store) -> None:
    """Serves until told to stop."""
    uvloop.run(_serve(context, opened))


def paths(
    settings: Settings,
    store: Store,
    api: ControlApi,
    history: NumbersHistory | None = None,
    catalogues: Catalogues | None = None,
) -> Starlette:
    """What the fronts pass on, of a server that keeps everything itself."""
    log = LogDirectory(settings.log_directory, settings.on_corrupt)
    catalogues = catalogues or Catalogues(LogFollower(ChunkLog(log)), store)
    records = FileRecords(settings.data, log, settings.dispatchers, catalogues.follower)
    return application(
        store,
        api,
        LocalDispatchers(settings),
        history or own_history(settings),
        catalogues,
        records=records_for(records, store, api.authorizer),
        parts=partial(parts_of, settings),
        counter=ReaderScanner(settings.reader_socket),
        log=log,
        letters=[own.dead_letters for own in directories_of(settings.data, settings.dispatchers)],
    )


def records_for(every: Records, store: Store, authorizer: Authorizer) -> Callable[[Request], Records]:
    """Gives of all records what the client of a request may have."""
    below = RecordsBelow(every, partial(opaque_ids, store.server_secret))
    return lambda request: below if authorizer.has_ceilings(user_of(request), "") else every


def application(
    store: Store,
    api: ControlApi,
    dispatchers: DispatcherReach,
    history: NumbersHistory,
    catalogues: Catalogues,
    *,
    records: Callable[[Request], Records],
    parts: Callable[[], Iterable[PartView]],
    counter: Scanner,
    log: LogDirectory | None = None,
    letters: Sequence[Path] = (),
) -> Starlette:
    """What the fronts pass on, in every deployment: the API of objects, what became of events, the numbers of both.

    Without a `log` the events are in Kafka.
    """
    every = [
        *InspectApi(records, store, catalogues, authorizer=api.authorizer, log=log).routes(),
        *SummaryApi(store, parts, dispatchers, history, letters, api.authorizer).routes(),
        *Backtests(store, catalogues.follower.log, counter, authorizer=api.authorizer).routes(),
        *ObjectStatsApi(
            store, partial(RemoteStats, dispatchers, store.targets.id_of), history, api.authorizer
        ).routes(),
        Mount("/", api.app),
    ]
    return Starlette(routes=every, exception_handlers=ERROR_HANDLERS)


async def apply_manifests(settings: Settings, admission: Admission) -> None:
    """Applies the manifests that the settings name."""
    if settings.manifests is not None:
        counts = await asyncio.to_thread(load, admission, settings.manifests)
        _log.info("manifests applied", **counts)


def urls_of(settings: Settings) -> ServerUrls:
    """The server's own addresses, as statuses show them."""
    ca_certs = tls.read_ca(settings.tls_ca) if settings.tls_ca is not None else ""
    return ServerUrls(settings.urls, ca_certs, default_mode(settings))


def own_history(settings: Settings) -> NumbersHistory:
    """The history of what this server alone counts."""
    return NumbersHistory(lambda: {"": counted_by(settings.metrics_directory)})


class ControlState:
    """What the process says of itself, and its gauges. `note` has what else there is to say; empty for nothing."""

    def __init__(self, report: ready.PartReport, store: Store, note: Callable[[], str] = lambda: "") -> None:
        self._report = report
        self._store = store
        self._note = note
        self._brokers = ServedBrokers(store)
        self._compiling = ""

    def compiling(self, progress: str) -> None:
        """How far the compiling of stored filters is; empty when it is done."""
        self._compiling = progress
        self._report.note(progress)

    async def show(self) -> None:
        was: str | None = None
        while True:
            self._report.beat()
            problem, note = await asyncio.to_thread(lambda: (self._look(), self._note()))
            if problem != was:
                was = problem
                self._report.ready(not problem)
            self._report.note(problem or self._compiling or note)
            await asyncio.sleep(METRICS_WRITE_S)

    def _look(self) -> str:
        try:
            metrics.GENERATION_DESIRED.set(self._store.desired_generation())
            metrics.TRIGGERS_PAUSED.set(self._store.attention.paused())
            self._brokers.refresh()
            metrics.BROKERS.set(len(self._brokers))
        except StoreUnavailableError as error:
            return error.message
        return ""
