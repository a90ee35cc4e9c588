"""A fake log and a way to call an ASGI application without a server."""

import asyncio
import json

from headgate.auth.context import USER
from headgate.auth.user import ANONYMOUS
from headgate.event.arrow import StoredEvent
from headgate.ingress.intake import Intake
from headgate.ingress.partitions import Partitions
from headgate.ingress.publish_http import Ingress
from headgate.objects.kinds.specs import DEFAULT_RULE, ServedBroker
from headgate_api.event.http import encode_binary


class FakeLog:
    """Keeps what was submitted; `error` is raised instead, `gate` is waited for before anything counts as stored."""

    def __init__(self, error=None):
        self.error = error
        self.gate = None
        self.submits = []
        self.sizes = []

    async def enqueue(self, items, size_bytes, chain=None):
        if self.error is not None:
            raise self.error
        if self.gate is not None:
            await self.gate.wait()
        first = len(self.events)
        self.submits.append([StoredEvent(items.broker, event) for event in items.events])
        self.sizes.append(size_bytes)
        return first

    @property
    def events(self):
        return [item.event for submit in self.submits for item in submit]


class Answer:
    def __init__(self, messages):
        start, *rest = messages
        assert start["type"] == "http.response.start"
        assert all(message["type"] == "http.response.body" for message in rest)
        self.status = start["status"]
        self.headers = {name.decode(): value.decode() for name, value in start["headers"]}
        assert len(self.headers) == len(start["headers"])
        self.body = b"".join(message["body"] for message in rest)

    @property
    def problem(self):
        assert self.headers["content-type"] == "application/problem+json"
        return json.loads(self.body)


TOKEN = b"dispatcher"
OWN = ("headgate-token", TOKEN.hex())
"""What the server's own deliveries show."""


async def call(app, method="POST", path="/ns/b", headers=(), pieces=(b"",), more=None, user=ANONYMOUS):
    """Calls an ASGI application with a body in pieces; None among them is a disconnect.

    Returns the answer and how many pieces it did not read; (None, ...) when it did not answer.
    """
    waiting = list(pieces)
    sent = []

    async def receive():
        piece = waiting.pop(0)
        if piece is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": piece, "more_body": bool(waiting)}

    async def send(message):
        sent.append(message)

    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    await app({"type": "http", "method": method, "path": path, "headers": raw, USER: user}, receive, send)
    return (Answer(sent) if sent else None), len(waiting)


async def fallback(scope, receive, send):
    await send({"type": "http.response.start", "status": 299, "headers": []})
    await send({"type": "http.response.body", "body": scope["path"].encode()})


def ingress(*logs, brokers=("ns/b",)):
    served = {path: ServedBroker(f"{path}/uid", DEFAULT_RULE) for path in brokers}
    return Ingress(Intake(Partitions(logs), served.get), fallback, TOKEN)


def run(coroutine):
    return asyncio.run(coroutine)


def publish(app, event, **options):
    headers, body = encode_binary(event)
    return run(call(app, headers=headers, pieces=(body,), **options))[0]
