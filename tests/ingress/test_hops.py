"""Hop count and root on their way in: from the headers only, within their limits."""

from __future__ import annotations

import asyncio

import pytest

from headgate.auth.user import ANONYMOUS, User, authenticated
from headgate.event.hops import Descendants, hops_of, place_root, root_of
from headgate.ingress.publish_http import Ingress
from headgate.observe.metrics import REQUESTS_REFUSED
from headgate_api import limits
from headgate_api.errors import UnavailableError
from headgate_api.event.http import BATCH_JSON, STRUCTURED_JSON
from headgate_api.event.model import Event
from headgate_api.limits import HOPS_MAX, ROOT_CHARS_MAX
from tests.ingress.support import OWN, Answer, FakeLog, call, ingress, run

ATTRIBUTES = [("ce-specversion", "1.0"), ("ce-id", "1"), ("ce-source", "/s"), ("ce-type", "t"), ("ce-x", "y")]


def test_the_header_becomes_part_of_the_stored_event():
    log = FakeLog()
    answer, _ = run(call(ingress(log), headers=[*ATTRIBUTES, ("headgate-hops", str(HOPS_MAX))], pieces=(b"data",)))
    assert answer.status == 202
    assert log.events[0].extensions == {"x": "y", "headgatehops": HOPS_MAX}
    body = b'[{"specversion":"1.0","id":"1","source":"/s","type":"t"}]'
    answer, _ = run(call(ingress(log), headers=[("content-type", BATCH_JSON), ("headgate-hops", "2")], pieces=(body,)))
    assert (answer.status, hops_of(log.events[1])) == (202, 2)
    answer, _ = run(call(ingress(log), headers=ATTRIBUTES, pieces=(b"",)))
    assert log.events[2].extensions == {"x": "y"}


@pytest.mark.parametrize(
    ("value", "code"),
    [(str(HOPS_MAX + 1), "too-many-hops"), ("-1", "invalid"), ("one", "invalid"), ("1" * 10, "invalid")],
)
def test_too_many_hops_and_no_number_are_refused_for_good(value: str, code: str):
    log = FakeLog()
    answer, _ = run(call(ingress(log), headers=[*ATTRIBUTES, ("headgate-hops", value)], pieces=(b"",)))
    assert (answer.status, answer.problem["code"], log.submits) == (400, code, [])
    assert "retry-after" not in answer.headers


def test_nobody_says_the_count_as_an_attribute():
    log = FakeLog()
    answer, _ = run(call(ingress(log), headers=[*ATTRIBUTES, ("ce-headgatehops", "0")], pieces=(b"",)))
    assert (answer.status, answer.problem["attribute"]) == (400, "headgatehops")
    body = b'{"specversion":"1.0","id":"1","source":"/s","type":"t","headgatehops":0}'
    headers = [("content-type", STRUCTURED_JSON), ("headgate-hops", "3")]
    answer, _ = run(call(ingress(log), headers=headers, pieces=(body,)))
    assert (answer.status, log.submits) == (400, [])


def sent(
    app: Ingress, root: str, count: int = 1, hops: str = "1", path: str = "/ns/b", user: User | None = None
) -> Answer:
    """What a delivery of the server's own gets, or one of a user's."""
    body = b",".join([b'{"specversion":"1.0","id":"1","source":"/s","type":"t"}'] * count)
    headers = [("content-type", BATCH_JSON), ("headgate-hops", hops), ("headgate-root", root)]
    headers += [OWN] if user is None else []
    answer, _ = run(call(app, path=path, headers=headers, pieces=(b"[" + body + b"]",), user=user or ANONYMOUS))
    return answer


def test_the_root_becomes_part_of_the_stored_event():
    log = FakeLog()
    assert sent(ingress(log), "0-7-1a2b").status == 202
    assert log.events[0].extensions == {"headgatehops": 1, "headgateroot": "0-7-1a2b"}
    answer, _ = run(call(ingress(log), headers=[*ATTRIBUTES, OWN, ("headgate-root", "0-7-1a2b")], pieces=(b"",)))
    assert answer.status == 202
    assert log.events[1].extensions == {"x": "y"}, "without a count it is a producer's"


@pytest.mark.parametrize("root", ["a b", "\x7f", "\xe9", "x" * (ROOT_CHARS_MAX + 1)])
def test_a_root_that_is_none_is_refused(root: str):
    answer = sent(ingress(FakeLog()), root)
    assert (answer.status, answer.problem["code"]) == (400, "invalid")


