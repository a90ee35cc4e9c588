"""Kubernetes asks whether an object would be accepted: allowed, or the message; malformed questions are 400."""

from __future__ import annotations

from typing import Any

import pytest

from tests.objects.support import Answer, Server, broker, trigger

PATH = "/admission/validate"


def review(document: dict[str, Any] | None, *, operation: str = "CREATE", **more: Any) -> dict[str, Any]:
    kind = (document or more.get("oldObject") or {}).get("kind", "Trigger")
    request = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": "eventing.knative.dev", "version": "v1", "kind": kind},
        "resource": {"group": "eventing.knative.dev", "version": "v1", "resource": "triggers"},
        "namespace": "default",
        "operation": operation,
        "userInfo": {"username": "admin"},
        "object": document,
        "oldObject": None,
        "dryRun": False,
        **more,
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def ask(server: Server, document: object) -> Answer:
    return server.request("POST", PATH, document)


def test_allows_what_the_api_would_store_and_stores_nothing(server: Server) -> None:
    document = trigger("t", filter={"cel": "ce.type == 'a'"})
    document["metadata"] |= {"managedFields": [], "finalizers": ["x"], "uid": "u", "generation": 1}
    answer = ask(server, review(document))
    assert answer.status == 200
    assert answer.json == {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {"uid": "705ab4f5-6393-11e8-b7cc-42010a800002", "allowed": True},
    }
    assert ask(server, review(broker("b"))).json["response"]["allowed"] is True
    assert server.request("GET", server.path("triggers", "t")).status == 404


def test_refuses_with_the_message_and_its_place(server: Server) -> None:
    answer = ask(server, review(trigger("t", filter={"cel": "ce.type = 'a'"})))
    assert answer.status == 200
    response = answer.json["response"]
    assert (response["uid"], response["allowed"]) == ("705ab4f5-6393-11e8-b7cc-42010a800002", False)
    status = response["status"]
    assert (status["code"], status["reason"], status["status"]) == (422, "Invalid", "Failure")
    assert "spec.filter.cel" in status["message"]
    assert "equality is written with ==" in status["message"]
    assert status["details"]["causes"][0]["field"] == "spec.filter.cel"


def test_refuses_changes_of_what_is_immutable(server: Server) -> None:
    before, after = trigger("t", broker="a"), trigger("t", broker="b")
    response = ask(server, review(after, operation="UPDATE", oldObject=before)).json["response"]
    assert response["allowed"] is False
    assert "spec.broker" in response["status"]["message"]
    assert ask(server, review(before, operation="UPDATE", oldObject=before)).json["response"]["allowed"] is True


def test_unknown_fields_are_the_clusters_business_but_never_those_of_a_filter(server: Server) -> None:
    response = ask(server, review(trigger("t", nosuch=1))).json["response"]
    assert response["allowed"] is True
    assert response["warnings"] == ['unknown field "spec.nosuch"']
    assert ask(server, review(trigger("t", filter={"nosuch": {}}))).json["response"]["allowed"] is False


def test_deletes_are_allowed(server: Server) -> None:
    response = ask(server, review(None, operation="DELETE", oldObject=trigger("t"))).json["response"]
    assert response["allowed"] is True


def without(document: dict[str, Any], field: str) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key != field}


GOOD = review(trigger("t"))


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "no AdmissionReview"),
        ({}, "no AdmissionReview"),
        (without(GOOD, "request"), "request"),
        (GOOD | {"apiVersion": "admission.k8s.io/v1beta1"}, "v1beta1"),
        (GOOD | {"kind": "Other"}, "Other"),
        (GOOD | {"request": without(GOOD["request"], "uid")}, "uid"),
        (GOOD | {"request": GOOD["request"] | {"uid": ""}}, "uid"),
        (GOOD | {"request": GOOD["request"] | {"uid": 7}}, "uid"),
        (GOOD | {"request": GOOD["request"] | {"operation": "PATCH"}}, "PATCH"),
        (GOOD | {"request": GOOD["request"] | {"object": None}}, "object"),
        (GOOD | {"request": GOOD["request"] | {"object": "x"}}, "object"),
        (
            GOOD | {"request": GOOD["request"] | {"kind": {"group": "apps", "version": "v1", "kind": "Deployment"}}},
            "apps",
        ),
    ],
)
def test_a_malformed_review_is_400(server: Server, document: object, message: str) -> None:
    answer = ask(server, document)
    assert answer.status == 400
    assert answer.json["kind"] == "Status"
    assert message in answer.json["message"]


def test_a_body_that_is_no_json_and_another_method(server: Server) -> None:
    assert server.request("POST", PATH, raw=b"{").status == 400
    assert server.request("POST", PATH, raw=b"x", headers={"Content-Type": "text/plain"}).status == 415
    assert server.request("GET", PATH).status == 405
