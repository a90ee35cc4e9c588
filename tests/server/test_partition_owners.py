"""How a front asks the owners of the outbox's partitions, without a Kafka."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp

from headgate.auth.authorizer import NOTHING
from headgate.auth.context import USER
from headgate.auth.user import authenticated
from headgate.deadletters.own import OpaqueIds
from headgate.delivery.events import SharedEvent
from headgate.filter.compile.plan import Verdict
from headgate.inspect.find import EventRecords, KeptDeadLetter, MatchRow, PullState, PullTrace, RowRecord
from headgate.objects.api.http import ERROR_HANDLERS
from headgate.objects.kinds.specs import DEFAULT_RULE, ServedBroker
from headgate.server.peers import local_http, partition_owners
from headgate.server.peers.dispatcher_group import DispatcherGroup
from headgate.server.peers.local_http import FORWARDED
from headgate.server.peers.partition_owners import PARTITION, PartitionOwners
from headgate.server.peers.servers import PeerServers
from headgate.server.processes.kafka.partition_answers import PartitionRecordsApi, partitions_api
from headgate.settings import Settings
from tests.delivery.harness import BROKER, event

STEP_S = 60.0
PATH = "/pull/{namespace}/{name}"
DISCARD = "/apis/headgate.dev/v1/namespaces/ns/deadletters/discard"


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


async def pull(app: ASGIApp, **more: object) -> int:
    """The status of an answer."""
    return (await answered(app, **more))[0]


async def answered(app: ASGIApp, **more: object) -> tuple[int, bytes]:
    sent: list[Any] = []
    requests = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive() -> Any:
        return next(requests, None) or await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/pull/ns/s", "query_string": b"", "headers": []}
    await app(scope | {"raw_path": b"/pull/ns/s"} | more, receive, send)
    return int(sent[0]["status"]), b"".join(one.get("body", b"") for one in sent[1:])


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


@pytest.mark.parametrize(("ceiling", "status"), [("", 200), ("data.n == 1", 200), (NOTHING, 403)])
def test_the_headers_of_another_server_are_no_way_around_a_ceiling(
    tmp_path_factory: pytest.TempPathFactory, ceiling: str, status: int
) -> None:
    """Anybody can send them, and name targets."""

    async def answer(_: Request) -> Response:
        return JSONResponse({})

    async def main(data: Path) -> None:
        settings = Settings(data=data, listen="127.0.0.1:1", grpc="off")
        routes = [Route(path, answer, methods=["POST"]) for path in (PATH, DISCARD)]
        async with local_http.answering(partitions_api({0: Owned(Router(routes))}), settings.dispatcher_socket(0)):
            owners = PartitionOwners(settings, 1, dict, PeerServers(settings))
            app = Router(owners.routes(routes))
            headers = [(FORWARDED, b"1"), (PARTITION, b"0")]
            user = replace(authenticated("blue"), ceiling=ceiling)
            assert await pull(app, headers=headers, **{USER: user}) == status
            path = {"path": DISCARD, "raw_path": DISCARD.encode()}
            assert await pull(app, headers=headers, **path, **{USER: user}) == 200, "who answers looks at each"

    asyncio.run(asyncio.wait_for(main(tmp_path_factory.mktemp("o")), STEP_S))


@pytest.mark.parametrize(("ceiling", "status"), [("", 200), ("data.n == 1", 200), ("data.n == 2", 404)])
@pytest.mark.parametrize("is_below", [False, True])
def test_an_owner_tells_what_became_of_an_event_below_the_ceiling_alone(
    ceiling: str, status: int, is_below: bool
) -> None:
    """And to whom has a ceiling, be it another broker's, nothing that counts what is others'."""
    row = MatchRow(70, 1, 1, 1, Verdict.MATCH)
    kept_one = KeptDeadLetter(7, "kept", 1, "503", 503, b"e8 is wrong", 1, "", "", 0, True)
    ids = OpaqueIds(bytes(32))

    class Events:
        async def load(self, *_: int) -> SharedEvent:
            return SharedEvent(BROKER, event(1), 1)

    class Served:
        def served(self, _: str) -> ServedBroker:
            return ServedBroker(BROKER, DEFAULT_RULE)

    class Parts:
        thread = None

        def of_event(self, *_: object) -> EventRecords:
            return EventRecords(True, False, [RowRecord(row, None, kept_one, PullTrace(PullState.ENDED))], [])

    parts = cast(Any, Parts())
    api = PartitionRecordsApi(
        parts, parts, cast(Any, Events()), cast(Any, Served()), lambda _: ids if is_below else None
    )
    app = Starlette(routes=list(api.routes()), exception_handlers=ERROR_HANDLERS)
    path = "/apis/eventing.knative.dev/v1/namespaces/default/brokers/default/trace"
    user = replace(authenticated("blue"), ceiling=ceiling)
    more: dict[str, object] = {"method": "GET", "path": path, "query_string": b"place=0:1", USER: user}
    found, body = asyncio.run(answered(app, **more))
    assert found == status
    if found == 200:
        (told,) = msgspec.json.decode(body, type=EventRecords).rows
        assert told.dead_letter is not None
        letter = (told.row.position, told.dead_letter.id, told.dead_letter.data)
        assert letter == ((0, ids.shown(7), b"") if is_below else (70, 7, b"e8 is wrong"))
