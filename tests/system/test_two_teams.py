"""Two teams on one server that know nothing of each other, by HTTP, gRPC, kubectl and commands; and every role.

Every user shows a token of a real OpenID provider, and nobody is in a file.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from headgate.auth.routes import CALLS, EVENTING, OWN, RBAC, ROUTES, RightOfRoute
from headgate.rpc.service import SUBSCRIPTIONS
from headgate_api.errors import HeadgateError
from headgate_api.objects.kinds import Kind
from headgate_api.rpc import headgate_pb2 as pb
from headgate_client.sync import Client
from headgate_client.values import new_event
from tests.support import eventually
from tests.system.secured import OWN_ROLES, Secured
from tests.system.teams import ABSENT, NOWHERE, NOWHERE_URI, OBJECTS, TEAMS, THERE, Teams, ids, nameless

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

ENEMIES = (("ann", "team-b"), ("bob", "team-a"))


@pytest.fixture(scope="module")
def teams(secured: Secured) -> Iterator[Teams]:
    found = Teams(secured.server, secured.folder, secured.secure, secured.tokens())
    for team in TEAMS:
        assert found.bind(team, "admins", "headgate:admin", {"kind": "Group", "name": team}).status == 201
    for role in OWN_ROLES:
        user = role.partition(":")[2]
        assert found.bind("roles", user, role, {"kind": "User", "name": user}).status == 201
    owners = (("ann", "team-a"), ("bob", "team-b"), ("root", "roles"))
    for user, namespace in owners:
        found.fill(user, namespace)
    for user, namespace in owners:
        found.begin(user, namespace)
    with contextlib.closing(found.connection):
        yield found


def path_of(route: RightOfRoute, namespace: str, name: str) -> str:
    return route.path.replace("{namespace}", namespace).replace("{name}", name)


def names_of(route: RightOfRoute, teams: Teams, namespace: str) -> tuple[str, str]:
    """Names for a path: of what is there, and of what is not."""
    collection = next((one for one in ("deadletters", "pending", "replays") if f"/{one}/" in route.path), "")
    if not collection or "/redrive/" in route.path:
        return THERE, ABSENT
    listed = teams.ask("root", "GET", teams.place(namespace, collection)).json["items"]
    return ids(listed)[0], "999999"


def test_each_team_works(teams: Teams) -> None:
    for user, team in (("ann", "team-a"), ("bob", "team-b")):
        base = f"/apis/{EVENTING}/v1/namespaces/{team}"
        listed = teams.ask(user, "GET", f"{base}/triggers")
        assert [one["metadata"]["name"] for one in listed.json["items"]] == [THERE]
        assert listed.json["items"][0]["metadata"]["annotations"]["eventing.knative.dev/creator"] == user
        assert teams.ask(user, "GET", f"/{team}/{THERE}/events?from=earliest").status == 200
        assert teams.ask(user, "GET", f"{base}/brokers/{THERE}/trace?id=1").status == 200
        pulled = teams.ask(user, "POST", f"{teams.place(team, 'subscriptions')}/{THERE}/pull", {"wait": 0})
        assert pulled.status == 200
        assert teams.headgate(user, "get", "triggers", "--namespace", team).stdout.splitlines()[1].startswith(THERE)
        with teams.client(user) as client:
            client.publish(f"{team}/{THERE}", new_event("t", "/grpc", {}))
            with client.read(f"{team}/{THERE}", start="earliest", follow=False) as reader:
                assert sum(1 for _ in reader) >= 2


def test_every_name_of_the_attempts_is_of_something(teams: Teams) -> None:
    """Who may have it gets another answer for what is there than for what is not, so there is something to learn."""
    eventually(lambda: ids(teams.ask("root", "GET", teams.place("team-b", "deadletters")).json["items"], state="kept"))
    kinds = {kind.plural for kind in Kind if kind.is_namespaced}
    assert set(OBJECTS) == kinds, "each kind has an object in tests/system/teams.py"
    for route in ROUTES:
        if route.method != "GET" or "{namespace}" not in route.path or "{name}" not in route.path:
            continue
        there, absent = (
            teams.ask("root", "GET", path_of(route, "team-b", name) + "?id=1")
            for name in names_of(route, teams, "team-b")
        )
        assert (there.status in (200, 400), absent.status) == (True, 404), (route.path, there.body, absent.body)


def test_neither_team_learns_of_the_other_by_http(teams: Teams) -> None:
    """Every route that names a namespace: what is there, what is not, and a namespace that is not."""
    eventually(lambda: all(teams.is_settled(team) for team in TEAMS))
    before = [teams.state(team) for team in TEAMS]
    tried = dict.fromkeys(("ann", "bob"), 0)
    for user, other in ENEMIES:
        for route in ROUTES:
            if "/namespaces/{" not in route.path and "{namespace}" not in route.path:
                continue
            there, absent = names_of(route, teams, other)
            for method in ("POST", "OPTIONS", "PUT", "GET") if route.method == "*" else (route.method,):
                answers = set()
                for namespace, name in ((other, there), (other, absent), (NOWHERE, there)):
                    if "{namespace}" not in route.path:  # a namespace is what it names
                        name = {there: namespace, absent: NOWHERE}[name]
                    body = {"metadata": {"name": name}} if method in ("POST", "PUT") else None
                    answer = teams.ask(user, method, path_of(route, namespace, name), body)
                    assert answer.status == 403, (user, method, route.path, answer)
                    answers.add(answer.without(name=name, namespace=namespace))
                    tried[user] += 1
                assert len(answers) == 1, answers  # that it is there is not told
    assert min(tried.values()) >= 200, tried
    assert [teams.state(team) for team in TEAMS] == before


def test_neither_team_learns_of_the_other_by_grpc(teams: Teams) -> None:
    """Every method that is about a broker or a subscription; of its own, each user is told more."""
    methods = [call.method for call in CALLS if call.named is not None]
    assert {method.split("/")[2] for method in methods} == set(OPENINGS)
    for user, other in ENEMIES:
        for method in methods:
            opening = OPENINGS[method.split("/")[2]]
            outcomes = {
                (status, code, nameless(details, {"name": name, "namespace": namespace}))
                for namespace, name in ((other, THERE), (other, ABSENT), (NOWHERE, THERE))
                for status, code, details in [teams.call(user, method, opening(f"{namespace}/{name}"))]
            }
            assert {one[:2] for one in outcomes} == {("PERMISSION_DENIED", "forbidden")}
            assert len(outcomes) == 1, outcomes
        with teams.client(user) as client:
            for broker in (f"{other}/{THERE}", f"{other}/{ABSENT}"):
                assert refused(partial(client.publish, broker, new_event("t", "/s", {}))) == "forbidden"
                assert refused(partial(read, client, broker)) == "forbidden"
    for name, opening in OPENINGS.items():
        (method,) = (one for one in methods if one.endswith(f"/{name}"))
        own = [teams.call("bob", method, opening(f"team-b/{name}"))[0] for name in (THERE, ABSENT)]
        assert (own[0] in ("OK", "ABORTED"), own[1]) == (True, "NOT_FOUND"), (method, own)  # aborted: another's turn


def test_a_call_is_made_as_another_user(teams: Teams) -> None:
    method, first = "/headgate.v1.Subscriptions/Stats", OPENINGS["Stats"](f"team-b/{THERE}")
    as_ann, as_bob = (
        (("impersonate-user", name), ("impersonate-group", group))
        for name, group in (("ann", "team-a"), ("bob", "team-b"))
    )
    assert teams.call("root", method, first, *as_bob)[0] == "OK"
    assert teams.call("root", method, first, *as_ann)[:2] == ("PERMISSION_DENIED", "forbidden")
    assert teams.call("root", method, first, ("impersonate-group", "team-b"))[:2] == (
        "INVALID_ARGUMENT",
        "impersonation",
    )
    assert 'cannot impersonate resource "users"' in teams.call("ann", method, first, *as_bob)[2]


OPENINGS: dict[str, Callable[[str], bytes]] = {
    "Publish": lambda name: pb.PublishRequest(open=pb.PublishRequest.Open(broker=name)).SerializeToString(),
    "Read": lambda name: pb.ReadRequest(open=pb.ReadRequest.Open(broker=name)).SerializeToString(),
    "Subscribe": lambda name: pb.SubscribeRequest(
        open=pb.SubscribeRequest.Open(subscription=name, consumer="c")
    ).SerializeToString(),
    "Seek": lambda name: pb.SeekRequest(subscription=name, to="latest").SerializeToString(),
    "Stats": lambda name: pb.StatsRequest(subscription=name).SerializeToString(),
    "Analyze": lambda name: pb.AnalyzeRequest(subscription=name, filter=pb.Filter(filter="true")).SerializeToString(),
}
"""The first message of each method, about a broker or subscription."""


@pytest.mark.parametrize(("user", "other"), [ENEMIES[0], pytest.param(*ENEMIES[1], marks=pytest.mark.slow)])
def test_neither_team_learns_of_the_other_by_kubectl(teams: Teams, user: str, other: str) -> None:
    """Each run tries all kinds, and says a line about each."""
    kinds = [
        f"{plural}.{version.partition('/')[0]}" if "/" in version else plural
        for plural, (version, _, _) in OBJECTS.items()
    ]
    for verb in (["get"], ["delete"], ["label", "a=b"], ["annotate", "a=b"]):
        said = set()
        for namespace, name in ((other, THERE), (other, ABSENT), (NOWHERE, THERE)):
            objects = [f"{kind}/{name}" for kind in kinds]
            done = teams.kubectl(user, verb[0], *objects, *verb[1:], "-n", namespace)
            assert (done.returncode, done.stdout) == (1, ""), done
            assert done.stderr.count("Forbidden") == len(kinds), done.stderr
            said.add(nameless(done.stderr, {"name": name, "namespace": namespace}))
        assert len(said) == 1, said
    for given in (["get", ",".join(kinds)], ["create", "role", THERE, "--verb=get", "--resource=secrets"]):
        done = teams.kubectl(user, *given, "-n", other)
        assert (done.returncode, done.stdout) == (1, "")
        assert "forbidden" in done.stderr


def test_neither_team_learns_of_the_other_by_commands(teams: Teams) -> None:
    said: dict[str, set[str]] = {}
    for name in (THERE, ABSENT):
        for command in (
            ("send", "--broker", f"team-b/{name}", "--type", "t", "--id", "1"),
            ("tail", "-b", f"team-b/{name}", "--from", "earliest", "--no-follow"),
            ("consume", name, "--namespace", "team-b", "--no-follow"),
            ("delete", "subscription", name, "--namespace", "team-b"),
        ):
            done = teams.headgate("ann", *command)
            assert (done.exit_code, done.stdout) == (1, ""), done
            assert "cannot" in done.stderr
            said.setdefault(command[0], set()).add(nameless(done.stderr, {"name": name}))
    assert [len(one) for one in said.values()] == [1] * 4, said
    for command in (("get", "secrets"), ("deadletter", "list")):
        done = teams.headgate("ann", *command, "--namespace", "team-b")
        assert (done.exit_code, done.stdout) == (1, ""), done
        assert "cannot list" in done.stderr


def test_neither_team_sees_all_namespaces(teams: Teams) -> None:
    for user in ("ann", "bob", "eve"):
        for path in (
            f"/apis/{EVENTING}/v1/triggers",
            f"/apis/{EVENTING}/v1/triggers?watch=1",
            f"/apis/{EVENTING}/v1/brokers?fieldSelector=metadata.name%3Dorders",
            f"/apis/{OWN}/v1/subscriptions",
            f"/apis/{OWN}/v1/deadletters",
            f"/apis/{OWN}/v1/pending",
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


def test_the_events_of_another_namespace_end_with_the_right(teams: Teams) -> None:
    """Bob subscribes to ann's broker while she lets him, and looks at nothing of hers afterwards."""
    reference = {"apiVersion": f"{EVENTING}/v1", "kind": "Broker", "namespace": "team-a", "name": THERE}
    spec = {"brokerRef": reference, "filter": {"cel": 'ce.id.startsWith("lent-")'}}
    pushed = spec | {"subscriber": NOWHERE_URI, "delivery": {"retry": 0, "deadLetterSink": NOWHERE_URI}}
    kinds = (("Subscription", OWN, spec), ("Trigger", EVENTING, pushed))
    for kind, group, one in kinds:
        refused = teams.make("bob", kind, "team-b", "lent", group, spec=one)
        assert (refused.status, "knsubscribe" in refused.json["message"]) == (403, True)
    assert teams.bind("team-a", "lent", "headgate:subscriber", {"kind": "Group", "name": "team-b"}, "ann").status == 201
    for kind, group, one in kinds:
        assert teams.make("bob", kind, "team-b", "lent", group, spec=one).status == 201
    paths = [f"/apis/{group}/v1/namespaces/team-b/{kind.lower()}s/lent" for kind, group, _ in kinds]

    def broker_ready(path: str) -> tuple[str, str]:
        conditions = {one["type"]: one for one in teams.ask("bob", "GET", path).json["status"]["conditions"]}
        return conditions["Ready"]["status"], conditions["BrokerReady"].get("reason", "")

    def pulled() -> list[str]:
        answer = teams.ask("bob", "POST", f"{paths[0]}/pull", {"wait": 1})
        return [one["event"]["id"] for one in answer.json["events"]] if answer.status == 200 else []

    eventually(lambda: all(broker_ready(path) == ("True", "") for path in paths))
    assert teams.publish("ann", "team-a", id_="lent-1") == 202
    eventually(lambda: pulled() == ["lent-1"])
    why = f"{paths[1]}/why?id=lent-1"
    eventually(lambda: teams.ask("bob", "GET", why).json["fate"] == "dead-letter")
    told = teams.ask("ann", "GET", f"/apis/{EVENTING}/v1/namespaces/team-a/brokers/{THERE}/timeline?id=lent-1").json
    (seen,) = [one for one in told["triggers"] if one["trigger"] == "team-b/lent"]
    assert seen == {"trigger": "team-b/lent", "fate": "dead-letter", "message": seen["message"]}
    assert all("attempts" not in one for one in told["trace"]["matches"] if one["name"] == "team-b/lent")
    lint = f"/apis/{EVENTING}/v1/namespaces/team-a/brokers/{THERE}/lint"
    assert teams.ask("ann", "GET", f"{lint}?of=Trigger/team-b/lent").json["items"][0]["equal"] == [
        "Subscription/team-b/lent"
    ]

    assert teams.ask("ann", "DELETE", f"/apis/{RBAC}/v1/namespaces/team-a/rolebindings/lent").status == 200
    eventually(lambda: all(broker_ready(path) == ("False", "SubscribeForbidden") for path in paths))
    eventually(lambda: teams.ask("bob", "POST", f"{paths[0]}/pull", {"wait": 1}).status == 404)
    assert teams.publish("ann", "team-a", id_="lent-2") == 202
    gone = teams.ask("bob", "GET", why).json
    assert (gone["fate"], "event" in gone) == ("not-ready", False)
    assert "knsubscribe" in gone["message"]
    replay = {"trigger": "lent", "from": "earliest", "to": "next", "dryRun": True}
    begun = teams.ask("bob", "POST", f"/apis/{OWN}/v1/namespaces/team-b/replays", replay)
    if begun.status == 201:
        one = f"/apis/{OWN}/v1/namespaces/team-b/replays/{begun.json['id']}"
        eventually(lambda: teams.ask("bob", "GET", one).json["state"] == "failed")
        assert teams.ask("bob", "GET", one).json["eventsPassed"] == 0

    assert teams.bind("team-a", "lent", "headgate:subscriber", {"kind": "Group", "name": "team-b"}, "ann").status == 201
    eventually(lambda: all(broker_ready(path) == ("True", "") for path in paths))
    assert teams.publish("ann", "team-a", id_="lent-3") == 202
    eventually(lambda: pulled() == ["lent-3"])
    for path in paths:
        assert teams.ask("bob", "DELETE", path).status == 200


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
    assert said("root", "auth", "can-i", "create", "triggers", "-n", "team-a", "--as", "eve").startswith("no")
    as_ann = ("--as", "ann", "--as-group", "team-a")
    assert said("root", "auth", "can-i", "create", "triggers", "-n", "team-a", *as_ann) == "yes\n"
    assert "forbidden" in said("root", "get", "triggers", "-n", "team-b", *as_ann).lower()
    assert 'cannot impersonate resource "users"' in said("ann", "get", "triggers", "-n", "team-b", "--as", "bob")
    who = said("bob", "auth", "whoami")
    assert "bob" in who
    assert "[team-b system:authenticated]" in who
    arguments = ("--verb=get,list", "--resource=triggers.eventing.knative.dev", "-n", "team-a")
    assert said("ann", "create", "role", "looker", *arguments) == "role.rbac.authorization.k8s.io/looker created\n"
    created = said("ann", "create", "rolebinding", "looks", "--role=looker", "--user=eve", "-n", "team-a")
    assert created == "rolebinding.rbac.authorization.k8s.io/looks created\n"
    assert THERE in said("eve", "get", "triggers", "-n", "team-a")
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


