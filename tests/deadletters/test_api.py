"""Dead letters over HTTP, without a server: what a selection means, what it costs, and which requests are refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
from starlette.applications import Starlette
from typer.testing import CliRunner

from headgate.auth.authorizer import NOTHING
from headgate.auth.context import USER
from headgate.auth.user import ANONYMOUS, User, authenticated
from headgate.deadletters import api as letters_api
from headgate.deadletters import store as letters_module
from headgate.deadletters.api import DeadLettersApi
from headgate.deadletters.sink_sender import DeadLetters
from headgate.deadletters.store import DeadLetterState, DeadLetterStore
from headgate.objects.api.http import ERROR_HANDLERS
from headgate_cli import redelivery
from tests.deadletters.letters import letter, page
from tests.delivery.harness import attempt_service, event, target

BASE = "/apis/headgate.dev/v1/namespaces/default/deadletters"


class Api:
    """The handlers over a store of a temporary directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = DeadLetterStore(path)
        self.gone: set[int] = set()
        self.triggers: set[str] = set()

    def ask(
        self, method: str, path: str, body: bytes = b"", *, query: bytes = b"", user: User = ANONYMOUS
    ) -> tuple[int, Any]:
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"content-type", b"application/json")]
        scope = {"type": "http", "method": method, "path": path, "query_string": query, "headers": headers}
        scope[USER] = user

        async def serve() -> None:
            owner = DeadLetters(
                self.path,
                attempt_service(None),
                lambda id_: None if id_ in self.gone else target(id_, "http://x/"),
                find_trigger=lambda name: (
                    replace(target(77, "http://y/"), name=name) if name in self.triggers else None
                ),
            )
            routes = list(DeadLettersApi(self.path, owner).routes())
            await Starlette(routes=routes, exception_handlers=ERROR_HANDLERS)(scope, receive, send)
            await owner.close()

        asyncio.run(serve())
        return sent[0]["status"], json.loads(b"".join(message.get("body", b"") for message in sent))

    def post(self, what: str, **body: object) -> Any:
        status, answer = self.ask("POST", f"{BASE}/{what}", json.dumps(body).encode())
        assert status == 200, answer
        return answer

    @property
    def states(self) -> list[DeadLetterState]:
        return [one.state for one in page(self.store.reader)]


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    api = Api(tmp_path / "deadletters.db")
    yield api
    api.store.close()


def test_where_nobody_knows_what_is_whose_a_user_below_a_ceiling_is_told_nothing(api: Api) -> None:
    api.store.apply([letter(n, state=DeadLetterState.KEPT) for n in range(3)], [], [])
    user = replace(authenticated("blue"), ceiling=NOTHING)
    asked = [("GET", BASE), ("GET", f"{BASE}/counts"), ("GET", f"{BASE}/1"), ("POST", f"{BASE}/known")]
    for method, path in (*asked, ("POST", f"{BASE}/redrive"), ("POST", f"{BASE}/discard")):
        status, answer = api.ask(method, path, b'{"ids": [1]}' if method == "POST" else b"", user=user)
        assert (status, "nobody knows here" in answer["message"]) == (503, True)
    assert api.states == [DeadLetterState.KEPT] * 3


def test_dead_letters_of_a_trigger_that_is_gone_stay_kept_and_are_told(api: Api) -> None:
    api.store.apply([letter(n, state=DeadLetterState.KEPT) for n in range(3)], [], [])
    api.gone = {one.target for one in page(api.store.reader)}
    answer = api.post("redrive")
    assert (answer["count"], answer["gone"]) == (0, 3)
    assert api.states == [DeadLetterState.KEPT] * 3
    assert api.post("discard")["count"] == 3


def test_dead_letters_are_sent_to_another_trigger(api: Api) -> None:
    api.store.apply([letter(n, state=DeadLetterState.KEPT) for n in range(3)], [], [])
    api.gone = {one.target for one in page(api.store.reader)}
    status, answer = api.ask("POST", f"{BASE}/redrive/heir", b"{}")
    assert (status, "no trigger 'heir' in namespace 'default'" in answer["message"]) == (404, True), answer
    assert api.states == [DeadLetterState.KEPT] * 3, "nothing was done"
    api.triggers = {"default/heir"}
    answer = api.post("redrive/heir", rate=1)
    assert (answer["count"], answer["gone"]) == (3, 0)
    found = page(api.store.reader)
    assert {(one.target, one.trigger, one.state, one.broker) for one in found} == {
        (77, "default/heir", DeadLetterState.REDRIVING, "default/default")
    }
    assert [one.due_us - found[0].due_us for one in found] == [0, 1_000_000, 2_000_000], "they keep the pace"


@pytest.mark.parametrize(
    ("answer", "arguments", "exit_code", "words"),
    [
        ({"count": 2, "gone": 0}, ["--to-trigger", "default/t"], 0, "2 dead letters are being sent again"),
        ({"count": 2, "gone": 0}, ["--to-trigger", "other/t"], 2, "must be in namespace default"),
        ({"count": 2, "gone": 0}, ["--trigger", "t"], 0, "2 dead letters are being sent again"),
        ({"count": 0, "gone": 3}, [], 1, "3 dead letters were not sent and stay kept: their trigger is deleted"),
        ({"count": 0, "gone": 0}, ["--trigger", "typo"], 1, "no dead letter was selected"),
        ({"count": 0, "gone": 0}, ["7"], 1, "no dead letter was selected"),
        ({"count": 0, "gone": 0}, [], 0, "0 dead letters are being sent again"),
    ],
)
def test_the_command_claims_only_what_is_sent(
    answer: dict[str, int], arguments: list[str], exit_code: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redelivery, "request", lambda *_, **__: answer)
    result = CliRunner().invoke(redelivery.deadletters, ["redrive", *arguments])
    assert result.exit_code == exit_code
    assert words in result.output


