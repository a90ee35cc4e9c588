"""The one table of what requests ask for: every path of HTTP and every method of gRPC, with the right that it needs.

What is not in the table needs `get` on `/its/path`, or all rights for a path of the API.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Final
from urllib.parse import parse_qsl

from headgate.auth.rules import ANY, Attributes
from headgate.rpc.service import PUBLISHER, READER, SUBSCRIPTIONS
from headgate.rpc.wire import parsed, publishing
from headgate_api.event.names import full_name
from headgate_api.limits import ROUTE_REMEMBERED_CHARS_MAX, ROUTES_REMEMBERED_MAX
from headgate_api.rpc import headgate_pb2 as pb
from headgate_api.rpc.errors import ProtocolError

EVENTING: Final = "eventing.knative.dev"
OWN: Final = "headgate.dev"
RBAC: Final = "rbac.authorization.k8s.io"
REVIEWS: Final = "authorization.k8s.io"
IDENTITY: Final = "authentication.k8s.io"
OBJECT_VERBS: Final = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
"""What may be done with objects of the API."""
_OF_ONE: Final = (("GET", "get"), ("PUT", "update"), ("PATCH", "patch"), ("DELETE", "delete"))
"""Methods of HTTP on one object, and their verbs."""
_ANY_METHOD: Final = "*"
_SET: Final = ("1", "true")


class EventAccess(StrEnum):
    """How the ceiling of a user's right holds where events may be read or taken, or something be learnt of them.

    Whoever has no ceiling is asked for nothing.
    """

    NONE = "none"  # nothing is read of any event that a broker has
    JOINED = "joined"  # the ceiling holds beside the request's own filter: the gate writes it into the user
    WRITTEN = "written"  # what is written is filtered below the ceiling of its writer (`objects/api/admission.py`)
    OWN = "own"  # the events are those of a trigger or subscription, whose ceiling must lie inside the user's
    EACH = "each"  # whoever has them judges each by its event, see `deadletters/own.py`; a named trigger is as in `OWN`
    SHOWN = "shown"  # nothing is shown that events have left: findings in a status, counters, what is made of events
    REFUSED = "refused"  # whoever has a ceiling there is refused


@dataclass(frozen=True, slots=True)
class RightOfRoute:
    """A path of HTTP, the right that it needs, and what the request does; the method `*` is every other one.

    `{namespace}` and `{name}` are those of the right. It `selects` when `fieldSelector=metadata.name=...` leaves only
    that object: then the right to this one is enough.
    """

    method: str
    path: str
    wanted: Attributes
    what: str
    events: EventAccess
    selects: bool = False


@dataclass(frozen=True, slots=True)
class RightOfCall:
    """A method of gRPC, the right that it needs, and what the call does.

    `named` finds `namespace/name` of the right in the first message; None where it is about nothing.
    """

    method: str
    wanted: Attributes
    what: str
    events: EventAccess
    named: Callable[[bytes], str] | None = None


_FILTERED: Final = frozenset({"triggers", "subscriptions"})
"""Kinds of objects that get events."""
_LEFT_IN: Final = _FILTERED | {"eventtypes", "resourcequotas"}
"""Kinds of objects that events leave something in: some types are made of events, statuses of quotas count them."""


def _object_routes(group: str, plural: str, *, namespaced: bool = True, version: str = "v1") -> Iterator[RightOfRoute]:
    def one(method: str, path: str, verb: str, what: str, subresource: str = "") -> RightOfRoute:
        selects = verb in ("list", "deletecollection")
        access = EventAccess.SHOWN if plural in _LEFT_IN else EventAccess.NONE
        if plural in _FILTERED and verb in ("create", "update", "patch"):
            access = EventAccess.WRITTEN
        return RightOfRoute(method, path, Attributes(verb, group, plural, subresource), what, access, selects)

    root = f"/apis/{group}/{version}" if group else "/api/v1"
    everywhere = f"{root}/{plural}"
    base = f"{root}/namespaces/{{namespace}}/{plural}" if namespaced else everywhere
    if namespaced:
        yield one("GET", everywhere, "list", f"list or watch {plural} of all namespaces")
    yield one("GET", base, "list", f"list or watch {plural}")
    yield one("POST", base, "create", f"create one of {plural}")
    yield one("DELETE", base, "deletecollection", f"delete all {plural}, or those selected")
    for method, verb in _OF_ONE:
        yield one(method, f"{base}/{{name}}", verb, f"{verb} one of {plural}")
    if group in (EVENTING, OWN) or plural == "resourcequotas":
        yield one("GET", f"{base}/{{name}}/status", "get", f"the status of one of {plural}", "status")


_NONE, _JOINED, _OF_TARGET, _REFUSED = EventAccess.NONE, EventAccess.JOINED, EventAccess.OWN, EventAccess.REFUSED


def _subresources() -> Iterator[RightOfRoute]:
    def of(plural: str, subresource: str, verb: str = "get") -> Attributes:
        return Attributes(verb, EVENTING, plural, subresource)

    brokers = f"/apis/{EVENTING}/v1/namespaces/{{namespace}}/brokers/{{name}}"
    own_brokers = f"/apis/{OWN}/v1/namespaces/{{namespace}}/brokers/{{name}}"
    triggers = f"/apis/{EVENTING}/v1/namespaces/{{namespace}}/triggers/{{name}}"
    subscriptions = f"/apis/{OWN}/v1/namespaces/{{namespace}}/subscriptions/{{name}}"
    for method, path, wanted, what, access in (
        (_ANY_METHOD, "/{namespace}/{name}", PUBLISH, "publish events to a broker", _NONE),
        ("GET", "/{namespace}/{name}/events", READ, "read a broker's stored events", _JOINED),
        ("GET", f"{own_brokers}/filter", of("brokers", "filter"), "which events are wanted", _NONE),
        ("POST", f"{own_brokers}/backtest", of("brokers", "backtest", "create"), "try a filter", _JOINED),
        ("GET", f"{brokers}/why", of("brokers", "why"), "why triggers got an event or not", _JOINED),
        ("GET", f"{brokers}/trace", of("brokers", "trace"), "the way of an event", _JOINED),
        ("GET", f"{brokers}/timeline", of("brokers", "timeline"), "an event's life", _JOINED),
        ("GET", f"{brokers}/catalogue", CATALOGUE, "which events flow here", _JOINED),
        ("POST", f"{brokers}/catalogue", CATALOGUE, "names in a filter that no event has had", _JOINED),
        ("GET", f"{brokers}/lint", of("brokers", "lint"), "compare its filters", _JOINED),
        ("GET", f"{brokers}/stats", of("brokers", "stats"), "a broker with its counters", EventAccess.SHOWN),
        ("GET", f"{triggers}/stats", of("triggers", "stats"), "a trigger with its counters", _OF_TARGET),
        ("GET", f"{triggers}/why", of("triggers", "why"), "why it got an event or not", _OF_TARGET),
        ("POST", f"{subscriptions}/pull", _CONSUME, "take events", _OF_TARGET),
        ("POST", f"{subscriptions}/ack", _CONSUME, "acknowledge events", _OF_TARGET),
        ("POST", f"{subscriptions}/nack", _CONSUME, "give events back", _OF_TARGET),
        ("POST", f"{subscriptions}/leave", _CONSUME, "give up a consumer's turn", _OF_TARGET),
        ("POST", f"{subscriptions}/seek", _SEEK, "go on elsewhere", _OF_TARGET),
        ("GET", f"{subscriptions}/seek", _SEEK._replace(verb="get"), "how far a seek is", _OF_TARGET),
        ("DELETE", f"{subscriptions}/seek", _SEEK._replace(verb="delete"), "cancel a seek", _OF_TARGET),
        ("POST", f"{subscriptions}/analyze", _ANALYZE, "try a filter on the backlog", _OF_TARGET),
        ("GET", f"{subscriptions}/stats", _STATS, "where a subscription stands", _OF_TARGET),
        ("GET", f"{subscriptions}/consumers", _CONSUMERS, "who has its events", _OF_TARGET),
    ):
        yield RightOfRoute(method, path, wanted, what, access)


def _collections() -> Iterator[RightOfRoute]:
    """What is no object of the API and lies in namespaces: dead letters, events that wait, and replays."""
    names = ("deadletters", "pending", "replays")
    letters, pending, replays = (f"/apis/{OWN}/v1/namespaces/{{namespace}}/{name}" for name in names)
    for method, path, verb, what in (
        ("GET", f"/apis/{OWN}/v1/deadletters", "list", "list dead letters of all namespaces"),
        ("GET", letters, "list", "list dead letters"),
        ("GET", f"/apis/{OWN}/v1/deadletters/counts", "list", "count dead letters of all namespaces"),
        ("GET", f"{letters}/counts", "list", "count dead letters"),
        ("GET", f"{letters}/{{name}}", "get", "show a dead letter with its event"),
        ("POST", f"{letters}/known", "list", "which of some dead letters are there"),
        ("POST", f"{letters}/redrive", "update", "send dead letters again"),
        ("POST", f"{letters}/discard", "delete", "discard dead letters"),
        ("GET", f"/apis/{OWN}/v1/pending", "list", "list pending events of all namespaces"),
        ("GET", pending, "list", "list pending events"),
        ("GET", f"/apis/{OWN}/v1/pending/counts", "list", "count pending events of all namespaces"),
        ("GET", f"{pending}/counts", "list", "count pending events"),
        ("GET", f"{pending}/{{name}}", "get", "show a pending event"),
        ("POST", f"{pending}/known", "list", "which of some pending events are there"),
        ("POST", f"{pending}/cancel", "delete", "cancel pending events"),
        ("GET", replays, "list", "list replays"),
        ("POST", replays, "create", "begin a replay"),
        ("GET", f"{replays}/{{name}}", "get", "show a replay"),
        ("POST", f"{replays}/{{name}}/cancel", "update", "cancel a replay"),
    ):
        resource = next(name for name in names if f"/{name}" in path)
        yield RightOfRoute(method, path, Attributes(verb, OWN, resource), what, EventAccess.EACH)
    wanted = Attributes("create", EVENTING, "triggers", "redrive")
    what = "send dead letters to this trigger"
    yield RightOfRoute("POST", f"{letters}/redrive/{{name}}", wanted, what, EventAccess.EACH)


def _views() -> Iterator[RightOfRoute]:
    for place, where in (("", " of all namespaces"), ("/namespaces/{namespace}", "")):
        base = f"/apis/{OWN}/v1{place}"
        wanted = Attributes("get", OWN, "summaries")
        yield RightOfRoute("GET", f"{base}/summary", wanted, f"a summary{where}", EventAccess.SHOWN)
        for name in ("brokers", "triggers"):
            wanted = Attributes("list", EVENTING, name, "stats")
            what = f"list {name}{where} with their counters"
            yield RightOfRoute("GET", f"{base}/{name[:-1]}stats", wanted, what, EventAccess.SHOWN, selects=True)
    # No role but cluster-admin has it: chunks hold events of all brokers, so it is given for the whole server or not.
    yield RightOfRoute(
        "GET", f"/apis/{OWN}/v1/chunks", Attributes("list", OWN, "chunks"), "list chunks of the log", _REFUSED
    )
    wanted = Attributes("get", OWN, "selfsubjectnamespaces")
    yield RightOfRoute("GET", f"/apis/{OWN}/v1/selfsubjectnamespaces", wanted, "which namespaces may I see?", _NONE)


def _applies() -> Iterator[RightOfRoute]:
    """Several objects in one request, as each could be patched; who makes one is asked for more by the admission."""
    for group, name in ((EVENTING, "trigger"), (OWN, "subscription")):
        path = f"/apis/{OWN}/v1/namespaces/{{namespace}}/{name}applies"
        yield RightOfRoute(
            "POST", path, Attributes("patch", group, f"{name}s"), f"apply several {name}s", EventAccess.WRITTEN
        )


def _filters() -> Iterator[RightOfRoute]:
    base = f"/apis/{OWN}/v1/filters"
    for method, verb, name, what in (
        ("POST", "create", "test", "try a filter on events"),
        ("POST", "create", "explain", "how a filter is matched"),
        ("POST", "create", "convert", "a filter in CEL"),
        ("GET", "get", "dialects", "the dialects of filters"),
    ):
        yield RightOfRoute(method, f"{base}/{name}", Attributes(verb, OWN, "filters", name), what, _NONE)


def _cluster() -> Iterator[RightOfRoute]:
    """Namespaces, reviews, and the paths that are no resources."""
    namespaces = "/api/v1/namespaces"
    listed = Attributes("list", "", "namespaces")
    yield RightOfRoute("GET", namespaces, listed, "list or watch namespaces", _NONE, selects=True)
    yield RightOfRoute("POST", namespaces, Attributes("create", "", "namespaces"), "create a namespace", _NONE)
    for method, verb in _OF_ONE:
        wanted = Attributes(verb, "", "namespaces")
        yield RightOfRoute(method, f"{namespaces}/{{name}}", wanted, f"{verb} a namespace", _NONE)
    for path in ("/api/v1/events", "/api/v1/namespaces/{namespace}/events"):
        yield RightOfRoute(
            "GET", path, Attributes("list", "", "events"), "an empty list, which kubectl asks for", _NONE
        )
    for group, plural, what in (
        (REVIEWS, "selfsubjectaccessreviews", "may I?"),
        (REVIEWS, "selfsubjectrulesreviews", "what may I?"),
        (REVIEWS, "subjectaccessreviews", "may somebody?"),
        (REVIEWS, "localsubjectaccessreviews", "may somebody in this namespace?"),
        (IDENTITY, "selfsubjectreviews", "who am I?"),
    ):
        place = "namespaces/{namespace}/" if plural.startswith("local") else ""
        yield RightOfRoute(
            "POST", f"/apis/{group}/v1/{place}{plural}", Attributes("create", group, plural), what, _NONE
        )
    for path, what in (
        ("/", "the way of a browser to the console"),
        ("/ui", "the console"),
        ("/ui/{file}", "a file of the console"),
        ("/ui/{folder}/{file}", "a file of the console"),
        ("/livez", "whether the server lives"),
        ("/readyz", "whether it is ready; with `?verbose` the right is to `/readyz/verbose`"),
        ("/healthz", "the same as /readyz"),
        ("/metrics", "the server's numbers"),
        ("/version", "its version"),
        ("/api", "discovery"),
        ("/api/v1", "discovery"),
        ("/apis", "discovery"),
        *((f"/apis/{group}", "discovery") for group in (EVENTING, OWN, RBAC, REVIEWS, IDENTITY)),
        *((f"/apis/{group}/v1", "discovery") for group in (EVENTING, OWN, RBAC, REVIEWS, IDENTITY)),
        *((f"/apis/{EVENTING}/{version}", "discovery") for version in ("v1alpha1", "v1beta2")),
        ("/.well-known/openid-configuration", "who signs the tokens that subscribers get"),
        ("/openid/v1/jwks", "by which keys"),
        ("/handshake/v1/allow", "what a subscriber answers to a handshake; its key is its right"),
        ("/openapi/v3", "schemas"),
        ("/openapi/v3/api/v1", "schemas"),
        *((f"/openapi/v3/apis/{group}/v1", "schemas") for group in (EVENTING, OWN, RBAC)),
        *((f"/openapi/v3/apis/{EVENTING}/{version}", "schemas") for version in ("v1alpha1", "v1beta2")),
    ):
        access = _REFUSED if path == "/metrics" else _NONE
        yield RightOfRoute("GET", path, Attributes("get", path=path), what, access)
    for path, verb, what in (
        ("/handshake/v1/allow", "get", "the same"),
        ("/admission/validate", "post", "judge an object for a Kubernetes cluster"),
    ):
        yield RightOfRoute("POST", path, Attributes(verb, path=path), what, _NONE)


PUBLISH: Final = Attributes("create", EVENTING, "brokers", "events")
"""To publish to a broker."""
SUBSCRIBE: Final = Attributes("knsubscribe", EVENTING, "brokers")
"""To have triggers and subscriptions of another namespace get the events of a broker; the verb is Knative's."""
READ: Final = Attributes("get", EVENTING, "brokers", "events")
"""To read what a broker has stored."""
CATALOGUE: Final = Attributes("get", EVENTING, "brokers", "catalogue")
"""To know which events a broker has."""
_CONSUME: Final = Attributes("update", OWN, "subscriptions", "events")
_SEEK: Final = Attributes("create", OWN, "subscriptions", "seek")
_ANALYZE: Final = Attributes("create", OWN, "subscriptions", "analyze")
_STATS: Final = Attributes("get", OWN, "subscriptions", "stats")
_CONSUMERS: Final = Attributes("get", OWN, "subscriptions", "consumers")
READINESS: Final = "/readyz"
HEALTH_PATHS: Final = frozenset({"/livez", READINESS, "/healthz"})
"""What probes ask, which have no token: it is told to everybody, whatever the roles say."""
EVERY_RIGHT: Final = Attributes(ANY, ANY, ANY)
"""What a path of the API needs that is in no line of the table: else discovery, which everybody may have, hid it."""
_DISCOVERY_SLASHES: Final = 3
"""Of `/apis/GROUP/VERSION`; what is longer is no discovery."""

