"""What a console shows of a running server: each number is what happened."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import pytest

from headgate.testing.server import ApiError, Server
from tests.commands import told
from tests.support import eventually
from tests.system.subscriber import Subscriber

pytestmark = pytest.mark.system

OWN, EVENTING = "/apis/headgate.dev/v1", "/apis/eventing.knative.dev/v1"
TEAM = "console-team"
NOWHERE = "http://127.0.0.1:9/nowhere"


def get(server: Server, path: str) -> Any:
    return server.call("GET", server.url + path)


def post(server: Server, path: str, **body: object) -> Any:
    return server.call("POST", server.url + path, body)


def publish(server: Server, broker: str, *ids: str, type_: str = "paid", **data: object) -> None:
    for id_ in ids:
        headers = {"ce-specversion": "1.0", "ce-id": id_, "ce-source": "/shop", "ce-type": type_}
        headers["content-type"] = "application/json"
        request = urllib.request.Request(f"{server.url}/{broker}", json.dumps(data).encode(), headers, method="POST")
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.status == 202


@pytest.fixture(scope="module")
def team(server: Server) -> str:
    """Brokers and triggers of a namespace: one that is delivered, one whose events are given up, one in error."""
    server.create("brokers", TEAM, "orders", {})
    server.create("brokers", TEAM, "quiet", {})
    return TEAM


def trigger(server: Server, name: str, uri: str, **more: object) -> None:
    spec: dict[str, Any] = {"broker": "orders", "subscriber": {"uri": uri}, **more}
    server.create("triggers", TEAM, name, spec)
    server.wait_trigger_ready(TEAM, name)


def test_counters_summary_timeline_and_dead_letters(server: Server, team: str, subscriber: Subscriber) -> None:
    trigger(server, "gold", subscriber.url("gold"), filter={"cel": 'ce.type == "paid" && data.total > 100'})
    dead = {"retry": 0, "deadLetterSink": {"uri": NOWHERE}, "backoffDelay": "PT0.1S"}
    trigger(server, "lost", NOWHERE, delivery=dead, filter={"cel": "data.total > 100"})
    publish(server, f"{team}/orders", "1", "2", "3", total=500)
    publish(server, f"{team}/orders", "small", total=1)
    publish(server, f"{team}/orders", "broken")
    eventually(lambda: subscriber.ids("gold") == {"1": 1, "2": 1, "3": 1})

    def counted(name: str) -> Any:
        return get(server, f"{EVENTING}/namespaces/{team}/triggers/{name}/stats")

    eventually(lambda: counted("gold")["stats"]["delivered"] == 3 and counted("gold")["stats"]["filterErrors"] == 1)
    eventually(lambda: counted("lost")["stats"]["failed"] == 3)
    gold = counted("gold")
    assert gold["stats"]["rate"] > 0
    assert (gold["ready"], gold["broker"], gold["filter"]) == (
        "True",
        "orders",
        {"cel": 'ce.type == "paid" && data.total > 100'},
    )
    assert gold["stats"]["backlog"] == 0
    assert "oldestUndelivered" not in gold["stats"]
    lost = counted("lost")["stats"]
    assert (lost["delivered"], lost["attemptsFailed"]) == (0, 3)

    listed = get(server, f"{OWN}/namespaces/{team}/triggerstats")
    assert [one["name"] for one in listed["items"]] == ["gold", "lost"]
    assert (listed["total"], "continue" in listed) == (2, False)
    eventually(lambda: get(server, f"{OWN}/namespaces/{team}/brokerstats")["items"][0]["stats"]["received"] == 5)
    orders, quiet = get(server, f"{OWN}/namespaces/{team}/brokerstats")["items"]
    assert (orders["name"], orders["triggers"], orders["url"].endswith("/orders")) == ("orders", 2, True)
    assert (quiet["stats"], quiet["triggers"]) == ({"received": 0, "rate": 0.0}, 0)

    counts = get(server, f"{OWN}/namespaces/{team}/deadletters/counts")
    assert (counts["total"], {one["trigger"] for one in counts["items"]}) == (3, {"lost"})
    assert counts["items"][0]["oldest"] <= counts["items"][0]["newest"]
    everywhere = get(server, f"{OWN}/deadletters/counts")
    assert {**counts["items"][0]} in everywhere["items"] or everywhere["total"] >= 3

    def reasons() -> set[str]:
        return {one["reason"] for one in get(server, f"{OWN}/namespaces/{team}/summary")["attention"]}

    eventually(lambda: "FilterErrors" in reasons())
    eventually(lambda: sum(get(server, f"{OWN}/namespaces/{team}/summary")["history"]["delivered"]) > 0)
    own = get(server, f"{OWN}/namespaces/{team}/summary")
    assert own["objects"] == {"brokers": 2, "triggers": 2, "subscriptions": 0}
    assert own["deadLetters"]["count"] == 3
    assert round(sum(own["history"]["received"]) * own["history"]["seconds"]) in (4, 5, 6)
    assert 0 < own["latency"]["p50"] <= own["latency"]["p99"]
    assert {one["namespace"] for one in own["attention"]} == {team}, "nothing of another namespace"
    assert own["ready"]
    assert all("note" not in part for part in own["parts"])
    whole = get(server, f"{OWN}/summary")
    assert whole["objects"]["brokers"] >= 3
    assert whole["attentionTotal"] >= own["attentionTotal"]
    assert {"control", "front-0", "matcher"} <= {part["name"] for part in whole["parts"]}

    shown = told("status", "-n", team, "--server", server.url)
    assert "2 brokers, 2 triggers, 0 subscriptions" in shown
    assert f"Trigger {team}/gold  FilterHealthy FilterErrors: " in shown
    assert json.loads(told("status", "--server", server.url, "--json"))["ready"]

    flows = get(server, f"{EVENTING}/namespaces/{team}/brokers/orders/catalogue")
    assert (flows["events"], flows["complete"]) == (5, True)
    path = f"{EVENTING}/namespaces/{team}/brokers/orders/catalogue?type=paid&source=/shop"
    (paid,) = get(server, path)["items"]
    assert flows["items"][0]["count"] == 5
    assert (paid["type"], paid["source"], paid["count"], paid["example"]["type"]) == ("paid", "/shop", 5, "paid")
    assert paid["schema"]["properties"]["total"]["type"] == "integer"

    path = f"{EVENTING}/namespaces/{team}/brokers/orders/timeline"
    eventually(lambda: any(one["what"] == "dead-letter" for one in get(server, f"{path}?id=1").get("timeline", [])))
    life = get(server, f"{path}?id=1")
    kinds = [one["what"] for one in life["timeline"]]
    assert kinds[0] == "stored"
    assert {"stored", "matched", "attempt", "dead-letter"} <= set(kinds) <= {*kinds, "ended"}
    delivered = [one for one in life["timeline"] if one.get("result") == "delivered"]
    assert [(one["name"], one["attempt"], one["status"] // 100) for one in delivered] == [(f"{team}/gold", 1, 2)]
    assert [(one["trigger"], one["fate"]) for one in life["triggers"]] == [("gold", "ended"), ("lost", "dead-letter")]
    assert life["trace"] == get(server, path.replace("timeline", "trace") + "?id=1")["trace"]
    assert [one["fate"] for one in get(server, f"{path}?id=small")["triggers"]] == ["filter-false"] * 2
    first = get(server, f"{path}?id=1&limit=1")
    assert [one["trigger"] for one in first["triggers"]] == ["gold"]
    assert [one["trigger"] for one in get(server, f"{path}?id=1&after={first['after']}")["triggers"]] == ["lost"]
    assert "timeline" not in get(server, f"{path}?id=nosuch")


def test_search_and_pages(server: Server, team: str) -> None:
    for name, type_ in (("page-a", "Alpha"), ("page-b", "beta"), ("page-c", "alpha")):
        spec = {"broker": "quiet", "subscriber": {"uri": NOWHERE}, "filters": [{"exact": {"type": type_}}]}
        server.create("triggers", team, name, spec)
    base = f"{OWN}/namespaces/{team}/triggerstats"

    def names(query: str) -> list[str]:
        return [one["name"] for one in get(server, f"{base}?{query}")["items"]]

    assert names("search=alpha") == ["page-a", "page-c"]
    assert names("search=alpha%20page-c") == ["page-c"]
    assert names("search=page-&limit=2") == ["page-a", "page-b"]
    more = get(server, f"{base}?search=page-&limit=2")["continue"]
    assert names(f"search=page-&limit=2&continue={more}") == ["page-c"]
    assert names("search=page-%20FilterHealthy") == [], "a status is not searched"
    objects = get(server, f"{EVENTING}/namespaces/{team}/triggers?search=BETA")["items"]
    assert [one["metadata"]["name"] for one in objects] == ["page-b"]
    eventually(lambda: names("search=page-&state=ready") == ["page-a", "page-b", "page-c"])
    assert names("search=page-&state=notready") == []
    for wrong in ("state=nosuch", "limit=501", f"search={'x' * 300}", "continue=x"):
        with pytest.raises(ApiError) as caught:
            get(server, f"{base}?{wrong}")
        assert caught.value.status == 400
    with pytest.raises(ApiError) as caught:
        get(server, f"{EVENTING}/triggers?watch=true&search=x")
    assert caught.value.status in (400, 422)


def test_the_last_events(server: Server, team: str) -> None:
    publish(server, f"{team}/quiet", *(f"last-{i:02}" for i in range(20)), type_="last", n=1)
    publish(server, f"{team}/quiet", *(f"other-{i}" for i in range(3)), type_="other", n=1)

    def ids(query: str) -> list[str]:
        request = urllib.request.Request(
            f"{server.url}/{team}/quiet/events?{query}", headers={"accept": "application/cloudevents-batch+json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return [one["id"] for one in json.load(answer)]

    # Events of one source have no order over partitions: each has its own last ones.
    assert set(ids("last=500")) == {*(f"last-{i:02}" for i in range(20)), "other-0", "other-1", "other-2"}
    newest = ids("last=1")
    assert newest
    assert len(newest) <= len(ids("last=2"))
    assert set(ids("last=500&filter=ce.type%20%3D%3D%20%22other%22")) == {"other-0", "other-1", "other-2"}
    for wrong in ("last=0", "last=501", "last=5&from=earliest", "last=5&first=true"):
        with pytest.raises(urllib.error.HTTPError) as caught:
            ids(wrong)
        assert caught.value.code == 400
        caught.value.close()


def test_consumers(server: Server, team: str) -> None:
    spec = {"broker": "quiet", "type": "shared", "ackTimeout": "PT60S", "filter": {"cel": 'ce.type == "pulled"'}}
    server.create("subscriptions", team, "pulled", spec)
    server.wait_object_ready("subscriptions", team, "pulled")
    publish(server, f"{team}/quiet", *(f"p{i}" for i in range(5)), type_="pulled")
    base = f"{OWN}/namespaces/{team}/subscriptions/pulled"
    taken = {"a": 0, "b": 0}

    def pull(consumer: str, most: int) -> bool:
        answer = post(server, f"{base}/pull", consumer=consumer, max=most, wait=5)
        taken[consumer] += len(answer["events"])
        return bool(taken[consumer] >= most)

    eventually(lambda: pull("a", 2))
    eventually(lambda: pull("b", 1))
    found = get(server, f"{base}/consumers")
    assert found["type"] == "shared"
    assert "lease" not in found
    assert {one["consumer"]: one["events"] for one in found["items"]} == taken
    assert all(one["oldest"] < one["due"] and one["redelivered"] == 0 for one in found["items"])
    post(server, f"{base}/leave", consumer="b")
    found = get(server, f"{base}/consumers")
    assert [one["consumer"] for one in found["items"]] == ["a"]
    assert found["waiting"] >= taken["b"]
    with pytest.raises(ApiError) as caught:
        get(server, f"{OWN}/namespaces/{team}/subscriptions/nosuch/consumers")
    assert caught.value.status == 404


def test_filters_and_namespaces(server: Server, team: str) -> None:
    event = {"specversion": "1.0", "id": "1", "source": "/s", "type": "a", "data": {"n": 2}}
    tried = post(server, f"{OWN}/filters/test", filter={"cesql": "type = 'a'"}, events=[event], explain=True)
    assert (tried["counts"]["true"], tried["explanation"]["decidedBy"]) == (1, "matcher")
    with pytest.raises(ApiError) as caught:
        post(server, f"{OWN}/filters/convert", filter="ce.type ==")
    assert caught.value.body["details"]["caret"]
    assert len(get(server, f"{OWN}/filters/dialects")["dialects"]) >= 15
    seen = get(server, f"{OWN}/selfsubjectnamespaces")
    assert seen["all"]
    assert team in seen["namespaces"]
