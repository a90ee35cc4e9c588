"""The process that reads the log for consumers: its own, so that a long scan costs neither producers nor deliveries."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial

import uvloop
from starlette.applications import Starlette

from headgate.log.directory import LogDirectory
from headgate.objects.api.http import ERROR_HANDLERS
from headgate.objects.store.quota_usage import QuotaBoard
from headgate.objects.store.store import Store
from headgate.objects.views.copies import ServedBrokers, follow
from headgate.objects.views.shared_quotas import SharedQuotas
from headgate.scan.chunks import ChunkLog
from headgate.scan.source import ReadableLog, RetainedLog
from headgate.server import child, ready, rpc
from headgate.server.authentication import UsersOfFronts
from headgate.server.peers import local_http
from headgate.server.peers.reader_client import count_route, scan_route
from headgate.stream.api import ReadApi
from headgate.stream.follow import Readers
from headgate.stream.read_rpc import ReadRpc
from headgate_api.limits import READERS_MAX

_FILES_A_PARTITION = 3
"""Of one reader: the mapped offsets and two segments."""
_OTHER_FILES = 1_024
"""The database, gRPC's connections, scans for the dispatcher, the event loop's own."""


@dataclass(frozen=True, slots=True)
class ReaderStore:
    """What a reader reads; the log is closed with the readers."""

    objects: Store
    log: ReadableLog


OpenLog = Callable[[child.Context, asyncio.Event], AbstractAsyncContextManager[ReaderStore]]
"""Opens the store of a reader for as long as a block lasts; the event says that the process is told to stop."""


@contextlib.asynccontextmanager
async def _own_log(context: child.Context, _stop: asyncio.Event) -> AsyncIterator[ReaderStore]:
    settings = context.settings
    child.raise_file_limit(READERS_MAX * (1 + _FILES_A_PARTITION * settings.partitions) + _OTHER_FILES)
    with contextlib.closing(Store.open(settings.data / "control.db")) as objects:
        yield ReaderStore(objects, ChunkLog(LogDirectory(settings.log_directory, settings.on_corrupt)))


def run(context: child.Context, opened: OpenLog = _own_log) -> None:
    """Serves readers until told to stop."""
    uvloop.run(_serve(context, opened))


async def _serve(context: child.Context, opened: OpenLog) -> None:
    settings, stop = context.settings, asyncio.Event()
    child.on_stop(child.setter(stop))
    async with opened(context, stop) as store, contextlib.AsyncExitStack() as stack:
        brokers = ServedBrokers(store.objects)
        quotas = SharedQuotas(store.objects, QuotaBoard(settings.usage_directory, context.part.name))
        await asyncio.to_thread(brokers.refresh)
        await asyncio.to_thread(quotas.refresh)
        readers = Readers(RetainedLog(store.log, brokers.retention_us), store.objects.served, quotas)
        stack.push_async_callback(readers.close)
        routes = [*ReadApi(readers).routes(), scan_route(readers), count_route(readers)]
        app = UsersOfFronts(Starlette(routes=routes, exception_handlers=ERROR_HANDLERS))
        serving = rpc.serving([ReadRpc(readers).service()], f"unix:{settings.reader_rpc}")
        await stack.enter_async_context(local_http.answering(app, settings.reader_socket))
        await stack.enter_async_context(serving)
        report = ready.PartReport(settings.run_directory, context.part.name)
        report.ready(True)
        works = (follow(brokers, quotas), quotas.share(), report.beating())
        await child.until_stopped(stop, works, (), partial(report.ready, False))
