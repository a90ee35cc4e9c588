"""The process that reads the log for consumers: its own, so that a long scan costs neither producers nor deliveries."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import uvloop
from starlette.applications import Starlette

from headgate.control.copies import ServedBrokers
from headgate.control.http import ERROR_HANDLERS
from headgate.control.quotas import QuotaBoard
from headgate.control.shared_quotas import SharedQuotas
from headgate.control.store import Store
from headgate.log.directory import LogDirectory
from headgate.scan.chunks import ChunkLog
from headgate.scan.retained import RetainedLog
from headgate.scan.source import ReadableLog
from headgate.server import child, local_http, ready, rpc
from headgate.server.authentication import UsersOfFronts
from headgate.server.reader_client import count_route, scan_route
from headgate.stream.api import ReadApi
from headgate.stream.read_rpc import ReadRpc
from headgate.stream.readers import Readers
from headgate_api.limits import HEARTBEAT_S, READERS_MAX

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


def run(context: child.Context) -> None:
    """Serves readers of the server's own log until told to stop."""
    settings = context.settings
    child.raise_file_limit(READERS_MAX * (1 + _FILES_A_PARTITION * settings.partitions) + _OTHER_FILES)
    run_with(context, _own_log)


def run_with(context: child.Context, opened: OpenLog) -> None:
    """Serves readers until told to stop."""
    uvloop.run(_serve(context, opened))


@contextlib.asynccontextmanager
async def _own_log(context: child.Context, _stop: asyncio.Event) -> AsyncIterator[ReaderStore]:
    settings = context.settings
    with contextlib.closing(Store.open(settings.data / "control.db")) as objects:
        yield ReaderStore(objects, ChunkLog(LogDirectory(settings.log_directory, settings.on_corrupt)))


async def _serve(context: child.Context, opened: OpenLog) -> None:
    settings = context.settings
    stop = asyncio.Event()
    child.on_stop(child.setter(stop))
    async with opened(context, stop) as store:
        brokers = ServedBrokers(store.objects)
        quotas = SharedQuotas(store.objects, QuotaBoard(settings.usage_directory, context.part.name))
        await asyncio.to_thread(brokers.refresh)
        await asyncio.to_thread(quotas.refresh)
        readers = Readers(RetainedLog(store.log, brokers.retention_us), store.objects.served, quotas)
        following = [asyncio.create_task(work) for work in (brokers.follow(), quotas.follow(), quotas.share())]
        routes = [*ReadApi(readers).routes(), scan_route(readers), count_route(readers)]
        app = UsersOfFronts(Starlette(routes=routes, exception_handlers=ERROR_HANDLERS))
        serving = rpc.serving([ReadRpc(readers).service()], f"unix:{settings.reader_rpc}")
        async with local_http.answering(app, settings.reader_socket), serving:
            report = ready.PartReport(settings.run_directory, context.part.name)
            report.ready(True)
            stopped = asyncio.create_task(stop.wait())
            ends = [stopped, *following]
            while not any(task.done() for task in ends):
                report.beat()
                await asyncio.wait(ends, timeout=HEARTBEAT_S, return_when=asyncio.FIRST_COMPLETED)
            report.ready(False)
        stopped.cancel()
        failure = await child.ended(*following)
        await readers.close()
        if failure is not None:
            raise failure
