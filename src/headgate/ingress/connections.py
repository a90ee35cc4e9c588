"""Slots of connections: bounded for all clients and for each, the oldest idle connection closed for a new one.

A client is an address, or the /64 network of an IPv6 address, of which one machine may use every address. A connection
is idle while no request has begun on it: none has come, its head is not whole, or the last one is answered. So a client
that opens connections and leaves them shuts out neither others nor itself.
"""

from __future__ import annotations

from typing import Final, Protocol

from headgate.auth.credentials import client_of
from headgate.observe.metrics import CONNECTIONS_CLOSED
from headgate_api import limits

_EVICTED: Final = CONNECTIONS_CLOSED.labels("idle")
_REFUSED: Final = CONNECTIONS_CLOSED.labels("refused")


class Evictable(Protocol):
    """A connection that holds a slot."""

    def evict(self) -> None:
        """Closes the connection; its slot is released already."""


class ConnectionSlot:
    """The slot of one connection."""

    __slots__ = ("client", "connection", "is_released")

    def __init__(self, connection: Evictable, client: _Client) -> None:
        self.connection = connection
        self.client = client
        self.is_released = False


class _Client:
    """The connections of one address: how many, and those that are idle, the oldest first."""

    __slots__ = ("count", "idle", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.count = 0
        self.idle: dict[ConnectionSlot, None] = {}


class Connections:
    """All connections of a server. Belongs to its event loop."""

    def __init__(self) -> None:
        self._clients: dict[str, _Client] = {}
        self._idle: dict[ConnectionSlot, None] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def acquire(self, connection: Evictable, address: str) -> ConnectionSlot | None:
        """A slot for a connection, idle at first, of `address` ("" for none); None: all are taken and none is idle."""
        name = client_of(address)
        client = self._clients.get(name) or _Client(name)
        if client.count >= limits.CONNECTIONS_A_CLIENT_MAX:
            oldest = next(iter(client.idle), None)
        elif self._count >= limits.CONNECTIONS_MAX:
            oldest = next(iter(self._idle), None)
        else:
            return self._acquired(connection, client)
        if oldest is None:
            _REFUSED.inc()
            return None
        _EVICTED.inc()
        self.release(oldest)
        oldest.connection.evict()
        return self._acquired(connection, client)

    def _acquired(self, connection: Evictable, client: _Client) -> ConnectionSlot:
        slot = ConnectionSlot(connection, client)
        self._clients[client.name] = client
        client.count += 1
        self._count += 1
        self.end_request(slot)
        return slot

    def begin_request(self, slot: ConnectionSlot) -> None:
        self._idle.pop(slot, None)
        slot.client.idle.pop(slot, None)

    def end_request(self, slot: ConnectionSlot) -> None:
        """The answer is sent: the connection is idle."""
        if not slot.is_released:
            self._idle[slot] = slot.client.idle[slot] = None

    def release(self, slot: ConnectionSlot) -> None:
        """The connection is closed; idempotent."""
        if slot.is_released:
            return
        self.begin_request(slot)
        slot.is_released = True
        self._count -= 1
        slot.client.count -= 1
        if not slot.client.count:
            del self._clients[slot.client.name]
