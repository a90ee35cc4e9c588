"""Finalizers: a deleted object goes when the last of them is taken away."""

from __future__ import annotations

import json

import pytest

from headgate.objects.api.admission import Admission
from headgate_api.limits import FINALIZERS_MAX
from headgate_api.objects.kinds import Kind, ObjectKey
from tests.objects.support import Server, condition, trigger
from tests.support import eventually

T1 = ObjectKey(Kind.TRIGGER, "default", "t1")


def kept(name: str = "t1", *finalizers: str) -> dict[str, object]:
    document = trigger(name)
    document["metadata"]["finalizers"] = list(finalizers or ("a.example/x", "b.example/y"))
    return document


def test_a_deleted_object_waits_for_its_finalizers(server: Server) -> None:
    path = server.path("triggers", "t1")
    made = server.request("POST", server.path("triggers"), kept()).json
    eventually(lambda: server.ready("triggers", "t1") == "True")
    with server.stream(f"{server.path('triggers')}?watch=1&resourceVersion=0&timeoutSeconds=20") as stream:
        assert json.loads(stream.readline())["type"] == "ADDED"
        answer = server.request("DELETE", path)
        assert (answer.status, answer.json["kind"]) == (200, "Trigger")
        gone_at = answer.json["metadata"]["deletionTimestamp"]
        assert gone_at >= made["metadata"]["creationTimestamp"]
        assert answer.json["metadata"]["deletionGracePeriodSeconds"] == 0
        assert answer.json["metadata"]["generation"] == 2
        again = server.request("DELETE", path).json
        assert again["metadata"]["resourceVersion"] == answer.json["metadata"]["resourceVersion"]
        told = json.loads(stream.readline())
        assert (told["type"], told["object"]["metadata"]["deletionTimestamp"]) == ("MODIFIED", gone_at)
        # It is still there and works.
        assert condition(told["object"], "Ready")["status"] == "True"
        assert told["object"]["status"]["observedGeneration"] == 2
        assert [target.name for target in server.store.snapshot().targets.values()] == ["default/t1"]
        taken = server.request("POST", server.path("triggers"), trigger())
        assert (taken.status, taken.json["reason"]) == (409, "AlreadyExists")
        assert "object is being deleted" in taken.json["message"]
        assert server.merge(path, {"metadata": {"deletionTimestamp": None}}).json["metadata"]["deletionTimestamp"]
        more = server.merge(path, {"metadata": {"finalizers": ["a.example/x", "b.example/y", "c.example/z"]}})
        assert (more.status, more.json["details"]["causes"][0]["field"]) == (422, "metadata.finalizers")
        assert "no new finalizers" in more.json["message"]
        one = server.merge(path, {"metadata": {"finalizers": ["b.example/y"]}})
        assert one.json["metadata"]["finalizers"] == ["b.example/y"]
        assert json.loads(stream.readline())["type"] == "MODIFIED"
        last = server.merge(path, {"metadata": {"finalizers": None}})
        assert (last.status, last.json["kind"]) == (200, "Trigger")
        told = json.loads(stream.readline())
        assert (told["type"], told["object"]["metadata"]["uid"]) == ("DELETED", made["metadata"]["uid"])
    assert server.request("GET", path).status == 404
    assert server.store.snapshot().targets == {}
    assert server.request("POST", server.path("triggers"), trigger()).status == 201


def test_without_a_deletion_finalizers_come_and_go(server: Server) -> None:
    path = server.path("triggers", "t1")
    server.request("POST", server.path("triggers"), kept())
    assert server.merge(path, {"metadata": {"finalizers": []}}).json["metadata"].get("finalizers") is None
    assert server.request("GET", path).status == 200
    assert server.request("DELETE", path).json["status"] == "Success"


def test_a_deletion_of_all_marks_those_with_finalizers(server: Server) -> None:
    server.request("POST", server.path("triggers"), kept("t1"))
    server.request("POST", server.path("triggers"), trigger("t2"))
    dry = server.request("DELETE", f"{server.path('triggers', 't1')}?dryRun=All").json
    assert dry["metadata"]["deletionTimestamp"]
    assert "deletionTimestamp" not in server.request("GET", server.path("triggers", "t1")).json["metadata"]
    server.request("DELETE", server.path("triggers"))
    (left,) = server.request("GET", server.path("triggers")).json["items"]
    assert (left["metadata"]["name"], "deletionTimestamp" in left["metadata"]) == ("t1", True)


@pytest.mark.parametrize("finalizers", [["a b"], [f"a.example/{n}" for n in range(FINALIZERS_MAX + 1)], "a.example/x"])
def test_names_of_finalizers_are_checked(server: Server, finalizers: object) -> None:
    document = trigger()
    document["metadata"]["finalizers"] = finalizers
    answer = server.request("POST", server.path("triggers"), document)
    assert (answer.status, answer.json["details"]["causes"][0]["field"]) == (422, "metadata.finalizers")


def test_manifests_keep_finalizers_of_others(admission: Admission) -> None:
    admission.create(Kind.TRIGGER, kept())
    assert admission.apply(trigger()).obj.metadata.finalizers == ("a.example/x", "b.example/y")
