"""Replays over HTTP: what is asked for is begun at once, and a request that none can mean is refused."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette

from headgate.log.directory import LogDirectory
from headgate.objects.api.admission import Admission
from headgate.objects.api.http import ERROR_HANDLERS
from headgate.objects.kinds.egress import UrlPolicy
from headgate.objects.store.reconciler import Reconciler
from headgate.objects.store.store import Store
from headgate.replay.api import ReplaysApi
from headgate.scan.chunks import ChunkLog
from headgate_api.objects.kinds import Kind
from tests.delivery.harness import EventLog, Routes, Subscriber, event, run, running
from tests.objects.support import trigger

BASE = "/apis/headgate.dev/v1/namespaces/default/replays"


class Client:
    """`broker` is the identity of the broker whose history is asked for."""

    def __init__(self, app: Starlette, broker: str) -> None:
        self._app = app
        self.broker = broker

    async def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": json.dumps(body).encode() if body else b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"content-type", b"application/json")]
        scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": headers}
        await self._app(scope, receive, send)
        return sent[0]["status"], json.loads(b"".join(message.get("body", b"") for message in sent))


@contextlib.asynccontextmanager
async def serving(data: Path) -> AsyncIterator[Client]:
    with contextlib.closing(Store.open(data / "control.db")) as store:
        Admission(store).create(Kind.TRIGGER, trigger("t"))
        Reconciler(store).step()
        routes = Routes()
        served = routes.brokers["default/default"] = store.served("default/default")
        assert served is not None
        async with running(data, routes) as work:
            api = ReplaysApi(
                work.dispatcher.deliveries.replays, ChunkLog(LogDirectory(data / "log", "stop")), store, UrlPolicy()
            )
            yield Client(Starlette(routes=list(api.routes()), exception_handlers=ERROR_HANDLERS), served.identity)


def test_a_replay_is_begun_shown_listed_and_cancelled(tmp_path: Path, log: EventLog) -> None:
    async def work() -> None:
        async with Subscriber() as subscriber, serving(tmp_path) as client:
            log.append([event(n) for n in range(3)], broker=client.broker)
            status, made = await client.ask("POST", BASE, {"broker": "default", "url": subscriber.url, "rate": 0.01})
            assert (status, made["state"], made["eventsTotal"]) == (201, "running", 3)
            path = f"{BASE}/{made['id']}"
            assert (await client.ask("GET", path))[1]["id"] == made["id"]
            assert [one["id"] for one in (await client.ask("GET", BASE))[1]["items"]] == [made["id"]]
            assert await client.ask("POST", f"{path}/cancel") == (200, {"cancelled": True})
            assert await client.ask("POST", f"{path}/cancel") == (200, {"cancelled": False})
            assert (await client.ask("GET", path))[1]["state"] == "cancelled"

    run(work())


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"broker": "default"}, 400),
        ({"broker": "default", "trigger": "t", "url": "http://x/"}, 400),
        ({"trigger": "t", "rate": 0}, 400),
        ({"trigger": "t", "broker": "other"}, 400),
        ({"trigger": "t", "nosuch": 1}, 400),
        ({"trigger": "nosuch"}, 404),
        ({"trigger": "t", "filter": "data."}, 422),
    ],
)
def test_a_request_that_none_can_mean_is_refused(tmp_path: Path, body: dict[str, Any], status: int) -> None:
    async def work() -> None:
        async with serving(tmp_path) as client:
            assert (await client.ask("POST", BASE, body))[0] == status
            assert (await client.ask("GET", BASE))[1] == {"items": []}

    run(work())


@pytest.mark.parametrize("place", ["from", "to"])
def test_a_place_behind_the_end_of_the_log_is_refused(tmp_path: Path, log: EventLog, place: str) -> None:
    log.append([event(n) for n in range(3)])

    async def work() -> None:
        async with serving(tmp_path) as client:
            status, answer = await client.ask("POST", BASE, {"trigger": "t", "rate": 0.01, place: "0:4"})
            assert status == 400
            assert "0:4 is behind the end of this log, 0:3" in answer["message"]
            assert (await client.ask("POST", BASE, {"trigger": "t", "rate": 0.01, place: "0:3"}))[0] == 201

    run(work())


def test_an_id_that_none_can_be_is_refused(tmp_path: Path) -> None:
    async def work() -> None:
        async with serving(tmp_path) as client:
            assert (await client.ask("GET", f"{BASE}/1"))[0] == 404
            for id_ in ("9" * 20, "9" * 5_000, "nosuch"):
                status, answer = await client.ask("GET", f"{BASE}/{id_}")
                assert status == 400
                assert "is no id" in answer["message"]

    run(work())
