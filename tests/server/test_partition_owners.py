"""How a front asks the owners of the outbox's partitions, without a Kafka."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp

from headgate.objects.api.http import ERROR_HANDLERS
from headgate.server.peers import local_http, partition_owners
from headgate.server.peers.dispatcher_group import DispatcherGroup
from headgate.server.peers.partition_owners import PartitionOwners
from headgate.server.peers.servers import PeerServers
from headgate.server.processes.kafka.partition_answers import partitions_api
from headgate.settings import Settings

STEP_S = 60.0
PATH = "/pull/{namespace}/{name}"


@contextlib.asynccontextmanager
async def standing_still() -> AsyncIterator[str]:
    """The URL of a server whose processes are stopped: the kernel takes connections, and nobody answers."""
    taken: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: taken.append(writer), "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        for writer in taken:
            writer.close()
        server.close()


class Owned:
    """A partition that this server has."""

    def __init__(self, api: ASGIApp) -> None:
        self.api = api


class OnePartition:
    """A group that knows where every subscription is."""

    async def owner(self, *_: object) -> int:
        return 0


async def pull(app: ASGIApp) -> int:
    """The status of an answer."""
    sent: list[Any] = []
    requests = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive() -> Any:
        return next(requests, None) or await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/pull/ns/s", "query_string": b"", "headers": []}
    await app(scope, receive, send)
    return int(sent[0]["status"])


def test_an_owner_that_stands_still_is_left_once_another_one_has_its_partition(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection stays open, so nothing else tells that it will not answer."""
    monkeypatch.setattr(partition_owners, "PARTITION_OWNER_S_MAX", 0.05)

    async def answer(_: Request) -> Response:
        return JSONResponse({})

    async def main(data: Path) -> None:
        settings = Settings(data=data, listen="127.0.0.1:1", grpc="off")
        own = {0: Owned(Router([Route(PATH, answer, methods=["POST"])]))}
        async with (
            standing_still() as stopped,
            local_http.answering(partitions_api(own), settings.dispatcher_socket(0)),
        ):
            peers = PeerServers(settings)
            now = {0: stopped}
            owners = PartitionOwners(settings, 1, lambda: dict(now), peers)
            app = owners.subscriptions(cast(DispatcherGroup, OnePartition()))
            front = Starlette(routes=[Route(PATH, app, methods=["POST"])], exception_handlers=ERROR_HANDLERS)
            waiting = asyncio.create_task(pull(front))
            await asyncio.sleep(0.2)
            assert not waiting.done(), "an owner may take its time"
            now[0] = peers.own_url
            assert await waiting == 503
            assert await pull(front) == 200

    asyncio.run(asyncio.wait_for(main(tmp_path_factory.mktemp("o")), STEP_S))
