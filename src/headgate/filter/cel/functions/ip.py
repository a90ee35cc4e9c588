"""IP addresses and networks, of which CEL has none of its own."""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import Final

from headgate.filter.cel.functions.declare import CelType, Function, FunctionError, Overload

_ADDRESS_CHARACTERS_MAX: Final = 45
"""The longest spelling of an IPv6 address, one that ends in an IPv4 address."""


@lru_cache(maxsize=1024)
def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError as error:
        raise FunctionError(f"ip.within(): {error}") from None


def _within(value: object, network: str) -> bool:
    inside = _network(network)
    if not isinstance(value, str) or len(value) > _ADDRESS_CHARACTERS_MAX or "%" in value:
        return False
    try:
        return ipaddress.ip_address(value) in inside
    except ValueError:
        return False


IP_FUNCTIONS: Final = (Function("ip.within", (Overload((CelType.DYN, CelType.STRING), CelType.BOOL, _within),)),)
"""`ip.within(value, "10.0.0.0/24")`: whether a value is the text of an address of the network; false for anything else,
also for an address of the other IP version. The network itself must be one: anything else is an error."""
