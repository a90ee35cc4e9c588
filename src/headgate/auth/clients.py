"""Who counts as one client, by address."""

from __future__ import annotations

import ipaddress
from typing import Final

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
