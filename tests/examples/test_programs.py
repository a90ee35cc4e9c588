"""The programs for other people's code do with a real server what their pages say."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from headgate.testing.server import Server
from headgate_client.sync import Client
from tests.docs.commands import steps
from tests.docs.test_tutorial import run
from tests.examples.conftest import BUILD_S_MAX, Clone
from tests.examples.test_refusals import FRAMEWORKS, SOURCE
from tests.support import REPOSITORY, eventually
from tests.system.publishing import Publisher, broker

pytestmark = [pytest.mark.slow, pytest.mark.system, pytest.mark.timeout(2 * BUILD_S_MAX)]

PAGES = REPOSITORY / "docs" / "howto"
JAVA = "java -cp 'examples/java/target/classes:examples/java/target/dependency/*'"
PROGRAMS = {
    "python": ("python -m examples.python.publish", "python -m examples.python.subscribe"),
    "go": ("examples/go/bin/publish", "examples/go/bin/subscribe"),
    "javascript": ("node examples/javascript/publish.mjs", "node examples/javascript/subscribe.mjs"),
    "java": (f"{JAVA} Publish", f"{JAVA} Subscribe"),
}
GO_ON = (*(subscribe for _, subscribe in PROGRAMS.values()), *FRAMEWORKS.values(), SOURCE)


def build(clone: Clone) -> None:
    """Types the commands of the page that build, unless that was done."""
    for step in steps(PAGES / "languages.md"):
        if step.is_command and step.text.startswith(("go build", "npm ci", "mvn")) and not clone.built():
            clone.type(step.text)


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


def test_the_page_on_grpcurl_shows_what_happens(clone: Clone) -> None:
    run("howto/grpcurl.md", clone, GO_ON)


def test_the_page_on_webhooks_shows_what_happens(clone: Clone) -> None:
    run("howto/webhooks.md", clone, GO_ON)
