"""The process that clients talk to: ingress and its log, health and metrics, on one port with everything else.

What other processes own they answer themselves: the front passes such requests on.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
from collections.abc import Callable, Mapping

import uvloop
from starlette.applications import Starlette
from starlette.routing import Mount, Route

from headgate.control.grants import Grants
from headgate.control.http import ERROR_HANDLERS
from headgate.control.served import ServedBrokers
from headgate.control.store import Store
from headgate.ingress.app import Ingress
from headgate.ingress.intake import Intake
from headgate.ingress.publish_rpc import PublishRpc
from headgate.limits import CONNECTIONS_MAX, GC_YOUNG_OBJECTS, THREAD_SWITCH_S
from headgate.observe import tracing
from headgate.server import child, health, local_http, ready, retention, rpc, tending
from headgate.server.authentication import Authentication, audit_log_of, authenticator_of
from headgate.server.authorization import Authorization, grants_of
from headgate.server.broker_news import news_route
from headgate.server.dead_letters import DeadLettersFront
from headgate.server.deliveries import NoDeliveries
from headgate.server.dispatcher_group import DispatcherGroup, OwnerProxy
from headgate.server.front_log import front_log
from headgate.server.gate import Gate
from headgate.server.hosts import HostCheck, Hosts
from headgate.server.http_listeners import HttpListeners
from headgate.server.proxy import ProcessProxy
from headgate.server.replays import ReplaysFront
from headgate.server.sampling import sample
from headgate.settings import Settings
from headgate.subscriptions.api import METHODS as PULL_METHODS
from headgate.subscriptions.api import PREFIX as PULL_PATH

_OTHER_FILES = 1_024
"""Segments, the database, the event loop's own."""


def run(context: child.Context) -> None:
    """Serves until told to stop."""
    sys.setswitchinterval(THREAD_SWITCH_S)
    uvloop.run(_serve(context))


async def _serve(context: child.Context) -> None:
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
        store = stack.enter_context(contextlib.closing(Store.open(settings.data / "control.db")))
        log = await stack.enter_async_context(front_log(settings, number))
        brokers = ServedBrokers(store)
        grants, rights = grants_of(settings, store)
        authorization = Authorization(grants.authorizer)
        own = Starlette(routes=[news_route(brokers, rights)], exception_handlers=ERROR_HANDLERS)
        await stack.enter_async_context(local_http.answering(own, settings.front_socket(number)))
        await asyncio.to_thread(rights.refresh)
        await asyncio.to_thread(brokers.refresh)  # they are known before the first request, and whatever comes is told
        fallback = NoDeliveries(other_paths(settings, store, grants, {"log": lambda: log.problem}))
        tracer = tracing.configure(context.part.name)
        intake = Intake(log.partitions, brokers.get, tracing=tracer)
        ingress = Ingress(intake, fallback)
        gc.freeze()  # what start-up made lives as long as the process: the collector need not look at it again
        gc.set_threshold(GC_YOUNG_OBJECTS)
        gate = Gate(ingress, context.token)
        mark = ready.Mark(settings.run_directory, context.part.name)
        await stack.enter_async_context(local_http.answering(gate, settings.front_inward(number)))
        serving = http.serve(HostCheck(authentication.requests(authorization.requests(gate)), Hosts.of(settings)))
        sampling = sample(tuple(log.writers.values()), connections=http.connections, on_sample=mark.beat)
        trimming = retention.trim_log(settings, log.writers)
        remembering = log.producers.keep(log.ends)
        work = (
            *(copy.follow() for copy in (brokers, rights)),
            sampling,
            trimming,
            remembering,
            log.probe(),
            http.watch(),
            authentication.keep(),
        )
        tasks = [asyncio.create_task(one) for one in work]
        await http.started()
        owner_of = DispatcherGroup(settings, store).owner_of_call
        publishing = PublishRpc(intake, log.producers).service()
        async with rpc.front(settings, publishing, owner_of, number, http.certificate, authentication, authorization):
            mark.ready(True)
            stopped = asyncio.create_task(stop.wait())
            ends = [*serving, stopped, *tasks]
            await asyncio.wait([*ends, asyncio.create_task(drain.wait())], return_when=asyncio.FIRST_COMPLETED)
            gate.close()
            mark.ready(False)
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        await http.stop()
        failure = await tending.ended(*tasks)
        if tracer is not None:
            await asyncio.to_thread(tracer.close)
        if failure is not None:
            raise failure


def other_paths(settings: Settings, store: Store, grants: Grants, checks: Mapping[str, Callable[[], str]]) -> Starlette:
    """Every path that is no publisher's: health, and what the other processes answer."""
    # Path by path and not as mounts: other paths below the same prefixes are the API's.
    reader, group = ProcessProxy(settings.reader_socket), DispatcherGroup(settings, store)
    owner = OwnerProxy(settings, group)
    return Starlette(
        routes=[
            *health.routes(settings, checks),
            Route("/{namespace}/{broker}/events", reader, methods=["GET"]),
            *(Route(f"{PULL_PATH}/{name}", owner, methods=list(methods)) for name, methods in PULL_METHODS.items()),
            *DeadLettersFront(group).routes(),
            *ReplaysFront(group, grants).routes(),
            Mount("/", ProcessProxy(settings.control_socket)),
        ],
        exception_handlers=ERROR_HANDLERS,
    )
