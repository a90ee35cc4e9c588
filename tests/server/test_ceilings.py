"""What a user below a ceiling learns of other events, by every route: nothing. Two servers that differ in them agree.

The list of hostile tries is drawn: every place to begin with every filter, every route, every way to write.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from headgate.auth.authorizer import NOTHING
from headgate.auth.routes import CALLS, ROUTES, EventAccess
from headgate.auth.rules import Attributes
from headgate.filter.cel.evaluate import EventView, OutcomeKind, program
from headgate.objects.kinds.routing import TargetReport
from headgate.server.authorization import Ceilings
from tests.server.ceilings import (
    BLUE,
    CEILING,
    EVENTING,
    OWN,
    RBAC,
    ROOT,
    START_US,
    Answer,
    World,
    events_rule,
    world,
)

READ = "/shop/orders/events"
OBJECTS = f"/apis/{EVENTING}/v1/namespaces/shop"
OURS = f"/apis/{OWN}/v1/namespaces/shop"
VARIANTS = ("crimson", "scarlet")
_GIVEN = re.compile(rb'[0-9a-f]{8}-[0-9a-f-]{27}|20[2-9]\d-\d\d-\d\dT[0-9:.]+Z|"resourceVersion":"\d+"')
"""What servers give by themselves: uids, times of now, versions."""


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, World]]:
    """Their hidden events have other ids, types, sources and data, at the same places."""
    folder = tmp_path_factory.mktemp("ceilings")
    with world(folder / "a", VARIANTS[0]) as one, world(folder / "b", VARIANTS[1]) as other:
        for each in (one, other):
            assert each.ask("POST", f"{OBJECTS}/triggers", trigger("mine", broker="orders")).status == 201
            each.reconciler.step()
        for each in (one, other):  # somebody has had some of the hidden events, too
            mine, every = target_of(each, "mine"), 1 if each is one else 3
            each.match((at, mine if at % 3 == 0 else 999) for at in range(0, 60, every))
        yield one, other


def target_of(world: World, name: str) -> int:
    found = world.store.snapshot().trigger(f"shop/{name}")
    assert found is not None
    return found.id


def seen(answer: Answer) -> tuple[int, bytes]:
    return answer.status, _GIVEN.sub(b"*", answer.body)


# --- reads ----------------------------------------------------------------------------------------

FILTERS = [
    "",
    "filter=true",
    f"filter={quote('1 == 1 || true')}",
    f"filter={quote('true) || (true')}",
    f"filter={quote('ce.type.startsWith(' + chr(34) + 'secret' + chr(34) + ')')}",
    f"filter={quote('data.tenant != ' + chr(34) + 'blue' + chr(34))}",
    f"filter={quote('!has(data.tenant) || data.tenant == ' + chr(34) + 'red' + chr(34))}",
    f"filter={quote('data.n < 0 || true')}",
    f"filter={quote('data.secret == ' + chr(34) + 'crimson' + chr(34))}",
    f"filter={quote('data.n / (data.n - data.n) > 0')}",
    f"filter={quote(json.dumps({'attributes': {'source': '/crimson'}}))}",
    f"filter={quote(json.dumps({'cesql': 'source LIKE ' + chr(39) + '%crimson' + chr(39)}))}",
    f"filters={quote(json.dumps([{'not': {'exact': {'source': '/blue'}}}]))}",
    f"filters={quote(json.dumps([{'any': [{'prefix': {'type': 'secret'}}, {'prefix': {'type': 'o'}}]}]))}",
    "filterValue=secret.crimson",
    "filterValue=order&filterValue=secret.scarlet",
    "filterValue=secret.crimson&matchUnfiltered=true",
]
PLACES = [
    "from=earliest",
    "from=latest",
    "from=0:1",
    "from=0:58&to=0:59",
    "last=3",
    f"first={quote('data.secret == ' + chr(34) + 'crimson' + chr(34))}",
    f"first={quote('ce.id == ' + chr(34) + 'crimson-1' + chr(34))}&limit=1",
    f"first={quote('data.n == 7')}&stored=true",
]
READS = [f"{READ}?{'&'.join(filter(None, pair))}" for pair in itertools.product(PLACES, FILTERS)]


@pytest.mark.parametrize("accept", ["application/x-ndjson", "application/cloudevents-batch+json"])
def test_reads_tell_nothing(worlds: tuple[World, World], accept: str) -> None:
    tried = 0
    for path in READS:
        answers = [one.ask("GET", path, headers={"accept": accept}) for one in worlds]
        assert seen(answers[0]) == seen(answers[1]), path
        assert answers[0].headers.get("headgate-events-scanned", "0") == "0"
        assert {key: value for key, value in answers[0].headers.items() if key != "date"} == {
            key: value for key, value in answers[1].headers.items() if key != "date"
        }, path
        events = [json.loads(line) for line in answers[0].body.splitlines()]
        events = events[0] if events and isinstance(events[0], list) else events
        assert {one["source"] for one in events if "source" in one} <= {"/blue"}, path
        tried += 1
    assert tried >= 130


def test_who_has_no_ceiling_reads_all(worlds: tuple[World, World]) -> None:
    """Else the other tests would prove nothing."""
    found = worlds[0].ask("GET", f"{READ}?from=earliest", user=ROOT).body
    assert found.count(b'"source":"/crimson"') == 40
    assert worlds[0].ask("GET", f"{READ}?from=earliest").body.count(b'"source":"/blue"') == 20
    stored = worlds[0].ask("GET", f"{READ}?from=earliest&limit=1&stored=true", user=ROOT).lines()[0]["hgstored"]
    assert stored.startswith("2026-01-01T00:00:00"), START_US


def test_the_latest_event_is_the_latest_below_the_ceiling(worlds: tuple[World, World]) -> None:
    """Not the one behind which a hidden one stands: where a read begins would say so."""
    found = worlds[0].ask("GET", f"{READ}?from=latest").lines()
    assert [one["id"] for one in found if "id" in one] == ["blue-57"]


@pytest.mark.parametrize(
    "path",
    ["/shop/orders/events/", "/shop//orders/events", "/shop/orders/../orders/events", "/SHOP/orders/events"],
)
def test_other_writings_of_the_path_are_no_way_around(worlds: tuple[World, World], path: str) -> None:
    for method in ("GET", "HEAD", "POST"):
        assert b"crimson" not in worlds[0].ask(method, path).body


def test_headers_are_no_way_around(worlds: tuple[World, World]) -> None:
    for headers in (
        {"impersonate-user": "root"},
        {"impersonate-user": "root", "impersonate-group": "system:masters"},
        {"impersonate-group": "system:masters"},
        {"headgate-user": "cm9vdA=="},
    ):
        answer = worlds[0].ask("GET", f"{READ}?from=earliest", headers=headers)
        assert b"crimson" not in answer.body, headers


# --- an event by its id ---------------------------------------------------------------------------

SEARCHES = [
    "id={}",
    "id={}&source=/crimson",
    "id={}&since=2026-01-01T00:00:00Z",
    "id={}&next=0:59",
    "id={}&next=0:59/0:1",
    "id={}&next=/0:2",
    "id={}&next=/0:3&source=/scarlet",
]


@pytest.mark.parametrize("search", SEARCHES)
def test_a_hidden_event_is_answered_as_an_unknown_one(worlds: tuple[World, World], search: str) -> None:
    one = worlds[0]
    of_broker = (f"{OBJECTS}/brokers/orders/{name}" for name in ("why", "trace", "timeline"))
    for path in (*of_broker, f"{OBJECTS}/triggers/mine/why"):
        unknown = one.ask("GET", f"{path}?{search.format('nosuch-1')}")
        assert unknown.status == (400 if "next=/" in search else 200), unknown
        for number in (1, 2, 4, 5):  # of each kind of hidden event
            asked = one.ask("GET", f"{path}?{search.format(f'crimson-{number}')}")
            assert asked.body.replace(f"crimson-{number}".encode(), b"nosuch-1") == unknown.body
    assert b'"fate":"stored"' in one.ask("GET", f"{OBJECTS}/brokers/orders/why?id=blue-3").body


def ids(answer: Answer, where: str) -> list[str]:
    return [one["id"] for one in answer.json.get("trace", {}).get(where, ())]


@pytest.mark.parametrize("name", ["trace", "timeline"])
def test_the_way_of_an_event_tells_nothing_of_hidden_ones(worlds: tuple[World, World], name: str) -> None:
    """It has hidden relatives in one of the two, and other events had matches before it."""
    path = f"{OBJECTS}/brokers/orders/{name}"
    for number in (0, 3, 12, 15, 18, 24, 57):
        for more in ("", "&source=/blue", f"&next=0:{number + 1}", f"&next=0:{number}"):
            answers = [one.ask("GET", f"{path}?id=blue-{number}{more}") for one in worlds]
            assert answers[0].status == 200, answers[0].body
            assert seen(answers[0]) == seen(answers[1]), (number, more)
            assert ("trace" in answers[0].json) == (more != f"&next=0:{number}")
            assert b"secret" not in answers[0].body
    one = worlds[0]
    assert ids(one.ask("GET", f"{path}?id=blue-12"), "tree") == ["blue-15", "blue-18"]
    assert ids(one.ask("GET", f"{path}?id=blue-15"), "tree") == ["blue-12", "blue-18"]
    assert ids(one.ask("GET", f"{path}?id=blue-27"), "tree") == ["blue-24"]  # both come of a hidden one
    assert [match["name"] for match in one.ask("GET", f"{path}?id=blue-12").json["trace"]["matches"]] == ["shop/mine"]
    assert len(ids(one.ask("GET", f"{path}?id=blue-12", user=ROOT), "tree")) == 5
    matches = one.ask("GET", f"{path}?id=blue-12", user=ROOT).json["trace"]["matches"]
    assert "position" in matches[0], "who has no ceiling is told it"


# --- counts ---------------------------------------------------------------------------------------

BACKTESTS = [
    {"filter": "true"},
    {"filter": 'data.secret == "crimson"'},
    {"filter": 'data.n < 0 || data.nosuch == "x"'},
    {"filter": "data.n / (data.n - data.n) > 0"},
    {"filter": "true", "against": 'ce.source == "/crimson"'},
    {"filter": 'ce.source == "/crimson"', "against": "true"},
    {"filter": "true", "against": "true", "next": "against/0:0/0:0/0:60"},
    {"filter": "true", "triggers": True},
    {"filter": {"attributes": {"type": "secret.crimson"}}, "from": "0:1", "to": "0:2"},
    {"filter": "true", "share": 0.5},
]


@pytest.mark.parametrize("asked", BACKTESTS, ids=[json.dumps(one)[:60] for one in BACKTESTS])
def test_backtests_count_what_is_below_the_ceiling(worlds: tuple[World, World], asked: dict[str, Any]) -> None:
    answers = [one.ask("POST", f"{OURS}/brokers/orders/backtest", asked) for one in worlds]
    assert answers[0].status == 200, answers[0].body
    assert seen(answers[0]) == seen(answers[1])
    assert answers[0].json["taken"] <= 20
    assert b"crimson" not in answers[0].body


LISTS = ["", "?limit=2", "?state=troubled", "?state=notready", "?state=ready", "?search=shop", "?search=secret"]


def test_counters_are_those_of_ones_own_triggers(worlds: tuple[World, World]) -> None:
    """Others' are left out of lists, and refused alone; their troubles select nothing."""
    for one in worlds:
        assert one.ask("POST", f"{OBJECTS}/triggers", trigger("theirs", broker="orders"), ROOT).status == 201
        one.reconciler.step()
    one = worlds[0]  # the hidden events of this one alone have left something there
    words = "the last attempt of secret-1 failed"
    one.store.reports.report([TargetReport(target_of(one, "theirs"), 3, words, f"/s {words}", words, 2, words)])
    one.reconciler.step()
    one.reconciler.step()
    troubled = one.ask("GET", f"{OURS}/triggerstats?state=troubled", user=ROOT).json["items"]
    assert [each["name"] for each in troubled] == ["mine", "theirs"]  # of the one the ceiling cuts the filter
    for path in (*(f"{OURS}/triggerstats{query}" for query in LISTS), f"{OBJECTS}/triggers/mine/stats"):
        answers = [each.ask("GET", path) for each in worlds]
        assert answers[0].status == 200, answers[0].body
        assert seen(answers[0]) == seen(answers[1]), path
        assert b"secret" not in answers[0].body, path
    listed = {
        each["name"]: each.get("stats", {}).get("delivered")
        for each in one.ask("GET", f"{OURS}/triggerstats").json["items"]
    }
    assert (listed["mine"], listed["theirs"]) == (20, None)
    listed = {
        each["name"]: each["stats"]["delivered"]
        for each in one.ask("GET", f"{OURS}/triggerstats", user=ROOT).json["items"]
    }
    assert (listed["mine"], listed["theirs"]) == (20, 40)
    assert one.ask("GET", f"{OBJECTS}/triggers/mine/stats").json["stats"]["attempts"][0]["id"] == "blue-1"
    for path in (f"{OURS}/brokerstats", f"{OBJECTS}/brokers/orders/stats"):
        assert [b'"stats"' in one.ask("GET", path, user=user).body for user in (BLUE, ROOT)] == [False, True]
    wanted = Attributes("list", EVENTING, "triggers", "stats", "shop")
    held = one.loop.run_until_complete(Ceilings(one.roles.authorizer).held(BLUE, wanted, EventAccess.SHOWN))
    assert held.user.ceiling == NOTHING, "who is asked for him without knowing targets tells nothing"
    refused = one.ask("GET", f"{OBJECTS}/triggers/theirs/stats")
    assert (refused.status, b"its ceiling is wider" in refused.body) == (403, True)
    for each in worlds:
        assert each.ask("DELETE", f"{OBJECTS}/triggers/theirs").status == 200


