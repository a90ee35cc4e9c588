"""The process that delivers: match link, outbox, cursors, subscribers."""

from __future__ import annotations

import asyncio
import functools

import uvloop
from starlette.applications import Starlette

from headgate.control.http import ERROR_HANDLERS
from headgate.control.quotas import QuotaBoard
from headgate.control.shared_quotas import SharedQuotas
from headgate.control.store import Store
from headgate.observe import tracing
from headgate.outbox.shards import Shard
from headgate.retention.expiry import BacklogBounds
from headgate.server import child, local_http, ready, retention, rpc
from headgate.server.authentication import UsersOfFronts
from headgate.server.composition import DispatcherOptions, opened
from headgate.server.inward import inward_of
from headgate.server.reader_client import ReaderScanner
from headgate.server.shard_deliveries import SenderIdentity
from headgate.storage.keyring import keyring_of
from headgate.subscriptions.rpc import SubscriptionsRpc
from headgate_api.limits import ATTEMPTS_MAX, LINK_CONNECTIONS_MAX


def run(context: child.Context) -> None:
    """Delivers until told to stop."""
    uvloop.run(_dispatch(context))


async def _dispatch(context: child.Context) -> None:
    child.raise_file_limit(2 * ATTEMPTS_MAX + LINK_CONNECTIONS_MAX)
    settings = context.settings
    shard = Shard(context.part.index, settings.dispatchers)
    stop = asyncio.Event()
    child.on_stop(child.setter(stop))
    report = ready.PartReport(settings.run_directory, context.part.name)
    tracer = tracing.configure(context.part.name)
    report.note("reads what is unfinished")
    store = Store.open(settings.data / "control.db", keys=keyring_of(settings))
    quotas = SharedQuotas(store, QuotaBoard(settings.usage_directory, context.part.name))
    await asyncio.to_thread(quotas.refresh)

    def on_ready() -> None:
        child.spare_collector()
        report.begun()

    options = DispatcherOptions(
        data=settings.data,
        on_corrupt=settings.on_corrupt,
        token=context.token,
        store=store,
        reports=store.reports,
        shard=shard,
        identity=SenderIdentity.of(settings, store),
        inward=inward_of(settings, shard.index),
        scanner=ReaderScanner(settings.reader_socket),
        tracing=tracer,
        bounds=BacklogBounds(settings.backlog_hours * 3_600, settings.backlog_mb << 20),
        quotas=quotas,
        pause=store.change_watch.pause,
        on_ready=on_ready,
        on_look=report.turn,
        retention=functools.partial(retention.trim_outbox, settings, shard.index),
    )
    try:
        async with (
            opened(options, stop) as dispatcher,
            local_http.answering(
                UsersOfFronts(Starlette(routes=dispatcher.routes(store), exception_handlers=ERROR_HANDLERS)),
                settings.dispatcher_socket(shard.index),
            ),
            rpc.serving(
                [SubscriptionsRpc(dispatcher.subscriptions).service()], f"unix:{settings.dispatcher_rpc(shard.index)}"
            ),
        ):
            await dispatcher.run()
    finally:
        store.close()
        if tracer is not None:
            await asyncio.to_thread(tracer.close)
