"""The process that clients talk to: ingress and its log, the API and its objects, health and metrics on one port.

What other processes own they answer themselves: the front passes such requests on.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
from collections.abc import Callable, Mapping, Sequence

import structlog
import uvloop
from starlette.applications import Starlette
from starlette.routing import Mount, Route

from headgate.control.admission import Admission
from headgate.control.api import ControlApi
from headgate.control.database import StoreUnavailableError
from headgate.control.http import ERROR_HANDLERS
from headgate.control.manifests import load
from headgate.control.recompile import recompile_all
from headgate.control.reconciler import Reconciler
from headgate.control.store import Store
from headgate.deadletters.api import PATHS as DEAD_LETTER_PATHS
from headgate.event.arrow import EVENT_SCHEMA
from headgate.ingress.app import Ingress
from headgate.ingress.encode import Entries, check_events, event_commit
from headgate.ingress.intake import Intake
from headgate.ingress.partitions import Partitions
from headgate.ingress.producers import Producers
from headgate.ingress.protocol import http_config
from headgate.ingress.publish_rpc import PublishRpc
from headgate.inspect.api import InspectApi
from headgate.inspect.records import Records
from headgate.limits import CONNECTIONS_MAX, GC_YOUNG_OBJECTS, LOG_PROBE_S, THREAD_SWITCH_S
from headgate.log.commit import GroupCommit
from headgate.log.writer import PartitionWriter
from headgate.observe import tracing
from headgate.replay.api import PATHS as REPLAY_PATHS
from headgate.server import child, health, listening, ready, retention, rpc
from headgate.server.deliveries import NoDeliveries
from headgate.server.gate import Gate
from headgate.server.hosts import HostCheck, Hosts
from headgate.server.policy import url_policy
from headgate.server.proxy import ProcessProxy
from headgate.server.sampling import sample
from headgate.settings import Settings
from headgate.subscriptions.api import METHODS as PULL_METHODS
from headgate.subscriptions.api import PREFIX as PULL_PATH

_OTHER_FILES = 1_024
"""Segments, the database, the event loop's own."""
_log = structlog.get_logger()


def run(context: child.Context) -> None:
    """Serves until told to stop."""
    sys.setswitchinterval(THREAD_SWITCH_S)
    uvloop.run(_serve(context.settings, context.token))


async def _serve(settings: Settings, token: bytes) -> None:
    loop, drain, stop = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
    child.on_drain(lambda: loop.call_soon_threadsafe(drain.set))
    child.raise_file_limit(CONNECTIONS_MAX + _OTHER_FILES)
    child.on_stop(lambda: loop.call_soon_threadsafe(stop.set))
    with contextlib.ExitStack() as stack:
        # Before anything works: uvicorn would leave the loop by SystemExit where an address is taken.
        sockets = listening.bind(settings.host, settings.port, "--listen")
        stack.callback(listening.close, sockets)
        store = stack.enter_context(contextlib.closing(Store.open(settings.data / "control.db")))
        store.set_public_url(settings.url)
        policy = url_policy(settings)
        if settings.manifests is not None:
            _log.info("manifests applied", **load(Admission(store, policy), settings.manifests))
        writers = [stack.enter_context(contextlib.closing(_writer(settings, p))) for p in range(settings.partitions)]
        commits = [event_commit(writer) for writer in writers]
        reconciler = Reconciler(store)
        api = ControlApi(store, policy)
        checks = {"log": lambda: _log_problem(commits), "control": lambda: _store_problem(store)}
        fallback = NoDeliveries(other_paths(settings, store, api, checks))
        await asyncio.to_thread(reconciler.step)  # brokers are known before the first request
        tracer = tracing.configure("front")
        intake = Intake(Partitions(commits), reconciler.served, tracing=tracer)
        ingress = Ingress(intake, fallback)
        producers = Producers(settings.log_directory)
        await asyncio.to_thread(producers.recover, _ends(writers))
        reconciling = asyncio.create_task(reconciler.run(stop))
        gc.freeze()  # what start-up made lives as long as the process: the collector need not look at it again
        gc.set_threshold(GC_YOUNG_OBJECTS)
        gate = Gate(ingress, token)
        mark = ready.Mark(settings.run_directory, "front")
        app = HostCheck(gate, Hosts(settings.host, settings.allowed_hosts))
        server = child.UvicornServer(http_config(app, settings.host, settings.port))
        serving = asyncio.create_task(server.serve(sockets))
        sampling = sample(
            settings,
            store,
            writers,
            brokers=lambda: reconciler.brokers_served,
            connections=lambda: len(server.server_state.connections),
            on_sample=mark.beat,
        )
        trimming = retention.trim_log(settings, dict(enumerate(writers)))
        remembering = producers.keep(lambda: _ends(writers))
        work = (_recompile(store, mark.note), sampling, trimming, remembering, _probe(commits))
        tending = [asyncio.create_task(one) for one in work]
        while not (server.started or serving.done()):
            await asyncio.sleep(0.01)
        if serving.done():
            await serving
        async with rpc.front(settings, PublishRpc(intake, producers).service()):
            mark.ready(server.started)
            stopped = asyncio.create_task(stop.wait())
            ends = [serving, stopped, reconciling, *tending]
            await asyncio.wait([*ends, asyncio.create_task(drain.wait())], return_when=asyncio.FIRST_COMPLETED)
            gate.close()
            mark.ready(False)
            api.close()
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        server.should_exit = True
        await serving
        stop.set()
        failure = await _ended(reconciling, *tending)
        for commit in commits:
            await commit.close()
        await producers.try_snapshot(_ends(writers))
        if tracer is not None:
            await asyncio.to_thread(tracer.close)
        if failure is not None:
            raise failure


