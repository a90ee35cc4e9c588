from __future__ import annotations

import contextlib
import json
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import pytest

from headgate_api.limits import OBJECT_BYTES_MAX, WARNINGS_CHARACTERS_MAX
from headgate_api.objects.kinds import API_VERSION
from tests.objects.support import Answer, Server, broker, condition, running, trigger
from tests.support import eventually

GOLD = {"expression": "ce.type == 'order' && data.tier == 'gold'"}
TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}


def lines(response: HTTPResponse, count: int) -> list[dict[str, Any]]:
    return [json.loads(response.readline()) for _ in range(count)]


def test_the_life_of_a_trigger(server: Server) -> None:
    made = server.request("POST", server.path("triggers"), trigger(filter=GOLD))
    assert made.status == 201
    eventually(lambda: server.ready("triggers", "t1") == "True")
    found = server.request("GET", server.path("triggers", "t1")).json
    assert found["spec"]["filter"] == GOLD
    assert found["status"]["subscriberUri"] == "http://127.0.0.1:9/sink"
    assert server.request("GET", server.path("triggers", "t1") + "/status").json == found
    assert server.request("POST", server.path("triggers"), trigger()).json["reason"] == "AlreadyExists"
    # As kn does: the object as it was read, changed; the version that was read is then stale.
    found["spec"]["delivery"] = {"retry": 2}
    replaced = server.request("PUT", server.path("triggers", "t1"), found)
    assert replaced.status == 200
    assert replaced.json["metadata"]["generation"] == 2
    conflict = server.request("PUT", server.path("triggers", "t1"), found)
    assert (conflict.status, conflict.json["reason"]) == (409, "Conflict")
    assert conflict.json["message"].startswith('Operation cannot be fulfilled on triggers.eventing.knative.dev "t1"')
    assert conflict.json["details"] == {"name": "t1", "group": "eventing.knative.dev", "kind": "triggers"}
    patched = server.merge(server.path("triggers", "t1"), {"metadata": {"labels": {"a": "b"}}})
    assert patched.json["metadata"]["labels"]["a"] == "b"
    deleted = server.request("DELETE", server.path("triggers", "t1"))
    assert (deleted.json["status"], deleted.json["details"]["uid"]) == ("Success", found["metadata"]["uid"])
    gone = server.request("GET", server.path("triggers", "t1"))
    assert (gone.status, gone.json["reason"], gone.json["details"]["kind"]) == (404, "NotFound", "triggers")


def test_an_invalid_filter_is_a_422_with_its_field_and_place(server: Server) -> None:
    refused = server.request("POST", server.path("triggers"), trigger(filter={"expression": "ce.type == 'a' &&& true"}))
    status = refused.json
    assert (refused.status, status["kind"], status["status"], status["reason"]) == (422, "Status", "Failure", "Invalid")
    assert status["code"] == 422
    (cause,) = status["details"]["causes"]
    assert (cause["field"], cause["reason"]) == ("spec.filter.expression", "FieldValueInvalid")
    assert "at character" in cause["message"]
    assert server.request("GET", server.path("triggers")).json["items"] == []


def test_yaml_bodies(server: Server) -> None:
    text = f"apiVersion: {API_VERSION}\nkind: Broker\nmetadata:\n  name: b\n".encode()
    made = server.request("POST", server.path("brokers"), raw=text, headers={"Content-Type": "application/yaml"})
    assert made.status == 201
    bad = server.request("POST", server.path("brokers"), raw=b"a: [", headers={"Content-Type": "application/yaml"})
    assert (bad.status, bad.json["reason"]) == (400, "BadRequest")
    assert "line" in bad.json["message"]


@pytest.mark.parametrize(
    ("content_type", "method"),
    [
        ("application/x-www-form-urlencoded", "POST"),
        ("text/plain", "POST"),
        ("application/vnd.kubernetes.protobuf", "POST"),
        ("application/json", "PATCH"),
        ("application/strategic-merge-patch+json", "PATCH"),
        ("application/apply-patch+cbor", "PATCH"),
    ],
)
def test_other_bodies_are_415(server: Server, content_type: str, method: str) -> None:
    path = server.path("triggers", "t1") if method == "PATCH" else server.path("triggers")
    answer = server.request(method, path, trigger(), headers={"Content-Type": content_type})
    assert (answer.status, answer.json["reason"]) == (415, "UnsupportedMediaType")


