"""Publishing events from tests, one keep-alive connection."""

from __future__ import annotations

import http.client
import json
from typing import Any

from headgate.testing import Server


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
