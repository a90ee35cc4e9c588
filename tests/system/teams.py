"""A server with two teams that hate each other, whose members show tokens of a real OpenID provider."""

from __future__ import annotations

import http.client
import json
import os
import re
import ssl
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import grpc

from headgate.auth.routes import EVENTING, OWN, RBAC
from headgate.testing.server import Server
from headgate_api.rpc.errors import ERROR
from headgate_client.sync import Client
from tests.commands import Said, headgate
from tests.support import eventually, executable

TEAMS = ("team-a", "team-b")
NOWHERE = "team-x"
"""A namespace in which nothing is."""
THERE, ABSENT = "orders", "absent"
"""What an object of each kind is called in each team's namespace, and what none is called."""
NOWHERE_URI = {"uri": "http://127.0.0.1:9/"}
OBJECTS: dict[str, tuple[str, str, dict[str, object]]] = {
    "brokers": (f"{EVENTING}/v1", "Broker", {"spec": {}}),
    "triggers": (
        f"{EVENTING}/v1",
        "Trigger",
        {
            "spec": {
                "broker": THERE,
                "subscriber": NOWHERE_URI,
                "delivery": {"retry": 0, "deadLetterSink": NOWHERE_URI},
            }
        },
    ),
    "subscriptions": (f"{OWN}/v1", "Subscription", {"spec": {"broker": THERE}}),
    # About a broker that is not there, so that rights alone decide.
    "eventpolicies": (
        f"{EVENTING}/v1alpha1",
        "EventPolicy",
        {
            "spec": {
                "to": [{"ref": {"apiVersion": f"{EVENTING}/v1", "kind": "Broker", "name": "policed"}}],
                "from": [{"sub": "nobody"}],
            }
        },
    ),
    "eventtypes": (f"{EVENTING}/v1beta2", "EventType", {"spec": {"type": "order.paid", "source": "/shop"}}),
    "secrets": ("v1", "Secret", {"stringData": {"token": "secret"}}),
    "resourcequotas": ("v1", "ResourceQuota", {"spec": {"hard": {"count/triggers.eventing.knative.dev": "1000"}}}),
    "roles": (
        f"{RBAC}/v1",
        "Role",
        {"rules": [{"verbs": ["get"], "apiGroups": [EVENTING], "resources": ["brokers"]}]},
    ),
    "rolebindings": (
        f"{RBAC}/v1",
        "RoleBinding",
        {
            "subjects": [{"kind": "User", "name": "nobody"}],
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "headgate:viewer"},
        },
    ),
}
"""Of each kind that lies in namespaces what a team has there: version and kind, and what the object holds."""


@dataclass(frozen=True)
class Answer:
    """What a request got."""

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def without(self, **names: str) -> tuple[object, ...]:
        """Everything in it but names, which become the keywords that they are given by."""
        headers = sorted(one for one in self.headers if one[0].lower() != "content-length")  # of the names
        return self.status, *headers, nameless(self.body.decode(), names)


def nameless(text: str, names: Mapping[str, str]) -> str:
    for stands_for, name in names.items():
        text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", stands_for.upper(), text)
    return text


