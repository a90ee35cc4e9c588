"""What was probably meant in a filter, over HTTP: asked of the catalogue, in dry runs, in lint; and who may know it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from headgate.auth.authorizer import Binding, BindingSubject, RbacAuthorizer, RbacPolicy, RoleKey, SubjectKind
from headgate.auth.context import USER
from headgate.auth.routes import CATALOGUE, EVENTING, wanted_by_request
from headgate.auth.rules import AccessRule
from headgate.auth.user import authenticated
from headgate.inspect.api import InspectApi
from headgate.inspect.catalogue import Catalogues
from headgate.inspect.log_follower import LogFollower
from headgate.log.directory import LogDirectory
from headgate.objects.api.api import ControlApi
from headgate.objects.api.grants import Grants
from headgate.objects.api.http import ERROR_HANDLERS
from headgate.objects.kinds.egress import UrlPolicy
from headgate.scan.chunks import ChunkLog
from headgate_api.objects.kinds import Kind, ObjectKey
from headgate_cli import client
from tests.commands import headgate
from tests.inspect.test_why import World, event
from tests.inspect.test_why import world as _world
from tests.objects.support import trigger

BASE = f"/apis/{EVENTING}/v1/namespaces/default"
TYPO = 'ce.type == "ordr"'
SAID = 'no event of type "ordr" has been seen; did you mean "order"?'
ANN, EVE = authenticated("ann"), authenticated("eve")
"""She may read the catalogue, and she may do everything else."""


def rule(resources: str) -> AccessRule:
    everything = frozenset({"*"})
    return AccessRule(everything, everything, frozenset(resources.split()))


class Api:
    """All of it for one store, with users."""

    def __init__(self, world: World) -> None:
        self.authorizer = RbacAuthorizer()
        rest = "brokers brokers/lint triggers subscriptions brokers/why"
        roles = {RoleKey("all"): (rule(f"{rest} brokers/catalogue"),), RoleKey("rest"): (rule(rest),)}
        given = (("all", "ann"), ("rest", "eve"))
        self.authorizer.policy = RbacPolicy(
            roles, [Binding(role, "default", RoleKey(role), (subject(user),)) for role, user in given]
        )
        log = LogDirectory(world.data / "log", "stop")
        self.asked: list[ObjectKey] = []
        follower = LogFollower(ChunkLog(log))
        follower.step()
        catalogues = Catalogues(follower, world.store)

        def names(key: ObjectKey, ceiling: str) -> Any:
            self.asked.append(key)
            return catalogues.names(key, ceiling)

        grants = Grants(world.store, UrlPolicy(), self.authorizer)
        self.control = ControlApi(world.store, grants=grants, seen=names)
        inspect = InspectApi(cast(Any, None), world.store, catalogues, authorizer=self.authorizer, log=log)
        routes = [*inspect.routes(), Mount("/", self.control.app)]
        self.app = Starlette(routes=routes, exception_handlers=ERROR_HANDLERS)

    def ask(self, method: str, path: str, body: object = None, *, user: Any = ANN) -> tuple[int, Any, list[str]]:
        """Status, answer and warnings."""
        sent: list[Any] = []
        data = [json.dumps(body).encode() if body is not None else b""]

        async def receive() -> dict[str, Any]:
            if not data:
                await asyncio.sleep(3600)
            return {"type": "http.request", "body": data.pop(), "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        place, _, query = path.partition("?")
        scope = {
            "type": "http",
            "method": method,
            "path": place,
            "query_string": query.encode(),
            "headers": [(b"content-type", b"application/json")],
            USER: user,
        }
        asyncio.run(self.app(scope, receive, send))
        warnings = [value.decode() for name, value in sent[0]["headers"] if name == b"warning"]
        said = [one.removeprefix('299 - "').removesuffix('"').replace('\\"', '"') for one in warnings]
        return sent[0]["status"], json.loads(b"".join(one.get("body", b"") for one in sent)), said


def subject(user: str) -> BindingSubject:
    return BindingSubject(SubjectKind.USER, user)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    yield from _world.__wrapped__(tmp_path)  # type: ignore[attr-defined]


@pytest.fixture
def api(world: World) -> Iterator[Api]:
    world.accept(event("1"))
    made = Api(world)
    yield made
    made.control.close()


def test_a_filter_is_looked_up(api: Api) -> None:
    path = f"{BASE}/brokers/default/catalogue"
    status, answer, _ = api.ask("POST", path, {"filter": TYPO})
    item = {"reason": "TypeUnseen", "message": SAID, "written": "ordr", "meant": "order"}
    assert (status, answer) == (200, {"broker": "default/default", "items": [item]})
    assert api.ask("POST", path, {"dialect": "cesql", "text": "type = 'ordr'"})[1]["items"] == [item]
    assert api.ask("POST", path, {"filters": [{"exact": {"type": "order"}}]})[1]["items"] == []
    assert api.ask("POST", path, {"filter": "ce.type =="})[0] == 422
    assert api.ask("POST", path, {})[0] == api.ask("POST", path, {"filtr": "true"})[0] == 400
    assert api.ask("POST", f"{BASE}/brokers/nosuch/catalogue", {"filter": TYPO})[0] == 404
    wanted = wanted_by_request("POST", path)
    assert wanted == CATALOGUE._replace(namespace="default", name="default"), "the right to read the catalogue"


def test_a_dry_run_is_told_and_a_write_does_not_ask(api: Api) -> None:
    document = trigger("typo", filter={"cel": TYPO})
    assert api.ask("POST", f"{BASE}/triggers", document)[2] == []
    assert api.asked == [], "a write is no look at the log"
    assert api.ask("POST", f"{BASE}/triggers?dryRun=All", trigger("other", filter={"cel": TYPO}))[2] == [SAID]
    assert (
        api.ask("POST", f"{BASE}/triggers?dryRun=All", trigger("fine", filter={"cel": 'ce.type == "order"'}))[2] == []
    )
    stored = api.ask("GET", f"{BASE}/triggers/typo")[1]
    assert api.ask("PUT", f"{BASE}/triggers/typo?dryRun=All", stored)[2] == [SAID]
    elsewhere = trigger("elsewhere", broker="nosuch", filter={"cel": TYPO})
    assert api.ask("POST", f"{BASE}/triggers?dryRun=All", elsewhere)[0] == 201


def test_many_that_are_tried_ask_once(api: Api) -> None:
    path = "/apis/headgate.dev/v1/namespaces/default/triggerapplies"
    items = [trigger(f"t{number}", filter={"cel": f"{TYPO} && data.n == {number}"}) for number in range(20)]
    assert "warnings" not in api.ask("POST", path, {"items": items[:1]})[1]["items"][0]
    assert api.asked == []
    answer = api.ask("POST", f"{path}?dryRun=All", {"items": [*items, {"kind": "nonsense"}]})[1]
    assert [one.get("warnings") for one in answer["items"]] == [[SAID]] * 20 + [None]
    assert api.asked == [ObjectKey(Kind.BROKER, "default", "default")]


def test_who_may_not_read_the_catalogue_learns_no_name(api: Api) -> None:
    document = trigger("typo", filter={"cel": TYPO})
    assert api.ask("POST", f"{BASE}/triggers", document, user=EVE)[0] == 201
    assert api.ask("POST", f"{BASE}/triggers?dryRun=All", trigger("t2", filter={"cel": TYPO}), user=EVE)[2] == []
    items = {"items": [trigger("t3", filter={"cel": TYPO})]}
    path = "/apis/headgate.dev/v1/namespaces/default/triggerapplies?dryRun=All"
    assert "warnings" not in api.ask("POST", path, items, user=EVE)[1]["items"][0]
    assert api.asked == []
    for path in (f"{BASE}/brokers/default/lint", f"{BASE}/brokers/default/lint?of=Trigger/typo"):
        (told,) = api.ask("GET", path)[1]["items"]
        assert told["unseen"][0]["meant"] == "order"
        assert api.ask("GET", path, user=EVE)[1]["items"] == []


def test_explain_asks_a_server_where_a_broker_is_named(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    def answered(server: str, method: str, path: str, *, body: Any = None, **_: Any) -> Any:
        asked.append((method, path))
        status, answer, _ = api.ask(method, path, body)
        if status != 200:
            raise client.ApiRefusedError(status, answer["message"])
        return answer

    monkeypatch.setattr(client, "request", answered)
    assert headgate("filter", "explain", TYPO).stderr == ""
    assert asked == []
    done = headgate("filter", "explain", TYPO, "--broker", "default/default")
    assert (done.exit_code, done.stderr) == (0, f"advice: {SAID}\n")
    assert asked == [("POST", f"{BASE}/brokers/default/catalogue")]
    done = headgate("filter", "explain", "--filter-json", '[{"exact": {"type": "ordr"}}]', "-b", "default")
    assert done.stderr == f"advice: {SAID}\n"
    done = headgate("filter", "explain", "ce.type ==", "-b", "default")
    assert done.exit_code == 2
    assert "^" in done.stderr, "the place, which is said here"
    done = headgate("filter", "explain", TYPO, "-b", "nosuch")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "not found" in done.stderr
