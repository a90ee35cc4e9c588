"""Namespaces over HTTP."""

from __future__ import annotations

import json

import pytest

from tests.objects.support import Answer, Server, trigger
from tests.support import eventually

PATH = "/api/v1/namespaces"


def namespace(name: str, **metadata: object) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, **metadata}}


def names(server: Server, query: str = "") -> list[str]:
    return [one["metadata"]["name"] for one in server.request("GET", f"{PATH}{query}").json["items"]]


def test_one_that_is_created_is_kept(server: Server) -> None:
    made = server.request("POST", PATH, namespace("shop", labels={"a": "b"}))
    assert made.status == 201
    assert made.json["metadata"]["labels"] == {"a": "b", "kubernetes.io/metadata.name": "shop"}
    assert made.json["metadata"]["creationTimestamp"]
    assert server.request("GET", f"{PATH}/shop").json == made.json
    taken = server.request("POST", PATH, namespace("shop"))
    assert (taken.status, taken.json["reason"]) == (409, "AlreadyExists")
    assert server.request("POST", PATH, namespace("default")).json["reason"] == "AlreadyExists"
    assert names(server) == ["default", "shop"]
    assert names(server, "?labelSelector=a%3Db") == ["shop"]
    assert names(server, "?fieldSelector=metadata.name%3Ddefault") == ["default"]
    merged = server.merge(f"{PATH}/shop", {"metadata": {"labels": {"a": None}, "annotations": {"c": "d"}}}).json
    assert merged["metadata"]["uid"] == made.json["metadata"]["uid"]
    assert merged["metadata"]["annotations"] == {"c": "d"}
    assert names(server, "?labelSelector=a%3Db") == []


def test_one_in_use_exists_and_can_be_created(server: Server) -> None:
    server.request("POST", "/apis/eventing.knative.dev/v1/namespaces/shop/triggers", trigger())
    before = server.request("GET", f"{PATH}/shop").json
    made = server.request("POST", PATH, namespace("shop"))
    assert (made.status, made.json["metadata"]["uid"]) == (201, before["metadata"]["uid"])


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({"dryRun": ["All"]}, 200),
        ({"dryRun": ["None"]}, 400),
        ({"dryRun": "All"}, 400),
        ({"preconditions": {"uid": "another"}}, 409),
        ({"preconditions": {"resourceVersion": "1000"}}, 409),
    ],
)
@pytest.mark.parametrize("deleted", ["namespace", "trigger", "triggers"])
def test_options_in_the_body_of_a_delete_are_read(
    server: Server, deleted: str, options: dict[str, object], status: int
) -> None:
    triggers = "/apis/eventing.knative.dev/v1/namespaces/shop/triggers"
    server.request("POST", PATH, namespace("shop"))
    server.request("POST", triggers, trigger("t1"))
    path = {"namespace": f"{PATH}/shop", "trigger": f"{triggers}/t1", "triggers": triggers}[deleted]
    message = server.request("DELETE", path, options)
    assert message.status == status, message.body
    assert names(server) == ["default", "shop"]
    there = server.request("GET", path).json
    assert server.request("GET", f"{triggers}/t1").status == 200
    met = {} if deleted == "triggers" else {"uid": there["metadata"]["uid"]}
    assert server.request("DELETE", path, {"preconditions": met}).status == 200
    assert server.request("GET", f"{triggers}/t1").status == 404


def test_a_stale_write_is_refused(server: Server) -> None:
    made = server.request("POST", PATH, namespace("shop")).json["metadata"]
    assert server.merge(f"{PATH}/shop", {"metadata": {"labels": {"a": "b"}}}).status == 200
    apply = {"Content-Type": "application/apply-patch+yaml"}
    for stale in ({"resourceVersion": made["resourceVersion"]}, {"uid": "another"}):
        for answer in (
            server.request("PUT", f"{PATH}/shop", namespace("shop", **stale)),
            server.merge(f"{PATH}/shop", {"metadata": stale}),
            server.request("PATCH", f"{PATH}/shop?fieldManager=m", namespace("shop", **stale), headers=apply),
        ):
            assert (answer.status, answer.json["reason"]) == (409, "Conflict")
    assert server.request("GET", f"{PATH}/shop").json["metadata"]["labels"]["a"] == "b"
    assert server.request("PUT", f"{PATH}/shop", namespace("shop", uid=made["uid"])).status == 200


def test_dry_runs_and_deletes(server: Server) -> None:
    assert server.request("POST", f"{PATH}?dryRun=All", namespace("shop")).status == 201
    assert names(server) == ["default"]
    server.request("POST", PATH, namespace("shop"))
    server.request("POST", "/apis/eventing.knative.dev/v1/namespaces/shop/triggers", trigger())
    server.request("DELETE", f"{PATH}/shop?dryRun=All")
    assert names(server) == ["default", "shop"]
    assert server.request("DELETE", f"{PATH}/shop").json["status"] == "Success"
    assert names(server) == ["default"]
    assert server.store.snapshot().targets == {}
    assert server.request("DELETE", f"{PATH}/shop").status == 404
    forbidden = server.request("DELETE", f"{PATH}/default")
    assert (forbidden.status, forbidden.json["reason"]) == (403, "Forbidden")


@pytest.mark.parametrize(
    ("document", "status"),
    [
        (namespace("apis"), 422),
        (namespace("Shop"), 422),
        (namespace(""), 422),
        (namespace("shop", labels={"a b": "c"}), 422),
        (namespace("shop", labels="x"), 400),
        ({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "shop"}}, 400),
        ({"apiVersion": "v1", "kind": "Namespace"}, 422),
        ([], 400),
    ],
)
def test_what_is_no_namespace_is_refused(server: Server, document: object, status: int) -> None:
    answer = server.request("POST", PATH, document)
    assert (answer.status, answer.json["kind"]) == (status, "Status")
    assert names(server) == ["default"]


def test_server_side_apply_tells_owners_apart(server: Server) -> None:
    def apply(labels: dict[str, str], manager: str) -> Answer:
        headers = {"Content-Type": "application/apply-patch+yaml"}
        path = f"{PATH}/shop?fieldManager={manager}"
        return server.request("PATCH", path, namespace("shop", labels=labels), headers=headers)

    apply({"a": "1", "b": "1"}, "one")
    assert apply({"a": "2"}, "two").status == 409
    apply({"b": "1"}, "two")
    left = apply({"a": "1"}, "one").json["metadata"]["labels"]
    assert left == {"a": "1", "b": "1", "kubernetes.io/metadata.name": "shop"}


def test_a_watch_tells_what_comes_and_goes(server: Server) -> None:
    with server.stream(f"{PATH}?watch=1&timeoutSeconds=20") as stream:
        first = json.loads(stream.readline())
        assert (first["type"], first["object"]["metadata"]["name"]) == ("ADDED", "default")
        server.request("POST", PATH, namespace("shop"))
        told = json.loads(stream.readline())
        assert (told["type"], told["object"]["metadata"]["name"]) == ("ADDED", "shop")
        server.merge(f"{PATH}/shop", {"metadata": {"labels": {"a": "b"}}})
        assert json.loads(stream.readline())["type"] == "MODIFIED"
        server.request("DELETE", f"{PATH}/shop")
        assert json.loads(stream.readline())["type"] == "DELETED"
    eventually(lambda: names(server) == ["default"])