# --- what is refused ------------------------------------------------------------------------------


def paths(access: EventAccess) -> list[tuple[str, str]]:
    """Requests of all routes that hold a ceiling so, of what is in the namespace shop."""
    found = []
    for route in ROUTES:
        if route.events is access:
            path = route.path.replace("{namespace}", "shop").replace("{id}", "1")
            name = "orders" if "/brokers/" in path else "mine"
            found.append((route.method, path.replace("{name}", name)))
    return found


def test_what_has_no_way_below_a_ceiling_is_refused_and_says_so(worlds: tuple[World, World]) -> None:
    """With a right that has no ceiling each of them is let through."""
    refused = paths(EventAccess.REFUSED)
    assert {path for _, path in refused} == {"/apis/headgate.dev/v1/chunks", "/metrics"}
    for method, path in refused:
        answer = worlds[0].ask(method, path)
        assert answer.status == 403, (method, path, answer.body)
        if b"below a ceiling" not in answer.body:
            assert b"cannot" in answer.body, (method, path)  # a right that nobody has in a namespace


def test_a_subscription_of_another_is_not_pulled(worlds: tuple[World, World]) -> None:
    one = worlds[0]
    document = {"apiVersion": f"{OWN}/v1", "kind": "Subscription", "spec": {"broker": "orders"}}
    for name, user in (("theirs", ROOT), ("mine", BLUE)):
        made = one.ask("POST", f"{OURS}/subscriptions", document | {"metadata": {"name": name}}, user)
        assert made.status == 201, made.body
    for method, path in paths(EventAccess.OWN):
        if "/subscriptions/" in path:
            mine, theirs = (one.ask(method, path.replace("/mine/", f"/{name}/")) for name in ("mine", "theirs"))
            assert theirs.status == 403
            assert b"its ceiling is wider" in theirs.body, theirs.body
            assert b"ceiling" not in mine.body, (path, mine.body)  # nobody answers here: the gate let it pass


