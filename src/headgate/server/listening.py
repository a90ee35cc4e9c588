"""The addresses that a server listens on: by its settings, bound before anything depends on them."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from headgate.settings import OFF, ClientAuth, Settings, TlsMode
from headgate_api.errors import InvalidInputError, UnavailableError


class AddressError(UnavailableError):
    """An address cannot be listened on: taken, not this machine's, or reserved."""

    code = "address"


class AddressDeniedError(AddressError):
    """This user may not listen there, which no restart changes."""

    retriable = False


def bind(host: str, port: int, option: str, *, listens: bool = False, shared: bool = False) -> list[socket.socket]:
    """Sockets that are bound to every address of a host (without brackets); port 0 is a free one.

    With `listens` they listen already: from then on nobody else can bind the address. With `shared` other processes of
    this user bind it, too, and the system gives each its share of connections. `option` is for the error's hint.
    """
    sockets: list[socket.socket] = []
    where = f"{host}:{port}" if ":" not in host else f"[{host}]:{port}"
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
            f"cannot listen on {where}: {error.strerror or error}", hint=f"choose another address with {option}"
        ) from error
    return sockets


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
        """Without the brackets of an IPv6 address."""
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
    found = open_addresses(settings)
    if not found:
        return ""
    return f"everybody who reaches {', '.join(one.text for one in found)} may do everything (--allow-anonymous)"


def _is_loopback(host: str) -> bool:
    """Whether all addresses that a host means are of this machine alone; what has none cannot be listened on."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        return True
    return all(ipaddress.ip_address(str(place[0]).partition("%")[0]).is_loopback for *_, place in found)