async def _recompile(store: Store, note: Callable[[str], None]) -> None:
    """Compiles stored filters anew where that is due; never ends, as the end of a task ends the process."""
    await recompile_all(store, note)
    await asyncio.Event().wait()


async def _ended(reconciling: asyncio.Task[None], *tending: asyncio.Task[None]) -> BaseException | None:
    """Waits for what works beside the requests, told to stop or cancelled here; returns an error nobody expected.

    Whoever raises it ends the process, which begins anew: none of this may stay undone for as long as it lives.
    """
    for task in tending:
        task.cancel()
    ends = await asyncio.gather(reconciling, *tending, return_exceptions=True)
    failures = [end for end in ends if end is not None and not isinstance(end, asyncio.CancelledError)]
    for failure in failures:
        _log.error("front fails", exc_info=failure)
    return failures[0] if failures else None


def other_paths(
    settings: Settings, store: Store, api: ControlApi, checks: Mapping[str, Callable[[], str]]
) -> Starlette:
    """Every path that is no publisher's: health, the API, and what the reader and the dispatcher answer."""
    # Path by path and not as mounts: other paths below the same prefixes are the API's.
    reader, dispatcher = ProcessProxy(settings.reader_socket), ProcessProxy(settings.dispatcher_socket)
    return Starlette(
        routes=[
            *health.routes(settings, checks),
            *InspectApi(Records(settings.data), store).routes(),
            Route("/{namespace}/{broker}/events", reader, methods=["GET"]),
            *(
                Route(f"{PULL_PATH}/{name}", dispatcher, methods=list(methods))
                for name, methods in PULL_METHODS.items()
            ),
            *(Route(path, dispatcher) for path in (*DEAD_LETTER_PATHS, *REPLAY_PATHS)),
            Mount("/", api.app),
        ],
        exception_handlers=ERROR_HANDLERS,
    )


def _ends(writers: Sequence[PartitionWriter]) -> dict[int, int]:
    return {partition: writer.next_offset for partition, writer in enumerate(writers)}


def _log_problem(commits: Sequence[GroupCommit[Entries]]) -> str:
    return next((commit.problem for commit in commits if commit.problem), "")


async def _probe(commits: Sequence[GroupCommit[Entries]]) -> None:
    """Notices that a disk has room again, also when no event comes."""
    while True:
        await asyncio.sleep(LOG_PROBE_S)
        for commit in commits:
            await commit.probe()


def _store_problem(store: Store) -> str:
    try:
        store.version()
    except StoreUnavailableError as error:
        return error.message
    return ""


def _writer(settings: Settings, partition: int) -> PartitionWriter:
    directory = settings.log_directory / str(partition)
    check_events(directory)
    return PartitionWriter(directory, EVENT_SCHEMA, segment_bytes_max=settings.segment_mb << 20)
