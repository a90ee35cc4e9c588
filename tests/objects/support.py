"""A running API, objects as documents, and waiting without guessing."""

from __future__ import annotations

import asyncio
import json
import socket
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import uvicorn

from headgate.objects.api.api import ControlApi
from headgate.objects.store.reconciler import Reconciler
from headgate.objects.store.rows import RoutedRow, routed_rows
from headgate.objects.store.store import Store
from headgate.storage.keyring import Keyring
from headgate_api.objects.kinds import API_VERSION, Broker, Kind, decode_stored
from tests.support import eventually

WAIT_S = 60.0
Kubectl = Callable[..., str]
"""Runs kubectl; see the fixture of that name."""


def trigger(name: str = "t1", *, broker: str = "default", **spec: object) -> dict[str, Any]:
    spec = {"broker": broker, "subscriber": {"uri": "http://127.0.0.1:9/sink"}, **spec}
    return {"apiVersion": API_VERSION, "kind": "Trigger", "metadata": {"name": name}, "spec": spec}


def broker(name: str, **spec: object) -> dict[str, Any]:
    return {"apiVersion": API_VERSION, "kind": "Broker", "metadata": {"name": name}, "spec": spec}


def condition(document: dict[str, Any], type_: str) -> dict[str, str]:
    (found,) = [one for one in document["status"]["conditions"] if one["type"] == type_]
    return found


def facts(folder: Path) -> list[RoutedRow]:
    """What the store in a folder knows about its triggers."""
    connection = sqlite3.connect(folder / "control.db")
    try:
        return list(routed_rows(connection))
    finally:
        connection.close()


def stored_brokers(store: Store) -> list[Broker]:
    """Every broker, read anew."""
    found = [decode_stored(Kind.BROKER, item.body) for item in store.page(Kind.BROKER).items]
    return [one for one in found if isinstance(one, Broker)]


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.body.splitlines()]


@dataclass
class Server:
    """A control API with a reconciler; the test plays the matcher unless `follow` does."""

    store: Store
    port: int
    namespace: str = "default"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def path(self, plural: str, name: str = "") -> str:
        base = f"/apis/{API_VERSION}/namespaces/{self.namespace}/{plural}"
        return f"{base}/{name}" if name else base

    def request(
        self, method: str, path: str, body: object = None, *, headers: dict[str, str] | None = None, raw: bytes = b""
    ) -> Answer:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        try:
            data = raw or (json.dumps(body).encode() if body is not None else None)
            given = {"Content-Type": "application/json"} if data else {}
            connection.request(method, path, data, given | (headers or {}))
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def merge(self, path: str, patch: object) -> Answer:
        return self.request("PATCH", path, patch, headers={"Content-Type": "application/merge-patch+json"})

    @contextmanager
    def stream(self, path: str, headers: dict[str, str] | None = None) -> Iterator[HTTPResponse]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        try:
            connection.request("GET", path, headers=headers or {})
            response = connection.getresponse()
            yield response
        finally:
            # The response holds the socket's file too; both must go for the server to see the end.
            response.close()
            connection.close()

    def ready(self, plural: str, name: str) -> str:
        answer = self.request("GET", self.path(plural, name)).json
        return condition(answer, "Ready")["status"] if answer.get("status") else ""


@contextmanager
def running(path: Path, *, follow: bool = True, keys: Keyring | None = None) -> Iterator[Server]:
    """A server on a free port; with `follow`, every generation of filters is in force at once."""
    store = Store.open(path / "control.db", keys=keys)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        port = listener.getsockname()[1]
        store.public_url.set(f"http://127.0.0.1:{port}")
        api = ControlApi(store)
        config = uvicorn.Config(api.app, log_level="warning", timeout_graceful_shutdown=5)
        server = uvicorn.Server(config)

        async def main() -> None:
            stop = asyncio.Event()
            reconciler = asyncio.create_task(Reconciler(store).run(stop))
            matcher = asyncio.create_task(_follow(store)) if follow else None
            await server.serve(sockets=[listener])
            stop.set()
            await reconciler
            if matcher is not None:
                matcher.cancel()

        thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
        thread.start()
        try:
            eventually(lambda: server.started)
            yield Server(store, port)
        finally:
            api.close()
            server.should_exit = True
            thread.join(WAIT_S)
            assert not thread.is_alive()
            store.close()


async def _follow(store: Store) -> None:
    seen = -1
    while True:
        if (version := store.data_version()) != seen:
            seen = version
            wanted = await asyncio.to_thread(store.desired_generation)
            await asyncio.to_thread(store.counters.activate, wanted)
        await asyncio.sleep(0.01)