def test_hostile_requests_are_status_objects(server: Server) -> None:
    big = server.request("POST", server.path("triggers"), raw=b"x" * (OBJECT_BYTES_MAX + 1))
    assert (big.status, big.json["reason"]) == (413, "RequestEntityTooLarge")
    deep = server.request("POST", server.path("triggers"), raw=b'{"a":' * 5_000 + b"1" + b"}" * 5_000)
    assert deep.status == 400
    for path, code in (
        ("/apis/nope", 404),
        (server.path("nope"), 404),
        (server.path("triggers") + "?labelSelector=a,,b", 400),
        (server.path("triggers") + "?fieldSelector=spec.x%3D1", 400),
        (server.path("triggers") + "?limit=-1", 400),
        (server.path("triggers") + "?continue=x", 400),
        (server.path("triggers") + "?watch=1&resourceVersion=x", 400),
        (server.path("triggers") + "?continue=" + "x" * 5_000, 400),
        ("/openapi/v2", 404),
    ):
        answer = server.request("GET", path)
        assert (answer.status, answer.json["kind"], answer.json["code"]) == (code, "Status", code), path
    assert server.request("POST", server.path("triggers", "t1") + "/status", trigger()).status == 405
    assert server.request("GET", server.path("triggers") + "/%00%ff").status == 404
    assert server.request("POST", server.path("triggers") + "?dryRun=Some", trigger()).status == 400
    assert server.request("POST", server.path("triggers") + "?fieldValidation=Some", trigger()).status == 400


def test_field_validation(server: Server) -> None:
    document = trigger(brokr="x")
    for suffix in ("", "?fieldValidation=Strict"):
        strict = server.request("POST", server.path("triggers") + suffix, document)
        assert strict.status == 400
        assert 'strict decoding error: unknown field "spec.brokr"' in strict.json["message"]
    warn = server.request("POST", server.path("triggers") + "?fieldValidation=Warn", document)
    assert warn.status == 201
    assert warn.headers["warning"] == '299 - "unknown field \\"spec.brokr\\""'
    document["metadata"]["name"] = "t2"
    ignored = server.request("POST", server.path("triggers") + "?fieldValidation=Ignore", document)
    assert ignored.status == 201
    assert "warning" not in ignored.headers


def test_the_version_of_cel_is_kept_and_refused_where_it_is_unknown(server: Server) -> None:
    versioned = GOLD | {"celVersion": "1"}
    assert server.request("POST", server.path("triggers"), trigger(filter=versioned)).status == 201
    assert server.request("GET", server.path("triggers", "t1")).json["spec"]["filter"] == versioned
    for wrong in (GOLD | {"celVersion": "2"}, {"attributes": {"type": "a"}, "celVersion": "1"}):
        refused = server.request("POST", server.path("triggers"), trigger("t2", filter=wrong))
        assert refused.status == 422
        assert [cause["field"] for cause in refused.json["details"]["causes"]] == ["spec.filter.celVersion"]


def test_a_filter_that_never_matches_is_refused_or_told(server: Server) -> None:
    refused = server.request("POST", server.path("triggers"), trigger(filter={"cel": "ce.type == 5"}))
    assert refused.status == 422
    (cause,) = refused.json["details"]["causes"]
    assert cause["field"] == "spec.filter.cel"
    assert "at character 9\nce.type == 5\n        ^" in cause["message"]
    made = server.request("POST", server.path("triggers"), trigger(filter={"cel": 'ce.Type == "a"'}))
    assert made.status == 201
    assert "spec.filter.cel reads Type: no event has it" in made.headers["warning"]
    eventually(lambda: server.ready("triggers", "t1") == "True")
    found = server.request("GET", server.path("triggers", "t1")).json
    assert condition(found, "FilterAdvisable")["reason"] == "NameImpossible"


