"""What a dispatcher on Kafka answers on its socket: questions about one of its partitions, `/partitions/N/...`.

Behind the prefix are the paths that a dispatcher of one machine has. A partition that is not here, or not yet, is
answered with 421 (Misdirected Request): nothing was done, and who asks looks for its owner anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Protocol

from starlette.applications import Starlette
from starlette.routing import BaseRoute, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from headgate.control.http import ERROR_HANDLERS
from headgate.errors import HeadgateError
from headgate.server.proxy import PartUnavailableError

MISDIRECTED: Final = 421
_PREFIX: Final = "/partitions/"


class PartitionElsewhereError(HeadgateError):
    """The process does not own the partition that it is asked about."""

    code = "partition-elsewhere"
    http_status = MISDIRECTED


class AnsweringPartition(Protocol):
    """A partition that this process owns."""

    @property
    def api(self) -> ASGIApp | None:
        """Answers questions; None before its state is read and once it goes."""
        ...


def api_of(routes: Iterable[BaseRoute]) -> ASGIApp:
    """The answers about one partition; its errors are those of `partitions_api`."""
    return Router(routes=list(routes))


def partition_path(partition: int, target: str) -> str:
    """Path and query of a question about a partition."""
    return f"{_PREFIX}{partition}{target}"


def partitions_api(partitions: Mapping[int, AnsweringPartition]) -> Starlette:
    """Answers about the partitions that a process has at the time."""

    class Questions:
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            number = scope["path_params"]["number"]
            partition = partitions.get(number)
            api = partition.api if partition is not None else None
            if api is None:
                raise PartitionElsewhereError(f"partition {number} of the outbox is not here")
            prefix = f"{_PREFIX}{number}"
            path, raw = scope["path"].removeprefix(prefix), scope["raw_path"].removeprefix(prefix.encode())
            try:
                await api({**scope, "path": path, "raw_path": raw}, receive, send)
            except HeadgateError:
                raise
            except Exception as error:
                if partition is partitions.get(number) and partition is not None and partition.api is api:
                    raise
                raise PartUnavailableError from error  # it went under way, and with it its files and threads

    route = Route(f"{_PREFIX}{{number:int}}/{{rest:path}}", Questions())
    return Starlette(routes=[route], exception_handlers=ERROR_HANDLERS)
