"""What a user below a ceiling sees of a broker as a whole: its catalogue, its filters, types, quotas, a summary.

Two servers whose logs differ in the hidden events alone answer alike, also where some of these look like his own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from headgate.auth.routes import CALLS, ROUTES, EventAccess
from headgate.auth.user import User, authenticated
from headgate.inspect import catalogue
from headgate.inspect.catalogue import EventTypeCreator
from headgate.objects.kinds.event_types import event_type_of
from headgate.objects.kinds.routing import TargetReport
from headgate.objects.store.reconciler import Reconciler
from headgate.rpc.service import SUBSCRIPTIONS
from headgate_api.event.model import DataKind, Event
from headgate_api.objects.kinds import Broker, Kind, ObjectKey
from tests.server.ceilings import (
    ALL,
    BLUE,
    CEILING,
    EVENTING,
    OWN,
    ROOT,
    START_US,
    Answer,
    World,
    events_rule,
    hidden,
    rule,
    shown,
    world,
)
from tests.server.test_ceilings import OBJECTS, OURS, VARIANTS, seen, target_of, trigger

CATALOGUE = f"{OBJECTS}/brokers/orders/catalogue"
LINT = f"{OBJECTS}/brokers/orders/lint"
TYPES = f"/apis/{EVENTING}/v1beta2/namespaces/shop/eventtypes"
QUOTAS = "/api/v1/namespaces/shop/resourcequotas"
GREEN = authenticated("green")
"""Has blue's ceiling, and may list no triggers and subscriptions."""
CRIMSON = VARIANTS[0]
_AGE = re.compile(rb'"\d+s"')


def disguised(number: int, variant: str) -> Event:
    """A hidden event; of the one variant it has the type and the source of those that are shown."""
    extensions = {f"x{variant}": "1", "note": "1"}
    if variant != CRIMSON:
        event = hidden(number, variant)
        return msgspec.structs.replace(event, extensions=event.extensions | extensions)
    names: dict[str, Any] = {"extensions": extensions, "datacontenttype": "application/json"}
    if number % 3 == 1:
        return Event("1.0", f"x{number}", "/blue", "order", data_kind=DataKind.BINARY, data=b"\xef\xbb\xbf{}", **names)
    data: dict[str, Any] = {"tenant": "red", "secret": {"of": variant}, "n": "text"}
    return Event(
        "1.0", f"x{number}", "/blue", "order", data_kind=DataKind.JSON, data=json.dumps(data).encode(), **names
    )


def own(number: int) -> Event:
    return msgspec.structs.replace(shown(number), extensions={"colour": "blue"})


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, World]]:
    folder = tmp_path_factory.mktemp("views")

    def events(variant: str) -> list[Event]:
        return [own(number) if number % 3 == 0 else disguised(number, variant) for number in range(60)]

    with (
        world(folder / "a", VARIANTS[0], events(VARIANTS[0])) as one,
        world(folder / "b", VARIANTS[1], events(VARIANTS[1])) as other,
    ):
        for each in (one, other):
            each.follower.read_for(10)
            listless = [
                events_rule(filter={"cel": CEILING}),
                rule(EVENTING, "brokers brokers/catalogue brokers/lint", ["get"]),
            ]
            each.role(listless, "green")
            each.bind("green", "shop", GREEN)
            for name, user in (("mine", BLUE), ("theirs", ROOT)):
                assert each.ask("POST", f"{OBJECTS}/triggers", trigger(name, broker="orders"), user).status == 201
            each.reconciler.step()
        yield one, other


def alike(worlds: tuple[World, World], method: str, path: str, body: object = None, **more: Any) -> Answer:
    """The answer of both."""
    answers = [one.ask(method, path, body, **more) for one in worlds]
    found = [(status, _AGE.sub(b"*", body)) for status, body in map(seen, answers)]
    assert found[0] == found[1], (method, path)
    for word in (b"secret", b"crimson", b"scarlet"):
        assert word not in answers[0].body, (path, answers[0].body)
    return answers[0]


def flow(type_: str, source: str) -> str:
    return f"{CATALOGUE}?type={quote(type_)}&source={quote(source)}"


# --- analysis -------------------------------------------------------------------------------------


def test_what_is_asked_of_a_subscription_needs_its_ceiling_inside_ones_own() -> None:
    """Also whether a filter takes what waits for it (`tests/delivery/test_ceiling.py`)."""
    asked = [one.events for one in ROUTES if "/subscriptions/{name}/" in one.path and not one.path.endswith("/status")]
    called = [one.events for one in CALLS if SUBSCRIPTIONS in one.method]
    assert (len(asked), len(called)) == (10, 4)
    assert {*asked, *called} == {EventAccess.OWN}