ROUTES: Final[tuple[RightOfRoute, ...]] = (
    *_subresources(),
    *_collections(),
    *_views(),
    *_applies(),
    *_filters(),
    *_object_routes(EVENTING, "brokers"),
    *_object_routes(EVENTING, "triggers"),
    *_object_routes(EVENTING, "eventpolicies", version="v1alpha1"),
    *_object_routes(EVENTING, "eventtypes", version="v1beta2"),
    *_object_routes(OWN, "subscriptions"),
    *_object_routes("", "secrets"),
    *_object_routes("", "resourcequotas"),
    *_object_routes(RBAC, "roles"),
    *_object_routes(RBAC, "rolebindings"),
    *_object_routes(RBAC, "clusterroles", namespaced=False),
    *_object_routes(RBAC, "clusterrolebindings", namespaced=False),
    *_cluster(),
)
"""Every path that the server answers."""


def _broker_published_to(first: bytes) -> str:
    return full_name(publishing(first).head.open.broker)


def _broker_read(first: bytes) -> str:
    return full_name(parsed(pb.ReadRequest, first).open.broker)


def _subscription(request: type[pb.SeekRequest | pb.StatsRequest | pb.AnalyzeRequest]) -> Callable[[bytes], str]:
    return lambda first: parsed(request, first).subscription