# --- below a ceiling ------------------------------------------------------------------------------


def ceilinged(region: str) -> str:
    """A role that is written as an operator would: events of one region, and what to do with them."""
    rules = [
        {
            "apiGroups": [EVENTING],
            "resources": ["brokers", "brokers/events"],
            "verbs": ["get", "knsubscribe"],
            "filter": {"cel": f'data.region == "{region}"'},
        },
        {"apiGroups": [OWN], "resources": ["subscriptions"], "verbs": ["get", "list", "create", "update", "delete"]},
        {"apiGroups": [OWN], "resources": ["subscriptions/events"], "verbs": ["update"]},
        {"apiGroups": [OWN], "resources": ["subscriptions/analyze"], "verbs": ["create"]},
        {"apiGroups": [OWN], "resources": ["summaries"], "verbs": ["get"]},
        {"apiGroups": [EVENTING], "resources": ["brokers/catalogue", "brokers/lint"], "verbs": ["get"]},
        {"apiGroups": [OWN], "resources": ["deadletters", "pending"], "verbs": ["get", "list", "update", "delete"]},
        {"apiGroups": [OWN], "resources": ["replays"], "verbs": ["get", "list", "create"]},
        {"apiGroups": [EVENTING], "resources": ["brokers/trace", "brokers/why"], "verbs": ["get"]},
    ]
    metadata = {"name": "region", "namespace": "regions"}
    return json.dumps({"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": metadata, "rules": rules})