def test_conditions_that_exclude_each_other_are_told_until_they_do_not(server: Server) -> None:
    path, never = server.path("triggers"), 'ce.type == "a" && data.n > 5 && data.n < 3'
    made = server.request("POST", path, trigger(filter={"cel": never}))
    assert made.status == 201
    assert "no event makes the filter true" in made.headers["warning"]
    assert condition(made.json, "FilterAdvisable")["reason"] == "NeverTrue"
    eventually(lambda: server.ready("triggers", "t1") == "True")
    found = server.request("GET", server.path("triggers", "t1")).json
    assert condition(found, "FilterAdvisable")["reason"] == "NeverTrue", "also of a status that is written again"
    del found["metadata"]["resourceVersion"]
    for good in (never.replace("< 3", "< 7"), f'ce.type == "b" || ({never})'):
        found["spec"]["filter"] = {"cel": good}
        changed = server.request("PUT", server.path("triggers", "t1"), found)
        assert changed.status == 200
        assert "warning" not in changed.headers
        assert "FilterAdvisable" not in {one["type"] for one in changed.json["status"]["conditions"]}


def test_warnings_are_headers_whatever_they_say(server: Server) -> None:
    document = trigger("line")
    document["spec"]['a\r\nX-Other: "é\\'] = 1
    warned = server.request("POST", server.path("triggers") + "?fieldValidation=Warn", document)
    assert warned.status == 201
    assert "x-other" not in warned.headers
    assert r"a\\u000d\\u000aX-Other: \"\\u00e9" in warned.headers["warning"]
    document = trigger("long")
    document["spec"] |= {"x" * 10_000: 1, "y" * 10_000: 1}
    warned = server.request("POST", server.path("triggers") + "?fieldValidation=Warn", document)
    assert warned.status == 201
    assert WARNINGS_CHARACTERS_MAX <= len(warned.headers["warning"]) < WARNINGS_CHARACTERS_MAX + 100


TWICE = b'{"apiVersion":"eventing.knative.dev/v1","kind":"Trigger","metadata":{"name":"t1"},"spec":{"broker":"default","subscriber":{"uri":"http://127.0.0.1:9/x"},"filter":{"attributes":{"type":"a"}},"filter":{"attributes":{"type":"b"}}}}'
PATCHES = {
    "merge-patch+json": (
        b'{"spec":{"filter":{"attributes":{"type":"a"}},"filter":{"attributes":{"type":"b"}}}}',
        "spec.filter",
    ),
    "json-patch+json": (
        b'[{"op":"add","path":"/spec/filter","value":{"attributes":{"type":"a"},"attributes":{"type":"b"}}}]',
        "[0].value.attributes",
    ),
    "apply-patch+yaml": (TWICE, "spec.filter"),
}


@pytest.mark.parametrize("way", ["POST", "PUT", *PATCHES])
def test_a_member_twice_is_refused_or_warned_of_as_asked(server: Server, way: str) -> None:
    method = way if way in ("POST", "PUT") else "PATCH"
    if method != "POST":
        server.request("POST", server.path("triggers"), trigger("t1"))
    path = server.path("triggers", "" if method == "POST" else "t1")
    body, place = PATCHES.get(way, (TWICE, "spec.filter"))
    headers = {"Content-Type": f"application/{way}"} if way in PATCHES else {}

    def send(query: str) -> Answer:
        return server.request(
            method,
            f"{path}?fieldManager=m&force=true&{query}" if way == "apply-patch+yaml" else f"{path}?{query}",
            raw=body,
            headers=headers,
        )

    for query in ("", "fieldValidation=Strict"):
        refused = send(query)
        assert refused.status == 400
        said = (
            "'filter' is there twice"
            if way == "apply-patch+yaml"
            else f'strict decoding error: duplicate field "{place}"'
        )
        assert said in refused.json["message"]
    warned = send("dryRun=All&fieldValidation=Warn")
    assert warned.status in (200, 201), warned.body
    assert f'duplicate field \\"{place}\\"' in warned.headers["warning"]
    ignored = send("fieldValidation=Ignore")
    assert ignored.json["spec"]["filter"] == {"attributes": {"type": "b"}}
    assert "duplicate" not in ignored.headers.get("warning", "")