_REFLECTION: Final = "ServerReflection/ServerReflectionInfo"
_HEALTH: Final = Attributes("get", path=READINESS)
_SCHEMAS: Final = Attributes("get", path="/openapi/v3")
CALLS: Final[tuple[RightOfCall, ...]] = (
    RightOfCall(f"/{PUBLISHER}/Publish", PUBLISH, "publish events to a broker", _NONE, _broker_published_to),
    RightOfCall(f"/{READER}/Read", READ, "read a broker's stored events", _JOINED, _broker_read),
    RightOfCall(
        f"/{SUBSCRIPTIONS}/Subscribe",
        _CONSUME,
        "take and acknowledge events",
        _OF_TARGET,
        lambda first: parsed(pb.SubscribeRequest, first).open.subscription,
    ),
    RightOfCall(f"/{SUBSCRIPTIONS}/Seek", _SEEK, "go on elsewhere", _OF_TARGET, _subscription(pb.SeekRequest)),
    RightOfCall(
        f"/{SUBSCRIPTIONS}/Stats", _STATS, "where a subscription stands", _OF_TARGET, _subscription(pb.StatsRequest)
    ),
    RightOfCall(
        f"/{SUBSCRIPTIONS}/Analyze",
        _ANALYZE,
        "try a filter on the backlog",
        _OF_TARGET,
        _subscription(pb.AnalyzeRequest),
    ),
    RightOfCall("/grpc.health.v1.Health/Check", _HEALTH, "whether a service is ready", _NONE),
    RightOfCall("/grpc.health.v1.Health/Watch", _HEALTH, "whether a service is ready", _NONE),
    RightOfCall("/grpc.health.v1.Health/List", _HEALTH, "whether services are ready", _NONE),
    RightOfCall(f"/grpc.reflection.v1.{_REFLECTION}", _SCHEMAS, "the services and their messages", _NONE),
    RightOfCall(f"/grpc.reflection.v1alpha.{_REFLECTION}", _SCHEMAS, "the services and their messages", _NONE),
)
"""Every method that the server answers."""

