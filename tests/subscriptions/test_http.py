"""Is a subscription consumed over HTTP as in memory? A real dispatcher behind the front's proxy, on real files."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import http.client
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from headgate.objects.api.http import ERROR_HANDLERS
from headgate.objects.kinds.routing import PullRules, Target
from headgate.server.peers.local_http import ProcessProxy, answering
from headgate.subscriptions.api import METHODS, PREFIX, SubscriptionsApi
from headgate_api.limits import SUBSCRIPTION_UNACKED_MAX
from headgate_api.rpc import pulsar_pb2 as wire
from tests.delivery.harness import EPOCH, EventLog, Routes, Running, event, matcher, run, running, target
from tests.filter.test_pulsar import asked
from tests.support import until


class Client:
    """Speaks HTTP to the front's socket."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def __call__(self, action: str, name: str = "s", raw: bytes | None = None, **body: Any) -> tuple[int, Any]:
        return await asyncio.to_thread(self._ask, action, name, json.dumps(body).encode() if raw is None else raw)

    def _ask(self, action: str, name: str, body: bytes) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("front", timeout=20)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(str(self._path))
        try:
            verb, _, rest = action.partition(" ")
            method, action = (verb, rest) if rest else (METHODS[action][0], action)
            path = PREFIX.format(namespace="default", name=name)
            connection.request(method, f"{path}/{action}", body, {"content-type": "application/json"})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()


def subscription(number: int, name: str, type_: Any = "shared", cel: str = "true") -> Target:
    return dataclasses.replace(target(number, "", cel=cel), name=f"default/{name}", pull=PullRules(type_, 30.0))


@contextlib.asynccontextmanager
async def serving(data: Path, routes: Routes, **settings: Any) -> AsyncIterator[tuple[Running, Client]]:
    sockets = data / "sockets"
    async with running(data, routes, **settings) as work:
        inner = Starlette(
            routes=list(SubscriptionsApi(work.dispatcher.subscriptions).routes()),
            exception_handlers=ERROR_HANDLERS,
        )
        proxy = ProcessProxy(sockets / "d")
        paths = [Route(f"{PREFIX}/{name}", proxy, methods=list(methods)) for name, methods in METHODS.items()]
        front = Starlette(routes=paths, exception_handlers=ERROR_HANDLERS)
        async with answering(inner, sockets / "d"), answering(front, sockets / "f"):
            yield work, Client(sockets / "f")


def ids(answer: tuple[int, Any]) -> list[str]:
    assert answer[0] == 200, answer
    return [one["event"]["id"] for one in answer[1]["events"]]


def test_pull_acknowledge_restart_pull(tmp_path: Path) -> None:
    async def work() -> None:
        log = EventLog(tmp_path)
        routes = Routes(subscription(1, "s", cel="data.n < 15"), subscription(2, "one", "exclusive"))
        log.append([event(n, data=b'{"n":%d}' % n) for n in range(20)])
        async with serving(tmp_path, routes) as (dispatcher, ask):
            async with matcher(dispatcher) as peer:
                waiting = asyncio.create_task(ask("pull", consumer="a", max=5, wait=20))
                await until(lambda: len(dispatcher.dispatcher.subscriptions._places) == 1)
                peer.match(*[(n, t) for n in range(20) for t in (1, 2) if t == 2 or n % 2 == 0], verdict=2)
                first = await waiting
                assert 1 <= len(ids(first)) <= 5
                peer.passed(20)
                await until(lambda: dispatcher.dispatcher.matches.passed(0) == 20)
            acknowledged = [one["ackId"] for one in first[1]["events"]]
            done = len(acknowledged)
            assert await ask("ack", ids=acknowledged) == (200, {"acknowledged": done, "stale": []})
            assert dispatcher.dispatcher.unfinished == 0, "nothing is sent to anyone"
            second = await ask("pull", consumer="b", max=2)
            even = [f"e{n}" for n in range(0, 15, 2)]
            assert ids(first) + ids(second) == even[: done + 2]
            assert ids(await ask("pull", name="one", consumer="a", max=1)) == ["e0"]
            assert (await ask("pull", name="one", consumer="b"))[0] == 409
        async with serving(tmp_path, routes) as (_, ask):
            assert (await ask("leave", consumer="b"))[1] == {"released": 2}
            assert ids(await ask("pull", consumer="c")) == even[done:]
            stats = (await ask("stats"))[1]
            assert (stats["accepted"], stats["rejected"], stats["redelivered"]) == (8, 2, 2)
            assert (stats["backlog"], stats["acknowledged"]) == (8 - done, done)
            found = (await ask("analyze", name="one", filter={"expression": "data.n >= 5"}))[1]
            assert found == {"events": 20, "accepted": 15, "rejected": 5, "errors": 0, "complete": True}
            assert (await ask("seek", to="earliest", first="data.n == 4", after=True))[0] == 200
            assert ids(await ask("pull", consumer="c")) == even[3:]
            assert (await ask("seek", to="0:6"))[1] == {"running": False, "epoch": EPOCH + 2, "position": "0:6"}
            assert ids(await ask("pull", consumer="c")) == even[3:]
            assert (await ask("seek", to="1970-01-01T00:00:00Z"))[0] == 200
            assert ids(await ask("pull", consumer="c")) == even
        log.close()

    run(work(), 60)