# --- what is written ------------------------------------------------------------------------------


def trigger(name: str, **spec: object) -> dict[str, Any]:
    return {
        "apiVersion": f"{EVENTING}/v1",
        "kind": "Trigger",
        "metadata": {"name": name, "annotations": {"headgate.dev/subscriber": '{"name":"root","groups":[]}'}},
        "spec": {"subscriber": {"uri": "http://127.0.0.1:9/"}, **spec},
    }


REF = {"apiVersion": f"{EVENTING}/v1", "kind": "Broker", "namespace": "shop", "name": "orders"}
WRITTEN: list[dict[str, Any]] = [
    {},
    {"filter": {"cel": "true"}},
    {"filter": {"cel": "true || data.n > 1"}},
    {"filter": {"cel": "true) || (true"}},
    {"filter": {"cel": 'data.secret == "crimson"'}},
    {"filter": {"attributes": {"source": "/crimson"}}},
    {"filter": {"cesql": "source = '/crimson'"}},
    {"filters": [{"any": [{"prefix": {"type": "secret"}}, {"exact": {"source": "/blue"}}]}]},
    {"filters": [{"not": {"exact": {"tenant": "blue"}}}]},
    {"filter": {"eventPattern": {"source": [{"prefix": "/"}]}}},
    {
        "filter": {"cel": "true"},
        "delivery": {"onFilterError": "deadLetter", "deadLetterSink": {"uri": "http://127.0.0.1:9"}},
    },
    {"transform": '{"type": "x", "data": {"tenant": "blue"}}'},
]