# --- catalogue ------------------------------------------------------------------------------------


def test_the_catalogue_is_of_the_events_below_the_ceiling(worlds: tuple[World, World]) -> None:
    found = alike(worlds, "GET", CATALOGUE).json
    assert (found["events"], found["leftOut"], found["complete"]) == (20, 0, True)
    assert [(one["type"], one["source"], one["count"]) for one in found["items"]] == [("order", "/blue", 20)]
    assert found["attributes"] == ["colour"]
    assert found["since"] == found["items"][0]["firstSeen"] == "2026-01-01T00:00:00.000Z", START_US
    one = alike(worlds, "GET", flow("order", "/blue")).json["items"][0]
    assert (one["count"], one.get("notJson", 0), one["example"]["id"]) == (20, 0, "blue-57")
    assert sorted(one["schema"]["properties"]) == ["n", "tenant"]
    assert one["schema"]["properties"]["n"]["type"] == "integer"
    assert one["wantedBy"] == ["shop/mine", "shop/theirs"]


def test_who_has_no_ceiling_has_all_of_the_catalogue(worlds: tuple[World, World]) -> None:
    """Else the other tests would prove nothing."""
    found = worlds[0].ask("GET", flow("order", "/blue"), user=ROOT).json
    assert (found["items"][0]["count"], found["items"][0]["notJson"]) == (60, 20)
    assert "secret" in found["items"][0]["schema"]["properties"]
    assert {"xcrimson", "colour", "note"} <= set(found["attributes"])
    assert worlds[1].ask("GET", flow("secret.scarlet", "/scarlet"), user=ROOT).status == 200


def test_a_flow_of_hidden_events_is_answered_as_one_that_is_not_there(worlds: tuple[World, World]) -> None:
    for one in worlds:
        for variant in VARIANTS:
            path = flow(f"secret.{variant}", f"/{variant}")
            answer = one.ask("GET", path)
            unknown = one.ask("GET", path.replace(variant, "nothing")).body.replace(b"nothing", variant.encode())
            assert (answer.status, answer.body) == (404, unknown)


def test_who_wants_an_event_is_named_where_one_may_list_it(worlds: tuple[World, World]) -> None:
    one = alike(worlds, "GET", flow("order", "/blue"), user=GREEN).json["items"][0]
    assert (one["count"], one.get("wantedBy"), one.get("wantedByLeftOut", 0), one.get("judged", True)) == (
        20,
        None,
        0,
        True,
    )


NAMES: list[dict[str, Any]] = [
    {"filter": 'ce.type == "ordr"'},
    {"filter": 'ce.type == "secret.scarle"'},
    {"filter": 'ce.source == "/crimso" || ce.source == "/scarle"'},
    {"filter": "ce.xcrimso == '1' || ce.xscarle == '1' || ce.notee == '1'"},
    {"filter": "ce.colou == 'blue'"},
    {"filter": {"cesql": "tpe = 'x'"}},
    {"filters": [{"any": [{"exact": {"type": "secret.crimso"}}, {"prefix": {"source": "/scarle"}}]}]},
]
MEANT = {0: "order", 4: "colour"}


@pytest.mark.parametrize("number", range(len(NAMES)))
def test_names_of_hidden_events_are_not_what_was_meant(worlds: tuple[World, World], number: int) -> None:
    """By the question, by lint and by a dry run."""
    answers = [one.ask("POST", CATALOGUE, NAMES[number]) for one in worlds]
    assert answers[0].body == answers[1].body
    meant = [one["meant"] for one in answers[0].json.get("items", [])]
    assert meant == ([MEANT[number]] if number in MEANT else [])
    asked = NAMES[number]
    spec = {"filter": {"cel": asked["filter"]} if isinstance(asked.get("filter"), str) else asked.get("filter")}
    document = trigger("tried", broker="orders", **{**spec, "filters": asked.get("filters", [])})
    tried = [one.ask("POST", f"{OBJECTS}/triggers?dryRun=All", document) for one in worlds]
    assert tried[0].headers.get("warning") == tried[1].headers.get("warning")
    assert (number in MEANT) == ("did you mean" in tried[0].headers.get("warning", ""))
    if tried[0].status == 201:
        for one in worlds:
            assert one.ask("POST", f"{OBJECTS}/triggers", document).status == 201
            one.reconciler.step()
        for path in (LINT, f"{LINT}?of=Trigger/tried"):
            found = [one.ask("GET", path) for one in worlds]
            assert seen(found[0]) == seen(found[1])
            unseen = next((one.get("unseen", ()) for one in found[0].json["items"] if one["name"] == "tried"), ())
            assert [one["meant"] for one in unseen] == meant
        for one in worlds:
            assert one.ask("DELETE", f"{OBJECTS}/triggers/tried").status == 200
            one.reconciler.step()