def test_a_user_below_a_ceiling_gets_a_part_of_the_events(teams: Teams) -> None:
    """By HTTP, gRPC and pulls; kubectl writes the role; another role is followed within a second."""
    base, place = f"/apis/{EVENTING}/v1/namespaces/regions", teams.place("regions", "subscriptions")
    assert teams.ask("root", "POST", f"{base}/brokers", {"metadata": {"name": THERE}} | BROKER).status == 201
    assert teams.kubectl("root", "apply", "-f", "-", stdin=ceilinged("eu")).returncode == 0
    written = teams.kubectl("root", "get", "role", "region", "-n", "regions", "-o", "json").stdout
    assert json.loads(written)["rules"][0]["filter"] == {"cel": 'data.region == "eu"'}
    document = {
        "metadata": {"name": "eve"},
        "subjects": [{"kind": "User", "name": "eve"}],
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": "region"},
    }
    roles = f"/apis/{RBAC}/v1/namespaces/regions/rolebindings"
    assert (
        teams.ask("root", "POST", roles, document | {"apiVersion": f"{RBAC}/v1", "kind": "RoleBinding"}).status == 201
    )
    for name, user in (("mine", "eve"), ("theirs", "root")):
        subscription = {"apiVersion": f"{OWN}/v1", "kind": "Subscription", "metadata": {"name": name}}
        made = teams.ask(user, "POST", place, subscription | {"spec": {"broker": THERE, "filterFrom": "beginning"}})
        assert made.status == 201, made.body
    publish_regions(teams, "1")

    def read_by_http() -> set[str]:
        body = teams.ask("eve", "GET", f"/regions/{THERE}/events?from=earliest").body
        return {one["id"] for one in map(json.loads, body.splitlines()) if "id" in one}

    def read_by_grpc() -> set[str]:
        with teams.client("eve") as client, client.read(f"regions/{THERE}", start="earliest", follow=False) as reader:
            return {one.event.id for one in reader}

    def pulled() -> set[str]:
        answer = teams.ask("eve", "POST", f"{place}/mine/pull", {"wait": 1})
        return {one["event"]["id"] for one in answer.json["events"]}

    assert read_by_http() == read_by_grpc() == {"eu-1"}
    got = set[str]()
    eventually(lambda: got.update(pulled()) or "eu-1" in got)
    assert got == {"eu-1"}
    assert teams.ask("eve", "POST", f"{place}/theirs/pull", {"wait": 0}).status == 403
    method, opening = "/headgate.v1.Subscriptions/Subscribe", OPENINGS["Subscribe"]
    assert teams.call("eve", method, opening("regions/theirs"))[0] == "PERMISSION_DENIED"
    for name in ("why", "trace"):
        shown, hidden, unknown = (
            teams.ask("eve", "GET", f"{base}/brokers/{THERE}/{name}?id={id_}").json for id_ in ("eu-1", "us-1", "us-9")
        )
        assert {**hidden, "id": ""} | {"searchedTo": ""} == {**unknown, "id": ""} | {"searchedTo": ""}
        assert "eu-1" in json.dumps(shown.get("trace", shown))
    flows = teams.ask("eve", "GET", f"{base}/brokers/{THERE}/catalogue").json
    assert (flows["events"], [one["count"] for one in flows["items"]]) == (1, [1])
    example = teams.ask("eve", "GET", f"{base}/brokers/{THERE}/catalogue?type=t&source=/s").json["items"][0]
    assert (example["example"]["id"], example["wantedBy"]) == ("eu-1", ["regions/mine", "regions/theirs"])
    assert teams.ask("root", "GET", f"{base}/brokers/{THERE}/catalogue").json["events"] == 2
    assert teams.ask("eve", "GET", f"{base}/brokers/{THERE}/lint").json["filters"] == 2
    analyzed = {name: teams.ask("eve", "POST", f"{place}/{name}/analyze", {}) for name in ("mine", "theirs")}
    assert (analyzed["mine"].json["events"], analyzed["theirs"].status) == (1, 403)
    calls = [teams.call("eve", f"/{SUBSCRIPTIONS}/Analyze", OPENINGS["Analyze"](f"regions/{of}"))[0] for of in analyzed]
    assert calls == ["OK", "PERMISSION_DENIED"]
    summary = teams.ask("eve", "GET", teams.place("regions", "summary")).json
    assert ("history" in summary, summary["objects"]) == (False, {"brokers": 1, "triggers": 0, "subscriptions": 2})
    assert teams.kubectl("root", "apply", "-f", "-", stdin=ceilinged("us")).returncode == 0
    assert read_by_http() == {"us-1"}

    def is_in_force() -> bool:
        status = teams.ask("root", "GET", f"{place}/mine").json["status"]
        ready = next(one["status"] for one in status["conditions"] if one["type"] == "Ready")
        return (status["ceiling"], ready) == ('data.region == "us"', "True")

    eventually(is_in_force)
    publish_regions(teams, "2")
    got.clear()
    eventually(lambda: got.update(pulled()) or "us-2" in got)
    assert "eu-2" not in got


