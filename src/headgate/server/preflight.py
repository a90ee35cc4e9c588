"""What must hold before a server starts: checked before any process is forked, told in one sentence with a remedy."""

from __future__ import annotations

import contextlib

from headgate.match.requirements import check_java, connector_jar
from headgate.server import listening
from headgate.settings import OFF, Settings


def check(settings: Settings) -> None:
    """Checks what the parts need of the machine; the data directory is checked by who holds it.

    Raises:
        AddressError: An address is taken or cannot be had.
        SparkMissingError: There is no suitable Java, or no connector.
        UnavailableError: Java does not say its version.
    """
    with contextlib.ExitStack() as stack:
        # All at the same time: one address given twice is taken, too.
        for host, port, option in _addresses(settings):
            stack.callback(listening.close, listening.bind(host, port, option, listens=True))
    connector_jar()
    check_java()


def _addresses(settings: Settings) -> list[tuple[str, int, str]]:
    addresses = [(settings.host, settings.port, "--listen")]
    if settings.grpc != OFF:
        host, _, port = settings.grpc.rpartition(":")
        addresses.append((host.strip("[]"), int(port), "--grpc"))
    return addresses