_CALLS: Final[Mapping[str, RightOfCall]] = {call.method: call for call in CALLS}


@dataclass
class _Node:
    """A segment of paths: what follows it, and what ends at it."""

    literals: dict[str, _Node] = field(default_factory=dict)
    variable: _Node | None = None
    methods: dict[str, tuple[RightOfRoute, tuple[str, ...]]] = field(default_factory=dict)
    """By method: the route, and the names of its segments in braces."""


def _tree() -> _Node:
    root = _Node()
    for route in ROUTES:
        node, names = root, []
        for segment in route.path.removesuffix("/").split("/")[1:]:
            if segment.startswith("{"):
                names.append(segment.strip("{}"))
                node.variable = node.variable or _Node()
                node = node.variable
            else:
                node = node.literals.setdefault(segment, _Node())
        node.methods[route.method] = (route, tuple(names))
    return root


_ROOT: Final = _tree()


def route_of(method: str, path: str) -> tuple[RightOfRoute, dict[str, str]] | None:
    """The line of the table for a request, and what its path has in the place of names; None when there is none."""
    node = _ROOT
    values = []
    for segment in path.removesuffix("/").split("/")[1:]:
        found = node.literals.get(segment)
        if found is None:
            found = node.variable if segment else None
            if found is None:
                return None
            values.append(segment)
        node = found
    line = node.methods.get("GET" if method == "HEAD" else method) or node.methods.get(_ANY_METHOD)
    return None if line is None else (line[0], dict(zip(line[1], values, strict=True)))