@pytest.mark.parametrize(
    ("wrong", "path"),
    [
        ({"property": "n", "operator": "GREATER_THAN_OR_EQUAL", "value": 1}, "first.pulsar.operator"),
        ({"not": {"property": "n", "operator": "EQUALS", "values": ["a", "b"]}}, "first.pulsar.not.values"),
        (wire.Expr(), "first.pulsar.tp"),
        (asked(op=19), "first.pulsar.predicate.op"),
        (asked(values=["five"], ty=1), "first.pulsar.predicate.values[0]"),
        (wire.Expr(tp=1, op1=asked(), op2=asked(name=None)), "first.pulsar.op2.predicate.name"),
    ],
)
def test_a_wrong_expression_is_refused_with_its_path(tmp_path: Path, wrong: Any, path: str) -> None:
    async def work() -> None:
        is_message = isinstance(wrong, wire.Expr)
        value = base64.b64encode(wrong.SerializeToString()).decode() if is_message else wrong
        async with serving(tmp_path, Routes(subscription(1, "s"))) as (_, ask):
            status, answer = await ask("seek", first={"pulsar": value})
            assert status == 422
            assert answer["message"].startswith(f"{path}: ")

    run(work(), 60)


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    async def work() -> None:
        routes = Routes(subscription(1, "s"))
        async with serving(tmp_path, routes) as (_, ask):
            for status, answer in (
                (404, await ask("pull", name="other")),
                (400, await ask("pull", raw=b"{")),
                (400, await ask("pull", max=0)),
                (400, await ask("pull", max=100_000)),
                (400, await ask("pull", wait=1e9)),
                (400, await ask("pull", batch=1)),
                (400, await ask("pull", consumer="x" * 1_000)),
                (400, await ask("ack")),
                (400, await ask("ack", ids=["x"])),
                (400, await ask("ack", ids=["1:0"] * (SUBSCRIPTION_UNACKED_MAX + 1))),
                (400, await ask("nack", ids=["1:0"] * (SUBSCRIPTION_UNACKED_MAX + 1))),
                (400, await ask("ack", ids=["1:0"], upTo="1:0")),
                (400, await ask("ack", upTo="1:0")),
                (400, await ask("nack", ids=["1:0"], delay=-1)),
                (400, await ask("seek", to="there")),
                (400, await ask("seek", to="0:1,0:2")),
                (422, await ask("seek", first="data.n ==")),
                (422, await ask("seek", first='{"pulsar": ')),
                (422, await ask("seek", first={"nosuch": 1})),
                (400, await ask("seek", first=["data.n == 1"])),
                (404, await ask("seek", first="data.n == 1")),
                (413, await ask("ack", raw=b" " * (1 << 20))),
            ):
                assert answer[0] == status, answer
                assert answer[1]["kind"] == "Status"

    run(work(), 60)
