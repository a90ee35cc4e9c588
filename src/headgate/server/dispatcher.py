"""The process that delivers: match link, outbox, cursors, subscribers."""

from __future__ import annotations

import asyncio
import functools
import gc
import resource

import uvloop
from starlette.applications import Starlette

from headgate import limits
from headgate.control.http import ERROR_HANDLERS
from headgate.control.store import Store
from headgate.observe import tracing
from headgate.retention.expiry import Bounds
from headgate.server import child, local, ready, retention, rpc
from headgate.server.asking import ReaderScanner
from headgate.server.composition import Dispatcher
from headgate.server.policy import url_policy
from headgate.subscriptions.api import SubscriptionsApi
from headgate.subscriptions.rpc import SubscriptionsRpc


def run(context: child.Context) -> None:
    """Delivers until told to stop."""
    uvloop.run(_dispatch(context))


async def _dispatch(context: child.Context) -> None:
    _raise_file_limit()
    settings = context.settings
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    child.on_stop(lambda: loop.call_soon_threadsafe(stop.set))
    mark = ready.Mark(settings.run_directory, "dispatcher")
    tracer = tracing.configure("dispatcher")
    mark.note("reads what is unfinished")
    store = Store.open(settings.data / "control.db")

    def on_ready() -> None:
        gc.freeze()
        mark.ready(True)
        mark.note("")

    def on_look(problem: str) -> None:
        mark.beat()
        mark.note(problem)

    try:
        dispatcher = Dispatcher(
            data=settings.data,
            token=context.token,
            store=store,
            ingress_url=settings.url,
            policy=url_policy(settings),
            scanner=ReaderScanner(settings.reader_socket),
            tracing=tracer,
            bounds=Bounds(settings.backlog_hours * 3_600, settings.backlog_mb << 20),
            on_ready=on_ready,
            on_look=on_look,
            tend=functools.partial(retention.trim_outbox, settings),
        )
        app = Starlette(
            routes=list(SubscriptionsApi(dispatcher.subscriptions).routes()), exception_handlers=ERROR_HANDLERS
        )
        serving = rpc.serving([SubscriptionsRpc(dispatcher.subscriptions).service()], f"unix:{settings.dispatcher_rpc}")
        async with local.answering(app, settings.dispatcher_socket), serving:
            await dispatcher.run(stop)
    finally:
        store.close()
        if tracer is not None:
            await asyncio.to_thread(tracer.close)


def _raise_file_limit() -> None:
    """Sockets are files: take what the system allows without asking for more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * limits.ATTEMPTS_MAX + limits.LINK_CONNECTIONS_MAX
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard)
        )
