"""TLS handshakes of HTTP connections: each has a slot and a bound of time from its beginning on.

asyncio's own servers make a connection's protocol after the handshake, so that clients which do not end theirs would
hold files that nothing bounds. Here connections are accepted one by one, each gets its slot, then the handshake.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable

import structlog

from headgate.ingress.connections import Connections, ConnectionSlot
from headgate.ingress.protocol import BoundedHttpProtocol
from headgate.limits import ACCEPT_PAUSE_S, TLS_HANDSHAKE_S_MAX, TLS_SHUTDOWN_S_MAX
from headgate.observe.logs import Recurring
from headgate.observe.metrics import TLS_HANDSHAKES_FAILED

_log = structlog.get_logger(__name__)


class TlsAcceptor:
    """Accepts connections on one socket and makes HTTP of those whose handshake succeeds. Belongs to an event loop.

    Args:
        connections: The server's connections.
        context: Says what a handshake uses.
        make_http: The protocol of a new connection.
    """

    def __init__(
        self,
        connections: Connections,
        context: Callable[[], ssl.SSLContext],
        make_http: Callable[[], BoundedHttpProtocol],
    ) -> None:
        self._connections = connections
        self._context = context
        self._make_http = make_http
        self._handshakes: set[asyncio.Task[None]] = set()

    async def run(self, listening: socket.socket) -> None:
        """Accepts until it is cancelled.

        Args:
            listening: It listens, and does not block.
        """
        loop = asyncio.get_running_loop()
        failing = Recurring(_log, "connections cannot be accepted", OSError)
        while True:
            accepted: socket.socket | None = None
            with failing.attempt():
                accepted, address = await loop.sock_accept(listening)
            if accepted is None:  # most likely too many files are open
                await asyncio.sleep(ACCEPT_PAUSE_S)
                continue
            handshake = _Handshake()
            slot = self._connections.acquire(handshake, str(address[0]))
            if slot is None:
                accepted.close()
            else:
                handshake.task = task = loop.create_task(self._shake_hands(accepted, slot))
                self._handshakes.add(task)
                task.add_done_callback(self._handshakes.discard)
            await asyncio.sleep(0)  # an accept that need not wait does not let anybody else work

    async def _shake_hands(self, accepted: socket.socket, slot: ConnectionSlot) -> None:
        http = self._make_http()
        http.adopt(slot)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: http,
                accepted,
                ssl=self._context(),
                ssl_handshake_timeout=TLS_HANDSHAKE_S_MAX,
                ssl_shutdown_timeout=TLS_SHUTDOWN_S_MAX,
            )
        except (OSError, asyncio.CancelledError):  # TLS, too: no trust, no TLS, no client, no time; or it was evicted
            TLS_HANDSHAKES_FAILED.inc()
            self._connections.release(slot)


class _Handshake:
    """What holds a slot as long as the handshake lasts."""

    task: asyncio.Task[None] | None = None

    def evict(self) -> None:
        """Breaks it off."""
        if self.task is not None:
            self.task.cancel()
