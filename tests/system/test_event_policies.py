"""Who may send which events, on a whole server: HTTP, gRPC, kubectl, replies, and brokers as subscribers."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headgate.testing.server import Server
from headgate_api.errors import HeadgateError
from headgate_client.sync import Client
from headgate_client.values import new_event
from tests.support import eventually, executable
from tests.system.secured import CREW, Secured
from tests.system.subscriber import Subscriber

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

EVENTING = "eventing.knative.dev"
GATE = """
apiVersion: eventing.knative.dev/v1alpha1
kind: EventPolicy
metadata: {name: orders, namespace: shop}
spec:
  to:
  - ref: {apiVersion: eventing.knative.dev/v1, kind: Broker, name: orders}
  from:
  - sub: system:serviceaccount:shop:*
  - sub: bob
  filters:
  - cel: ce.type == "paid" && data.total < 100
"""


@dataclass
class Shop:
    """The server, and its users: a token is `token-NAME`."""

    server: Server
    folder: Path
    secure: ssl.SSLContext

    def ask(self, user: str, method: str, path: str, body: object = None, kind: str = "json") -> tuple[int, Any]:
        headers = {"authorization": f"Bearer token-{user}", "content-type": f"application/{kind}"}
        data = json.dumps(body).encode() if body is not None else None
        call = urllib.request.Request(f"{self.server.url}{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(call, timeout=60, context=self.secure) as answer:
                text = answer.read()
                return answer.status, json.loads(text) if text.startswith(b"{") else text
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read() or b"{}")

    def publish(self, user: str, *types: str, broker: str = "orders", total: int = 5) -> tuple[int, Any]:
        """One event, or a batch of several."""
        events = [
            {"specversion": "1.0", "id": f"{kind}-{n}", "source": "/s", "type": kind, "data": {"total": total}}
            for n, kind in enumerate(types)
        ]
        if len(events) == 1:
            return self.ask(user, "POST", f"/shop/{broker}", events[0], "cloudevents+json")
        return self.ask(user, "POST", f"/shop/{broker}", events, "cloudevents-batch+json")

    def publish_by_grpc(self, user: str, kind: str, broker: str = "orders") -> str:
        """The code of the refusal; empty for none."""
        ca = self.folder / "ca.pem"
        with Client(f"https://{self.server.grpc}", cacert=ca, token=f"token-{user}", patience_s=5.0) as client:
            try:
                client.publish(f"shop/{broker}", new_event(kind, "/grpc", {"total": 5}))
            except HeadgateError as error:
                return error.code
        return ""

    def kubectl(self, *arguments: str, stdin: str = "", user: str = "root") -> str:
        given = ["--server", self.server.url, "--certificate-authority", str(self.folder / "ca.pem")]
        given += ["--token", f"token-{user}", "--cache-dir", str(self.folder / "cache" / user)]
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.folder), "KUBECONFIG": "/dev/null"}
        command = [executable("kubectl"), *given, *arguments]
        done = subprocess.run(
            command, env=environment, input=stdin, capture_output=True, text=True, timeout=90, check=False
        )
        return done.stdout + done.stderr

    def types(self, broker: str) -> list[str]:
        """The types of the stored events."""
        ca = self.folder / "ca.pem"
        with (
            Client(f"https://{self.server.grpc}", cacert=ca, token="token-root", patience_s=5.0) as client,
            client.read(f"shop/{broker}", start="earliest", follow=False) as reader,
        ):
            return [item.event.type for item in reader]

    def policy(self, name: str, broker: str, sender: dict[str, Any], *filters: dict[str, Any]) -> None:
        target = {"ref": {"apiVersion": f"{EVENTING}/v1", "kind": "Broker", "name": broker}}
        document = {
            "apiVersion": f"{EVENTING}/v1alpha1",
            "kind": "EventPolicy",
            "metadata": {"name": name},
            "spec": {"to": [target], "from": [sender], "filters": list(filters)},
        }
        path = f"/apis/{EVENTING}/v1alpha1/namespaces/shop/eventpolicies"
        status, answer = self.ask("root", "POST", path, document)
        assert status == 201, answer


@pytest.fixture(scope="module")
def shop(secured: Secured) -> Shop:
    for name in ("orders", "desk", "inbox"):
        secured.server.create("brokers", "shop", name, {})
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "ann"},
        "subjects": [{"kind": "User", "name": "ann"}],
        "roleRef": {"kind": "ClusterRole", "name": "headgate:publisher"},
    }
    found = Shop(secured.server, secured.folder, secured.secure)
    path = "/apis/rbac.authorization.k8s.io/v1/namespaces/shop/rolebindings"
    assert found.ask("root", "POST", path, binding)[0] == 201
    return found


def test_policies_from_the_first_to_the_last(shop: Shop) -> None:
    """Without a policy the mode and roles let in, with one the policy alone; each change counts at once."""
    users = ("crew", "ann", "root", "stranger", "bob")
    without = [202, 202, 202, 403, 403]
    assert [shop.publish(user, "sent")[0] for user in users] == without
    assert [shop.publish_by_grpc(user, "sent") for user in users] == ["", "", "", "forbidden", "forbidden"]

    assert shop.kubectl("apply", "-f", "-", stdin=GATE) == "eventpolicy.eventing.knative.dev/orders created\n"
    assert [shop.publish(user, "paid")[0] for user in users] == [202, 403, 403, 403, 202]
    assert [shop.publish_by_grpc(user, "paid") for user in users] == [
        "",
        "event-forbidden",
        "event-forbidden",
        "forbidden",
        "",
    ]
    status, problem = shop.publish("crew", "sent")
    assert (status, problem["code"]) == (403, "event-forbidden")
    assert shop.publish("crew", "paid", total=100)[0] == 403
    assert shop.publish_by_grpc("crew", "sent") == "event-forbidden"
    before = shop.types("orders")
    status, problem = shop.publish("crew", "paid", "paid", "sent", "paid")
    assert (status, problem["index"]) == (403, 2)
    assert shop.types("orders") == before
    assert shop.publish("crew", "paid", "paid")[0] == 202
    assert shop.publish("crew", "sent", broker="inbox")[0] == 202  # the policy is for another broker

    assert "condition met" in shop.kubectl("wait", "--for=condition=Ready", "eventpolicy/orders", "-n", "shop")
    head, line = shop.kubectl("get", "eventpolicies", "-n", "shop", "-o", "wide").splitlines()
    assert head.split() == ["NAME", "AGE", "READY", "REASON", "FROM", "FILTER"]
    assert line.split()[0] == "orders"
    assert "system:serviceaccount:shop:*,bob" in line
    publish = ("brokers.eventing.knative.dev/orders", "--subresource=events", "-n", "shop")
    assert shop.kubectl("auth", "can-i", "create", *publish, user="bob") == "yes\n"
    assert shop.kubectl("auth", "can-i", "create", *publish, user="stranger").startswith("no")
    broker = shop.server.get("brokers", "shop", "orders")
    eventually(lambda: bool(shop.server.get("brokers", "shop", "orders")["status"].get("policies")))
    assert broker["status"]["address"]["audience"] == "eventing.knative.dev/broker/shop/orders"
    assert "spec.from[0].sub" in shop.kubectl("apply", "-f", "-", stdin=GATE.replace("shop:*", "*:crew"))

    assert "deleted" in shop.kubectl("delete", "eventpolicy/orders", "-n", "shop")
    assert [shop.publish(user, "sent")[0] for user in users] == without


def test_replies_and_triggers_are_senders(shop: Shop, subscriber: Subscriber) -> None:
    crew = {"sub": CREW}
    shop.policy("asks", "desk", crew, {"exact": {"type": "ask"}})
    trigger = {"apiVersion": f"{EVENTING}/v1", "kind": "Trigger"}
    shop.policy("answers", "desk", {"ref": {**trigger, "name": "echo"}}, {"exact": {"type": "answer"}})
    shop.policy("forwards", "inbox", {"ref": {**trigger, "name": "forward"}})
    head = [("ce-specversion", "1.0"), ("ce-source", "/echo"), ("ce-type", "answer")]
    subscriber.answers["echo"] = lambda got: (200, b"", *head, ("ce-id", f"re-{got.id}"))
    subscriber.answers["mute"] = lambda got: (200, b"", *head, ("ce-id", f"mute-{got.id}"))
    asks = {"attributes": {"type": "ask"}}
    once = {"retry": 1, "backoffDelay": "PT0.05S", "backoffPolicy": "linear"}
    inbox = {"ref": {"apiVersion": f"{EVENTING}/v1", "kind": "Broker", "name": "inbox"}}
    for name, to, wants in (
        ("echo", {"uri": subscriber.url("echo")}, asks),
        ("mute", {"uri": subscriber.url("mute")}, asks),
        ("forward", inbox, {"attributes": {"type": "answer"}}),
        ("stray", inbox, {"attributes": {"type": "answer"}}),
    ):
        spec = {"broker": "desk", "filter": wants, "subscriber": to, "delivery": once}
        shop.server.create("triggers", "shop", name, spec)
    for name in ("echo", "mute", "forward", "stray"):
        shop.server.wait_trigger_ready("shop", name)
    # Of nobody else's, and of no other type: what is not admitted is neither stored nor forwarded.
    assert shop.publish("crew", "answer", broker="desk")[0] == 403
    assert shop.publish("ann", "ask", broker="desk")[0] == 403
    before = shop.types("inbox")
    assert shop.publish("crew", "ask", broker="desk")[0] == 202
    eventually(lambda: shop.types("inbox") == [*before, "answer"])
    eventually(lambda: len(subscriber.at("mute")) == 2)  # its reply was refused, so it was asked once more
    assert sorted(shop.types("desk")) == ["answer", "ask"]
    assert len(subscriber.at("echo")) == 1
    assert shop.types("inbox") == [*before, "answer"]


def test_who_asked_for_a_replay_is_the_sender_of_its_events(shop: Shop) -> None:
    for name in ("past", "archive"):
        shop.server.create("brokers", "shop", name, {})
        shop.server.wait_object_ready("brokers", "shop", name)
    shop.policy("archivists", "archive", {"sub": "root"})
    assert shop.publish("crew", "kept", broker="past")[0] == 202
    path = "/apis/headgate.dev/v1/namespaces/shop/replays"
    wanted = {"broker": "past", "url": f"{shop.server.url}/shop/archive", "filter": "ce.type == 'kept'"}

    def replayed(user: str) -> dict[str, Any]:
        status, made = shop.ask(user, "POST", path, wanted)
        assert status == 201, made
        eventually(lambda: shop.ask("root", "GET", f"{path}/{made['id']}")[1]["state"] == "done")
        found: dict[str, Any] = shop.ask("root", "GET", f"{path}/{made['id']}")[1]
        return found

    assert replayed("root")["delivered"] == 1
    assert shop.types("archive") == ["kept"]
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "bob"},
        "subjects": [{"kind": "User", "name": "bob"}],
        "roleRef": {"kind": "ClusterRole", "name": "headgate:editor"},
    }
    assert (
        shop.ask("root", "POST", "/apis/rbac.authorization.k8s.io/v1/namespaces/shop/rolebindings", binding)[0] == 201
    )
    eventually(lambda: shop.ask("bob", "GET", path)[0] == 200)
    assert replayed("bob")["failed"] == 1, "the policy names somebody else"
    assert shop.types("archive") == ["kept"]
