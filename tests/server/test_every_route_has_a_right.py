"""Every path and every method that the processes of a server answer has a line in the table of rights."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from google.protobuf.descriptor import FileDescriptor
from grpc_health.v1 import health_pb2
from starlette.routing import BaseRoute, Mount, Route

from headgate.auth.authorizer import AlwaysAllow
from headgate.auth.context import USER
from headgate.auth.routes import CALLS, EVERY_RIGHT, ROUTES, has_names, route_of, wanted_by_call, wanted_by_request
from headgate.auth.rules import Attributes
from headgate.auth.user import ANONYMOUS, User, authenticated
from headgate.control.admission import Admission
from headgate.control.api import ControlApi
from headgate.control.bootstrap import ROLES, bootstrap
from headgate.control.grants import Grants
from headgate.control.objects import RBAC_GROUP, Kind
from headgate.control.rbac_copy import RbacCopy
from headgate.control.store import Store
from headgate.deadletters.api import DeadLettersApi
from headgate.replay.api import ReplaysApi
from headgate.rpc import headgate_pb2 as pb
from headgate.rpc.service import Service
from headgate.server import control, front, reader_client, rpc_meta, target_stats
from headgate.server.authorization import AuthorizedRequests
from headgate.server.broker_news import PATH as NEWS_PATH
from headgate.settings import Settings
from headgate.stream.api import ReadApi
from headgate.subscriptions.api import SubscriptionsApi

INNER = {
    ("POST", reader_client.SCAN_PATH),
    ("POST", reader_client.COUNT_PATH),
    ("POST", NEWS_PATH),
    ("POST", target_stats.STATS_PATH),
    ("POST", target_stats.BACKLOG_PATH),
    ("POST", "/apis/headgate.dev/v1/namespaces/{namespace}/deadletters/known"),
}
"""What a process answers to the other processes alone: a front passes none of it on."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(tmp_path / "control.db")
    yield opened
    opened.close()


def routes_of(routes: list[BaseRoute]) -> Iterator[tuple[str, str]]:
    for route in routes:
        if isinstance(route, Mount):
            yield from routes_of(list(route.routes or []))
        else:
            assert isinstance(route, Route), route
            yield from ((method, route.path) for method in route.methods or ())


def served(store: Store, folder: Path) -> set[tuple[str, str]]:
    """Method and path of every route of every process."""
    settings, nothing = Settings(data=folder), cast(Any, None)
    own = front.other_paths(settings, store, Grants(store, control.url_policy(settings)), {})
    objects = control.paths(settings, store, ControlApi(store))
    dispatcher = [
        *target_stats.TargetStatsApi(nothing, nothing).routes(),
        *SubscriptionsApi(nothing).routes(),
        *DeadLettersApi(nothing, nothing).routes(),
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
        return sample(path.replace("deadletters/{name}", "deadletters/{id}").replace("replays/{name}", "replays/{id}"))

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
    health = rpc_meta.HealthService(lambda: {}).service()
    served_here: list[Service] = [health, *rpc_meta.reflection_services()]
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
        (
            "GET",
            "/apis/eventing.knative.dev/v1/namespaces/a/triggers",
            b"fieldSelector=metadata.name!%3Dx",
            ("list", "triggers", "a", ""),
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
    **same(("deadletters", "replays"), {"get", "list"}),
    "namespaces": {"get"},
    "resourcequotas": _SEES,
    "resourcequotas/status": {"get"},
    "events": {"list"},
    **same(("summaries", "subscriptions/consumers", "brokers/timeline", "brokers/catalogue"), {"get"}),
    **same(("brokers/stats", "triggers/stats"), {"get", "list"}),
}
_EDITED = _VIEWED | {
    **same(("brokers", "triggers", "subscriptions", "eventtypes"), _ALL),
    "brokers/events": {"get", "create"},
    "brokers/backtest": {"create"},
    "subscriptions/events": {"update"},
    "subscriptions/seek": {"get", "create", "delete"},
    "subscriptions/analyze": {"create"},
    "deadletters": {"get", "list", "update", "delete"},
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
