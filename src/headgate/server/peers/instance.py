"""One server of a deployment on Kafka: its name, which outlives restarts, and the URL by which the others reach it."""

from __future__ import annotations

import secrets
import socket
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from headgate.objects.kinds.egress import address_of
from headgate.server import child, parts
from headgate.server.listening import addresses_of, bracketed
from headgate.server.parts import Role
from headgate.settings import Settings
from headgate.storage.files import replace_whole

FILE: Final = "instance"
"""In the data directory. Kafka knows producers by the name in it: a restart ends what was left open before."""
_NAME_BYTES: Final = 8
_BETWEEN: Final = ","


def make_name(data: Path) -> None:
    """Gives the server a name if it has none; for who holds the data directory, before its processes start."""
    if not (data / FILE).exists():
        replace_whole(data / FILE, secrets.token_hex(_NAME_BYTES).encode())


def name_of(data: Path) -> str:
    """The server's name: letters and digits, of no other server."""
    return (data / FILE).read_text().strip()


def advertised_url(settings: Settings) -> str:
    """Where other servers reach this one: `--advertise`, else where it listens, by the machine's name for all."""
    if settings.advertise:
        return settings.advertise
    address = next(one for one in addresses_of(settings) if not one.is_grpc)
    host = socket.gethostname() if _is_every(address.host) else address.host
    return f"{'https' if address.is_tls else 'http'}://{bracketed(host)}:{address.port}"


def advertised_name(settings: Settings) -> str:
    """The name of a dispatcher in its group: the URL of its server and, where there is one, that of its gRPC."""
    url = advertised_url(settings)
    address = next((one for one in addresses_of(settings) if one.is_grpc), None)
    if address is None:
        return url
    host = address.host
    if settings.advertise or _is_every(host):
        host = urlsplit(url).hostname or ""
    return f"{url}{_BETWEEN}{'grpcs' if address.is_tls else 'grpc'}://{bracketed(host)}:{address.port}"


def urls_of_name(name: str) -> tuple[str, str]:
    """The URL of a server and that of its gRPC address, empty without one, of an `advertised_name`."""
    url, _, grpc = name.partition(_BETWEEN)
    return url, grpc


def host_and_port(url: str) -> tuple[str, int, bool]:
    """Host, port, and whether TLS is spoken, of a URL that a server advertises."""
    parsed = urlsplit(url)
    is_tls = parsed.scheme == "https"
    return parsed.hostname or "", parsed.port or (443 if is_tls else 80), is_tls


def _is_every(host: str) -> bool:
    address = address_of(host)
    return address is not None and address.is_unspecified


def quota_sharers(context: child.Context) -> int:
    """How many processes, fronts and those of sources, have an equal part of each quota."""
    settings, config = context.settings, context.on_kafka
    own = len(parts.of_role(settings, Role.FRONT))
    if config.sources:
        own += len(parts.of_role(settings, Role.SOURCE))
    return config.quotas.fronts or own
