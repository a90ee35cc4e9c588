"""The addresses that a server listens on, bound before anything depends on them, and the URLs that events may go to."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from headgate.objects.kinds.egress import Address, Listener, UrlPolicy, address_of, ports
from headgate.settings import OFF, ClientAuth, Settings, TlsMode, networks_of
from headgate_api.errors import InvalidInputError, UnavailableError


class AddressError(UnavailableError):
    """An address cannot be listened on: taken, not this machine's, or reserved."""

    code = "address"


class AddressDeniedError(AddressError):
    """This user may not listen there, which no restart changes."""

    retriable = False


def bind(host: str, port: int, option: str, *, listens: bool = False, shared: bool = False) -> list[socket.socket]:
    """Sockets that are bound to every address of a host (without brackets); port 0 is a free one.

    With `listens` they listen already: nobody else can bind the address then. With `shared` other processes of this
    user bind it, too, and the system gives each its share of connections. `option` is for the error's hint.
    """
    sockets: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(found):
            one = socket.socket(family, kind, protocol)
            sockets.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.bind(address)
            if listens:
                one.listen()
    except OSError as error:
        close(sockets)
        denied = isinstance(error, PermissionError)
        raise (AddressDeniedError if denied else AddressError)(
            f"cannot listen on {bracketed(host)}:{port}: {error.strerror or error}",
            hint=f"choose another address with {option}",
        ) from error
    return sockets


def bracketed(host: str) -> str:
    """A host as URLs have it: an address of IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host


def close(sockets: Sequence[socket.socket]) -> None:
    """Gives the addresses back."""
    for one in sockets:
        one.close()


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """An address to listen on: `text` is HOST:PORT, `option` the one of `headgate serve` that says so."""

    text: str
    option: str
    is_grpc: bool
    is_tls: bool

    @property
    def host(self) -> str:
        return self.text.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        return int(self.text.rpartition(":")[2])


def addresses_of(settings: Settings) -> tuple[ListenAddress, ...]:
    """Every address of a server."""
    is_strict, is_permissive = settings.mode is TlsMode.STRICT, settings.mode is TlsMode.PERMISSIVE
    found = [
        ListenAddress(settings.listen, "--listen", is_grpc=False, is_tls=is_strict),
        ListenAddress(settings.grpc, "--grpc", is_grpc=True, is_tls=is_strict),
    ]
    if is_permissive:
        found += [
            ListenAddress(settings.tls_listen, "--tls-listen", is_grpc=False, is_tls=True),
            ListenAddress(settings.tls_grpc, "--tls-grpc", is_grpc=True, is_tls=True),
        ]
    return tuple(address for address in found if address.text != OFF)


def open_addresses(settings: Settings) -> tuple[ListenAddress, ...]:
    """Those that other machines reach and where requests are answered that do not say who makes them."""
    if settings.has_authentication and not settings.allow_anonymous:
        return ()
    is_known = settings.client_auth is ClientAuth.REQUIRED
    return tuple(
        address
        for address in addresses_of(settings)
        if not (address.is_tls and is_known) and not _is_loopback(address.host)
    )


def check_not_open(settings: Settings) -> None:
    """Refuses a server that would be open to everybody and was not told to be (InvalidInputError)."""
    found = open_addresses(settings)
    if found and not settings.allow_anonymous:
        raise InvalidInputError(
            f"{found[0].option} {found[0].text}: everybody who reaches this address could do everything",
            hint="listen on 127.0.0.1, or name users (--token-auth-file, --authentication-config, --tls-client-ca), "
            "or say --allow-anonymous",
        )


def openness(settings: Settings) -> str:
    """What people should know about a server that is open, in a sentence; empty for one that is not."""
    if not (found := open_addresses(settings)):
        return ""
    return f"everybody who reaches {', '.join(one.text for one in found)} may do everything (--allow-anonymous)"


def _is_loopback(host: str) -> bool:
    """Whether all addresses that a host means are of this machine alone; what has none cannot be listened on."""
    return all(address.is_loopback for address in _addresses(host, 0, socket.AI_PASSIVE))


# --- policy ---------------------------------------------------------------------------------------
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
        own=tuple(map(_listener, addresses_of(settings))),
    )


def _listener(listens: ListenAddress) -> Listener:
    host, port, takes_events = listens.host.lower(), listens.port, not listens.is_grpc
    addresses = frozenset(_addresses(host, port))
    if any(address.is_unspecified for address in addresses):
        return Listener("", port, _is_local, takes_events)
    literal = {address_of(host)} - {None}  # nothing of a name
    return Listener("" if addresses == literal else host, port, addresses.__contains__, takes_events)


def _addresses(host: str, port: int, flags: int = 0) -> Iterator[Address]:
    """What a host to listen on means; nothing when it has no address, then nobody can listen there either."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
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