def test_the_catalogue_goes_on_where_it_was(worlds: tuple[World, World], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request reads for a while; what it has not read yet is not said to be there."""
    monkeypatch.setattr(catalogue, "CATALOGUE_CEILING_S_MAX", 0.0)
    other = [rule(EVENTING, "brokers/catalogue", ["get"]), events_rule(filter={"cel": "data.n < 30 && data.n >= 0"})]
    late = User("late", ())
    for one in worlds:
        one.role(other, "late")
        one.bind("late", "shop", late)
        counts = [one.ask("GET", CATALOGUE, user=late).json["events"] for _ in range(3)]
        assert counts == sorted(counts)
        assert counts[-1] == 10


# --- lint -----------------------------------------------------------------------------------------


def test_lint_tells_of_the_filters_that_one_may_list(worlds: tuple[World, World]) -> None:
    """With a ceiling others' filters are as if they were not there; a ceiling hides no filter that one may list."""
    found = alike(worlds, "GET", LINT).json
    assert found["filters"] == 2
    assert [(one["name"], one.get("impliedBy")) for one in found["items"]] == [
        ("mine", ["Trigger/theirs"]),
        ("theirs", None),
    ]
    listless = alike(worlds, "GET", LINT, user=GREEN).json
    assert (listless["filters"], listless["items"]) == (0, [])
    for name in ("theirs", "nosuch"):
        answer = alike(worlds, "GET", f"{LINT}?of=Trigger/{name}", user=GREEN)
        assert (answer.status, answer.body) == (404, alike(worlds, "GET", f"{LINT}?of=Trigger/{name}", user=GREEN).body)
    assert worlds[0].ask("GET", LINT, user=ROOT).json["filters"] == 2


def test_lint_of_some_is_of_nobody_else(worlds: tuple[World, World]) -> None:
    """What was compared for one who sees a part is not what another one is told."""
    only = User("only", ())
    for one in worlds:
        named = rule(EVENTING, "triggers", ["list"], resourceNames=["mine"])
        one.role([events_rule(filter={"cel": CEILING}), rule(EVENTING, "brokers/lint", ["get"]), named], "only")
        one.bind("only", "shop", only)
    for _ in range(2):
        assert alike(worlds, "GET", LINT, user=only).json["filters"] == 1
        assert alike(worlds, "GET", LINT).json["filters"] == 2
        assert alike(worlds, "GET", LINT, user=GREEN).json["filters"] == 0


# --- types of events ------------------------------------------------------------------------------


@pytest.fixture
def typed(worlds: tuple[World, World]) -> Iterator[tuple[World, World]]:
    """Each flow has its EventType, and a person has declared one."""
    for one in worlds:
        assert EventTypeCreator(one.itself, one.follower).step() >= 1
        spec = {"type": "declared", "reference": {"apiVersion": f"{EVENTING}/v1", "kind": "Broker", "name": "orders"}}
        document = {"apiVersion": f"{EVENTING}/v1beta2", "kind": "EventType", "metadata": {"name": "zz"}, "spec": spec}
        assert one.ask("POST", TYPES, document).status == 201
        one.reconciler.step()
    yield worlds
    for one in worlds:
        one.ask("DELETE", TYPES, user=ROOT)


def made_name(world: World, type_: str, source: str) -> str:
    broker = world.store.get(ObjectKey(Kind.BROKER, "shop", "orders"))
    assert isinstance(broker, Broker)
    document = event_type_of(broker, type_, source)
    assert document is not None
    return str(document["metadata"]["name"])


def names(answer: Answer) -> list[str]:
    return [one["metadata"]["name"] for one in answer.json["items"]]


def test_types_that_are_made_of_events_are_left_out(typed: tuple[World, World]) -> None:
    """Of a list, page by page, a table, a watch; who has no ceiling has them."""
    everywhere = f"/apis/{EVENTING}/v1beta2/eventtypes"
    for path in (TYPES, f"{TYPES}?limit=1", f"{TYPES}?search=orders", f"{TYPES}?labelSelector=!x"):
        answer = alike(typed, "GET", path)
        assert (names(answer), answer.json["metadata"].get("continue")) == (["zz"], None)
    assert len(names(typed[0].ask("GET", TYPES, user=ROOT))) >= 2
    assert len(names(typed[0].ask("GET", f"{TYPES}?limit=1", user=ROOT))) == 1
    assert typed[0].ask("GET", everywhere).status == 403
    table = {"accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    assert len(alike(typed, "GET", TYPES, headers=table).json["rows"]) == 1
    watched = alike(typed, "GET", f"{TYPES}?watch=1&timeoutSeconds=1").lines()
    assert {one["object"]["metadata"]["name"] for one in watched} == {"zz"}
    for one in typed:
        since = one.store.counters.version()
        one.itself.create(Kind.EVENT_TYPE, made(one, "secret.later"))
        assert one.ask("GET", f"{TYPES}?watch=1&timeoutSeconds=1&resourceVersion={since}").body == b""
        path = f"{TYPES}?watch=1&timeoutSeconds=1&resourceVersion={since}"
        assert b"secret.later" in one.ask("GET", path, user=ROOT).body
    assert alike(typed, "DELETE", TYPES).status == 200
    assert alike(typed, "GET", TYPES).json["items"] == []
    assert len(names(typed[0].ask("GET", TYPES, user=ROOT))) >= 2, "he deletes nothing that he is not told of"


def made(world: World, type_: str) -> dict[str, Any]:
    broker = world.store.get(ObjectKey(Kind.BROKER, "shop", "orders"))
    assert isinstance(broker, Broker)
    document = event_type_of(broker, type_, "/x")
    assert document is not None
    return document


def test_whether_there_is_a_type_of_hidden_events_is_not_told(typed: tuple[World, World]) -> None:
    """Its name can be worked out: each way to ask for it is answered alike, whether it is there or not."""
    one = typed[1]
    there, absent = made_name(one, "secret.scarlet", "/scarlet"), made_name(one, "nosuch", "/scarlet")
    assert [one.ask("GET", f"{TYPES}/{name}", user=ROOT).status for name in (there, absent)] == [200, 404]
    document = one.ask("GET", f"{TYPES}/{there}", user=ROOT).json
    document["metadata"] = {"name": there}
    apply = {"content-type": "application/apply-patch+yaml"}
    merge = {"content-type": "application/merge-patch+json"}
    tries: list[tuple[str, str, object, dict[str, str]]] = [
        ("GET", f"{TYPES}/NAME", None, {}),
        ("GET", f"{TYPES}/NAME/status", None, {}),
        ("GET", f"{TYPES}?fieldSelector=metadata.name%3DNAME", None, {}),
        ("GET", f"{TYPES}?watch=1&timeoutSeconds=1&fieldSelector=metadata.name%3DNAME", None, {}),
        ("PUT", f"{TYPES}/NAME", document, {}),
        ("PATCH", f"{TYPES}/NAME", {"metadata": {"labels": {"a": "b"}}}, merge),
        ("PATCH", f"{TYPES}/NAME?fieldManager=x", document, apply),
        ("DELETE", f"{TYPES}/NAME", None, {}),
        ("POST", TYPES, document, {}),
        ("POST", f"{TYPES}?dryRun=All", document, {}),
        ("DELETE", f"{TYPES}?fieldSelector=metadata.name%3DNAME", None, {}),
    ]
    for method, path, body, headers in tries:
        said = set()
        for name in (there, absent):
            written = json.loads(json.dumps(body).replace(there, name))
            answer = one.ask(method, path.replace("NAME", name), written, headers=headers)
            assert answer.status in (200, 403), (method, path, answer.body)
            said.add((answer.status, seen(answer)[1].replace(name.encode(), b"NAME")))
        assert len(said) == 1, (method, path, said)
    assert one.ask("GET", f"{TYPES}/{there}", user=ROOT).status == 200


# --- quotas ---------------------------------------------------------------------------------------


def test_a_quota_is_shown_without_what_it_counts_of_events(typed: tuple[World, World]) -> None:
    limits = ("headgate.dev/dead-letters", "headgate.dev/stored-bytes", f"count/eventtypes.{EVENTING}")
    counts = (f"count/triggers.{EVENTING}", "headgate.dev/readers")
    for number, one in enumerate(typed):
        usage = {name: {"shop": 10 + number} for name in limits[:2]} | {"headgate.dev/readers": {"shop": 1}}
        quota = {"metadata": {"name": "q"}, "spec": {"hard": dict.fromkeys((*limits, *counts), "1000")}}
        one.itself.create(Kind.RESOURCE_QUOTA, {"apiVersion": "v1", "kind": "ResourceQuota", **quota}, namespace="shop")
        Reconciler(one.store, usage=lambda usage=usage: usage, rights=one.grants).step()  # type: ignore[misc]
    whole = typed[0].ask("GET", f"{QUOTAS}/q", user=ROOT).json["status"]
    assert whole["used"].keys() == {*limits, *counts}
    assert whole["used"][limits[0]] == "10"
    merge = {"content-type": "application/merge-patch+json"}
    label = {"metadata": {"labels": {"a": "b"}}}
    for method, path, body in (
        ("GET", f"{QUOTAS}/q", None),
        ("GET", f"{QUOTAS}/q/status", None),
        ("PATCH", f"{QUOTAS}/q", label),
    ):
        answer = alike(typed, method, path, body, headers=merge)
        assert answer.json["status"] == {
            "hard": dict.fromkeys(counts, "1000"),
            "used": {counts[0]: "2", counts[1]: "1"},
        }
        assert answer.json["spec"]["hard"].keys() == {*limits, *counts}
    table = {"accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    for path in (QUOTAS, f"{QUOTAS}?watch=1&timeoutSeconds=1"):
        for headers in (table, {}):
            assert b"triggers" in alike(typed, "GET", path, headers=headers).body
    # In a namespace without a ceiling dead letters alone are not told: they may be of another one's events.
    for one in typed:
        one.itself.create(Kind.RESOURCE_QUOTA, {"apiVersion": "v1", "kind": "ResourceQuota", **quota}, namespace="free")
        Reconciler(one.store, usage=dict, rights=one.grants).step()
        one.role([rule("", "resourcequotas", ALL)], "quotas")
        one.bind("quotas", "free")
        there = one.ask("GET", "/api/v1/namespaces/free/resourcequotas/q").json["status"]["used"]
        assert there.keys() == {*limits[1:], *counts}
        for namespace in ("free", "shop"):
            one.store.delete(ObjectKey(Kind.RESOURCE_QUOTA, namespace, "q"))


# --- summary --------------------------------------------------------------------------------------


def test_a_summary_has_ones_own_triggers_and_no_totals(typed: tuple[World, World]) -> None:
    words = "the last attempt of secret-1 failed"
    for number, one in enumerate(typed):
        one.store.reports.report([TargetReport(target_of(one, "theirs"), 3 + number, words, words, words, 2, words)])
        reports = [TargetReport(target_of(one, "mine"), 0, "", "", "Refused: nobody answers")]
        one.store.reports.report(reports)
        for _ in range(2):
            one.reconciler.step()
        document = trigger("typo", broker="nosuch")
        assert one.ask("POST", f"{OBJECTS}/triggers", document, ROOT).status == 201
        one.itself.create(
            Kind.EVENT_TYPE,
            {"metadata": {"name": made(one, f"secret.{VARIANTS[number]}")["metadata"]["name"]}}
            | {"apiVersion": f"{EVENTING}/v1beta2", "kind": "EventType"}
            | {"spec": {"type": f"secret.{VARIANTS[number]}", "broker": "gone"}},
            namespace="shop",
        )
        one.reconciler.step()
    whole = typed[0].ask("GET", f"{OURS}/summary", user=ROOT).json
    assert {"history", "rates", "deadLetters"} <= whole.keys()
    assert (whole["backlog"]["deliveries"], whole["deadLetters"]["kept"]) == (2 + 2 * 7, 7)
    assert {one["kind"] for one in whole["attention"]} >= {"DeadLetters", "EventType", "Trigger"}
    found = alike(typed, "GET", f"{OURS}/summary").json
    assert found.keys() == {
        "namespace",
        "time",
        "ready",
        "parts",
        "backlog",
        "objects",
        "attention",
        "attentionTotal",
    }
    assert found["backlog"]["deliveries"] == 2
    assert found["objects"] == {"brokers": 2, "triggers": 3, "subscriptions": 0}
    told = {(one["name"], one["type"]) for one in found["attention"]}
    assert ("mine", "SubscriberHealthy") in told
    assert {name for name, _ in told} == {"mine", "typo"}
    assert found["attentionTotal"] == len(found["attention"])
    assert typed[0].ask("GET", f"/apis/{OWN}/v1/summary").status == 403
    for one in typed:
        assert one.ask("DELETE", f"{OBJECTS}/triggers/typo", user=ROOT).status == 200
