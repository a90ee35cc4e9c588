"""Brokers of tests, and publishing to them."""

from __future__ import annotations

import http.client
import json
import time
from typing import Any, Final

from headgate.testing.server import Server
from headgate_api.errors import NotFoundError
from headgate_client.sync import Client

SECONDS_MAX: Final = 120.0


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
        self._connection.request("POST", self._path, body, headers)
        answer = self._connection.getresponse()
        answer.read()
        return answer.status

    def close(self) -> None:
        self._connection.close()

    def __del__(self) -> None:
        self.close()


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
