"""The places of connections: bounded for all clients and for each, the oldest idle one given up for a new one.

A client is an address, or the /64 network of an IPv6 address, of which one machine may use every address. A connection
is idle while no request has begun on it: none has come, its head is not whole, or the last one is answered. So a client
that opens connections and leaves them shuts out neither others nor itself.
"""

from __future__ import annotations

import ipaddress
from typing import Final, Protocol

from headgate import limits
from headgate.observe.metrics import CONNECTIONS_CLOSED

_EVICTED: Final = CONNECTIONS_CLOSED.labels("idle")
_REFUSED: Final = CONNECTIONS_CLOSED.labels("refused")
_IPV6_CLIENT_BITS: Final = 64


class Connection(Protocol):
    """What holds a place."""

    def give_up(self) -> None:
        """Closes it; it leaves its place itself when it is closed."""


class Place:
    """The place of one connection.

    Args:
        connection: Who has it.
        client: Whose it is.
    """

    __slots__ = ("client", "connection", "is_free")

    def __init__(self, connection: Connection, client: _Client) -> None:
        self.connection = connection
        self.client = client
        self.is_free = False


class _Client:
    """The connections of one address: how many, and those that are idle, the oldest first."""

    __slots__ = ("count", "idle", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.count = 0
        self.idle: dict[Place, None] = {}


class Connections:
    """All connections of a server. Belongs to its event loop."""

    def __init__(self) -> None:
        self._clients: dict[str, _Client] = {}
        self._idle: dict[Place, None] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def enter(self, connection: Connection, address: str) -> Place | None:
        """A place for a new connection, idle at first; None when there is none and no idle one to give up.

        Args:
            connection: Who wants it.
            address: Of the client; empty when it has none.
        """
        name = client_of(address)
        client = self._clients.get(name) or _Client(name)
        if client.count >= limits.CONNECTIONS_A_CLIENT_MAX:
            oldest = next(iter(client.idle), None)
        elif self._count >= limits.CONNECTIONS_MAX:
            oldest = next(iter(self._idle), None)
        else:
            return self._placed(connection, client)
        if oldest is None:
            _REFUSED.inc()
            return None
        _EVICTED.inc()
        self.leave(oldest)
        oldest.connection.give_up()
        return self._placed(connection, client)

    def _placed(self, connection: Connection, client: _Client) -> Place:
        place = Place(connection, client)
        self._clients[client.name] = client
        client.count += 1
        self._count += 1
        self.rest(place)
        return place

    def work(self, place: Place) -> None:
        """A request has begun."""
        self._idle.pop(place, None)
        place.client.idle.pop(place, None)

    def rest(self, place: Place) -> None:
        """There is no request any more."""
        if not place.is_free:
            self._idle[place] = place.client.idle[place] = None

    def leave(self, place: Place) -> None:
        """The place is free; the second time nothing happens."""
        if place.is_free:
            return
        self.work(place)
        place.is_free = True
        self._count -= 1
        place.client.count -= 1
        if not place.client.count:
            del self._clients[place.client.name]


def client_of(address: str) -> str:
    """Whose connections are counted together."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ipaddress.ip_network((found, _IPV6_CLIENT_BITS), strict=False))
    return str(found)
