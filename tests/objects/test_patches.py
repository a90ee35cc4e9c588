"""JSON patches and merge patches of stored objects."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from headgate.objects.kinds.patches import PatchFailedError, json_patch
from headgate_api.limits import JSON_PATCH_OPERATIONS_MAX
from headgate_api.objects.errors import MalformedObjectError
from tests.objects.support import Answer, Server, trigger

JSON_PATCH = {"Content-Type": "application/json-patch+json"}

# The examples of RFC 6902, appendix A, in its order; None is an error.
RFC_6902 = [
    ({"foo": "bar"}, [{"op": "add", "path": "/baz", "value": "qux"}], {"baz": "qux", "foo": "bar"}),
    ({"foo": ["bar", "baz"]}, [{"op": "add", "path": "/foo/1", "value": "qux"}], {"foo": ["bar", "qux", "baz"]}),
    ({"baz": "qux", "foo": "bar"}, [{"op": "remove", "path": "/baz"}], {"foo": "bar"}),
    ({"foo": ["bar", "qux", "baz"]}, [{"op": "remove", "path": "/foo/1"}], {"foo": ["bar", "baz"]}),
    ({"baz": "qux"}, [{"op": "replace", "path": "/baz", "value": "boo"}], {"baz": "boo"}),
    (
        {"foo": {"bar": "baz", "waldo": "fred"}, "qux": {"corge": "grault"}},
        [{"op": "move", "from": "/foo/waldo", "path": "/qux/thud"}],
        {"foo": {"bar": "baz"}, "qux": {"corge": "grault", "thud": "fred"}},
    ),
    (
        {"foo": ["all", "grass", "cows", "eat"]},
        [{"op": "move", "from": "/foo/1", "path": "/foo/3"}],
        {"foo": ["all", "cows", "eat", "grass"]},
    ),
    (
        {"baz": "qux", "foo": ["a", 2, "c"]},
        [{"op": "test", "path": "/baz", "value": "qux"}, {"op": "test", "path": "/foo/1", "value": 2}],
        {"baz": "qux", "foo": ["a", 2, "c"]},
    ),
    ({"baz": "qux"}, [{"op": "test", "path": "/baz", "value": "bar"}], None),
    ({"foo": "bar"}, [{"op": "add", "path": "/child", "value": {"g": {}}}], {"foo": "bar", "child": {"g": {}}}),
    ({"foo": "bar"}, [{"op": "add", "path": "/baz", "value": "qux", "xyz": 123}], {"foo": "bar", "baz": "qux"}),
    ({"foo": "bar"}, [{"op": "add", "path": "/baz/bat", "value": "qux"}], None),
    ({"/": 9, "~1": 10}, [{"op": "test", "path": "/~01", "value": 10}], {"/": 9, "~1": 10}),
    ({"/": 9, "~1": 10}, [{"op": "test", "path": "/~01", "value": "10"}], None),
    ({"foo": ["bar"]}, [{"op": "add", "path": "/foo/-", "value": ["abc"]}], {"foo": ["bar", ["abc"]]}),
]


@pytest.mark.parametrize(("document", "patch", "result"), RFC_6902)
def test_json_patch_as_rfc_6902_shows_it(document: object, patch: list[dict[str, object]], result: object) -> None:
    before = copy.deepcopy(document)
    if result is None:
        with pytest.raises(PatchFailedError):
            json_patch(document, patch)
    else:
        assert json_patch(document, patch) == result
    assert document == before


@pytest.mark.parametrize(
    ("document", "operation"),
    [
        ({}, {"op": "replace", "path": "/a", "value": 1}),
        ({}, {"op": "remove", "path": "/a"}),
        ({}, {"op": "remove", "path": ""}),
        ({"a": 1}, {"op": "add", "path": "/a/b", "value": 1}),
        ({"a": [1]}, {"op": "add", "path": "/a/2", "value": 1}),
        ({"a": [1]}, {"op": "add", "path": "/a/01", "value": 1}),
        ({"a": [1]}, {"op": "add", "path": "/a/x", "value": 1}),
        ({"a": [1]}, {"op": "replace", "path": "/a/-", "value": 1}),
        ({"a": [1]}, {"op": "replace", "path": "/a/-1", "value": 1}),
        ({"a": {"b": 1}}, {"op": "move", "from": "/a", "path": "/a/b/c"}),
        ({"a": 1}, {"op": "test", "path": "/a", "value": True}),
        ({"a": [0]}, {"op": "test", "path": "/a", "value": [False]}),
        ({"a": {"b": 1}}, {"op": "test", "path": "/a", "value": {"b": 1, "c": 2}}),
        ({"a": "b"}, {"op": "add", "path": "/a/0", "value": 1}),
        ({"a": [1]}, {"op": "remove", "path": f"/a/{'9' * 5_000}"}),
        ({"a": [1]}, {"op": "copy", "from": "/a/-", "path": "/b"}),
        ({}, {"op": "copy", "from": "/a", "path": "/b"}),
        ({"a": 1}, {"op": "move", "from": "/a", "path": "/b/c"}),
    ],
)
def test_what_does_not_fit_names_its_operation(document: object, operation: dict[str, object]) -> None:
    fine = {"op": "test", "path": "", "value": document}
    with pytest.raises(PatchFailedError, match=f"operation 1 \\({operation['op']}"):
        json_patch(document, [fine, operation])


def test_a_test_that_fails_tells_no_value() -> None:
    with pytest.raises(PatchFailedError) as raised:
        json_patch({"data": {"token": "hidden"}}, [{"op": "test", "path": "/data", "value": {}}])
    assert "hidden" not in str(raised.value)


def test_what_a_patch_nests_too_deep_is_refused() -> None:
    doubling = [{"op": "copy", "from": "/x", "path": "/x" * (2**power + 1)} for power in range(13)]
    with pytest.raises(PatchFailedError, match="too deep"):
        json_patch({"x": {}}, doubling)


@pytest.mark.parametrize(
    "patch",
    [
        7,
        {"op": "remove", "path": "/a"},
        ["remove"],
        [{"path": "/a"}],
        [{"op": "merge", "path": "/a"}],
        [{"op": ["add"], "path": "/a"}],
        [{"op": "add", "path": "/a"}],
        [{"op": "add", "value": 1}],
        [{"op": "move", "path": "/a"}],
        [{"op": "remove", "path": "a"}],
        [{"op": "remove", "path": "/a~2"}],
        [{"op": "remove", "path": 7}],
        [{"op": "remove", "path": "/a"}] * (JSON_PATCH_OPERATIONS_MAX + 1),
    ],
)
def test_what_is_no_json_patch_is_refused(patch: object) -> None:
    with pytest.raises(MalformedObjectError):
        json_patch({"a": 1}, patch)


def test_copies_do_not_multiply(server: Server) -> None:
    server.request("POST", server.path("triggers"), trigger())
    doubling = [{"op": "add", "path": "/x", "value": [0] * 100}, *[{"op": "copy", "from": "/x", "path": "/x/-"}] * 900]
    answer = patch(server, doubling)  # the unbounded patch would need more memory than there is
    assert (answer.status, answer.json["reason"]) == (422, "Invalid")
    assert "copies more than" in answer.json["message"]


def patch(server: Server, operations: object, **query: str) -> Answer:
    asked = "&".join(f"{key}={value}" for key, value in query.items())
    return server.request("PATCH", f"{server.path('triggers', 't1')}?{asked}", operations, headers=JSON_PATCH)


def test_a_json_patch_over_http(server: Server) -> None:
    made = server.request("POST", server.path("triggers"), trigger(filter={"attributes": {"type": "a"}})).json
    changed = patch(
        server,
        [
            {"op": "test", "path": "/spec/broker", "value": "default"},
            {"op": "remove", "path": "/spec/filter/attributes"},
            {"op": "add", "path": "/spec/filter/expression", "value": "ce.type == 'b'"},
            {"op": "add", "path": "/metadata/labels/example.com~1team", "value": "a"},
        ],
    )
    assert changed.status == 200
    assert changed.json["spec"]["filter"] == {"expression": "ce.type == 'b'"}
    assert changed.json["metadata"]["labels"]["example.com/team"] == "a"
    assert changed.json["metadata"]["generation"] == 2
    failed = patch(server, [{"op": "test", "path": "/spec/broker", "value": "x"}])
    assert (failed.status, failed.json["reason"]) == (422, "Invalid")
    assert "operation 0 (test '/spec/broker')" in failed.json["message"]
    invalid = patch(server, [{"op": "add", "path": "/spec/filter/expression", "value": "ce.type =="}])
    assert invalid.json["details"]["causes"][0]["field"] == "spec.filter.expression"
    misspelt = patch(server, [{"op": "add", "path": "/spec/filtr", "value": {}}])
    assert misspelt.status == 400
    stale = patch(server, [{"op": "test", "path": "/metadata/resourceVersion", "value": "0"}])
    assert stale.status == 422
    old = [{"op": "replace", "path": "/metadata/resourceVersion", "value": made["metadata"]["resourceVersion"]}]
    assert patch(server, [*old, {"op": "remove", "path": "/spec/filter"}]).status == 409
    dry = patch(server, [{"op": "remove", "path": "/spec/filter"}], dryRun="All").json
    assert "filter" not in dry["spec"]
    assert "filter" in server.request("GET", server.path("triggers", "t1")).json["spec"]


@pytest.mark.parametrize(
    ("media_type", "body", "hint"),
    [
        ("application/merge-patch+json", [{"op": "remove", "path": "/spec"}], "application/json-patch+json"),
        ("application/json-patch+json", {"spec": {}}, "application/merge-patch+json"),
    ],
)
def test_a_patch_under_the_other_patchs_type_names_the_right_one(
    server: Server, media_type: str, body: object, hint: str
) -> None:
    server.request("POST", server.path("triggers"), trigger())
    answer = server.request("PATCH", server.path("triggers", "t1"), body, headers={"Content-Type": media_type})
    assert answer.status == 400
    assert hint in answer.json["message"]


@pytest.mark.parametrize("media_type", ["application/strategic-merge-patch+json", "application/apply-patch+cbor"])
def test_other_patches_are_415_and_told_what_is_taken(server: Server, media_type: str) -> None:
    server.request("POST", server.path("triggers"), trigger())
    headers = {"Content-Type": media_type}
    answer = server.request("PATCH", server.path("triggers", "t1"), {"spec": {}}, headers=headers)
    assert answer.status == 415
    for taken in ("json-patch+json", "merge-patch+json", "apply-patch+yaml"):
        assert f"application/{taken}" in answer.json["message"]


def test_a_patch_with_what_json_cannot_hold_is_refused(server: Server) -> None:
    server.request("POST", server.path("triggers"), trigger())
    deep: Any = 0
    for _ in range(200):
        deep = [deep]
    body = json.dumps([{"op": "add", "path": "/spec/filter", "value": deep}]).encode()
    answer = server.request("PATCH", server.path("triggers", "t1"), raw=body, headers=JSON_PATCH)
    assert answer.status == 400
    assert "levels" in answer.json["message"]
