"""The policy of the settings for URLs that events may go to, and where this server itself listens."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterator
from typing import TypeVar

from headgate.control.egress import Address, Listener, UrlPolicy, ports
from headgate.server.listening import addresses_of
from headgate.settings import Settings, networks_of
from headgate_api.errors import InvalidInputError

T = TypeVar("T")


def url_policy(settings: Settings) -> UrlPolicy:
    """The policy that the settings ask for; InvalidInputError names a setting that cannot be read."""
    return UrlPolicy(
        reach=settings.egress,
        allow=_read("EGRESS_ALLOW", settings.egress_allow, networks_of),
        deny=_read("EGRESS_DENY", settings.egress_deny, networks_of),
        ports=_read("EGRESS_PORTS", settings.egress_ports, ports),
        schemes=_read("EGRESS_SCHEMES", settings.egress_schemes, _schemes),
        own_url=settings.url,
        own=tuple(_listeners(settings)),
    )


def _listeners(settings: Settings) -> Iterator[Listener]:
    for address in addresses_of(settings):
        yield _listener(address.host.lower(), address.port, takes_events=not address.is_grpc)


def _listener(host: str, port: int, *, takes_events: bool) -> Listener:
    addresses = frozenset(_addresses(host, port))
    if any(address.is_unspecified for address in addresses):
        return Listener("", port, _is_local, takes_events)
    named = "" if addresses == frozenset(_literal(host)) else host
    return Listener(named, port, lambda address: address in addresses, takes_events)


def _literal(host: str) -> Iterator[Address]:
    try:
        yield ipaddress.ip_address(host)
    except ValueError:
        return


def _addresses(host: str, port: int) -> Iterator[Address]:
    """What a host to listen on means; nothing when it has no address, then nobody can listen there either."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return
    for *_, place in found:
        yield ipaddress.ip_address(str(place[0]).partition("%")[0])


def _is_local(address: Address) -> bool:
    """Whether it is an address of this machine: one that the system would also send from. Nothing is sent."""
    if address.is_loopback:
        return True
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), 9))
            return ipaddress.ip_address(str(probe.getsockname()[0]).partition("%")[0]) == address
    except OSError:
        return False


def _read(name: str, text: str, reader: Callable[[str], T]) -> T:
    try:
        return reader(text)
    except ValueError as error:
        raise InvalidInputError(f"HEADGATE_{name}: {error}", hint="docs/howto/egress.md has examples") from error


def _schemes(text: str) -> frozenset[str]:
    schemes = frozenset(item.strip().lower() for item in text.split(",") if item.strip())
    if not schemes or not schemes <= {"http", "https"}:
        raise ValueError(f"{text!r} is not http, https or both")
    return schemes
