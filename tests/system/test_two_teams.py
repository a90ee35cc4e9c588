"""Two teams on one server that know nothing of each other, by HTTP, gRPC, kubectl and commands; and every role."""

from __future__ import annotations

import hashlib
import json
import os
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headgate.auth.routes import ROUTES, RightOfRoute
from headgate.client import Client, new_event
from headgate.control.bootstrap import ROLES
from headgate.errors import HeadgateError
from headgate.testing import Server
from tests.certificates import Authority
from tests.support import executable

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

HEADGATE = Path(sys.executable).with_name("headgate")
WAIT_S = 90.0
EVENTING, OWN, RBAC = "eventing.knative.dev", "headgate.dev", "rbac.authorization.k8s.io"
TEAMS = ("team-a", "team-b")
OWN_ROLES = [name for name in ROLES if name.startswith("headgate:")]
USERS = {
    "root": ("system:masters",),
    "ann": ("team-a",),
    "bob": ("team-b",),
    "eve": (),
    **{name.partition(":")[2]: () for name in OWN_ROLES},
}


@dataclass
class Answer:
    status: int
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Teams:
    """The server, and its users: a token is `token-NAME`."""

    server: Server
    folder: Path
    secure: ssl.SSLContext

    def ask(self, user: str, method: str, path: str, body: object = None, kind: str = "application/json") -> Answer:
        headers = {"authorization": f"Bearer token-{user}"} if user else {}
        data = json.dumps(body).encode() if body is not None else None
        if data is not None:
            headers["content-type"] = kind
        call = urllib.request.Request(f"{self.server.url}{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(call, timeout=60, context=self.secure) as answer:
                return Answer(answer.status, answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.read())

    def publish(self, user: str, namespace: str, broker: str = "orders", id_: str = "1") -> int:
        event = {"specversion": "1.0", "id": id_, "source": "/s", "type": "t"}
        return self.ask(user, "POST", f"/{namespace}/{broker}", event, "application/cloudevents+json").status

    def kubectl(self, user: str, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        given = ["--server", self.server.url, "--certificate-authority", str(self.folder / "ca.pem")]
        given += ["--token", f"token-{user}", "--cache-dir", str(self.folder / "cache" / user)]
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.folder), "KUBECONFIG": "/dev/null"}
        command = [executable("kubectl"), *given, *arguments]
        return subprocess.run(
            command, env=environment, input=stdin, capture_output=True, text=True, timeout=60, check=False
        )

    def headgate(self, user: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        token = self.folder / f"{user}.token"
        token.write_text(f"token-{user}\n")
        known = {"SERVER": self.server.url, "TOKEN_FILE": str(token), "CACERT": str(self.folder / "ca.pem")}
        environment = os.environ | {f"HEADGATE_{name}": value for name, value in known.items()}
        command = [HEADGATE, *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)

    def client(self, user: str) -> Client:
        ca = self.folder / "ca.pem"
        return Client(f"https://{self.server.grpc}", cacert=ca, token=f"token-{user}", patience_s=5.0)

    def make(self, user: str, kind: str, namespace: str, name: str, group: str = EVENTING, **content: object) -> Answer:
        plural = f"{kind.lower()}s"
        place = f"namespaces/{namespace}/" if namespace else ""
        metadata = {"name": name, "namespace": namespace} if namespace else {"name": name}
        body = {"apiVersion": f"{group}/v1", "kind": kind, "metadata": metadata, **content}
        return self.ask(user, "POST", f"/apis/{group}/v1/{place}{plural}", body)

    def bind(self, namespace: str, name: str, role: str, subject: dict[str, str], user: str = "root") -> Answer:
        reference = {"apiGroup": RBAC, "kind": "ClusterRole", "name": role}
        return self.make(user, "RoleBinding", namespace, name, RBAC, subjects=[subject], roleRef=reference)


@pytest.fixture(scope="module")
def teams(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Teams]:
    folder = tmp_path_factory.mktemp("teams")
    lines = [
        f'sha256:{hashlib.sha256(f"token-{name}".encode()).hexdigest()},{name},,"{",".join(groups)}"'
        for name, groups in USERS.items()
    ]
    (folder / "tokens.csv").write_text("\n".join(lines) + "\n")
    (folder / "tokens.csv").chmod(0o600)
    authority = Authority(folder)
    own = authority.issue("server", ("127.0.0.1",))
    arguments = ("--token-auth-file", str(folder / "tokens.csv"))
    arguments += ("--tls-cert", str(own.certificate), "--tls-key", str(own.key))
    secure = authority.context()
    with Server(folder / "data", log=folder / "server.log", arguments=arguments, secure=secure) as server:
        server.token = "token-root"
        found = Teams(server, folder, secure)
        for team in TEAMS:
            assert found.bind(team, "admins", "headgate:admin", {"kind": "Group", "name": team}).status == 201
            for role in OWN_ROLES:
                user = role.partition(":")[2]
                assert found.bind("roles", user, role, {"kind": "User", "name": user}).status in (201, 409)
        for user, namespace in (("ann", "team-a"), ("bob", "team-b"), ("root", "roles")):
            assert found.make(user, "Broker", namespace, "orders", spec={}).status == 201
            trigger = {"broker": "orders", "subscriber": {"uri": "http://127.0.0.1:9/"}}
            assert found.make(user, "Trigger", namespace, "payroll", spec=trigger).status == 201
            assert found.make(user, "Subscription", namespace, "payroll", OWN, spec={"broker": "orders"}).status == 201
            assert found.publish(user, namespace) == 202
            server.wait_object_ready("subscriptions", namespace, "payroll")
        yield found


def path_of(route: RightOfRoute, namespace: str, name: str) -> str:
    return route.path.replace("{namespace}", namespace).replace("{name}", name)


def test_each_team_works(teams: Teams) -> None:
    for user, team in (("ann", "team-a"), ("bob", "team-b")):
        base = f"/apis/{EVENTING}/v1/namespaces/{team}"
        listed = teams.ask(user, "GET", f"{base}/triggers")
        assert [one["metadata"]["name"] for one in listed.json["items"]] == ["payroll"]
        assert listed.json["items"][0]["metadata"]["annotations"]["eventing.knative.dev/creator"] == user
        assert teams.ask(user, "GET", f"/{team}/orders/events?from=earliest").status == 200
        assert teams.ask(user, "GET", f"{base}/brokers/orders/trace?id=1").status == 200
        pulled = teams.ask(user, "POST", f"/apis/{OWN}/v1/namespaces/{team}/subscriptions/payroll/pull", {"wait": 0})
        assert pulled.status == 200
        assert teams.headgate(user, "get", "triggers", "--namespace", team).stdout.splitlines()[1].startswith("payroll")
        with teams.client(user) as client:
            client.publish(f"{team}/orders", new_event("t", "/grpc", {}))
            with client.read(f"{team}/orders", start="earliest", follow=False) as reader:
                assert sum(1 for _ in reader) >= 2


def test_neither_team_learns_of_the_other(teams: Teams) -> None:
    """Every route of the table that is about a namespace, with names that are there and names that are not."""
    attempts = 0
    for user, other in (("ann", "team-b"), ("bob", "team-a"), ("eve", "team-a")):
        for route in ROUTES:
            if "{namespace}" not in route.path:
                continue
            method = "POST" if route.method == "*" else route.method
            answers = []
            for name in ("payroll", "absent"):
                answer = teams.ask(user, method, path_of(route, other, name), {} if method in ("POST", "PUT") else None)
                assert answer.status == 403, (user, method, route.path, answer.body)
                answers.append(answer.body.replace(name.encode(), b"NAME"))
                attempts += 1
            assert len(set(answers)) == 1, answers  # that it is there is not told
    assert attempts >= 200


def test_neither_team_sees_all_namespaces(teams: Teams) -> None:
    for user in ("ann", "bob", "eve"):
        for path in (
            f"/apis/{EVENTING}/v1/triggers",
            f"/apis/{EVENTING}/v1/triggers?watch=1",
            f"/apis/{EVENTING}/v1/brokers?fieldSelector=metadata.name%3Dorders",
            f"/apis/{OWN}/v1/subscriptions",
            f"/apis/{OWN}/v1/deadletters",
            f"/apis/{RBAC}/v1/roles",
            f"/apis/{RBAC}/v1/clusterroles",
            "/api/v1/namespaces",
            "/metrics",
            "/readyz?verbose",
            "/no/such/path",
        ):
            assert teams.ask(user, "GET", path).status == 403, (user, path)
    assert teams.ask("root", "GET", f"/apis/{EVENTING}/v1/triggers").status == 200
    assert teams.ask("root", "GET", "/metrics").status == 200
    assert teams.ask("ann", "GET", f"/apis/{EVENTING}/v1").status == 200


def test_neither_team_comes_in_by_grpc(teams: Teams) -> None:
    for user, other in (("ann", "team-b"), ("bob", "team-a"), ("eve", "team-a")):
        with teams.client(user) as client:
            event, there, absent = new_event("t", "/s", {}), f"{other}/orders", f"{other}/absent"
            attempts: list[Callable[[], object]] = [
                partial(client.publish, there, event),
                partial(client.publish, absent, event),
                *(partial(read, client, broker) for broker in (there, absent)),
                *(partial(client.stats, name) for name in (f"{other}/payroll", absent, "nothing")),
            ]
            assert [refused(attempt) for attempt in attempts] == ["forbidden"] * len(attempts)


def read(client: Client, broker: str) -> list[object]:
    with client.read(broker, start="earliest", follow=False) as reader:
        return list(reader)


def refused(attempt: Callable[[], object]) -> str:
    with pytest.raises(HeadgateError) as error:
        attempt()
    return error.value.code


def test_what_names_another_namespace_needs_its_right(teams: Teams) -> None:
    reference = {"ref": {"apiVersion": f"{EVENTING}/v1", "kind": "Broker", "name": "orders", "namespace": "team-b"}}
    for number, destination in enumerate(
        (
            reference,
            {"uri": f"{teams.server.url}/team-b/orders"},
            {"uri": f"{teams.server.url}/team%2Db/orders"},
            {"uri": f"{teams.server.url}/team-b/absent"},
            {**reference, "ref": reference["ref"] | {"namespace": "team-a"}, "uri": "/team-b/orders"},
        )
    ):
        local = {"uri": "http://127.0.0.1:9/"}
        for spec in (
            {"broker": "orders", "subscriber": destination},
            {"broker": "orders", "subscriber": local, "delivery": {"deadLetterSink": destination}},
        ):
            refused = teams.make("ann", "Trigger", "team-a", f"cross-{number}", spec=spec)
            assert (refused.status, refused.json["reason"]) == (403, "Forbidden"), refused.body
            assert 'in the namespace "team-b"' in refused.json["message"]
    sink = {"broker": "orders", "maxDeliveries": 2, "delivery": {"deadLetterSink": reference}}
    assert teams.make("ann", "Subscription", "team-a", "cross", OWN, spec=sink).status == 403
    assert (
        teams.make("ann", "Broker", "team-a", "cross", spec={"delivery": {"deadLetterSink": reference}}).status == 403
    )
    replays = f"/apis/{OWN}/v1/namespaces/team-a/replays"
    replay = {"broker": "orders", "url": f"{teams.server.url}/team-b/orders"}
    assert teams.ask("ann", "POST", replays, replay).status == 403
    # With the right it is stored, and who may write it without the right must not point it elsewhere.
    rule = {"verbs": ["create"], "apiGroups": [EVENTING], "resources": ["brokers/events"], "resourceNames": ["orders"]}
    assert teams.make("bob", "Role", "team-b", "inbox", RBAC, rules=[rule]).status == 201
    given = {"apiGroup": RBAC, "kind": "Role", "name": "inbox"}
    people = [{"kind": "Group", "name": "team-a"}]
    assert teams.make("bob", "RoleBinding", "team-b", "inbox", RBAC, subjects=people, roleRef=given).status == 201
    spec = {"broker": "orders", "subscriber": reference}
    assert teams.make("ann", "Trigger", "team-a", "to-b", spec=spec).status == 201
    assert teams.ask("bob", "DELETE", f"/apis/{RBAC}/v1/namespaces/team-b/rolebindings/inbox").status == 200
    patch = {"metadata": {"labels": {"a": "b"}}}
    path = f"/apis/{EVENTING}/v1/namespaces/team-a/triggers/to-b"
    assert teams.ask("ann", "PATCH", path, patch, "application/merge-patch+json").status == 200
    dearer = {"spec": {"delivery": {"deadLetterSink": reference}}}
    assert teams.ask("ann", "PATCH", path, dearer, "application/merge-patch+json").status == 200  # sent there already
    elsewhere = {"spec": {"subscriber": {"ref": {"name": "default"}}}}
    assert teams.ask("ann", "PATCH", path, elsewhere, "application/merge-patch+json").status == 403
    assert teams.ask("ann", "DELETE", path).status == 200


def test_nobody_gives_what_he_does_not_have(teams: Teams) -> None:
    more = [{"verbs": ["create"], "apiGroups": [EVENTING], "resources": ["brokers", "everything"]}]
    refused = teams.make("ann", "Role", "team-a", "more", RBAC, rules=more)
    assert refused.status == 403
    assert "is attempting to grant RBAC permissions not currently held" in refused.json["message"]
    assert 'Resources:["everything"]' in refused.json["message"]
    assert 'Resources:["brokers"]' not in refused.json["message"]
    subject = {"kind": "User", "name": "ann"}
    assert teams.bind("team-a", "up", "cluster-admin", subject, "ann").status == 403
    assert teams.bind("team-b", "over", "headgate:viewer", subject, "ann").status == 403
    assert teams.bind("team-a", "absent", "no-such-role", subject, "ann").status == 403
    assert teams.bind("team-a", "ok", "headgate:viewer", subject, "ann").status == 201
    reference = {"apiGroup": RBAC, "kind": "ClusterRole", "name": "cluster-admin"}
    assert teams.make("ann", "ClusterRoleBinding", "", "all", RBAC, subjects=[subject], roleRef=reference).status == 403
    path = f"/apis/{RBAC}/v1/namespaces/team-a/rolebindings/ok"
    other = {"roleRef": {"name": "headgate:editor"}}
    changed = teams.ask("ann", "PATCH", path, other, "application/merge-patch+json")
    assert (changed.status, "cannot change roleRef" in changed.json["message"]) == (422, True)
    assert teams.ask("ann", "DELETE", path).status == 200


def test_a_right_is_there_at_once_and_gone_at_once(teams: Teams) -> None:
    assert teams.publish("eve", "team-a") == 403
    subject = {"kind": "User", "name": "eve"}
    assert teams.bind("team-a", "eve", "headgate:publisher", subject, "ann").status == 201
    assert teams.publish("eve", "team-a") == 202
    with teams.client("eve") as client:
        assert refused(partial(read, client, "team-a/orders")) == "forbidden"
    assert teams.ask("ann", "DELETE", f"/apis/{RBAC}/v1/namespaces/team-a/rolebindings/eve").status == 200
    assert teams.publish("eve", "team-a") == 403


def test_who_says_nothing(teams: Teams) -> None:
    assert [teams.ask("", "GET", path).status for path in ("/livez", "/readyz", "/metrics", "/apis")] == [
        200,
        200,
        401,
        401,
    ]


def test_every_route_with_every_role(teams: Teams) -> None:
    """Those that a role lacks are refused, those that it has come through to what answers."""
    rules = {name: teams.ask("root", "GET", f"/apis/{RBAC}/v1/clusterroles/{name}").json["rules"] for name in OWN_ROLES}
    for role in OWN_ROLES:
        user = role.partition(":")[2]
        for route in ROUTES:
            wanted = route.wanted
            if "{namespace}" not in route.path or wanted.resource in ("events",) or route.path == "/{namespace}/{name}":
                continue
            has = any(
                wanted.verb in one["verbs"]
                and wanted.group in one.get("apiGroups", ())
                and wanted.full_resource in one.get("resources", ())
                for one in rules[role]
            )
            # Nothing is named so, so nothing is changed; a whole collection is not tried on what others need.
            path = path_of(route, "roles", "999999")
            if has and (route.method == "DELETE" and wanted.verb == "deletecollection"):
                path += "?dryRun=All"
            body = {} if route.method in ("POST", "PUT", "PATCH") else None
            kind = "application/merge-patch+json" if route.method == "PATCH" else "application/json"
            status = teams.ask(user, route.method, path, body, kind).status
            assert (status not in (401, 403)) is has, (role, route.method, path, status)
    assert teams.publish("publisher", "roles") == 202
    assert teams.publish("editor", "roles") == 202
    assert [teams.publish(user, "roles") for user in ("viewer", "consumer", "eve")] == [403, 403, 403]


def test_kubectl_asks_and_gives(teams: Teams) -> None:
    def said(user: str, *arguments: str, stdin: str = "") -> str:
        done = teams.kubectl(user, *arguments, stdin=stdin)
        return done.stdout + done.stderr

    assert said("ann", "auth", "can-i", "create", "triggers", "-n", "team-a") == "yes\n"
    assert said("ann", "auth", "can-i", "create", "triggers", "-n", "team-b").startswith("no")
    assert said("ann", "auth", "can-i", "create", "brokers", "--subresource", "events", "-n", "team-a") == "yes\n"
    assert said("ann", "auth", "can-i", "get", "/metrics").startswith("no")
    assert said("root", "auth", "can-i", "*", "*", "--all-namespaces") == "yes\n"
    listed = said("ann", "auth", "can-i", "--list", "-n", "team-a")
    assert "brokers.eventing.knative.dev/events" in listed
    assert "[/apis/*]" in listed
    who = said("bob", "auth", "whoami")
    assert "bob" in who
    assert "[team-b system:authenticated]" in who
    arguments = ("--verb=get,list", "--resource=triggers.eventing.knative.dev", "-n", "team-a")
    assert said("ann", "create", "role", "looker", *arguments) == "role.rbac.authorization.k8s.io/looker created\n"
    created = said("ann", "create", "rolebinding", "looks", "--role=looker", "--user=eve", "-n", "team-a")
    assert created == "rolebinding.rbac.authorization.k8s.io/looks created\n"
    assert "payroll" in said("eve", "get", "triggers", "-n", "team-a")
    assert "Role/looker" in said("ann", "get", "rolebindings", "-n", "team-a")
    assert "eve" in said("ann", "get", "rolebindings", "-o", "wide", "-n", "team-a")
    assert "Forbidden" in said("eve", "get", "brokers", "-n", "team-a")
    assert "cannot list resource" in said("eve", "get", "triggers", "-n", "team-b")
    role = (
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {name: looker, namespace: team-a}\n"
        "rules: [{apiGroups: [eventing.knative.dev], resources: [triggers, brokers], verbs: [get, list]}]\n"
    )
    assert "configured" in said("ann", "apply", "-f", "-", stdin=role)
    assert "orders" in said("eve", "get", "brokers", "-n", "team-a")
    assert "serverside-applied" in said(
        "ann", "apply", "--server-side", "--force-conflicts", "-f", "-", stdin=role.replace("[get, list]", "[get]")
    )
    assert "Forbidden" in said("eve", "get", "brokers", "-n", "team-a")
    assert "reconciled" in said("ann", "auth", "reconcile", "-f", "-", stdin=role)
    assert "nonResourceURLs" in said("ann", "explain", "clusterrole.rules")
    given = ("--verb=get", "--resource=brokers.eventing.knative.dev")
    assert "forbidden" in said("ann", "create", "clusterrole", "mine", *given).lower()
    assert said("root", "create", "clusterrole", "mine", *given).endswith("mine created\n")
    assert "deleted" in said("root", "delete", "clusterrole", "mine")
    assert "deleted" in said("ann", "delete", "role/looker", "rolebinding/looks", "-n", "team-a")
    eventually(lambda: "cannot list" in said("eve", "get", "triggers", "-n", "team-a"))


def eventually(holds: Callable[[], bool]) -> None:
    ends = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < ends
        time.sleep(0.2)