def test_a_member_twice_is_refused_where_nobody_asks(server: Server) -> None:
    review = b'{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectAccessReview","spec":{},"spec":{}}'
    asked = server.request("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", raw=review)
    assert (asked.status, 'duplicate field "spec"' in asked.json["message"]) == (400, True)
    server.request("POST", server.path("triggers"), trigger("t1"))
    gone = server.request("DELETE", server.path("triggers", "t1"), raw=b'{"dryRun":["All"],"dryRun":[]}')
    assert (gone.status, 'duplicate field "dryRun"' in gone.json["message"]) == (400, True)
    made = server.request(
        "POST",
        "/api/v1/namespaces",
        raw=b'{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"a"},"metadata":{"name":"b"}}',
    )
    assert (made.status, 'duplicate field "metadata"' in made.json["message"]) == (400, True)


def test_options_of_a_delete_may_be_yaml(server: Server) -> None:
    server.request("POST", server.path("triggers"), trigger("t1"))
    yaml = {"Content-Type": "application/yaml"}
    wrong = server.request("DELETE", server.path("triggers", "t1"), raw=b"preconditions: {uid: another}", headers=yaml)
    assert wrong.status == 409
    dry = server.request("DELETE", server.path("triggers", "t1"), raw=b"dryRun: [All]", headers=yaml)
    assert dry.status == 200
    assert server.request("GET", server.path("triggers", "t1")).status == 200


def test_dry_runs_store_nothing(server: Server) -> None:
    assert server.request("POST", server.path("triggers") + "?dryRun=All", trigger()).status == 201
    assert server.request("GET", server.path("triggers", "t1")).status == 404
    server.request("POST", server.path("triggers"), trigger())
    dry = server.request(
        "DELETE", server.path("triggers", "t1"), {"dryRun": ["All"], "propagationPolicy": "Background"}
    )
    assert dry.status == 200
    assert server.request("GET", server.path("triggers", "t1")).status == 200
    wrong = server.request("DELETE", server.path("triggers", "t1"), {"preconditions": {"uid": "another"}})
    assert (wrong.status, wrong.json["reason"]) == (409, "Conflict")


def test_lists_page_and_select(server: Server) -> None:
    for number in range(7):
        document = trigger(f"t{number}")
        document["metadata"]["labels"] = {"parity": "odd" if number % 2 else "even"}
        server.request("POST", server.path("triggers"), document)
    everything = server.request("GET", f"/apis/{API_VERSION}/triggers").json
    assert everything["kind"] == "TriggerList"
    names = [item["metadata"]["name"] for item in everything["items"]]
    assert names == [f"t{number}" for number in range(7)]
    token, paged, versions = "", [], set()
    while True:
        page = server.request("GET", f"{server.path('triggers')}?limit=3&continue={token}").json
        paged += [item["metadata"]["name"] for item in page["items"]]
        versions.add(page["metadata"]["resourceVersion"])
        token = page["metadata"].get("continue", "")
        if not token:
            break
    assert paged == names
    assert len(versions) == 1
    odd = server.request("GET", server.path("triggers") + "?labelSelector=parity%3Dodd&limit=2").json
    assert [item["metadata"]["name"] for item in odd["items"]] == ["t1", "t3"]
    one = server.request("GET", server.path("triggers") + "?fieldSelector=metadata.name%3Dt4").json
    assert [item["metadata"]["name"] for item in one["items"]] == ["t4"]
    assert server.request("GET", f"/apis/{API_VERSION}/namespaces/other/triggers").json["items"] == []
    server.request("DELETE", server.path("triggers") + "?labelSelector=parity%3Dodd")
    left = server.request("GET", server.path("triggers")).json["items"]
    assert [item["metadata"]["name"] for item in left] == ["t0", "t2", "t4", "t6"]


