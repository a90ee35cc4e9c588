"""Paths that other processes answer stand beside the API's, below the same prefixes, and hide none of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote

import pytest
from starlette.types import ASGIApp

from headgate.objects.api.admission import Admission
from headgate.objects.api.api import ControlApi
from headgate.objects.store.reconciler import Reconciler
from headgate.objects.store.store import Store
from headgate.server.peers.local_http import KeptConnections, sent_path
from headgate.server.processes import control, front
from headgate.server.processes.filter_workers import FilterWorkers
from headgate.server.processes.front import FrontStore
from headgate.settings import Settings
from headgate_api.objects.kinds import Kind
from tests.objects.support import trigger


@pytest.fixture
def app(tmp_path: Path) -> Iterator[ASGIApp]:
    store = Store.open(tmp_path / "control.db")
    Admission(store).create(Kind.TRIGGER, trigger("t", filter={"cel": "ce.type == 'a'"}))
    Reconciler(store).step()
    api = ControlApi(store)
    yield control.paths(Settings(data=tmp_path), store, api)
    api.close()
    store.close()


def get(app: ASGIApp, path: str, query: str = "") -> tuple[int, Any]:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": path, "query_string": query.encode(), "headers": []}
    asyncio.run(app(scope, receive, send))
    body = b"".join(message.get("body", b"") for message in sent)
    return sent[0]["status"], json.loads(body)


def test_each_path_has_its_answer(app: ASGIApp) -> None:
    status, answer = get(app, "/apis/headgate.dev/v1/namespaces/default/brokers/default/filter")
    assert (status, answer["cel"]) == (200, 'ce.type == "a"')
    assert get(app, "/apis/headgate.dev/v1/nosuch")[0] == 404
    base = "/apis/eventing.knative.dev/v1/namespaces/default/triggers"
    status, answer = get(app, f"{base}/t/why", "id=1")
    assert (status, answer["fate"]) == (200, "not-stored")
    status, answer = get(app, f"{base}/nosuch/why", "id=1")
    assert (status, answer["kind"]) == (404, "Status")
    assert get(app, f"{base}/t/why")[0] == 400
    assert get(app, f"{base}/t")[1]["metadata"]["name"] == "t"
    assert get(app, f"{base}/t/nosuch")[0] == 404


@pytest.mark.parametrize(
    "path",
    [
        "deadletters",
        "namespaces/default/deadletters",
        "namespaces/default/deadletters/1",
        "pending",
        "namespaces/default/pending/1",
        "namespaces/default/replays",
        "namespaces/default/replays/1",
        "namespaces/default/subscriptions/s/stats",
        "namespaces/default/subscriptions",
        "no/such/path",
    ],
)
def test_while_a_process_is_down_its_paths_are_unavailable(tmp_path: Path, path: str) -> None:
    nothing = cast(Any, None)
    store = FrontStore(objects=nothing, brokers=nothing, partitions=nothing, producers=nothing, checks={}, work=())
    app = front.other_paths(Settings(data=tmp_path), store, nothing, FilterWorkers(), KeptConnections())
    status, answer = get(app, f"/apis/headgate.dev/v1/{path}")
    assert (status, answer["kind"], answer["reason"]) == (503, "Status", "ServiceUnavailable")
    assert "try again in a few seconds" in answer["message"]


def test_a_path_is_passed_on_as_it_was_sent() -> None:
    """Decoded it would end the request line, and begin another request at the other process."""
    sent = b"/apis/headgate.dev/v1/namespaces/a%20HTTP%2F1.1%0D%0A%0D%0A/replays"
    assert sent_path({"path": unquote(sent.decode()), "raw_path": sent}) == sent.decode()
    assert "\r" not in sent_path({"path": unquote(sent.decode())})
