"""Server-side apply: who owns which field, conflicts, and what goes when it is no longer applied."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headgate.objects.api.admission import Admission
from headgate.objects.kinds.managers import Manager, WriteOptions, managers_of
from headgate_api.limits import FIELD_MANAGER_CHARS_MAX, UPDATE_MANAGERS_MAX
from headgate_api.objects.errors import ApplyConflictError
from headgate_api.objects.kinds import API_VERSION, Kind, ObjectKey
from tests.objects.support import Answer, Server, trigger

T1 = ObjectKey(Kind.TRIGGER, "default", "t1")
SINK = {"uri": "http://127.0.0.1:9/sink"}


def config(metadata: dict[str, Any] | None = None, **spec: object) -> dict[str, Any]:
    head = {"name": "t1", **(metadata or {})}
    return {"apiVersion": API_VERSION, "kind": "Trigger", "metadata": head, **({"spec": spec} if spec else {})}


def apply(server: Server, document: object, manager: str = "gitops", **query: str) -> Answer:
    asked = "&".join(f"{key}={value}" for key, value in {"fieldManager": manager, **query}.items())
    path = f"{server.path('triggers', 't1')}?{asked}"
    return server.request("PATCH", path, document, headers={"Content-Type": "application/apply-patch+yaml"})


def owned_by(answer: Answer) -> dict[tuple[str, str], Any]:
    return {
        (entry["manager"], entry["operation"]): entry["fieldsV1"] for entry in answer.json["metadata"]["managedFields"]
    }


def test_an_apply_creates_and_owns_what_it_names(server: Server) -> None:
    made = apply(server, config({"labels": {"team": "a"}}, broker="default", subscriber=SINK, delivery={"retry": 3}))
    assert made.status == 201
    assert owned_by(made) == {
        ("gitops", "Apply"): {
            "f:metadata": {"f:labels": {"f:team": {}}},
            "f:spec": {"f:broker": {}, "f:delivery": {"f:retry": {}}, "f:subscriber": {"f:uri": {}}},
        }
    }
    (entry,) = made.json["metadata"]["managedFields"]
    assert (entry["apiVersion"], entry["fieldsType"]) == (API_VERSION, "FieldsV1")
    assert entry["time"] == made.json["metadata"]["creationTimestamp"]
    same = apply(server, config({"labels": {"team": "a"}}, broker="default", subscriber=SINK, delivery={"retry": 3}))
    assert same.status == 200
    assert same.json["metadata"] == made.json["metadata"] | {
        "resourceVersion": same.json["metadata"]["resourceVersion"]
    }
    assert same.json["metadata"]["generation"] == 1


def test_what_is_no_longer_applied_goes_unless_somebody_else_owns_it(server: Server) -> None:
    apply(server, config({"labels": {"a": "1", "b": "1"}}, subscriber=SINK, delivery={"retry": 3, "timeout": "PT5S"}))
    apply(server, config({"labels": {"b": "1"}}, delivery={"retry": 3}), "other")
    server.merge(server.path("triggers", "t1"), {"metadata": {"annotations": {"note": "x"}}})
    left = apply(server, config({"labels": {}}, subscriber=SINK)).json
    assert left["metadata"]["labels"] == {"b": "1", "eventing.knative.dev/broker": "default"}
    assert left["spec"]["delivery"] == {"retry": 3}
    assert left["metadata"]["annotations"] == {"note": "x"}
    bare = apply(server, config({}), "other")
    assert "delivery" not in bare.json["spec"]
    assert bare.json["metadata"]["labels"] == {"eventing.knative.dev/broker": "default"}
    # The last owner of what every trigger has cannot leave it out.
    refused = apply(server, config({}))
    assert (refused.status, refused.json["details"]["causes"][0]["field"]) == (422, "spec.subscriber")


def test_another_value_for_a_field_of_somebody_else_is_a_conflict(server: Server) -> None:
    apply(server, config(subscriber=SINK, filter={"attributes": {"type": "a"}}, delivery={"retry": 3}))
    theirs = config(filter={"expression": "ce.type == 'b'"}, delivery={"retry": 4})
    refused = apply(server, theirs, "other")
    assert (refused.status, refused.json["reason"]) == (409, "Conflict")
    assert refused.json["message"] == (
        'Apply failed with 2 conflicts: conflicts with "gitops":\n- .spec.delivery.retry\n- .spec.filter'
    )
    assert refused.json["details"]["causes"] == [
        {"reason": "FieldManagerConflict", "message": 'conflict with "gitops"', "field": ".spec.delivery.retry"},
        {"reason": "FieldManagerConflict", "message": 'conflict with "gitops"', "field": ".spec.filter"},
    ]
    forced = apply(server, theirs, "other", force="true")
    assert forced.json["spec"]["filter"] == {"expression": "ce.type == 'b'"}
    assert owned_by(forced)["gitops", "Apply"] == {"f:spec": {"f:subscriber": {"f:uri": {}}}}
    one = apply(server, config(subscriber=SINK, delivery={"retry": 3}))
    assert one.json["message"] == ('Apply failed with 1 conflict: conflict with "other": .spec.delivery.retry')
    # The same value is owned by both.
    shared = apply(server, config(subscriber=SINK, delivery={"retry": 4}))
    assert shared.status == 200
    assert owned_by(shared)["gitops", "Apply"]["f:spec"]["f:delivery"] == {"f:retry": {}}
    assert owned_by(shared)["other", "Apply"]["f:spec"]["f:delivery"] == {"f:retry": {}}


def test_who_updates_a_field_owns_it(server: Server) -> None:
    apply(server, config(subscriber=SINK, delivery={"retry": 3}))
    changed = server.request(
        "PATCH",
        f"{server.path('triggers', 't1')}?fieldManager=kubectl-edit",
        {"spec": {"delivery": {"retry": 5}}},
        headers={"Content-Type": "application/merge-patch+json"},
    )
    assert owned_by(changed)["kubectl-edit", "Update"] == {"f:spec": {"f:delivery": {"f:retry": {}}}}
    assert owned_by(changed)["gitops", "Apply"] == {"f:spec": {"f:subscriber": {"f:uri": {}}}}
    refused = apply(server, config(subscriber=SINK, delivery={"retry": 3}))
    assert refused.json["message"] == (
        f'Apply failed with 1 conflict: conflict with "kubectl-edit" using {API_VERSION}: .spec.delivery.retry'
    )
    document = changed.json
    del document["spec"]["delivery"], document["metadata"]["resourceVersion"]
    removed = server.request(
        "PUT", server.path("triggers", "t1"), document, headers={"User-Agent": "operator/v1.2 (linux)"}
    )
    assert ("kubectl-edit", "Update") not in owned_by(removed)
    document["spec"]["delivery"] = {"retry": 1}
    put = server.request("PUT", server.path("triggers", "t1"), document, headers={"User-Agent": "operator/v1.2"})
    assert owned_by(put)["operator", "Update"] == {"f:spec": {"f:delivery": {"f:retry": {}}}}


def test_an_object_from_before_has_an_owner_of_everything(admission: Admission) -> None:
    key = ObjectKey(Kind.BROKER, "default", "default")
    assert not admission.store.get(key).metadata.managed_fields
    other = {
        "apiVersion": API_VERSION,
        "kind": "Broker",
        "metadata": {"name": "default", "annotations": {"eventing.knative.dev/broker.class": "Other"}},
    }
    with pytest.raises(ApplyConflictError, match="before-first-apply"):
        admission.server_side_apply(key, other, WriteOptions(Manager("a", "Apply")))
    other["metadata"] = {"name": "default", "labels": {"a": "b"}}
    made = admission.server_side_apply(key, other, WriteOptions(Manager("a", "Apply"))).obj
    assert set(managers_of(made)) == {("a", "Apply"), ("before-first-apply", "Update")}


def test_finalizers_are_a_set(server: Server) -> None:
    apply(server, config({"finalizers": ["a.example/x"]}, subscriber=SINK))
    both = apply(server, config({"finalizers": ["b.example/y"]}), "other")
    assert both.json["metadata"]["finalizers"] == ["a.example/x", "b.example/y"]
    assert owned_by(both)["other", "Apply"] == {"f:metadata": {"f:finalizers": {'v:"b.example/y"': {}}}}
    left = apply(server, config(subscriber=SINK))
    assert left.json["metadata"]["finalizers"] == ["b.example/y"]


def test_many_updates_share_an_owner(admission: Admission) -> None:
    admission.create(Kind.TRIGGER, trigger())
    for number in range(UPDATE_MANAGERS_MAX + 5):
        document = json.loads(json.dumps(trigger()))
        document["metadata"]["labels"] = {f"l{n}": "x" for n in range(number + 1)}
        admission.replace(T1, document, WriteOptions(Manager(f"m{number}")))
    found = managers_of(admission.store.get(T1))
    assert len(found) == UPDATE_MANAGERS_MAX
    assert ("ancient-changes", "Update") in found
    labels = {path[-1] for owned in found.values() for path in owned.paths if path[1:2] == ("f:labels",)}
    assert labels == {f"f:l{n}" for n in range(UPDATE_MANAGERS_MAX + 5)}


@pytest.mark.parametrize(
    ("query", "body", "status", "message"),
    [
        ({"manager": ""}, config(subscriber=SINK), 422, "is required for apply patch"),
        ({"manager": "x" * (FIELD_MANAGER_CHARS_MAX + 1)}, config(subscriber=SINK), 422, "printable characters"),
        ({"manager": "a%0Ab"}, config(subscriber=SINK), 422, "printable characters"),
        ({}, config({"managedFields": [{"manager": "x"}]}, subscriber=SINK), 400, "managedFields must be nil"),
        ({}, config({"name": "other"}, subscriber=SINK), 400, "does not match the name on the URL"),
        ({}, config({"resourceVersion": "1"}, subscriber=SINK), 400, "resourceVersion should not be set"),
        ({}, {"kind": "Trigger", "metadata": {"name": "t1"}}, 400, "apiVersion"),
        ({}, {"apiVersion": API_VERSION, "kind": "Trigger"}, 400, "metadata is missing"),
        ({}, ["x"], 400, "must be an object"),
        ({}, config(subscriber=SINK, brokr="x"), 400, 'unknown field "spec.brokr"'),
        ({}, config({"labels": "x"}, subscriber=SINK), 422, "labels"),
    ],
)
def test_what_is_wrong_with_an_apply_is_told(
    server: Server, query: dict[str, str], body: object, status: int, message: str
) -> None:
    answer = apply(server, body, **query)
    assert (answer.status, answer.json["kind"]) == (status, "Status")
    assert message in answer.json["message"]


def test_a_stale_apply_and_a_forced_update_are_refused(server: Server) -> None:
    made = apply(server, config(subscriber=SINK)).json
    version = made["metadata"]["resourceVersion"]
    server.merge(server.path("triggers", "t1"), {"metadata": {"labels": {"a": "b"}}})
    assert apply(server, config({"resourceVersion": version}, subscriber=SINK)).status == 409
    assert apply(server, config({"uid": "another"}, subscriber=SINK)).status == 409
    forced = server.request(
        "PATCH",
        f"{server.path('triggers', 't1')}?force=true",
        {},
        headers={"Content-Type": "application/merge-patch+json"},
    )
    assert (forced.status, forced.json["reason"]) == (422, "Invalid")


def test_managed_fields_of_clients_are_taken_when_they_are_understood(server: Server) -> None:
    made = apply(server, config(subscriber=SINK, delivery={"retry": 3}))
    path = server.path("triggers", "t1")
    for nonsense in (
        [{"manager": "x", "operation": "Apply", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": 7}}],
        [{"manager": "x", "operation": "Seize", "fieldsType": "FieldsV1", "fieldsV1": {}}],
        [7],
        [],
        {"a": 1},
    ):
        kept = server.merge(path, {"metadata": {"managedFields": nonsense}})
        assert kept.status == 200
        assert owned_by(kept) == owned_by(made)
    given = [
        {
            "manager": "x",
            "operation": "Apply",
            "apiVersion": API_VERSION,
            "time": "2026-01-01T00:00:00Z",
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:spec": {"f:subscriber": {".": {}, "f:uri": {}}, "f:nosuch": {}}},
        }
    ]
    taken = server.merge(path, {"metadata": {"managedFields": given}})
    assert owned_by(taken) == {("x", "Apply"): {"f:spec": {"f:subscriber": {"f:uri": {}}}}}
    assert "managedFields" not in server.merge(path, {"metadata": {"managedFields": [{}]}}).json["metadata"]
