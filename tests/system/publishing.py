"""Brokers of tests, and publishing to them."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Self

from headgate.testing.server import Server
from headgate_api.errors import NotFoundError
from headgate_client.sync import Client

SECONDS_MAX: Final = 120.0
DOWN: Final = (OSError, http.client.HTTPException)
"""What a client sees of a server that is killed."""


class Publisher:
    """Publishes binary-mode events over one connection to one broker."""

    def __init__(self, server: Server, broker: str = "default/default") -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        self._path = f"/{broker}"

    def publish(self, event_id: str, type_: str, data: Any = None, **extensions: str) -> int:
        """Publishes one event; returns the status of the answer."""
        headers = {"ce-specversion": "1.0", "ce-id": event_id, "ce-source": "/test", "ce-type": type_}
        headers |= {f"ce-{name}": value for name, value in extensions.items()}
        body = b""
        if data is not None:
            body = json.dumps(data).encode()
            headers["content-type"] = "application/json"
        return self._post(body, headers)

    def publish_batch(self, events: Sequence[dict[str, Any]]) -> int:
        """Publishes events in JSON form by one request; returns the status of the answer."""
        return self._post(json.dumps(events).encode(), {"content-type": "application/cloudevents-batch+json"})

    def _post(self, body: bytes, headers: dict[str, str]) -> int:
        self._connection.request("POST", self._path, body, headers)
        answer = self._connection.getresponse()
        answer.read()
        return answer.status

    def close(self) -> None:
        self._connection.close()

    def __del__(self) -> None:
        self.close()


class Pressure:
    """Publishes over several connections at a constant rate while the block runs, and whenever the server is up.

    `publish` is called by several threads.
    """

    def __init__(
        self, server: Server, rate_per_s: float, publish: Callable[[Publisher], object], *, connections: int = 4
    ) -> None:
        self._server = server
        self._pause_s = connections / rate_per_s
        self._publish = publish
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(connections)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            publisher = Publisher(self._server)
            try:
                while not self._stop.wait(self._pause_s):
                    self._publish(publisher)
            except DOWN:
                time.sleep(0.05)  # it is down, or not up yet; what was in flight was not acknowledged
            finally:
                publisher.close()


def broker(server: Server, name: str, spec: dict[str, Any] | None = None) -> None:
    """Makes a broker; returns when every process of the server knows it."""
    server.create("brokers", "default", name, spec or {})
    server.wait_object_ready("brokers", "default", name, seconds=SECONDS_MAX)
    ends = time.monotonic() + SECONDS_MAX
    with Client(server.grpc) as client:
        while True:
            try:
                client.read(name, follow=False).__enter__()
                client.publish(name, [])
            except NotFoundError:
                assert time.monotonic() < ends
                time.sleep(0.05)
            else:
                return
