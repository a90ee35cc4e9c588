"""The addresses that this server listens on: bound before anything depends on them, refused in a sentence."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from headgate.errors import UnavailableError


class AddressError(UnavailableError):
    """An address cannot be listened on: taken, not this machine's, or reserved."""

    code = "address"


class AddressDeniedError(AddressError):
    """This user may not listen there, which no restart changes."""

    retriable = False


def bind(host: str, port: int, option: str, *, listens: bool = False, shared: bool = False) -> list[socket.socket]:
    """Sockets that are bound to every address of a host.

    Args:
        host: A name or an address, without brackets.
        port: The port; 0 for a free one.
        option: The option of `headgate serve` that says so, for the message.
        listens: Whether they listen already: from then on nobody else can bind the address.
        shared: Whether other processes of this user bind it, too, and the system gives each its share of connections.

    Raises:
        AddressError: One of them cannot be bound.
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