def test_a_long_list_comes_whole(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.objects.api.watch.LIST_CHUNK", 3)
    for number in range(10):
        server.request("POST", server.path("brokers"), broker(f"b{number}"))
    found = server.request("GET", server.path("brokers")).json
    assert len(found["items"]) == 11
    assert "continue" not in found["metadata"]
    table = server.request("GET", server.path("brokers") + "?limit=7", headers=TABLE).json
    assert len(table["rows"]) == 7
    assert table["metadata"]["continue"]


def test_tables(server: Server) -> None:
    server.request("POST", server.path("triggers"), trigger(filter=GOLD))
    eventually(lambda: server.ready("triggers", "t1") == "True")
    table = server.request("GET", server.path("triggers"), headers=TABLE).json
    assert [column["name"] for column in table["columnDefinitions"] if column["priority"] == 0] == [
        "Name",
        "Broker",
        "Subscriber_URI",
        "Age",
        "Ready",
        "Reason",
        "Warnings",
    ]
    (row,) = table["rows"]
    assert row["cells"][:3] == ["t1", "default", "http://127.0.0.1:9/sink"]
    assert row["cells"][4:6] == ["True", ""]
    assert row["object"]["metadata"]["namespace"] == "default"
    whole = server.request("GET", server.path("triggers", "t1") + "?includeObject=Object", headers=TABLE).json
    assert whole["rows"][0]["object"]["spec"]["filter"] == GOLD
    bare = server.request("GET", server.path("brokers") + "?includeObject=None", headers=TABLE).json
    assert "object" not in bare["rows"][0]
    partial = {"Accept": "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"}
    found = server.request("GET", server.path("triggers"), headers=partial).json
    assert found["items"][0].keys() == {"kind", "apiVersion", "metadata"}


def test_watch_tells_what_happens(server: Server) -> None:
    server.request("POST", server.path("triggers"), trigger("before"))
    eventually(lambda: server.ready("triggers", "before") == "True")
    version = server.request("GET", server.path("triggers")).json["metadata"]["resourceVersion"]
    with (
        server.stream(f"{server.path('triggers')}?watch=1&resourceVersion={version}") as live,
        server.stream(f"{server.path('triggers')}?watch=1") as fresh,
        server.stream(f"{server.path('triggers')}?watch=1&labelSelector=a", TABLE) as selected,
    ):
        (there,) = lines(fresh, 1)
        assert (there["type"], there["object"]["metadata"]["name"]) == ("ADDED", "before")
        server.request("POST", server.path("triggers"), trigger("after"))
        eventually(lambda: server.ready("triggers", "after") == "True")
        server.merge(server.path("triggers", "after"), {"metadata": {"labels": {"a": "b"}}})
        server.merge(server.path("triggers", "after"), {"metadata": {"labels": {"a": None}}})
        server.request("DELETE", server.path("triggers", "after"))
        events = []
        while not events or events[-1]["type"] != "DELETED":
            events += lines(live, 1)
        assert events[0]["type"] == "ADDED"
        # A change of status is seen by watchers, written together with the generation it is about.
        ready = [condition(event["object"], "Ready")["status"] for event in events]
        assert ready[0] == "Unknown"
        assert ready[-1] == "True"
        versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in events]
        assert versions == sorted(set(versions))
        chosen = lines(selected, 2)
        assert [event["type"] for event in chosen] == ["ADDED", "DELETED"]
        assert chosen[0]["object"]["kind"] == "Table"


