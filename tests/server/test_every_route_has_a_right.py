"""Every path and every method that the processes of a server answer has a line in the table of rights."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest
from google.protobuf.descriptor import FileDescriptor
from grpc_health.v1 import health_pb2
from starlette.applications import Starlette
from starlette.routing import BaseRoute, Mount, Route

from headgate.auth.authorizer import AlwaysAllow
from headgate.auth.context import USER
from headgate.auth.routes import CALLS, EVERY_RIGHT, ROUTES, has_names, route_of, wanted_by_call, wanted_by_request
from headgate.auth.rules import Attributes
from headgate.auth.user import ANONYMOUS, User, authenticated
from headgate.deadletters.api import DeadLettersApi, PendingApi
from headgate.objects.api.admission import Admission
from headgate.objects.api.api import ControlApi
from headgate.objects.api.bootstrap import ROLES, bootstrap
from headgate.objects.api.grants import Grants
from headgate.objects.store.store import Store
from headgate.objects.views.copies import RbacCopy
from headgate.observe.history import BrokerCount
from headgate.replay.api import ReplaysApi
from headgate.rpc.service import Service
from headgate.server import rpc
from headgate.server.authorization import AuthorizedRequests
from headgate.server.peers import reader_client, target_stats
from headgate.server.peers.local_http import KeptConnections
from headgate.server.peers.notify_fronts import PATH as NEWS_PATH
from headgate.server.processes import control, front
from headgate.server.processes.filter_workers import FilterWorkers
from headgate.server.processes.front import FrontStore
from headgate.server.summary import ObjectStatsApi
from headgate.settings import Settings
from headgate.storage.keyring import Keyring
from headgate.stream.api import ReadApi
from headgate.subscriptions.api import SubscriptionsApi
from headgate_api.objects.kinds import RBAC_GROUP, Kind
from headgate_api.rpc import headgate_pb2 as pb

INNER = {
    ("POST", reader_client.SCAN_PATH),
    ("POST", reader_client.COUNT_PATH),
    ("POST", NEWS_PATH),
    ("POST", target_stats.MATCHES_PATH),
    ("POST", "/apis/headgate.dev/v1/namespaces/{namespace}/deadletters/known"),
    ("POST", "/apis/headgate.dev/v1/namespaces/{namespace}/pending/known"),
}
"""What a process answers to the other processes alone: a front passes none of it on."""


def routes_of(routes: list[BaseRoute]) -> Iterator[tuple[str, str]]:
    for route in routes:
        if isinstance(route, Mount):
            yield from routes_of(list(route.routes or []))
        else:
            assert isinstance(route, Route), route
            yield from ((method, route.path) for method in route.methods or ())


def served(store: Store, folder: Path) -> set[tuple[str, str]]:
    """Method and path of every route of every process."""
    settings, nothing = Settings(data=folder), Mock()
    opened = FrontStore(objects=store, brokers=nothing, partitions=nothing, producers=nothing, checks={}, work=())
    own = front.other_paths(
        settings, opened, Grants(store, control.url_policy(settings)), FilterWorkers(), KeptConnections()
    )
    objects = control.paths(settings, store, ControlApi(store))
    dispatcher = [
        *target_stats.TargetStatsApi(nothing, nothing, nothing, lambda: 0).routes(),
        *SubscriptionsApi(nothing).routes(),
        *DeadLettersApi(nothing, nothing).routes(),
        *PendingApi(nothing, nothing).routes(),
        *ReplaysApi(nothing, nothing, store, nothing).routes(),
    ]
    reader = [*ReadApi(nothing).routes(), reader_client.scan_route(nothing), reader_client.count_route(nothing)]
    found = [one for app in (own, objects) for one in routes_of(list(app.routes))]
    found += [one for routes in (dispatcher, reader) for one in routes_of(list(routes))]
    return {*found, *(("POST", "/{namespace}/{broker}"), ("OPTIONS", "/{namespace}/{broker}"))}


def sample(path: str) -> str:
    """A path with something in the place of what stands in braces."""
    values = {"namespace": "team-a", "name": "x", "broker": "x", "id": "7", "folder": "x", "file": "x"}
    return "/".join(values[one.strip("{}")] if one.startswith("{") else one for one in path.split("/"))


def test_every_path_has_a_right(store: Store, tmp_path: Path) -> None:
    found = served(store, tmp_path)
    assert len(found) > 100
    without = {(method, path) for method, path in found - INNER if route_of(method, sample(path)) is None}
    assert without == set()
    assert {one for one in INNER if one not in found} <= {("POST", NEWS_PATH)}


def test_every_line_of_the_table_is_a_path_of_the_server(store: Store, tmp_path: Path) -> None:
    found = {(method, sample(path)) for method, path in served(store, tmp_path)}

    def path_of(path: str) -> str:
        for name in ("deadletters", "pending", "replays"):
            path = path.replace(f"{name}/{{name}}", f"{name}/{{id}}")
        return sample(path)

    lines = {("POST" if route.method == "*" else route.method, path_of(route.path)) for route in ROUTES}
    assert lines - found == set()


def test_no_process_answers_what_is_not_for_clients(store: Store, tmp_path: Path) -> None:
    """What a front passes on to the process of the objects reaches none of the inner paths."""
    objects = {
        path for _, path in routes_of(list(control.paths(Settings(data=tmp_path), store, ControlApi(store)).routes))
    }
    assert objects & {path for _, path in INNER} == set()


def test_every_kind_of_objects_is_in_the_table() -> None:
    for kind in Kind:
        place = "/namespaces/team-a" if kind.is_namespaced else ""
        found = wanted_by_request("PUT", f"{kind.root}{place}/{kind.plural}/x")
        assert found == Attributes("update", kind.group, kind.plural, "", "team-a" if place else "", "x")


def methods_of(file: FileDescriptor) -> Iterator[str]:
    for service in file.services_by_name.values():
        yield from (f"/{service.full_name}/{method.name}" for method in service.methods)


def test_every_call_has_a_right() -> None:
    known = {call.method for call in CALLS}
    health = rpc.HealthService(lambda: {}).service()
    served_here: list[Service] = [health, *rpc.reflection_services()]
    wanted = {*methods_of(pb.DESCRIPTOR), *(name for one in served_here for name in one._handlers)}
    assert wanted <= known
    assert known - wanted <= set(methods_of(health_pb2.DESCRIPTOR))


def test_what_calls_are_about() -> None:
    opening = pb.PublishRequest.Open(broker="team-a/x")
    about = {"namespace": "team-a", "name": "x"}
    base = "/headgate.v1"
    for method, message, verb, resource, subresource in (
        (f"{base}.Publisher/Publish", pb.PublishRequest(open=opening), "create", "brokers", "events"),
        (
            f"{base}.Reader/Read",
            pb.ReadRequest(open=pb.ReadRequest.Open(broker="team-a/x")),
            "get",
            "brokers",
            "events",
        ),
        (
            f"{base}.Subscriptions/Subscribe",
            pb.SubscribeRequest(open=pb.SubscribeRequest.Open(subscription="team-a/x")),
            "update",
            "subscriptions",
            "events",
        ),
        (f"{base}.Subscriptions/Seek", pb.SeekRequest(subscription="team-a/x"), "create", "subscriptions", "seek"),
        (f"{base}.Subscriptions/Stats", pb.StatsRequest(subscription="team-a/x"), "get", "subscriptions", "stats"),
        (
            f"{base}.Subscriptions/Analyze",
            pb.AnalyzeRequest(subscription="team-a/x"),
            "create",
            "subscriptions",
            "analyze",
        ),
    ):
        assert has_names(method)
        found = wanted_by_call(method, message.SerializeToString())
        assert (found.verb, found.resource, found.subresource) == (verb, resource, subresource)
        assert {"namespace": found.namespace, "name": found.name} == about
        broken = wanted_by_call(method, b"\xff\xff")
        assert (broken.namespace, broken.name) == ("", "")  # a right that holds everywhere
    plain = pb.PublishRequest(open=pb.PublishRequest.Open(broker="x")).SerializeToString()
    assert wanted_by_call(f"{base}.Publisher/Publish", plain).namespace == "default"
    assert wanted_by_call("/no.such/Call", b"").path == "/no.such/Call"


@pytest.mark.parametrize(
    ("method", "path", "query", "wanted"),
    [
        ("GET", "/apis/eventing.knative.dev/v1/namespaces/a/triggers", b"watch=true", ("watch", "triggers", "a", "")),
        ("GET", "/apis/eventing.knative.dev/v1/namespaces/a/triggers", b"watch=0", ("list", "triggers", "a", "")),
        (
            "GET",
            "/apis/eventing.knative.dev/v1/namespaces/a/triggers",
            b"watch=0&watch=1",
            ("watch", "triggers", "a", ""),
        ),
        ("GET", "/apis/eventing.knative.dev/v1/triggers", b"watch=1", ("watch", "triggers", "", "")),
        (
            "GET",
            "/apis/eventing.knative.dev/v1/namespaces/a/triggers",
            b"fieldSelector=metadata.name%3Dx",
            ("list", "triggers", "a", "x"),
        ),
        (  # what a role with resourceNames lets its user watch: kubectl get triggers x -w
            "GET",
            "/apis/eventing.knative.dev/v1/namespaces/a/triggers",
            b"watch=1&fieldSelector=metadata.name%3Dx",
            ("watch", "triggers", "a", "x"),
        ),
        (
            "GET",
            "/apis/eventing.knative.dev/v1/triggers",
            b"fieldSelector=metadata.name%3Dx&watch=true",
            ("watch", "triggers", "", "x"),
        ),
        (
            "GET",
            "/apis/eventing.knative.dev/v1/namespaces/a/triggers",
            b"watch=1&fieldSelector=metadata.name!%3Dx",
            ("watch", "triggers", "a", ""),
        ),
        (
            "GET",
            "/apis/eventing.knative.dev/v1/namespaces/a/triggers",
            b"fieldSelector=metadata.name!%3Dx",
            ("list", "triggers", "a", ""),
        ),
        (
            "GET",
            "/apis/headgate.dev/v1/namespaces/a/deadletters/counts",
            b"fieldSelector=metadata.name%3Dx",
            ("list", "deadletters", "a", ""),
        ),
        (
            "POST",
            "/apis/headgate.dev/v1/namespaces/a/deadletters/known",
            b"fieldSelector=metadata.name%3Dx",
            ("list", "deadletters", "a", ""),
        ),
        (
            "GET",
            "/apis/headgate.dev/v1/namespaces/a/replays",
            b"fieldSelector=metadata.name%3Dx",
            ("list", "replays", "a", ""),
        ),
        ("HEAD", "/apis/eventing.knative.dev/v1/namespaces/a/triggers/x", b"", ("get", "triggers", "a", "x")),
        (
            "DELETE",
            "/apis/eventing.knative.dev/v1/namespaces/a/triggers",
            b"",
            ("deletecollection", "triggers", "a", ""),
        ),
        ("GET", "/api/v1/namespaces/a", b"", ("get", "namespaces", "a", "a")),
        ("DELETE", "/api/v1/namespaces/a", b"", ("delete", "namespaces", "a", "a")),
        ("PUT", "/a/x", b"", ("create", "brokers", "a", "x")),
        ("POST", "/a/x/", b"", ("create", "brokers", "a", "x")),
    ],
)
def test_what_requests_are_about(method: str, path: str, query: bytes, wanted: tuple[str, str, str, str]) -> None:
    found = wanted_by_request(method, path, query)
    assert (found.verb, found.resource, found.namespace, found.name) == wanted


@pytest.mark.parametrize("path", ["/", "//", "/a", "/a//x", "/readyz/x", "/openapi/v2"])
def test_what_is_in_no_table_is_a_path(path: str) -> None:
    found = wanted_by_request("GET", path)
    assert found.path
    assert not found.resource


@pytest.mark.parametrize("path", ["/apis/x/y/z", "/apis/eventing.knative.dev/v2/triggers", "/api/v1/configmaps"])
def test_a_path_of_the_api_in_no_table_needs_every_right(path: str) -> None:
    """Everybody may have discovery: below `/apis` there must be nothing that passes for it."""
    assert wanted_by_request("GET", path) == EVERY_RIGHT


# --- every right, every role --------------------------------------------------------------------


def same(names: tuple[str, ...], verbs: set[str]) -> dict[str, set[str]]:
    return {name: set(verbs) for name in names}


_SEES = {"get", "list", "watch"}
_ALL = {*_SEES, "create", "update", "patch", "delete", "deletecollection"}
_VIEWED = {
    **same(("brokers", "triggers", "subscriptions", "eventpolicies", "eventtypes"), _SEES),
    **same(
        ("brokers/status", "triggers/status", "subscriptions/status", "eventpolicies/status", "eventtypes/status"),
        {"get"},
    ),
    **same(("brokers/events", "brokers/filter", "brokers/why", "brokers/trace", "triggers/why"), {"get"}),
    **same(("subscriptions/stats", "subscriptions/seek"), {"get"}),
    **same(("deadletters", "pending", "replays"), {"get", "list"}),
    "namespaces": {"get"},
    "resourcequotas": _SEES,
    "resourcequotas/status": {"get"},
    "events": {"list"},
    **same(("summaries", "subscriptions/consumers", "brokers/timeline", "brokers/catalogue", "brokers/lint"), {"get"}),
    **same(("brokers/stats", "triggers/stats"), {"get", "list"}),
}
_EDITED = _VIEWED | {
    **same(("brokers", "triggers", "subscriptions", "eventtypes"), _ALL),
    "brokers/events": {"get", "create"},
    "brokers/backtest": {"create"},
    "triggers/redrive": {"create"},
    "subscriptions/events": {"update"},
    "subscriptions/seek": {"get", "create", "delete"},
    "subscriptions/analyze": {"create"},
    "deadletters": {"get", "list", "update", "delete"},
    "pending": {"get", "list", "delete"},
    "replays": {"get", "list", "create", "update"},
    "secrets": _ALL,
}
EXPECTED: dict[str, dict[str, set[str]]] = {
    "headgate:viewer": _VIEWED,
    "headgate:editor": _EDITED,
    "headgate:admin": _EDITED
    | same(("roles", "rolebindings", "eventpolicies"), _ALL)
    | {"localsubjectaccessreviews": {"create"}},
    "headgate:publisher": {"brokers": {"get"}, "brokers/events": {"create"}, "brokers/filter": {"get"}},
    "headgate:consumer": {
        "subscriptions": _SEES,
        "subscriptions/events": {"update"},
        "subscriptions/stats": {"get"},
        "subscriptions/seek": {"get"},
    },
    "": {},
}
"""What each role may do in the namespace in which somebody has it, said a second time."""


def passes(app: AuthorizedRequests, user: User, method: str, path: str) -> bool:
    """Whether a request gets through the gate."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def ask() -> None:
        scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": [], USER: user}
        await app(scope, cast(Any, None), send)

    asyncio.run(ask())
    assert sent[0]["status"] in (204, 403)
    return bool(sent[0]["status"] == 204)