def wanted_by_request(method: str, path: str, query: bytes = b"") -> Attributes:
    """What an HTTP request asks for, by its path, percent-decoded, and its query as it was sent."""
    # Most requests are like one before: publishers have a path, and consumers.
    if len(method) + len(path) + len(query) <= ROUTE_REMEMBERED_CHARS_MAX:
        return _remembered(method, path, query)
    return _wanted(method, path, query)


def _wanted(method: str, path: str, query: bytes) -> Attributes:
    found = route_of(method, path)
    if found is None:
        is_of_api = path.startswith("/api/v1/") or (path.startswith("/apis/") and path.count("/") > _DISCOVERY_SLASHES)
        return EVERY_RIGHT if is_of_api else Attributes("get" if method == "HEAD" else method.lower(), path=path)
    route, values = found
    verb, group, resource, subresource, _, _, is_path = route.wanted
    if is_path:
        asked = path.removesuffix("/") or "/"
        is_verbose = asked in HEALTH_PATHS and "verbose" in _given(query)
        # What every part says of itself: not everybody is told.
        return Attributes(verb, path=f"{asked}/verbose" if is_verbose else asked)
    namespace, name = values.get("namespace", ""), values.get("name", "")
    if resource == "namespaces":
        namespace = name  # as in Kubernetes: a role of the namespace may be about the namespace itself
    if query and verb in ("list", "deletecollection"):
        given = _given(query)
        if verb == "list" and given.get("watch", "").lower() in _SET:
            verb = "watch"
        if route.selects:
            name = _selected(given.get("fieldSelector", ""))
    return Attributes(verb, group, resource, subresource, namespace, name)


