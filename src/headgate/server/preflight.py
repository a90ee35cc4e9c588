"""The checks before a server starts: made before any process is forked, told in one sentence with a remedy."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Final

import structlog

from headgate.match.requirements import check_java, connector_jar
from headgate.server import listening
from headgate.settings import ACCEPTABLE_LOSSES, OFF, Settings
from headgate.storage import sqlite

_log = structlog.get_logger(__name__)

_TARGET_EPOCH_S: Final = 1_577_836_800
"""2020-01-01. Ids of targets have 31 bits: seconds since then are above all ids given so far, until 2088."""


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


def check_files(settings: Settings) -> None:
    """Checks that no database is gone beside the events that it is about; its loss may have been accepted.

    Raises:
        DatabaseMissingError: One is gone.
    """
    beside = {"control.db": settings.log_directory, "dispatch.db": settings.data / "outbox"}
    for name in ACCEPTABLE_LOSSES:
        path = settings.data / name
        if not sqlite.is_missing(path) or not any(beside[name].glob("*/*.seg")):
            continue
        if name not in settings.losses_accepted:
            raise sqlite.DatabaseMissingError(path, beside[name])
        _log.warning("goes on without what was in a file", file=str(path), cost=sqlite.LOSSES[name])
        if name == "control.db":
            _renew(path)


def _renew(path: Path) -> None:
    """Makes control.db anew. What is undelivered belongs to targets whose ids nobody may get again."""
    from headgate.control.store import Store  # a second of imports, which no other start needs

    Store.open(path, targets_from=int(time.time()) - _TARGET_EPOCH_S).close()


def _addresses(settings: Settings) -> list[tuple[str, int, str]]:
    addresses = [(settings.host, settings.port, "--listen")]
    if settings.grpc != OFF:
        host, _, port = settings.grpc.rpartition(":")
        addresses.append((host.strip("[]"), int(port), "--grpc"))
    return addresses
