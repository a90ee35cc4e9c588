"""How does a process answer the front? An application on a Unix socket that only this user may open."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import uvicorn
from starlette.applications import Starlette

from headgate.errors import HeadgateError
from headgate.limits import READ_DRAIN_S_MAX
from headgate.server import child


class SocketServerGoneError(HeadgateError):
    """The server on a process's socket ended by itself: the process cannot be asked any more."""

    code = "socket-server-gone"


@contextlib.asynccontextmanager
async def answering(app: Starlette, socket: Path) -> AsyncIterator[None]:
    """Serve an application for as long as the block lasts; at its end requests are cut off after READ_DRAIN_S_MAX.

    Raises:
        SocketServerGoneError: The server ended before the block did, which is broken off.
    """
    socket.parent.mkdir(parents=True, exist_ok=True)
    socket.unlink(missing_ok=True)
    config = uvicorn.Config(
        app,
        uds=str(socket),
        lifespan="off",
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=READ_DRAIN_S_MAX,
    )
    server = child.Server(config)
    block = asyncio.current_task()
    assert block is not None
    serving = asyncio.create_task(server.serve())
    broken_off = False

    def break_off(_: asyncio.Task[None]) -> None:
        nonlocal broken_off
        broken_off = not server.should_exit
        if broken_off:
            block.cancel()

    serving.add_done_callback(break_off)
    try:
        while not server.started:
            await asyncio.sleep(0.01)
        socket.chmod(0o600)
        yield
    except asyncio.CancelledError:
        if not broken_off:
            raise
        block.uncancel()
        error = None if serving.cancelled() else serving.exception()
        raise SocketServerGoneError(f"the server on {socket} has ended", hint="the process starts again") from error
    finally:
        server.should_exit = True
        if not broken_off:
            await serving
