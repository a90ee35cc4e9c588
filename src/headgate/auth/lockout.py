"""Who counts as one client, by address, and whether he is still heard after wrong credentials: nobody may try many."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Final

from headgate.auth.errors import SlowedError
from headgate_api.limits import AUTH_CLIENTS_MAX, AUTH_REFUSALS_MAX, AUTH_REFUSALS_S

_IPV6_CLIENT_BITS: Final = 64
"""One machine may use every address of such a network."""


def client_of(address: str) -> str:
    """The client whose connections are counted together: an address or a /64 network."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ipaddress.ip_network((found, _IPV6_CLIENT_BITS), strict=False))
    return str(found)


class RefusalCounter:
    """How many credentials of each client were refused lately."""

    def __init__(self, *, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._clients: dict[str, tuple[int, float]] = {}

    def check(self, address: str) -> None:
        """Raises SlowedError when a client is not heard now."""
        if not self._clients:
            return
        count, ends_s = self._clients.get(client_of(address), (0, 0.0))
        left_s = ends_s - self._clock_s()
        if count >= AUTH_REFUSALS_MAX and left_s > 0:
            raise SlowedError(left_s)

    def count(self, address: str) -> None:
        client, now_s = client_of(address), self._clock_s()
        count, ends_s = self._clients.pop(client, (0, 0.0))
        if ends_s <= now_s:
            count, ends_s = 0, now_s + AUTH_REFUSALS_S
        self._clients[client] = (count + 1, ends_s)  # at the end: the first one is the one that was quiet the longest
        if len(self._clients) > AUTH_CLIENTS_MAX:
            del self._clients[next(iter(self._clients))]
