"""A user below a ceiling in a deployment of two servers on a real Kafka: what each of them keeps of his events."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clusters.kafka import Kafka

from headgate.auth.static_tokens import new_token
from headgate.backend.config import ClusterConfig, SparkConfig
from headgate.backend.kafka.topics import Admin
from headgate.testing.server import Server
from tests.backend.contract import PARTITIONS
from tests.backend.outbox_stream import outbox_config
from tests.support import eventually, token_line

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(900)]
WAIT_S_MAX = 180.0
NOWHERE = {"uri": "http://127.0.0.1:9/"}
TRIGGERS = {
    **{f"lost-{n}": {"retry": 0, "deadLetterSink": NOWHERE} for n in range(4)},
    **{f"later-{n}": {"delay": "P1D"} for n in range(4)},
}
"""Of several, so that each server has some."""
KEPT = {"deadletters": "lost", "pending": "later"}
OWN = "/apis/headgate.dev/v1/namespaces/default"
RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"


class Ceilinged:
    """Two servers; root may everything, and eve has the events of a region."""

    def __init__(self, kafka: Kafka, folder: Path) -> None:
        config = outbox_config(kafka.bootstrap, f"c{uuid.uuid4().hex[:8]}.")
        Admin(config).create_missing()
        file, tokens = folder / "headgate.yaml", folder / "tokens.csv"
        spark = SparkConfig(master=f"local[{2 * PARTITIONS}]")
        file.write_text(ClusterConfig(kafka=config, spark=spark).model_dump_json())
        self.tokens = {"root": new_token(), "eve": new_token()}
        groups = {"root": ("system:masters",), "eve": ()}
        tokens.write_text("".join(token_line(text, user, *groups[user]) for user, text in self.tokens.items()))
        shared = ("--config", str(file), "--token-auth-file", str(tokens))
        self.log = folder / "server.log"
        self.whole = Server(folder / "whole", arguments=shared, log=self.log)
        self.other = Server(folder / "other", arguments=(*shared, "--role", "front,dispatcher"), log=self.log)
        self.whole.token = self.other.token = self.tokens["root"]

    def start(self) -> None:
        self.whole.start()
        self.other.start()

    def ask(self, user: str, method: str, path: str, body: object = None, *, server: Server | None = None) -> Any:
        """The answer, or the status of a refusal."""
        data = json.dumps(body).encode() if body is not None else None
        headers = {"authorization": f"Bearer {self.tokens[user]}", "content-type": "application/json"}
        request = urllib.request.Request(f"{(server or self.other).url}{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=WAIT_S_MAX) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    def publish(self, events: list[dict[str, Any]]) -> None:
        headers = {"authorization": f"Bearer {self.tokens['root']}"}
        headers["content-type"] = "application/cloudevents-batch+json"
        request = urllib.request.Request(f"{self.whole.url}/default/default", json.dumps(events).encode(), headers)
        with urllib.request.urlopen(request, timeout=WAIT_S_MAX) as answer:
            assert answer.status == 202

    def events(self, user: str, path: str, server: Server | None = None) -> list[tuple[str, str]]:
        """Which events of which triggers a user sees; none while the server does not know his right yet."""
        found = self.ask(user, "GET", f"{OWN}/{path}?limit=1000", server=server)
        items = found["items"] if isinstance(found, dict) else []
        return sorted((one["trigger"], one["eventId"]) for one in items)

    def give(self, region: str) -> None:
        """The right that eve has from now on; a role that is there takes its place."""
        every = ["get", "list", "create", "update", "delete"]
        rules = [
            {
                "apiGroups": ["eventing.knative.dev"],
                "resources": ["brokers/events"],
                "verbs": ["get"],
                "filter": {"cel": f'data.region == "{region}"'},
            },
            {"apiGroups": ["headgate.dev"], "resources": ["deadletters", "pending", "replays"], "verbs": every},
            {"apiGroups": ["eventing.knative.dev"], "resources": ["brokers/trace"], "verbs": ["get"]},
        ]
        role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "region"}}
        found = self.ask("root", "GET", f"{RBAC}/roles/region", server=self.whole)
        if isinstance(found, dict):
            assert isinstance(
                self.ask("root", "PUT", f"{RBAC}/roles/region", role | {"rules": rules}, server=self.whole), dict
            )
            return
        assert isinstance(self.ask("root", "POST", f"{RBAC}/roles", role | {"rules": rules}, server=self.whole), dict)
        binding = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "eve"},
            "subjects": [{"kind": "User", "name": "eve"}],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "region"},
        }
        assert isinstance(self.ask("root", "POST", f"{RBAC}/rolebindings", binding, server=self.whole), dict)


@pytest.fixture
def ceilinged(kafka: Kafka, tmp_path: Path) -> Iterator[Ceilinged]:
    made = Ceilinged(kafka, tmp_path)
    try:
        made.start()
        yield made
    finally:
        made.whole.kill()
        made.other.kill()
        print(made.log.read_text()[-8_000:])


def test_every_server_judges_what_it_keeps(ceilinged: Ceilinged) -> None:
    for name, delivery in TRIGGERS.items():
        spec = {"broker": "default", "subscriber": NOWHERE, "delivery": delivery}
        ceilinged.whole.create("triggers", "default", name, spec)
    for name in TRIGGERS:
        ceilinged.whole.wait_trigger_ready("default", name, seconds=WAIT_S_MAX)
    ceilinged.give("eu")
    events = [
        {"specversion": "1.0", "id": str(n), "source": "/s", "type": "t", "data": {"region": "us" if n % 3 else "eu"}}
        for n in range(6)
    ]
    ceilinged.publish(events)
    every = {path: sorted((f"{name}-{n}", str(e)) for n in range(4) for e in range(6)) for path, name in KEPT.items()}
    own = {path: [(name, id_) for name, id_ in all_ if int(id_) % 3 == 0] for path, all_ in every.items()}
    for path, wanted in every.items():
        eventually(lambda path=path, wanted=wanted: ceilinged.events("root", path) == wanted, seconds=WAIT_S_MAX)
    for server in (ceilinged.whole, ceilinged.other):
        for path, wanted in own.items():
            eventually(lambda path=path, wanted=wanted, server=server: ceilinged.events("eve", path, server) == wanted)
            assert ceilinged.ask("eve", "GET", f"{OWN}/{path}/counts", server=server)["total"] == len(wanted)
    items = {path: ceilinged.ask("eve", "GET", f"{OWN}/{path}")["items"] for path in KEPT}
    raw = {path: {one["id"] for one in ceilinged.ask("root", "GET", f"{OWN}/{path}")["items"]} for path in KEPT}
    for path, found in items.items():
        assert {one["id"] for one in found}.isdisjoint(raw[path])
        shown = [ceilinged.ask("eve", "GET", f"{OWN}/{path}/{one['id']}") for one in found]
        assert {one["event"]["data"]["region"] for one in shown} == {"eu"}, "each at whichever server"
        assert {ceilinged.ask("eve", "GET", f"{OWN}/{path}/{id_}") for id_ in raw[path]} == {404}
    trace = "/apis/eventing.knative.dev/v1/namespaces/default/brokers/default/trace?id=0"
    for server in (ceilinged.whole, ceilinged.other):
        matches = ceilinged.ask("eve", "GET", trace, server=server)["trace"]["matches"]
        ids = {(one.get("deadLetter") or one["pending"])["id"] for one in matches}
        assert ids == {one["id"] for found in items.values() for one in found if one["eventId"] == "0"}
    asked = {"broker": "default", "url": NOWHERE["uri"], "dryRun": True}
    made = ceilinged.ask("eve", "POST", f"{OWN}/replays", asked)
    eventually(lambda: ceilinged.ask("eve", "GET", f"{OWN}/replays/{made['id']}")["state"] == "done")
    assert ceilinged.ask("eve", "GET", f"{OWN}/replays/{made['id']}")["matched"] == 2
    assert ceilinged.ask("eve", "POST", f"{OWN}/pending/cancel", {})["count"] == len(own["pending"])
    assert ceilinged.ask("eve", "POST", f"{OWN}/deadletters/discard", {})["count"] > 0
    left = sorted(set(every["pending"]) - set(own["pending"]))
    for region, wanted in (("us", left), ("nowhere", [])):
        ceilinged.give(region)
        for server in (ceilinged.whole, ceilinged.other):  # each follows the roles by itself
            eventually(lambda server=server, wanted=wanted: ceilinged.events("eve", "pending", server) == wanted)
    assert ceilinged.ask("eve", "GET", f"{OWN}/replays")["items"] == []
    assert ceilinged.events("root", "pending") == left
