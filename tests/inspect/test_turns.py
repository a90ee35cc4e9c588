"""Requests that search the log: turns go round by namespace and user, and nobody takes all places."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast

import pytest
from starlette.applications import Starlette

from headgate.auth.context import USER
from headgate.auth.user import authenticated
from headgate.inspect import api
from headgate.inspect.api import InspectApi
from headgate.inspect.catalogue import Catalogues, CatalogueView
from headgate.objects.api.http import ERROR_HANDLERS
from headgate.objects.store.store import Store
from headgate.observe.metrics import PLACES
from headgate_api.limits import INSPECT_THREADS
from headgate_api.objects.kinds import ObjectKey

_TAKEN = PLACES.labels("inspections")


class HeldCatalogues:
    """Reads when it is told to, and notes in which order."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.begun = threading.Semaphore(0)
        self.namespaces: list[str] = []

    def read(self, key: ObjectKey, _: str) -> CatalogueView:
        self.namespaces.append(key.namespace)
        self.begun.release()
        assert self.go.wait(30)
        return CatalogueView(key.path, "", True, 0, 0, [])


async def ask(app: Starlette, namespace: str, user: str) -> int:
    """Status of an answer."""
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    path = f"/apis/eventing.knative.dev/v1/namespaces/{namespace}/brokers/default/catalogue"
    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "query_string": b"",
        "headers": [],
        USER: authenticated(user),
    }
    await app(scope, receive, send)
    return cast(int, sent[0]["status"])


def test_who_asks_for_many_catalogues_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 8 * INSPECT_THREADS
    monkeypatch.setattr(api, "INSPECTIONS_MAX", most)
    held = HeldCatalogues()
    routes = InspectApi(cast(Any, None), cast(Store, None), cast(Catalogues, held)).routes()
    app = Starlette(routes=list(routes), exception_handlers=ERROR_HANDLERS)

    async def work() -> None:
        loud = [asyncio.create_task(ask(app, "loud", "eve")) for _ in range(most)]
        try:
            for _ in range(INSPECT_THREADS):
                assert await asyncio.to_thread(held.begun.acquire, timeout=30)
            taken = _TAKEN.value
            beside = asyncio.create_task(ask(app, "loud", "bob"))
            quiet = asyncio.create_task(ask(app, "quiet", "ann"))
            async with asyncio.timeout(30):
                while _TAKEN.value < taken + 2:
                    await asyncio.sleep(0)
        finally:
            held.go.set()
        statuses = [await one for one in loud]
        assert most // 2 < statuses.count(200) < most
        assert statuses.count(200) + statuses.count(429) == most
        assert [await beside, await quiet] == [200, 200]
        assert held.namespaces.index("quiet") <= INSPECT_THREADS + 2, "a newcomer's turn is next"

    asyncio.run(work())
    assert _TAKEN.value == 0
