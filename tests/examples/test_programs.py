"""The programs for other people's code do with a real server what their pages say, and refuse what they should."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import sqlite3
import urllib.error
import urllib.request
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import Webhook

from headgate.client import Client
from headgate.testing import Server
from tests.docs.commands import steps
from tests.docs.test_tutorial import eventually, run
from tests.examples.conftest import BUILD_S_MAX, Clone
from tests.support import REPOSITORY
from tests.system.publishing import Publisher, broker

pytestmark = [pytest.mark.system, pytest.mark.timeout(2 * BUILD_S_MAX)]

PAGES = REPOSITORY / "docs" / "howto"
JAVA = "java -cp 'examples/java/target/classes:examples/java/target/dependency/*'"
PROGRAMS = {
    "python": ("python -m examples.python.publish", "python -m examples.python.subscribe"),
    "go": ("examples/go/bin/publish", "examples/go/bin/subscribe"),
    "javascript": ("node examples/javascript/publish.mjs", "node examples/javascript/subscribe.mjs"),
    "java": (f"{JAVA} Publish", f"{JAVA} Subscribe"),
}
FRAMEWORKS = {
    "flask": "python -m examples.python.flask_app --port 9000",
    "fastapi": "python -m uvicorn --log-level warning --factory examples.python.fastapi_app:make_app --port 9000",
    "express": "node examples/javascript/express.mjs --port 9000",
}
SOURCE = "python -m examples.python.webhook_source --broker http://127.0.0.1:8080/default/default --port 9000"
GO_ON = (*(subscribe for _, subscribe in PROGRAMS.values()), *FRAMEWORKS.values(), SOURCE)
SECRET = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz"
ENVIRONMENT = f"export WEBHOOK_SECRET={SECRET} GITHUB_SECRET=swordfish"


def build(clone: Clone) -> None:
    """Types the commands of the page that build, unless that was done."""
    for step in steps(PAGES / "languages.md"):
        if step.is_command and step.text.startswith(("go build", "npm ci", "mvn")) and not clone.built():
            clone.type(step.text)


def post(url: str, body: bytes, headers: dict[str, str]) -> tuple[int, str]:
    """The status and the text of an answer."""
    request = urllib.request.Request(url, body, {"content-type": "application/cloudevents+json", **headers})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def stored(server: Server, name: str, filter: str) -> list[Any]:
    with Client(server.grpc) as client, client.read(name, filter=filter, follow=False) as reader:
        return [read.event for read in reader]


def test_the_page_on_languages_shows_what_happens(clone: Clone) -> None:
    run("howto/languages.md", clone, GO_ON)


def test_the_table_of_what_the_sdks_do_with_text_beyond_ascii(clone: Clone, server: Server) -> None:
    build(clone)
    broker(server, "ascii")
    rows = re.findall(r"^\| (\w+) `.*?` ([\d.]+) \| (.*) \| `(.*)` \|$", (PAGES / "languages.md").read_text(), re.M)
    assert {name.lower() for name, *_ in rows} == PROGRAMS.keys()
    for name, version, published, received in rows:
        publish, subscribe = PROGRAMS[name.lower()]
        assert version in versions()[name.lower()]
        status = clone.type(f"{publish} http://127.0.0.1:8080/default/ascii binary 2>&1 || echo failed")
        subjects = [event.subject for event in stored(server, "ascii", f'ce.source == "/shop/{name.lower()}"')]
        if refused := re.search(r"refused with (\d+)", published):
            assert (subjects, refused[1] in status) == ([], True), status
        else:
            assert subjects == re.findall(r"stored as `(.*)`", published), status
        clone.start("Subscriber", f"{subscribe} --port 9000")
        filter = {"attributes": {"type": f"order.{name.lower()}"}}
        spec = {"broker": "ascii", "filter": filter, "subscriber": {"uri": f"{clone.url}/"}}
        server.create("triggers", "default", name.lower(), spec)
        server.wait_trigger_ready("default", name.lower())
        order = Publisher(server, "default/ascii")
        assert order.publish("o", f"order.{name.lower()}", {"total": 1}, subject="Gr%C3%BCn%20&%20Co") == 202
        shown = f"o of {received}: 1"
        eventually(
            lambda shown=shown: shown in clone.shown("Subscriber").splitlines(), lambda: clone.shown("Subscriber")
        )
        server.delete("triggers", "default", name.lower())


def versions() -> dict[str, str]:
    """Where each language says which version of the SDK it takes."""
    examples = REPOSITORY / "examples"
    (python,) = re.findall(r"^cloudevents==.*$", (REPOSITORY / "requirements/dev.txt").read_text(), re.M)
    (go,) = re.findall(r"cloudevents/sdk-go/v2 v.*", (examples / "go/go.mod").read_text())
    (java,) = re.findall(r"<cloudevents.version>.*", (examples / "java/pom.xml").read_text())
    javascript = json.loads((examples / "javascript/package.json").read_text())["dependencies"]["cloudevents"]
    return {"python": python, "go": go, "java": java, "javascript": javascript}


def test_the_page_on_subscribers_shows_what_happens(clone: Clone) -> None:
    build(clone)
    run("howto/subscribers.md", clone, GO_ON)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_subscriber_refuses_what_it_should(framework: str, clone: Clone, folder: Path) -> None:
    build(clone)
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


def test_the_page_on_grpcurl_shows_what_happens(clone: Clone) -> None:
    run("howto/grpcurl.md", clone, GO_ON)


def test_the_page_on_webhooks_shows_what_happens(clone: Clone) -> None:
    run("howto/webhooks.md", clone, GO_ON)


def test_a_webhook_is_published_once_and_forged_ones_never(clone: Clone, server: Server) -> None:
    clone.type(ENVIRONMENT)
    clone.start("Source", SOURCE)

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
    published = [(event.type, event.id) for event in stored(server, "default", SHOWN)]
    assert sorted(published) == [("com.github.push", hashlib.sha256(push).hexdigest()), ("invoice.paid", "w1")]


SHOWN = 'ce.source == "https://github.com/shop/a" || ce.source == "/webhooks"'


def test_a_webhook_waits_for_a_broker_that_is_away(clone: Clone, tmp_path: Path) -> None:
    clone.type(ENVIRONMENT)
    clone.start("Source", SOURCE.replace("8080", "1"))
    body = b'{"zen": "Keep it logically awesome."}'
    shown = {"X-Hub-Signature-256": "sha256=" + hmac.new(b"swordfish", body, hashlib.sha256).hexdigest()}
    assert [post(f"{clone.url}/github", body, {**shown, "X-GitHub-Event": "ping"})[0] for _ in "12"] == [503, 503]