def test_a_user_below_a_ceiling_has_what_is_kept_of_his_events(teams: Teams) -> None:
    """By commands, of a trigger of another user: what no subscriber took, what waits, and a replay."""
    place = partial(teams.place, "regions")
    base = f"/apis/{EVENTING}/v1/namespaces/regions/triggers"
    assert teams.kubectl("root", "apply", "-f", "-", stdin=ceilinged("eu")).returncode == 0
    sink = {"retry": 0, "deadLetterSink": NOWHERE_URI}
    for name, delivery in (("lost", sink), ("later", {"delay": "P1D"})):
        spec = {"broker": THERE, "subscriber": NOWHERE_URI, "delivery": delivery}
        assert teams.make("root", "Trigger", "regions", name, spec=spec).status == 201

        def is_ready(name: str = name) -> bool:
            conditions = teams.ask("root", "GET", f"{base}/{name}").json["status"]["conditions"]
            return next(one["status"] for one in conditions if one["type"] == "Ready") == "True"

        eventually(is_ready)
    publish_regions(teams, "7")

    def of(user: str, path: str) -> dict[str, int]:
        """The ids that a user sees, by the id of the event."""
        return {one["eventId"]: one["id"] for one in teams.ask(user, "GET", place(path)).json["items"]}

    eventually(lambda: set(of("root", "deadletters")) == set(of("root", "pending")) == {"eu-7", "us-7"})
    eventually(lambda: len(ids(teams.ask("root", "GET", place("deadletters")).json["items"], state="kept")) == 2)
    for path, command in (("deadletters", "deadletter"), ("pending", "pending")):
        mine, every = of("eve", path), of("root", path)
        assert set(mine) == {"eu-7"}
        assert mine["eu-7"] not in every.values()
        assert teams.ask("eve", "GET", f"{place(path)}/counts").json["total"] == 1
        listed = teams.headgate("eve", command, "list", "--namespace", "regions")
        assert ("eu-7" in listed.stdout, "us-7" in listed.stdout) == (True, False), listed
        shown = teams.headgate("eve", command, "show", str(mine["eu-7"]), "--namespace", "regions")
        assert json.loads(shown.stdout)["event"]["data"] == {"region": "eu"}
        for hidden in every.values():
            done = teams.headgate("eve", command, "show", str(hidden), "--namespace", "regions")
            assert (done.exit_code, "there is no" in done.stderr) == (1, True), done
    trace = teams.ask("eve", "GET", f"/apis/{EVENTING}/v1/namespaces/regions/brokers/{THERE}/trace?id=eu-7").json
    kept_ids = {(one.get("deadLetter") or one.get("pending") or {}).get("id") for one in trace["trace"]["matches"]}
    assert kept_ids - {None} == {of("eve", "deadletters")["eu-7"], of("eve", "pending")["eu-7"]}
    dry = teams.headgate("eve", "replay", "--broker", f"regions/{THERE}", "--target", NOWHERE_URI["uri"], "--dry-run")
    eu = sum(one.startswith("eu") for one in ("eu-1", "eu-2", "eu-7"))
    assert dry.stdout == f"{eu} events would be sent to {NOWHERE_URI['uri']}\n", dry
    assert len(teams.ask("eve", "GET", place("replays")).json["items"]) == 1
    assert (
        teams.headgate("eve", "pending", "cancel", "--yes", "--namespace", "regions").stdout == "1 event is cancelled\n"
    )
    assert set(of("root", "pending")) == {"us-7"}
    again = teams.headgate("eve", "deadletter", "redrive", "--namespace", "regions")
    assert again.stdout == "1 dead letter is being sent again\n", again
    assert teams.kubectl("root", "apply", "-f", "-", stdin=ceilinged("us")).returncode == 0
    assert (set(of("eve", "deadletters")), set(of("eve", "pending"))) == ({"us-7"}, {"us-7"}), "the right of now"
    assert teams.ask("eve", "GET", place("replays")).json["items"] == []
    gone = teams.headgate("eve", "deadletter", "discard", "--yes", "--namespace", "regions")
    assert gone.stdout == "1 dead letter is discarded\n", gone
    assert set(of("root", "deadletters")) == {"eu-7"}


BROKER = {"apiVersion": f"{EVENTING}/v1", "kind": "Broker"}


def publish_regions(teams: Teams, number: str) -> None:
    for region in ("eu", "us"):
        event = {"specversion": "1.0", "id": f"{region}-{number}", "source": "/s", "type": "t"}
        event |= {"data": {"region": region}}
        sent = teams.ask("root", "POST", f"/regions/{THERE}", event, "application/cloudevents+json")
        assert sent.status == 202