def test_nothing_that_is_written_gets_a_hidden_event(worlds: tuple[World, World]) -> None:
    one = worlds[0]
    tried = 0
    for number, spec in enumerate(WRITTEN):
        for place, more in (("shop", {"broker": "orders"}), ("team", {"brokerRef": REF})):
            document = trigger(f"w{number}", **spec, **more)
            base = f"/apis/{EVENTING}/v1/namespaces/{place}/triggers"
            one.ask("POST", base, document)
            one.ask("PUT", f"{base}/w{number}", document | {"metadata": {"name": f"w{number}", "labels": {"a": "b"}}})
            merge = {"content-type": "application/merge-patch+json"}
            one.ask("PATCH", f"{base}/w{number}", {"spec": {"filter": {"cel": "1 < 2"}}}, headers=merge)
            apply = {"content-type": "application/apply-patch+yaml"}
            path = f"{base}/a{number}?fieldManager=x&force=true"
            one.ask("PATCH", path, document | {"metadata": {"name": f"a{number}"}}, headers=apply)
            together = f"/apis/{OWN}/v1/namespaces/{place}/triggerapplies"
            one.ask("POST", together, {"items": [document | {"metadata": {"name": f"t{number}"}}]})
            tried += 5
    one.reconciler.step()
    assert tried >= 100
    mine = [target for target in one.store.snapshot().targets.values() if target.name != "shop/theirs"]
    assert len(mine) >= 60
    for target in mine:
        assert target.filter.ceiling == CEILING, target.name
        for event in one.events:
            takes = program(target.filter.cel).evaluate_view(EventView(event, START_US)).kind is OutcomeKind.TRUE
            assert not takes or event.source == "/blue", (target.name, target.filter.cel)


