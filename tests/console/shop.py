"""A server with users and a shop full of objects: what tests of the console look at, and scripts/screenshots.py."""

from __future__ import annotations

import json
import re
import sqlite3
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headgate.auth.static_tokens import new_token
from headgate.objects.api.admission import Admission
from headgate.objects.store.reconciler import Reconciler
from headgate.objects.store.store import Store
from headgate.storage.commit import record_path
from headgate.testing.server import Server, free_port
from headgate_api.objects.kinds import Kind
from tests.auth.provider import Provider
from tests.support import token_line
from tests.system.subscriber import Subscriber

SHOP = "shop"
HOSTILE = '<img src=x onerror="alert(1)">'
QUOTED = 'ce.type == "\\"\'<script>alert(1)</script>"'
"""A filter with every kind of quotes, and HTML."""
GOLD = 'ce.type == "order.paid" && data.tier == "gold" && data.total > 100.0'
CEILING = 'data.tier == "gold"'
_AUTHENTICATION = """\
apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
jwt:
- issuer: {{url: {url}, audiences: [console]}}
  claimMappings:
    username: {{claim: sub, prefix: "oidc:"}}
"""


@dataclass(frozen=True)
class Shop:
    """The server, how one comes in, and who gets its events."""

    server: Server
    admin: str
    viewer: str
    gold: str
    """The token of one who may have a part of the events."""
    subscriber: Subscriber

    def publish(self, *events: dict[str, Any], broker: str = "orders") -> None:
        """Events as one batch."""
        whole = [{"specversion": "1.0", "source": "/shop/berlin", "type": "order.paid", **event} for event in events]
        headers = {"content-type": "application/cloudevents-batch+json", "authorization": f"Bearer {self.admin}"}
        url = f"{self.server.url}/{SHOP}/{broker}"
        request = urllib.request.Request(url, json.dumps(whole).encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert answer.status == 202

    def get(self, path: str) -> Any:
        return self.server.call("GET", self.server.url + path)


def _many_triggers(data: Path, many: int) -> None:
    """Triggers of a broker that is not there: one is made as by the API, the others are its rows with other names."""
    with_name = "many-00000"
    store = Store.open(data / "control.db")
    document = {
        "apiVersion": "eventing.knative.dev/v1",
        "kind": "Trigger",
        "metadata": {"name": with_name, "namespace": "many"},
        "spec": {"broker": "nowhere", "filter": {"cel": "ce.type == 'a'"}, "subscriber": {"uri": "http://127.0.0.1:9"}},
    }
    made = Admission(store).create(Kind.TRIGGER, document).obj
    uid = made.metadata.uid
    Reconciler(store).step()
    store.close()
    with sqlite3.connect(data / "control.db") as connection:
        for table, key in (("objects", "version"), ("targets", "id")):
            cursor = connection.execute(f"SELECT * FROM {table} WHERE name = ?", (with_name,))
            names = [column[0] for column in cursor.description]
            row = dict(zip(names, cursor.fetchone(), strict=True))
            row.pop("routed", None)
            (last,) = connection.execute(f"SELECT max({key}) FROM {table}").fetchone()
            rows = []
            for number in range(1, many):
                name = f"many-{number:05}"
                copied = {**row, "name": name, key: last + number}
                if "body" in row:
                    body = row["body"].replace(with_name.encode(), name.encode())
                    body = body.replace(uid.encode(), f"{uid[:-5]}{number:05}".encode())
                    copied["body"] = re.sub(rb'"resourceVersion":"\d+"', b'"resourceVersion":"%d"' % copied[key], body)
                rows.append(tuple(copied.values()))
            marks = ", ".join("?" * len(row))
            connection.executemany(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", rows)
            counter = "version" if table == "objects" else "target"
            connection.execute("UPDATE counters SET value = ? WHERE name = ?", (last + many, counter))
    connection.close()
    record_path(data / "control.db").unlink()  # which knows nothing of these commits


def _token(folder: Path, user: str, *groups: str) -> str:
    text = new_token()
    with (folder / "tokens.csv").open("a") as file:
        file.write(token_line(text, user, *groups))
    return text


def _below_a_ceiling(server: Server) -> None:
    """Gudrun has every right of the namespace, but to events below a ceiling."""
    eventing, every = "eventing.knative.dev", ["*"]
    rules = [
        {"apiGroups": [eventing], "resources": ["brokers/events"], "verbs": ["get"], "filter": {"cel": CEILING}},
        {"apiGroups": ["headgate.dev"], "resources": every, "verbs": every},
        {
            "apiGroups": [eventing],
            "resources": ["brokers", "brokers/why", "brokers/timeline", "brokers/stats", "brokers/catalogue"],
            "verbs": ["get", "list", "watch"],
        },
        {"apiGroups": [eventing], "resources": ["triggers", "triggers/stats", "triggers/why"], "verbs": every},
    ]
    rbac = "rbac.authorization.k8s.io"
    base, metadata = f"{server.url}/apis/{rbac}/v1/namespaces/{SHOP}", {"name": "gold", "namespace": SHOP}
    server.call(
        "POST",
        f"{base}/roles",
        {"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": metadata, "rules": rules},
    )
    binding = {
        "subjects": [{"kind": "User", "name": "gudrun"}],
        "roleRef": {"apiGroup": rbac, "kind": "Role", "name": "gold"},
    }
    server.call(
        "POST",
        f"{base}/rolebindings",
        {"apiVersion": f"{rbac}/v1", "kind": "RoleBinding", "metadata": metadata, **binding},
    )


def filled(shop: Shop) -> None:
    server, to = shop.server, shop.subscriber
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "viewers", "namespace": SHOP},
        "subjects": [{"kind": "User", "name": "victor"}, {"kind": "User", "name": "oidc:olga"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "headgate:viewer"},
    }
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{SHOP}/rolebindings"
    server.call("POST", server.url + path, binding)
    _below_a_ceiling(server)
    server.create("brokers", SHOP, "orders", {})
    server.create("brokers", SHOP, "fast", {})
    for name, filter_, uri, more in (
        ("gold-orders", {"cel": GOLD}, to.url("gold"), {}),
        ("invoices", {"cesql": "type LIKE 'order.%' AND source = '/shop/berlin'"}, to.url("invoices"), {}),
        ("quoted", {"cel": QUOTED}, to.url("quoted"), {}),
        ("needs-total", {"cel": "data.total > 0.0"}, to.url("total"), {}),
        ("lost", {"cel": 'ce.type == "order.lost"'}, to.url("lost"), {"delivery": {"retry": 0}}),
    ):
        sink = {"deadLetterSink": {"uri": "http://127.0.0.1:9/"}} if more else {}
        delivery = {"delivery": more["delivery"] | sink} if more else {}
        spec = {"broker": "orders", "filter": filter_, "subscriber": {"uri": uri}, **delivery}
        server.create("triggers", SHOP, name, spec)
    pulled = {"broker": "orders", "type": "shared", "filter": {"cel": GOLD}, "ackTimeout": "PT10M"}
    server.create("subscriptions", SHOP, "large-orders", pulled)
    for name in ("gold-orders", "invoices", "quoted", "needs-total", "lost"):
        server.wait_trigger_ready(SHOP, name)
    server.wait_object_ready("subscriptions", SHOP, "large-orders")
    to.answers["lost"] = (503, b"no room")
    shop.publish(
        {"id": "ord-1", "data": {"tier": "gold", "total": 240.5, "items": [{"sku": "A-1", "count": 2}]}},
        {"id": "ord-2", "data": {"tier": "basic", "total": 12.5}},
        {"id": "ord-3", "type": "order.cancelled", "data": {"tier": "gold"}},
        {"id": "lost-1", "type": "order.lost", "data": {"tier": "gold", "total": 1.0}},
        {"id": "lost-2", "type": "order.lost", "data": {"total": 2.0}},
        {
            "id": "hostile",
            "type": HOSTILE,
            "source": "/x",
            "subject": "</td><b>",
            "data": {"html": HOSTILE, HOSTILE: [HOSTILE]},
        },
    )


@contextmanager
def running(folder: Path, many: int) -> Iterator[Shop]:
    """A server in a new folder, with `many` triggers in the namespace `many`, and nothing else yet."""
    port = free_port()
    (folder / "data").mkdir(mode=0o700)
    if many:
        _many_triggers(folder / "data", many)
    admin, viewer, gold = _token(folder, "root", "system:masters"), _token(folder, "victor"), _token(folder, "gudrun")
    with Provider(console=f"http://127.0.0.1:{port}/ui/") as provider, Subscriber() as subscriber:
        (folder / "authentication.yaml").write_text(_AUTHENTICATION.format(url=provider.url))
        arguments = ("--token-auth-file", str(folder / "tokens.csv"))
        arguments += ("--authentication-config", str(folder / "authentication.yaml"))
        server = Server(folder / "data", port, arguments=arguments, log=folder / "server.log")
        server.token = admin
        with pytest.MonkeyPatch.context() as environment:  # of this server alone
            environment.setenv("HEADGATE_CONSOLE_CLIENT_ID", "console")
            server.start()
        try:
            yield Shop(server, admin, viewer, gold, subscriber)
        finally:
            server.stop()
