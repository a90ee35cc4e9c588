"""News of brokers and rights: whoever writes one waits until every front has read it, asked on its Unix socket.

So the first event of a new broker is not refused, and nobody has a right any more that was taken from him. A front that
is not there reads all when it starts; one that does not answer reads it when it follows the commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headgate.objects.store.store import Store
from headgate.objects.views.copies import ObjectCopy
from headgate.server import parts
from headgate.server.parts import Role
from headgate.server.peers.local_http import ask
from headgate.settings import Settings
from headgate_api.limits import BROKER_NEWS_S_MAX

PATH: Final = "/brokers"
_log = structlog.get_logger(__name__)


def tell_fronts(store: Store, settings: Settings) -> None:
    """Lets the store tell every front of this server, by the loop that runs."""
    fronts = [settings.front_socket(part.index) for part in parts.of_role(settings, Role.FRONT)]
    store.on_broker(partial(tell, fronts, asyncio.get_running_loop()))


def tell(fronts: Sequence[Path], loop: asyncio.AbstractEventLoop) -> None:
    """Returns when every front has read the objects, or does not answer; blocks, for other threads than the loop's."""

    async def tell_all() -> None:
        await asyncio.gather(*map(_told, fronts))

    asyncio.run_coroutine_threadsafe(tell_all(), loop).result(2 * BROKER_NEWS_S_MAX)


async def _told(socket: Path) -> None:
    try:
        await ask(socket, "POST", PATH, within_s=BROKER_NEWS_S_MAX)
    except TimeoutError:
        _log.warning("a front does not read what has changed", socket=str(socket))
    except OSError:
        return  # it is not there


def news_route(*copies: ObjectCopy) -> Route:
    """Where a front is told."""

    def read(_: Request) -> Response:
        for copy in copies:
            copy.refresh()
        return Response()

    return Route(PATH, read, methods=["POST"])
