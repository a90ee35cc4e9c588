"""Subscribers and the source of webhooks refuse what they should, and take the rest once."""

from __future__ import annotations

import hashlib
import hmac
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from standardwebhooks import Webhook

from tests.examples.conftest import BUILD_S_MAX, Clone
from tests.support import eventually
from tests.system.subscriber import Subscriber

pytestmark = [pytest.mark.slow, pytest.mark.system, pytest.mark.timeout(BUILD_S_MAX)]

FRAMEWORKS = {
    "flask": "python -m examples.python.flask_app --port 9000",
    "fastapi": "python -m uvicorn --log-level warning --factory examples.python.fastapi_app:make_app --port 9000",
    "express": "node examples/javascript/express.mjs --port 9000",
}
NPM = "npm ci --prefix examples/javascript --ignore-scripts --no-audit --no-fund --silent"
SOURCE = "python -m examples.python.webhook_source --broker http://127.0.0.1:8080/default/default --port 9000"
SECRET = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz"
ENVIRONMENT = f"export WEBHOOK_SECRET={SECRET} GITHUB_SECRET=swordfish"


@pytest.fixture
def clone(folder: Path) -> Iterator[Clone]:
    terminals = Clone(folder)
    try:
        yield terminals
    finally:
        terminals.stop()


@pytest.fixture
def subscriber() -> Iterator[Subscriber]:
    with Subscriber() as running:
        yield running


def installed(clone: Clone, folder: Path) -> None:
    """What Express needs."""
    if not (folder / "examples/javascript/node_modules").is_dir():
        clone.type(NPM)


def post(url: str, body: bytes, headers: dict[str, str]) -> tuple[int, str]:
    """The status and the text of an answer."""
    parts = urlsplit(url)
    with closing(HTTPConnection(str(parts.hostname), parts.port, timeout=30)) as connection:
        with suppress(BrokenPipeError, ConnectionResetError):  # who refuses a body unread has answered
            connection.request(
                "POST", parts.path or "/", body, {"content-type": "application/cloudevents+json", **headers}
            )
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_subscriber_refuses_what_it_should(framework: str, clone: Clone, folder: Path) -> None:
    installed(clone, folder)
    clone.type(f"{ENVIRONMENT} BOOKINGS={framework}.book")

    def deliver(body: object, *, secret: str = SECRET, age_s: int = 0) -> int:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        when = datetime.now(UTC) - timedelta(seconds=age_s)
        signature = Webhook(secret).sign("m1", when, data.decode())
        signed = {"webhook-id": "m1", "webhook-timestamp": str(int(when.timestamp())), "webhook-signature": signature}
        return post(clone.url, data, signed)[0]

    order = {"specversion": "1.0", "id": "1", "source": "/bank", "type": "payment.made", "data": {"total": 5}}
    clone.start("Subscriber", FRAMEWORKS[framework])
    assert post(clone.url, json.dumps(order).encode(), {})[0] == 401
    assert deliver(order, secret="whsec_" + "A" * 32) == 401
    assert deliver(order, age_s=3600) == 401
    assert deliver({**order, "specversion": "9.9"}) == 400
    assert deliver({**order, "data": None}) == 400
    assert deliver([order]) == 400
    assert deliver(b"{") == 400
    assert deliver({**order, "data": {"total": "x" * (3 << 20)}}) == 413
    assert deliver(order) == 204
    clone.start("Subscriber", FRAMEWORKS[framework])  # what was booked is known after a restart
    assert deliver(order) == 204
    eventually(lambda: "1 again" in clone.shown("Subscriber"), lambda: clone.shown("Subscriber"))
    if framework != "express":
        with closing(sqlite3.connect(folder / f"{framework}.book", isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            assert deliver({**order, "id": "2"}) == 503
        assert deliver({**order, "id": "2"}) == 204


def test_a_webhook_is_published_once_and_forged_ones_never(clone: Clone, subscriber: Subscriber) -> None:
    clone.type(ENVIRONMENT)
    clone.start("Source", SOURCE.replace("8080", str(subscriber.port)))

    def github(body: bytes, event: str = "push", signature: str | None = None, **headers: str) -> int:
        shown = "sha256=" + hmac.new(b"swordfish", body, hashlib.sha256).hexdigest() if signature is None else signature
        given = {"X-Hub-Signature-256": shown, "X-GitHub-Event": event, **headers}
        return post(f"{clone.url}/github", body, given)[0]

    def standard(body: bytes, name: str = "w1", age_s: int = 0, secret: str = SECRET) -> int:
        when = datetime.now(UTC) - timedelta(seconds=age_s)
        shown = {"webhook-id": name, "webhook-timestamp": str(int(when.timestamp()))}
        shown["webhook-signature"] = Webhook(secret).sign(name, when, body.decode())
        return post(f"{clone.url}/webhooks", body, shown)[0]

    push = json.dumps({"repository": {"html_url": "https://github.com/shop/a"}, "ref": "main"}).encode()
    forged = ("", "sha256=", "sha256=" + "0" * 64, "sha1=" + "0" * 40, "ü")
    assert [github(push, signature=one.encode().decode("latin-1")) for one in forged] == [401] * len(forged)
    assert github(b'{"a": ' + b"[" * 200_000, event="push") == 400
    assert github(push, event="push\u00a0x") == 400
    assert github(b"[]") == 400
    assert github(b" " * 1_000_001) == 413
    assert [github(push), github(push), github(push, **{"X-GitHub-Delivery": "another"})] == [202, 200, 200]
    paid = json.dumps({"type": "invoice.paid", "timestamp": "2026-01-02T03:04:05Z", "data": {"total": 7}}).encode()
    assert [standard(paid, secret="whsec_" + "A" * 32), standard(paid, age_s=400)] == [401, 401]
    assert [standard(paid), standard(paid), standard(paid, age_s=60)] == [202, 200, 200]
    assert standard(b"{", "w2") == 400
    assert standard(json.dumps({"type": "ü", "data": 1}).encode(), "w3") == 400
    published = [(event["type"], event["id"]) for event in (json.loads(one.body) for one in subscriber.deliveries)]
    assert sorted(published) == [("com.github.push", hashlib.sha256(push).hexdigest()), ("invoice.paid", "w1")]


def test_a_webhook_waits_for_a_broker_that_is_away(clone: Clone) -> None:
    clone.type(ENVIRONMENT)
    clone.start("Source", SOURCE.replace("8080", "1"))
    body = b'{"zen": "Keep it logically awesome."}'
    shown = {"X-Hub-Signature-256": "sha256=" + hmac.new(b"swordfish", body, hashlib.sha256).hexdigest()}
    assert [post(f"{clone.url}/github", body, {**shown, "X-GitHub-Event": "ping"})[0] for _ in "12"] == [503, 503]