def test_nobody_says_the_root_as_an_attribute():
    headers = [*ATTRIBUTES, ("ce-headgateroot", "x")]
    answer, _ = run(call(ingress(FakeLog()), headers=headers, pieces=(b"",)))
    assert (answer.status, answer.problem["attribute"]) == (400, "headgateroot")


def test_a_tree_is_bounded_and_others_grow_on(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "DESCENDANTS_MAX", 5)
    refused = REQUESTS_REFUSED.labels("too-many-descendants").value
    log = FakeLog()
    app = ingress(log)
    assert [sent(app, "a", count).status for count in (2, 2, 2, 1, 1)] == [202, 202, 422, 202, 422]
    answer = sent(app, "a", hops="7")
    assert (answer.problem["code"], "retry-after" in answer.headers) == ("too-many-descendants", False)
    assert sent(app, "b").status == 202
    assert len(log.events) == 6
    assert REQUESTS_REFUSED.labels("too-many-descendants").value == refused + 3


def test_a_tree_takes_nothing_from_outside_and_nothing_of_another_namespace(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "DESCENDANTS_MAX", 2)
    log = FakeLog()
    app = ingress(log, brokers=("ns/b", "other/b"))
    ann, bob = authenticated("ann"), authenticated("bob")
    ours = place_root(log_event(), 0, 7)
    assert [sent(app, ours, user=bob).status for _ in range(3)] == [202, 202, 422], "his own trees are bounded"
    assert [sent(app, ours, path="/other/b").status for _ in range(3)] == [202, 202, 422]
    assert sent(app, ours, user=ann).status == 202
    stored = root_of(log.events[-1])
    assert [sent(app, stored, user=bob).status for _ in range(2)] == [422, 422], "another one's tree is his own again"
    assert [sent(app, stored, user=ann).status for _ in range(2)] == [202, 422], "it came back from another server"
    assert [sent(app, ours).status for _ in range(3)] == [202, 202, 422]
    assert len({root_of(event) for event in log.events}) == 3


@pytest.mark.parametrize("shown", ["", "00", (b"another" * 4).hex()])
def test_only_the_token_makes_a_delivery_the_servers_own(shown: str):
    log = FakeLog()
    headers = [*ATTRIBUTES, ("headgate-hops", "1"), ("headgate-root", "0-7-1a2b"), ("headgate-token", shown)]
    assert run(call(ingress(log), headers=headers, pieces=(b"",)))[0].status == 202
    assert root_of(log.events[0]) not in ("", "0-7-1a2b")
    foreign = [*headers[:-2], ("headgate-root", "x" * ROOT_CHARS_MAX)]
    assert run(call(ingress(log), headers=foreign, pieces=(b"",)))[0].status == 202
    assert len(root_of(log.events[1])) <= ROOT_CHARS_MAX, "the next server takes it"


def log_event() -> Event:
    return Event("1.0", "1", "/s", "t")


def test_what_is_not_stored_does_not_count(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "DESCENDANTS_MAX", 2)
    log = FakeLog(UnavailableError("the disk is full"))
    app = ingress(log)
    assert [sent(app, "a").status for _ in range(5)] == [503] * 5
    log.error = None
    assert [sent(app, "a").status for _ in range(3)] == [202, 202, 422]


def test_those_that_wait_for_the_disk_together_count(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "DESCENDANTS_MAX", 3)
    log = FakeLog()
    app = ingress(log)
    headers = [*ATTRIBUTES, OWN, ("headgate-hops", "1"), ("headgate-root", "a")]

    async def scenario() -> list[int]:
        log.gate = asyncio.Event()
        waiting = [asyncio.create_task(call(app, headers=headers, pieces=(b"",))) for _ in range(8)]
        await asyncio.sleep(0.01)
        log.gate.set()
        return sorted([(await one)[0].status for one in waiting])

    assert run(scenario()) == [202] * 3 + [422] * 5
    assert len(log.events) == 3


def test_few_trees_are_remembered_those_that_grew_last(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "ROOTS_KEPT_MAX", 3)
    trees = Descendants()
    for root in ("a", "b", "c", "a", "d"):
        trees.take(root, 1)
    assert dict(trees._counts) == {"c": 1, "a": 2, "d": 1}
