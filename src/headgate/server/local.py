"""How does a process answer the front? An application on a Unix socket that only this user may open."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import uvicorn
from starlette.applications import Starlette

from headgate.limits import READ_DRAIN_S_MAX
from headgate.server import child


@contextlib.asynccontextmanager
async def answering(app: Starlette, socket: Path) -> AsyncIterator[None]:
    """Serve an application for as long as the block lasts; at its end requests are cut off after READ_DRAIN_S_MAX."""
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
    serving = asyncio.create_task(server.serve())
    try:
        while not (server.started or serving.done()):
            await asyncio.sleep(0.01)
        socket.chmod(0o600)
        yield
    finally:
        server.should_exit = True
        await serving