@pytest.mark.parametrize("what", ["redrive", "discard"])
def test_without_ids_or_a_state_only_letters_that_are_kept_are_meant(api: Api, what: str) -> None:
    api.store.apply(
        [letter(n, state=DeadLetterState.KEPT if n % 2 else DeadLetterState.SENDING) for n in range(4)], [], []
    )
    assert api.post(what)["count"] == 2
    assert api.states.count(DeadLetterState.SENDING) == 2
    assert api.post(what, ids=[1])["count"] == 1
    assert api.post(what, state="sending")["count"] == 1
    assert DeadLetterState.SENDING not in api.states


def test_ids_that_are_there_are_known(api: Api) -> None:
    api.store.apply([letter(n, state=DeadLetterState.KEPT) for n in range(3)], [], [])
    assert api.post("known", ids=[1, 99, 3, 4711]) == {"known": [1, 3]}
    status, answer = api.ask("POST", BASE.replace("/default/", "/other/") + "/known", b'{"ids": [1]}')
    assert (status, answer) == (200, {"known": []})


def test_a_list_reads_no_event_and_with_a_filter_one_at_a_time(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    api.store.apply([letter(n, state=DeadLetterState.KEPT, event=event(n, type=f"t{n % 2}")) for n in range(6)], [], [])
    did: list[str] = []
    decode, takes = letters_module._decode_event, letters_api._takes
    monkeypatch.setattr(letters_module, "_decode_event", lambda raw: did.append("read") or decode(raw))
    monkeypatch.setattr(letters_api, "_takes", lambda *given: takes(*given) and not did.append("took"))
    status, answer = api.ask("GET", BASE)
    assert (status, [item["eventId"] for item in answer["items"]]) == (200, [f"e{n}" for n in range(6)])
    assert did == []
    status, answer = api.ask("GET", BASE, query=b"filter=ce.type%3D%3D%27t1%27")
    assert (status, [item["eventId"] for item in answer["items"]]) == (200, ["e1", "e3", "e5"])
    assert did == ["read", "read", "took"] * 3


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("limit=²", "$.limit"),
        ("limit=0", "1 to 1000"),
        ("after=" + "9" * 30, "$.after"),
        ("after=" + "9" * 5_000, "$.after"),
        ("ceiling=-1", "$.ceiling"),
        ("ids=1", "$.ids"),
        ("nosuch=1", "nosuch"),
        ("filter=publish_time%3Etimestamp(0)", "does not keep its publish_time"),
    ],
)
def test_a_query_that_cannot_be_meant_is_refused(api: Api, query: str, named: str) -> None:
    status, answer = api.ask("GET", BASE, query=query.encode())
    assert status == (422 if query.startswith("filter=") else 400)
    assert named in answer["message"]


@pytest.mark.parametrize("id_", ["9" * 20, "9" * 5_000, "²", "nosuch"])
def test_an_id_that_none_can_be_is_refused(api: Api, id_: str) -> None:
    status, answer = api.ask("GET", f"{BASE}/{id_}")
    assert status == 400
    assert "is no id" in answer["message"]


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b'{"rate":1e-20}', "0.01"),
        (b'{"rate":1e9}', "10000"),
        (b'{"after":%s}' % (b"9" * 25), "$.after"),
        (b'{"ids":[%s]}' % (b"9" * 25), "$.ids"),
        (b'{"trigger":"\xff"}', "utf-8"),
        (b'{"trigger":"\\ud800"}', "selection"),
        (b"", "selection"),
    ],
)
def test_a_body_that_cannot_be_meant_is_refused(api: Api, body: bytes, named: str) -> None:
    status, answer = api.ask("POST", f"{BASE}/redrive", body)
    assert status == 400
    assert named in answer["message"]


def test_a_letter_is_shown_with_its_event(api: Api) -> None:
    api.store.apply([letter(7, state=DeadLetterState.KEPT, sink="http://sink/")], [], [])
    status, answer = api.ask("GET", f"{BASE}/1")
    assert status == 200
    assert (answer["eventId"], answer["answer"], answer["sink"]) == ("e7", "no", "http://sink/")
    assert answer["event"]["data"] == {"n": 1}
    api.store.discard([1])
    assert api.ask("GET", f"{BASE}/1")[0] == 404
    assert api.store.reader.event(1) is None


@pytest.mark.parametrize(("arguments", "asked"), [((), [3, 1]), (("--filter", "true"), [None, None])])
def test_the_command_asks_for_no_more_letters_than_it_shows(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], asked: list[int | None]
) -> None:
    limits_asked: list[int | None] = []

    def request(server: str, method: str, path: str) -> dict[str, Any]:
        query = dict(parse_qsl(path.partition("?")[2]))
        limits_asked.append(int(query["limit"]) if "limit" in query else None)
        return {"items": [{"id": 1}] * 2, "next": 1, "ceiling": 9}

    monkeypatch.setattr(redelivery, "request", request)
    result = CliRunner().invoke(redelivery.deadletters, ["list", "--limit", "3", "--json", *arguments])
    assert len(json.loads(result.output)) == 3
    assert limits_asked == asked