PUBLIC = {"/livez", "/readyz", "/healthz", "/version", "/.well-known/openid-configuration", "/openid/v1/jwks"}
PUBLIC |= {"/handshake/v1/allow"}
PUBLIC |= {"/", "/ui", "/ui/x", "/ui/x/x"}
"""What everybody may ask; the last three are for subscribers, who are no clients of this server."""


async def answering(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


@pytest.mark.parametrize("role", EXPECTED)
def test_every_route_with_every_role(store: Store, role: str) -> None:
    admission = Admission(store)
    bootstrap(admission)
    if role:
        assert role in ROLES
        binding = {
            "apiVersion": f"{RBAC_GROUP}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "b", "namespace": "team-a"},
            "subjects": [{"kind": "User", "name": "ann"}],
            "roleRef": {"kind": "ClusterRole", "name": role},
        }
        admission.create(Kind.ROLE_BINDING, binding)
    copy = RbacCopy(store)
    copy.refresh()
    app = AuthorizedRequests(answering, copy.authorizer)
    ann = authenticated("ann")
    for route in ROUTES:
        method, verb = "POST" if route.method == "*" else route.method, route.wanted.verb
        path = sample(route.path)
        resource = route.wanted.full_resource
        if route.wanted.path:
            expected = path not in ("/metrics", "/admission/validate")
            assert passes(app, ann, method, path) is expected, path
            assert passes(app, ANONYMOUS, method, path) is (path in PUBLIC), path
            continue
        assert not passes(app, ANONYMOUS, method, path), path
        self_review = resource.startswith(("selfsubject", "filters/"))
        in_own = self_review or (verb in EXPECTED[role].get(resource, set()) and "team-a" in path)
        if resource == "namespaces":
            path = path.replace("/x", "/team-a")
            in_own = verb in EXPECTED[role].get(resource, set()) and path.endswith("team-a")
        assert passes(app, ann, method, path) is in_own, (role, method, path)
        other = path.replace("team-a", "team-b")
        assert passes(app, ann, method, other) is self_review, (role, method, other)


def test_without_authentication_everybody_may_do_everything() -> None:
    app = AuthorizedRequests(answering, AlwaysAllow())
    for route in ROUTES:
        assert passes(app, ANONYMOUS, "POST" if route.method == "*" else route.method, sample_any(route.path))


def sample_any(path: str) -> str:
    return "/".join("x" if one.startswith("{") else one for one in path.split("/"))


NAMED: dict[str, tuple[Kind, dict[str, Any]]] = {
    "brokers": (Kind.BROKER, {"spec": {}}),
    "triggers": (Kind.TRIGGER, {"spec": {"broker": "x", "subscriber": {"uri": "http://127.0.0.1:9/"}}}),
    "eventpolicies": (Kind.EVENT_POLICY, {"spec": {}}),
    "eventtypes": (Kind.EVENT_TYPE, {"spec": {"type": "t"}}),
    "subscriptions": (Kind.SUBSCRIPTION, {"spec": {"broker": "x"}}),
    "secrets": (Kind.SECRET, {"stringData": {"a": "b"}}),
    "resourcequotas": (Kind.RESOURCE_QUOTA, {"spec": {"hard": {"count/triggers.eventing.knative.dev": "9"}}}),
    "roles": (Kind.ROLE, {"rules": []}),
    "rolebindings": (Kind.ROLE_BINDING, {"roleRef": {"apiGroup": RBAC_GROUP, "kind": "Role", "name": "x"}}),
    "clusterroles": (Kind.CLUSTER_ROLE, {"rules": []}),
    "clusterrolebindings": (
        Kind.CLUSTER_ROLE_BINDING,
        {"roleRef": {"apiGroup": RBAC_GROUP, "kind": "ClusterRole", "name": "x"}},
    ),
}
"""Every kind, and what an object of it has at least."""


class NoCounters:
    """Counters of nothing, and no history."""

    async def stats(self, paths: frozenset[str]) -> dict[str, Any]:
        return {}

    def broker(self, path: str) -> BrokerCount:
        return BrokerCount(0, 0.0)


def test_where_the_right_to_one_name_is_enough_only_that_name_is_answered(tmp_path: Path) -> None:
    """Of every list and every delete of many, in one namespace and in all, by `fieldSelector=metadata.name=x`."""
    selecting = [route for route in ROUTES if wanted_by_request(route.method, route.path, SELECTOR).name == "x"]
    assert {route.wanted.resource for route in selecting if not route.wanted.subresource} == {*NAMED, "namespaces"}
    nothing = cast(Any, NoCounters())
    with contextlib.closing(Store.open(tmp_path / "control.db", keys=Keyring({"k": bytes(32)}))) as store:
        app = Starlette(
            routes=[*ObjectStatsApi(store, lambda _: nothing, nothing).routes(), *ControlApi(store).app.routes]
        )
        admission = Admission(store)
        for kind, content in NAMED.values():
            for name in ("x", "y"):
                where = {"namespace": "x"} if kind.is_namespaced else {}
                given = {"apiVersion": kind.api_version, "kind": kind.value, "metadata": {"name": name, **where}}
                admission.create(kind, given | content)
        for route in sorted(selecting, key=lambda one: one.method == "DELETE"):
            path = route.path.replace("{namespace}", "x")
            answer = asyncio.run(ask(app, route.method, path, SELECTOR))
            if route.method == "GET":
                names = [item.get("metadata", item)["name"] for item in answer["items"]]
                assert names == ["x"], route
            else:
                left = asyncio.run(ask(app, "GET", path, b""))
                assert "y" in {item["metadata"]["name"] for item in left["items"]}, route
                assert "x" not in {item["metadata"]["name"] for item in left["items"]}, route


SELECTOR = b"fieldSelector=metadata.name%3Dx"


async def ask(app: Starlette, method: str, path: str, query: bytes) -> Any:
    """The JSON that an application answers."""
    sent: list[Any] = []
    unread = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> Any:
        if not unread:
            await asyncio.Event().wait()
        return unread.pop()

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "query_string": query, "headers": []}
    await app(scope, receive, send)
    body = b"".join(message.get("body", b"") for message in sent)
    assert sent[0]["status"] == 200, (method, path, body)
    return json.loads(body)
