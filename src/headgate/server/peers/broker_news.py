"""News of brokers and rights: whoever writes one waits until every front knows it.

So the first event of a new broker is not refused, and nobody has a right any more that was taken from him. Each front
has a Unix socket; the process of the objects asks there, and the front reads what has changed before it answers. A
front that is not there reads all when it starts, after its socket is open; one that does not answer finds out by
itself within ROUTING_POLL_S, once it works again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
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


class BrokerNews:
    """Tells all fronts that a broker or a right has been written, by requests on the loop; other threads tell."""

    def __init__(self, fronts: Sequence[Path], loop: asyncio.AbstractEventLoop) -> None:
        self._fronts = fronts
        self._loop = loop

    def tell(self) -> None:
        """Returns when every front has read the objects, or does not answer; blocks."""
        asyncio.run_coroutine_threadsafe(self._tell_all(), self._loop).result(2 * BROKER_NEWS_S_MAX)

    async def _tell_all(self) -> None:
        await asyncio.gather(*map(_told, self._fronts))


def tell_fronts(store: Store, settings: Settings) -> None:
    """Lets the store tell every front of this server, by the loop that runs."""
    fronts = [settings.front_socket(part.index) for part in parts.of_role(settings, Role.FRONT)]
    store.on_broker(BrokerNews(fronts, asyncio.get_running_loop()).tell)


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
