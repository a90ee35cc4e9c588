"""A subscriber for tests: answers POSTs and remembers what came, in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import uvicorn

from headgate.testing.server import free_port


@dataclass(frozen=True)
class Delivery:
    """One POST as it arrived: path (whose trigger), headers (lower case) and body."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["ce-id"]


@dataclass
class Subscriber:
    """Answers every POST with `status`; `deliveries` holds them in order of arrival."""

    status: int = 202
    port: int = field(default_factory=free_port)
    deliveries: list[Delivery] = field(default_factory=list)
    delay_s: float = 0.0
    answers: dict[str, Any] = field(default_factory=dict)
    """What to answer on a path instead: (status, body, (header, value), ...), or a function of the delivery to that."""

    def take(self, delivery: Delivery) -> None:
        """A delivery has come whole; it is answered afterwards."""
        self.deliveries.append(delivery)

    def at(self, path: str) -> list[Delivery]:
        """What came to `path`, in order."""
        return [delivery for delivery in self.deliveries if delivery.path == f"/{path}"]

    def __post_init__(self) -> None:
        config = uvicorn.Config(
            self._app, port=self.port, interface="asgi3", log_level="error", lifespan="off", access_log=False
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._server.serve()), daemon=True)

    def __enter__(self) -> Subscriber:
        self._thread.start()
        while not self._server.started:
            pass
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}/{path}"

    def ids(self, path: str) -> Counter[str]:
        """Ids of the events that came to `path`, with how often."""
        return Counter(d.id for d in self.deliveries if d.path == f"/{path}")

    async def _app(self, scope, receive, send) -> None:  # type: ignore[no-untyped-def]
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        delivery = Delivery(scope["path"], headers, body)
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        self.take(delivery)
        answer = self.answers.get(scope["path"].lstrip("/"), (self.status, b""))
        status, data, *extra = answer(delivery) if callable(answer) else answer
        fields = [(name.encode(), value.encode()) for name, value in extra]
        fields.append((b"content-length", str(len(data)).encode()))
        await send({"type": "http.response.start", "status": status, "headers": fields})
        await send({"type": "http.response.body", "body": data})