@dataclass(frozen=True)
class Teams:
    """The server, and its users, each with a token."""

    server: Server
    folder: Path
    secure: ssl.SSLContext
    tokens: Mapping[str, str]

    @cached_property
    def connection(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection("127.0.0.1", self.server.port, timeout=60, context=self.secure)

    def ask(self, user: str, method: str, path: str, body: object = None, kind: str = "application/json") -> Answer:
        headers = {"authorization": f"Bearer {self.tokens[user]}"} if user else {}
        data = json.dumps(body).encode() if body is not None else None
        if data is not None:
            headers["content-type"] = kind
        # One connection for all: thousands of handshakes are most of the work of asking so much.
        for is_last in (False, True):
            try:
                self.connection.request(method, path, data, headers)
                answer = self.connection.getresponse()
                return Answer(answer.status, answer.read(), tuple(answer.headers.items()))
            except (http.client.RemoteDisconnected, BrokenPipeError):  # it has been idle for too long
                self.connection.close()
                if is_last:
                    raise
        raise AssertionError

    def publish(self, user: str, namespace: str, broker: str = THERE, id_: str = "1") -> int:
        event = {"specversion": "1.0", "id": id_, "source": "/s", "type": "t"}
        return self.ask(user, "POST", f"/{namespace}/{broker}", event, "application/cloudevents+json").status

    def kubectl(self, user: str, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        given = ["--server", self.server.url, "--certificate-authority", str(self.folder / "ca.pem")]
        given += ["--token", self.tokens[user], "--cache-dir", str(self.folder / "cache" / user)]
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.folder), "KUBECONFIG": "/dev/null"}
        command = [executable("kubectl"), *given, *arguments]
        return subprocess.run(
            command, env=environment, input=stdin, capture_output=True, text=True, timeout=60, check=False
        )

    def headgate(self, user: str, *arguments: str) -> Said:
        token = self.folder / f"{user}.token"
        token.write_text(f"{self.tokens[user]}\n")
        known = {"SERVER": self.server.url, "TOKEN_FILE": token, "CACERT": self.folder / "ca.pem"}
        return headgate(*arguments, **{f"HEADGATE_{name}": value for name, value in known.items()})

    def client(self, user: str) -> Client:
        ca = self.folder / "ca.pem"
        return Client(f"https://{self.server.grpc}", cacert=ca, token=self.tokens[user], patience_s=5.0)

    def call(self, user: str, method: str, first: bytes, *more: tuple[str, str]) -> tuple[str, str, str]:
        """What a method of gRPC says to a first message: status, code of the error, details."""
        credentials = grpc.ssl_channel_credentials((self.folder / "ca.pem").read_bytes())
        with grpc.secure_channel(self.server.grpc, credentials) as channel:
            shown = (("authorization", f"Bearer {self.tokens[user]}"), *more)
            answers = channel.stream_stream(method)(iter([first]), metadata=shown, timeout=60)
            try:
                next(answers)
            except grpc.RpcError as error:
                code = dict(error.trailing_metadata()).get(ERROR, "")
                return error.code().name, str(code), error.details() or ""
            answers.cancel()
        return "OK", "", ""

    def make(self, user: str, kind: str, namespace: str, name: str, group: str = EVENTING, **content: object) -> Answer:
        plural = f"{kind.lower()}s"
        place = f"namespaces/{namespace}/" if namespace else ""
        metadata = {"name": name, "namespace": namespace} if namespace else {"name": name}
        body = {"apiVersion": f"{group}/v1", "kind": kind, "metadata": metadata, **content}
        return self.ask(user, "POST", f"/apis/{group}/v1/{place}{plural}", body)

    def bind(self, namespace: str, name: str, role: str, subject: dict[str, str], user: str = "root") -> Answer:
        reference = {"apiGroup": RBAC, "kind": "ClusterRole", "name": role}
        return self.make(user, "RoleBinding", namespace, name, RBAC, subjects=[subject], roleRef=reference)

    def fill(self, user: str, namespace: str) -> None:
        """An object of each kind that is called THERE."""
        for plural, (version, kind, content) in OBJECTS.items():
            metadata = {"name": THERE, "namespace": namespace}
            body = {"apiVersion": version, "kind": kind, "metadata": metadata, **content}
            writer = "root" if kind == "ResourceQuota" else user  # a team does not bound itself
            made = self.ask(writer, "POST", self.place(namespace, plural), body)
            assert made.status == 201, made

    def begin(self, user: str, namespace: str) -> None:
        """One event, and what may become of it."""
        self.server.wait_object_ready("subscriptions", namespace, THERE)
        self.server.wait_trigger_ready(namespace, THERE)
        assert self.publish(user, namespace) == 202
        due = (datetime.now(UTC) + timedelta(days=1)).isoformat()
        later = {"specversion": "1.0", "id": "later", "source": "/s", "type": "t", "deliverytime": due}
        assert self.ask(user, "POST", f"/{namespace}/{THERE}", later, "application/cloudevents+json").status == 202
        eventually(lambda: self.ask(user, "GET", self.place(namespace, "pending")).json["items"])
        replay = {"broker": THERE, "url": "http://127.0.0.1:9/"}
        assert self.ask(user, "POST", self.place(namespace, "replays"), replay).status == 201

    def place(self, namespace: str, plural: str) -> str:
        version = OBJECTS[plural][0] if plural in OBJECTS else f"{OWN}/v1"
        return f"{root(version)}/namespaces/{namespace}/{plural}"

    def state(self, namespace: str) -> dict[str, object]:
        """What others might have changed."""
        found: dict[str, object] = {}
        for plural in OBJECTS:
            listed = self.ask("root", "GET", self.place(namespace, plural)).json["items"]
            found[plural] = {
                one["metadata"]["name"]: (one["metadata"]["uid"], one.get("spec"), one.get("data")) for one in listed
            }
        events = self.ask("root", "GET", f"/{namespace}/{THERE}/events?from=earliest").body
        stats = self.ask("root", "GET", f"{self.place(namespace, 'subscriptions')}/{THERE}/stats").json
        letters = ids(self.ask("root", "GET", self.place(namespace, "deadletters")).json["items"], trigger=THERE)
        replays = ids(self.ask("root", "GET", self.place(namespace, "replays")).json["items"])
        taken = (stats["epoch"], stats["acknowledged"])
        return found | {"events": events.count(b'"id"'), "taken": taken, "letters": letters, "replays": replays}

    def is_settled(self, namespace: str) -> bool:
        """Whether each event has become the dead letter that it will be, or waits: nothing changes by itself."""
        found = self.state(namespace)
        letters = found["letters"]
        waiting = self.ask("root", "GET", self.place(namespace, "pending")).json["items"]
        return isinstance(letters, list) and len(letters) + len(waiting) == found["events"]


def root(version: str) -> str:
    return f"/apis/{version}" if "/" in version else f"/api/{version}"


def ids(items: Iterable[Mapping[str, Any]], **wanted: str) -> list[str]:
    return sorted(str(one["id"]) for one in items if wanted.items() <= one.items())