_remembered: Final = lru_cache(ROUTES_REMEMBERED_MAX)(_wanted)


def _given(query: bytes) -> dict[str, str]:
    """The parameters of a query, as every application of the server reads them."""
    return dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True))


def _selected(selector: str) -> str:
    """The only object that a field selector wants; empty when there may be several."""
    for part in selector.split(","):
        split = next((part.partition(one) for one in ("==", "=") if one in part and "!=" not in part), None)
        if split is not None and split[0].strip() == "metadata.name":
            return split[2].strip()
    return ""


def wanted_by_call(method: str, first: bytes | None) -> Attributes:
    """What a call of gRPC asks for; `first` is its first message, unread, None where there is or need be none."""
    call = _CALLS.get(method)
    if call is None or call.named is None:
        return Attributes("post", path=method) if call is None else call.wanted
    try:
        named = call.named(first or b"")
    except ProtocolError:
        named = ""
    # What is no name of anything is asked for all the same, and refused to who may not have everything.
    return call.wanted.on(named)


def events_by_request(method: str, path: str) -> EventAccess:
    """How a ceiling holds for an HTTP request."""
    found = route_of(method, path)
    return EventAccess.REFUSED if found is None else found[0].events


def events_by_call(method: str) -> EventAccess:
    """How a ceiling holds for a call of gRPC."""
    call = _CALLS.get(method)
    return EventAccess.REFUSED if call is None else call.events


def has_names(method: str) -> bool:
    """Whether the right that a method of gRPC needs depends on the call's first message."""
    call = _CALLS.get(method)
    return call is not None and call.named is not None
