"""The process that reads the log for consumers: its own, so that a long scan costs neither producers nor deliveries."""

from __future__ import annotations

import asyncio
import contextlib

import uvloop
from starlette.applications import Starlette

from headgate.control.http import ERROR_HANDLERS
from headgate.control.store import Store
from headgate.limits import HEARTBEAT_S, READERS_MAX
from headgate.log.directory import LogDirectory
from headgate.scan.chunks import ChunkLog
from headgate.server import child, local_http, ready, rpc
from headgate.server.reader_client import count_route, scan_route
from headgate.stream.api import ReadApi
from headgate.stream.read_rpc import ReadRpc
from headgate.stream.readers import Readers

_FILES_A_PARTITION = 3
"""Of one reader: the mapped offsets and two segments."""
_OTHER_FILES = 1_024
"""The database, gRPC's connections, scans for the dispatcher, the event loop's own."""


def run(context: child.Context) -> None:
    """Serves readers until told to stop."""
    uvloop.run(_serve(context))


async def _serve(context: child.Context) -> None:
    settings = context.settings
    stop = asyncio.Event()
    child.raise_file_limit(READERS_MAX * (1 + _FILES_A_PARTITION * settings.partitions) + _OTHER_FILES)
    child.on_stop(child.setter(stop))
    with contextlib.closing(Store.open(settings.data / "control.db")) as store:
        readers = Readers(ChunkLog(LogDirectory(settings.log_directory, settings.on_corrupt)), store.served)
        routes = [*ReadApi(readers).routes(), scan_route(readers.scanner), count_route(readers.counter)]
        app = Starlette(routes=routes, exception_handlers=ERROR_HANDLERS)
        serving = rpc.serving([ReadRpc(readers).service()], f"unix:{settings.reader_rpc}")
        async with local_http.answering(app, settings.reader_socket), serving:
            mark = ready.Mark(settings.run_directory, context.part.name)
            mark.ready(True)
            while not stop.is_set():
                mark.beat()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), HEARTBEAT_S)
            mark.ready(False)
        await readers.close()