def test_watch_bookmarks_and_ends(server: Server) -> None:
    path = f"{server.path('brokers')}?watch=1&allowWatchBookmarks=true&sendInitialEvents=true&timeoutSeconds=1"
    with server.stream(path + "&resourceVersionMatch=NotOlderThan") as response:
        events = [json.loads(line) for line in response.read().splitlines()]
    assert [event["type"] for event in events[:2]] == ["ADDED", "BOOKMARK"]
    assert events[1]["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


def test_an_expired_watch_says_so(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.objects.store.history.WATCH_EVENTS_MAX", 3)
    monkeypatch.setattr("headgate.objects.store.history.TRIM_SLACK", 1)
    for number in range(8):
        server.request("POST", server.path("brokers"), broker(f"b{number}"))
    for version in ("1", "999999"):
        with server.stream(f"{server.path('brokers')}?watch=1&resourceVersion={version}") as response:
            (event,) = [json.loads(line) for line in response.read().splitlines()]
        assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")


def test_one_watch_too_many_is_told_to_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.objects.api.watch.WATCHES_MAX", 4)
    with running(tmp_path) as server:
        with contextlib.ExitStack() as watching:
            for _ in range(3):
                lines(watching.enter_context(server.stream(f"{server.path('brokers')}?watch=1")), 1)
            second = server.request("GET", f"{server.path('brokers')}?watch=1")
            assert (second.status, second.json["reason"]) == (429, "TooManyRequests")
            assert second.headers["retry-after"] == "1"
            assert "WATCHES_MAX" in second.json["message"]
        # A watcher that has gone makes room.
        path = f"{server.path('brokers')}?watch=1&timeoutSeconds=1"
        eventually(lambda: server.request("GET", path).status == 200)


def test_a_broker_before_and_after(server: Server) -> None:
    server.request("POST", server.path("triggers"), trigger(broker="later"))
    eventually(lambda: server.ready("triggers", "t1") == "False")
    found = server.request("GET", server.path("triggers", "t1")).json
    assert condition(found, "Ready")["reason"] == "BrokerDoesNotExist"
    server.request("POST", server.path("brokers"), broker("later"))
    eventually(lambda: server.ready("triggers", "t1") == "True")
    made = server.request("GET", server.path("brokers", "later")).json
    assert made["status"]["address"]["url"] == f"{server.url}/default/later"
    assert made["metadata"]["annotations"]["eventing.knative.dev/broker.class"] == "Headgate"


def test_discovery(server: Server) -> None:
    assert server.request("GET", "/api").json["versions"] == ["v1"]
    assert server.request("GET", "/apis").json["groups"][0]["name"] == "eventing.knative.dev"
    resources = server.request("GET", f"/apis/{API_VERSION}").json["resources"]
    assert {one["name"] for one in resources} == {"brokers", "brokers/status", "triggers", "triggers/status"}
    assert server.request("GET", "/version/").json["major"] == "1"
    namespaces = server.request("GET", "/api/v1/namespaces").json
    assert [one["metadata"]["name"] for one in namespaces["items"]] == ["default"]
    assert server.request("GET", "/api/v1/namespaces/default").status == 200
    assert server.request("GET", "/api/v1/namespaces/other").status == 404
    assert (
        server.request("GET", "/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3Dx").json["items"]
        == []
    )
    asked = {"resourceAttributes": {"verb": "create", "group": "eventing.knative.dev", "resource": "triggers"}}
    question = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": asked}
    review = server.request("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", question)
    assert review.json["status"]["allowed"] is True
    local = "/apis/authorization.k8s.io/v1/namespaces/{}/localsubjectaccessreviews"
    here = {"user": "ann", "resourceAttributes": asked["resourceAttributes"] | {"namespace": "a"}}
    question |= {"kind": "LocalSubjectAccessReview", "spec": here}
    review = server.request("POST", local.format("a"), question)
    assert (review.status, review.json["status"]["allowed"], review.json["metadata"]) == (201, True, {"namespace": "a"})
    assert server.request("POST", local.format("b"), question).status == 400
    index = server.request("GET", "/openapi/v3").json["paths"]
    groups = ("eventing.knative.dev", "headgate.dev", "rbac.authorization.k8s.io")
    versions = {f"apis/{group}/v1" for group in groups}
    versions |= {f"apis/eventing.knative.dev/{version}" for version in ("v1alpha1", "v1beta2")}
    assert set(index) == {"api/v1", *versions}
    entry = index["apis/eventing.knative.dev/v1"]
    schemas = server.request("GET", entry["serverRelativeURL"]).json["components"]["schemas"]
    assert "dev.knative.eventing.v1.Trigger" in schemas
