"""Lists at a resourceVersion: `resourceVersionMatch`."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.objects.store import history
from tests.objects.support import Answer, Server, trigger
from tests.support import eventually


def listed(server: Server, **query: object) -> Answer:
    asked = "&".join(f"{key}={value}" for key, value in query.items())
    return server.request("GET", f"{server.path('triggers')}?{asked}")


def at(server: Server, version: str, **query: object) -> Any:
    answer = listed(server, resourceVersion=version, resourceVersionMatch="Exact", **query)
    assert answer.status == 200, answer.body
    assert answer.json["metadata"]["resourceVersion"] == version
    return answer.json


def names(found: Any) -> list[str]:
    return [item["metadata"]["name"] for item in found["items"]]


def test_exact_lists_what_was_there(server: Server) -> None:
    for name in ("a", "b", "c", "d"):
        server.request("POST", server.path("triggers"), trigger(name))
        eventually(lambda name=name: server.ready("triggers", name) == "True")  # type: ignore[misc]
    then = listed(server).json
    version = then["metadata"]["resourceVersion"]
    server.request("DELETE", server.path("triggers", "b"))
    server.request("DELETE", server.path("triggers", "d"))
    server.request("POST", server.path("triggers"), trigger("d"))
    server.request("POST", server.path("triggers"), trigger("bb"))
    server.merge(server.path("triggers", "c"), {"metadata": {"labels": {"late": "x"}}})
    assert names(listed(server).json) == ["a", "bb", "c", "d"]
    assert at(server, version)["items"] == then["items"]
    assert names(at(server, version, labelSelector="late")) == []
    assert at(server, version, fieldSelector="metadata.name%3Db")["items"] == [then["items"][1]]
    first = at(server, version, limit=2)
    rest = listed(server, limit=2, **{"continue": first["metadata"]["continue"]}).json
    assert [*first["items"], *rest["items"]] == then["items"]
    assert rest["metadata"] == {"resourceVersion": version}
    # Without a match the version is a lower bound, as it always was.
    assert names(listed(server, resourceVersion=version).json) == ["a", "bb", "c", "d"]
    assert names(listed(server, resourceVersion=version, resourceVersionMatch="NotOlderThan").json)[1] == "bb"


def test_what_is_no_longer_kept_is_gone(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.request("POST", server.path("triggers"), trigger("a"))
    eventually(lambda: server.ready("triggers", "a") == "True")
    version = listed(server).json["metadata"]["resourceVersion"]
    monkeypatch.setattr(history, "WATCH_EVENTS_MAX", 1)
    monkeypatch.setattr(history, "TRIM_SLACK", 0)
    for number in range(3):
        server.merge(server.path("triggers", "a"), {"metadata": {"labels": {"n": str(number)}}})
    answer = listed(server, resourceVersion=version, resourceVersionMatch="Exact")
    assert (answer.status, answer.json["reason"]) == (410, "Expired")
    newest = listed(server).json["metadata"]["resourceVersion"]
    assert names(at(server, newest)) == ["a"]


@pytest.mark.parametrize("match", ["Exact", "NotOlderThan"])
def test_a_version_of_the_future_is_told_to_come_back(server: Server, match: str) -> None:
    answer = listed(server, resourceVersion=10**9, resourceVersionMatch=match)
    assert (answer.status, answer.json["reason"]) == (504, "Timeout")
    assert answer.json["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"
    assert answer.headers["retry-after"] == "1"


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ({"resourceVersionMatch": "Exact"}, "unless resourceVersion is provided"),
        ({"resourceVersionMatch": "Exact", "resourceVersion": "0"}, "is forbidden for resourceVersion"),
        ({"resourceVersionMatch": "Older", "resourceVersion": "1"}, "supported values"),
        ({"resourceVersionMatch": "Exact", "resourceVersion": "1", "continue": "x"}, "when continue is provided"),
    ],
)
def test_what_makes_no_sense_is_refused(server: Server, query: dict[str, str], problem: str) -> None:
    answer = listed(server, **query)
    assert (answer.status, answer.json["reason"]) == (422, "Invalid")
    assert problem in answer.json["message"]
