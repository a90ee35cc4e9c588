"""A broker's filter over HTTP: the union of its triggers' filters, with an ETag, and a wait for changes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

import pytest

from headgate.filter.compile.plan import CompiledFilter
from headgate.filter.tools import union as union_module
from tests.objects.support import Answer, Server, broker, trigger
from tests.support import eventually

PATH = "/apis/headgate.dev/v1/namespaces/default/brokers/default/filter"


def put(server: Server, name: str, cel: str, **more: object) -> None:
    document = trigger(name, filter={"cel": cel}, **more)
    assert server.request("POST", server.path("triggers"), document).status == 201


def test_tells_what_the_triggers_of_a_broker_want(server: Server) -> None:
    assert server.request("GET", PATH).json["cel"] == "false"
    server.request("POST", server.path("brokers"), broker("other"))
    put(server, "a", "ce.type == 'a'")
    put(server, "b", "ce.type == 'b' && data.n > 1")
    put(server, "c", "ce.type == 'b'")
    put(server, "elsewhere", "ce.type == 'x'", broker="other")
    answer = server.request("GET", PATH)
    assert answer.status == 200
    assert answer.json == {
        "apiVersion": "headgate.dev/v1",
        "kind": "BrokerFilter",
        "metadata": {"namespace": "default", "name": "default"},
        "cel": 'ce.type in ["a", "b"]',
        "exact": True,
        "triggers": 3,
    }
    server.request("DELETE", server.path("triggers", "a"))
    assert server.request("GET", PATH).json["cel"] == 'ce.type == "b"'


def test_one_broker_that_takes_long_holds_up_no_other(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.request("POST", server.path("brokers"), broker("other"))
    put(server, "a", "ce.type == 'a'")
    entered, release, computed = threading.Event(), threading.Event(), []
    real = union_module.union

    def slow(filters: Iterable[CompiledFilter]) -> union_module.Union:
        given = list(filters)
        if given:
            computed.append(given)
            entered.set()
            assert release.wait(20)
        return real(given)

    monkeypatch.setattr(union_module, "union", slow)
    answers: list[Answer] = []
    asking = [threading.Thread(target=lambda: answers.append(server.request("GET", PATH))) for _ in range(2)]
    for thread in asking:
        thread.start()
    try:
        assert entered.wait(20)
        assert server.request("GET", PATH.replace("brokers/default", "brokers/other")).json["cel"] == "false"
    finally:
        release.set()
        for thread in asking:
            thread.join()
    assert [answer.json["cel"] for answer in answers] == ['ce.type == "a"'] * 2
    assert len(computed) == 1


def test_a_broker_that_does_not_exist(server: Server) -> None:
    assert server.request("GET", PATH.replace("brokers/default", "brokers/nosuch")).status == 404


def test_an_etag_spares_the_body(server: Server) -> None:
    put(server, "a", "ce.type == 'a'")
    first = server.request("GET", PATH)
    tag = first.headers["etag"]
    for given in (tag, f"W/{tag}", f'"x", {tag}', "*"):
        again = server.request("GET", PATH, headers={"If-None-Match": given})
        assert (again.status, again.body, again.headers["etag"]) == (304, b"", tag)
    assert server.request("GET", PATH, headers={"If-None-Match": '"x"'}).status == 200
    put(server, "b", "ce.type == 'b'")
    changed = server.request("GET", PATH, headers={"If-None-Match": tag})
    assert changed.status == 200
    assert changed.headers["etag"] != tag


def test_waits_for_a_change(server: Server) -> None:
    tag = server.request("GET", PATH).headers["etag"]
    answers: list[Answer] = []

    def ask() -> None:
        answers.append(server.request("GET", f"{PATH}?wait=15s", headers={"If-None-Match": tag}))

    waiting = threading.Thread(target=ask)
    waiting.start()
    time.sleep(0.3)
    assert not answers
    put(server, "a", "ce.type == 'a'")
    eventually(lambda: bool(answers))
    waiting.join()
    assert answers[0].status == 200
    assert answers[0].json["cel"] == 'ce.type == "a"'


def test_a_wait_without_a_change_ends(server: Server) -> None:
    tag = server.request("GET", PATH).headers["etag"]
    assert server.request("GET", f"{PATH}?wait=0.2s", headers={"If-None-Match": tag}).status == 304
    # Without a tag that is current there is nothing to wait for.
    assert server.request("GET", f"{PATH}?wait=PT15S").status == 200


@pytest.mark.parametrize("wait", ["abc", "-1s", "1e9", "PT"])
def test_a_wait_that_is_none(server: Server, wait: str) -> None:
    assert server.request("GET", f"{PATH}?wait={wait}").status == 400