def test_nobody_writes_himself_a_right_without_a_ceiling(worlds: tuple[World, World]) -> None:
    one = worlds[0]
    base = f"/apis/{RBAC}/v1/namespaces/shop"
    mine = [{"kind": "User", "apiGroup": RBAC, "name": "blue"}]

    def role(number: int, **more: object) -> Answer:
        document = {
            "apiVersion": f"{RBAC}/v1",
            "kind": "Role",
            "metadata": {"name": f"r{number}"},
            "rules": [events_rule(**more)],
        }
        return one.ask("POST", f"{base}/roles", document)

    wider = ({}, {"filter": {"cel": "true"}}, {"filter": {"cel": "data.tenant != '-'"}}, {"filter": None})
    for number, more in enumerate(wider):
        assert role(number, **more).status == 403
    for name in ("headgate:viewer", "headgate:admin", "headgate:subscriber", "cluster-admin"):
        binding = {
            "apiVersion": f"{RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "b"},
            "subjects": mine,
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": name},
        }
        assert one.ask("POST", f"{base}/rolebindings", binding).status == 403
    assert role(9, filter={"cel": CEILING}).status == 201


def test_the_status_of_anothers_object_tells_nothing_of_its_events(worlds: tuple[World, World]) -> None:
    """Not in a list, a table, a watch, an answer to a write; in one's own it stays."""
    one = worlds[0]
    for name, user in (("loud", ROOT), ("own", BLUE)):
        one.ask("POST", f"{OBJECTS}/triggers", trigger(name, broker="orders"), user)
    one.reconciler.step()
    for name in ("loud", "own"):
        target = one.store.snapshot().trigger(f"shop/{name}")
        assert target is not None
        words = f"no such member secret-of-{name}"
        one.store.reports.report([TargetReport(target.id, 3, words, f"/s {words}", f"Failing: {words}", 2, words)])
    one.reconciler.step()
    one.reconciler.step()
    table = {"accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    asked = [
        (f"{OBJECTS}/triggers", {}),
        (f"{OBJECTS}/triggers/loud", {}),
        (f"{OBJECTS}/triggers/loud/status", {}),
        (f"{OBJECTS}/triggers?includeObject=Object", table),
        (f"{OBJECTS}/brokers/orders/why?id=blue-3", {}),
        (f"{OBJECTS}/brokers/orders/timeline?id=blue-3", {}),
    ]
    one.match([(3, target_of(one, "loud"))])
    for path, headers in asked:
        found = one.ask("GET", path, headers=headers)
        assert found.status == 200
        assert b"secret-of-loud" not in found.body, path
        assert b"secret-of-loud" in one.ask("GET", path, user=ROOT, headers=headers).body, path
    watched = [one.ask("GET", f"{OBJECTS}/triggers?watch=1&timeoutSeconds=1", user=user).body for user in (BLUE, ROOT)]
    assert [b"secret-of-loud" in body for body in watched] == [False, True]
    assert b"secret-of-own" in one.ask("GET", f"{OBJECTS}/triggers/own").body
    assert one.ask("GET", f"{OBJECTS}/triggers/loud").json["status"].get("filterErrors", 0) == 0
    assert one.ask("DELETE", f"{OBJECTS}/triggers/loud").body.count(b"secret") == 0


# --- the table ------------------------------------------------------------------------------------


def test_every_route_that_reads_events_says_how_a_ceiling_holds() -> None:
    """A new route has to say it; what names events, or what is left of them, never says that there is nothing."""
    about = re.compile(
        r"events$|/why|/trace|/timeline|/catalogue|/lint|stats|/pull|/ack|/nack|/leave|/seek|/analyze|consumers"
        r"|deadletters|replays|chunks|summary|backtest|/metrics|triggers|subscriptions|eventtypes|resourcequotas"
    )
    deletes = {"DELETE"}
    for route in ROUTES:
        if not about.search(route.path) or (route.path.startswith("/api/v1") and route.path.endswith("/events")):
            continue
        if route.method in deletes and route.events is EventAccess.SHOWN:
            continue
        assert route.events is not EventAccess.NONE, route
    assert {call.events for call in CALLS if "headgate" in call.method and "Publish" not in call.method}.isdisjoint(
        {EventAccess.NONE}
    )
