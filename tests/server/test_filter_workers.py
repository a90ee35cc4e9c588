"""Trials of filters over HTTP, each in a real process; a hostile one delays nobody."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.applications import Starlette

from headgate.auth.context import USER
from headgate.auth.user import authenticated
from headgate.objects.api.http import ERROR_HANDLERS
from headgate.server.processes.filter_workers import (
    PREFIX,
    FilterRunEndedError,
    FilterRunsOverloadError,
    FilterWorkerError,
    FilterWorkers,
    filter_routes,
)
from headgate.shares import PlacesTakenError
from headgate_api import limits

CEL = 'ce.type == "a" && data.n > 1'
EVENT = {"specversion": "1.0", "id": "1", "source": "/s", "type": "a", "data": {"n": 2}}


@asynccontextmanager
async def workers(**options: Any) -> AsyncIterator[FilterWorkers]:
    found = FilterWorkers(**options)
    try:
        yield found
    finally:
        await found.close()


@dataclass
class Answer:
    status: int
    headers: dict[bytes, bytes]
    json: Any


async def ask(found: FilterWorkers, method: str, run: str, content: bytes = b"") -> Answer:
    """What ann is answered."""
    app = Starlette(routes=filter_routes(found), exception_handlers=ERROR_HANDLERS)
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": content, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": method, "path": f"{PREFIX}/{run}", "query_string": b"", "headers": headers}
    await app({**scope, USER: authenticated("ann")}, receive, send)
    whole = b"".join(message.get("body", b"") for message in sent)
    return Answer(sent[0]["status"], dict(sent[0]["headers"]), json.loads(whole))


def body(**request: object) -> bytes:
    return msgspec.json.encode(request)


def test_who_has_all_trials_that_he_may_leaves_some_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the lower limit of a user, too: it is no share, and a thousand users reach the limit of all."""
    go_on = asyncio.Event()

    async def held(*_: object) -> tuple[int, bytes]:
        await go_on.wait()
        return 200, b""

    monkeypatch.setattr(FilterWorkers, "_run", held)

    async def work() -> None:
        found = FilterWorkers()
        trials: list[asyncio.Task[tuple[int, bytes]]] = []

        async def taken(user: str, refusal: type[Exception]) -> int:
            """How many trials a user gets."""
            for count in range(limits.FILTER_RUNS_MAX + 1):
                trial = asyncio.create_task(found.run(user, "test", b""))
                await asyncio.sleep(0)  # a refusal waits for nothing
                if trial.done():
                    with pytest.raises(refusal):
                        trial.result()
                    return count
                trials.append(trial)
            raise AssertionError("there are more trials than there are")

        of_one = limits.FILTER_RUNS_OF_USER_MAX
        assert await taken("eve", FilterRunsOverloadError) == of_one
        assert await taken("ann", FilterRunsOverloadError) == of_one
        monkeypatch.setattr(limits, "FILTER_RUNS_OF_USER_MAX", limits.FILTER_RUNS_MAX)
        assert await taken("eve", PlacesTakenError) > limits.FILTER_RUNS_MAX // 4
        assert await taken("bob", PlacesTakenError) > 1
        assert await taken("eve", PlacesTakenError) == 0
        go_on.set()
        assert {(await trial)[0] for trial in trials} == {200}
        assert not found._places
        await found.close()

    asyncio.run(work())


def test_over_http() -> None:
    async def scenario() -> None:
        async with workers() as found:
            tested = await ask(found, "POST", "test", body(filter=CEL, events=[EVENT], explain=True))
            assert tested.status == 200, tested.json
            assert tested.json["counts"]["true"] == 1
            assert tested.json["explanation"]["decidedBy"] == "matcher"
            converted = await ask(found, "POST", "convert", body(dialect="cesql", text="type = 'a'"))
            assert converted.json["canonical"] == 'ce.type == "a"'
            explained = await ask(found, "POST", "explain", body(filter=CEL))
            assert explained.json["rows"][0]["verdict"] == "match"
            dialects = await ask(found, "GET", "dialects")
            assert {"cel", "cesql", "prefix"} <= {one["name"] for one in dialects.json["dialects"]}

            refused = await ask(found, "POST", "test", body(filter='ce.type == "a" && '))
            assert (refused.status, refused.json["reason"], refused.json["code"]) == (422, "Invalid", 422)
            details = refused.json["details"]
            assert details["causes"][0]["field"].startswith("filter")
            assert details["position"] >= 0
            assert "^" in details["caret"]
            for wrong in (body(filter=7), body(unknown=1), body(), b"{", b""):
                refused = await ask(found, "POST", "test", wrong)
                assert (refused.status, refused.json["reason"]) == (400, "BadRequest"), refused.json
            large = await ask(found, "POST", "test", b" " * (limits.FILTER_TRIAL_BYTES_MAX + 1))
            assert large.status == 413
            assert len(found._free) == 1, "one process has answered all of it"

    asyncio.run(scenario())


def process_of(found: FilterWorkers) -> int:
    return found._free[0]._process.pid


def test_runs_that_come_with_the_opening_of_the_console_wait_for_its_process() -> None:
    async def scenario() -> None:
        async with workers() as found:
            runs = [asyncio.create_task(found.run(user, "dialects", b"")) for user in ("ann", "bob", "eve")]
            found.warm()  # before they have their turn of the loop
            async with asyncio.timeout(limits.FILTER_WORKER_START_S_MAX):
                assert [status for status, _ in await asyncio.gather(*runs)] == [200] * 3

    asyncio.run(scenario())


def test_a_run_that_does_not_end_is_ended_and_delays_only_its_author() -> None:
    async def scenario() -> None:
        async with workers(run_s=1.0) as found:
            wanted = body(filter=CEL, events=[EVENT])
            assert (await found.run("ann", "test", wanted))[0] == 200
            hostile = process_of(found)
            os.kill(hostile, signal.SIGSTOP)  # it answers no more, as with a filter that never ends
            running = asyncio.create_task(found.run("ann", "test", wanted))
            await asyncio.sleep(0)
            behind = asyncio.create_task(found.run("ann", "test", wanted))
            others = [await found.run(user, "test", wanted) for user in ("bob", "eve")]
            assert [status for status, _ in others] == [200, 200]
            with pytest.raises(FilterRunEndedError, match="FILTER_RUN_S_MAX"):
                await running
            assert (await behind)[0] == 200, "with another process"
            assert hostile not in {one._process.pid for one in found._free}
            assert not found._users
            with pytest.raises(ProcessLookupError):
                await gone(hostile)

    asyncio.run(scenario())


async def gone(pid: int) -> None:
    """Waits for the end of a process, by the error that says so."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        os.kill(pid, 0)
        await asyncio.sleep(0.02)


def test_a_process_that_dies_costs_its_run_alone() -> None:
    async def scenario() -> None:
        async with workers() as found:
            wanted = body(filter=CEL)
            await found.run("ann", "test", wanted)
            os.kill(process_of(found), signal.SIGKILL)
            with pytest.raises(FilterRunEndedError, match="memory, or failed"):
                await found.run("ann", "test", wanted)
            assert (await found.run("ann", "test", wanted))[0] == 200

    asyncio.run(scenario())


def test_a_process_is_bounded_in_memory_and_knows_nothing_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes more than it may have ends as an error of the run, or with its process; never with the front's."""

    async def scenario() -> None:
        async with workers() as found:
            await found.run("ann", "convert", body(filter="true"))
            place = Path(f"/proc/{process_of(found)}")
            bounds = (await asyncio.to_thread((place / "limits").read_text)).splitlines()
            (space,) = (line for line in bounds if line.startswith("Max address space"))
            assert str(limits.FILTER_WORKER_MEMORY_BYTES_MAX) in space
            assert b"HEADGATE" not in await asyncio.to_thread((place / "environ").read_bytes)

    monkeypatch.setenv("HEADGATE_CHILD_SETTINGS", "what the server knows")
    asyncio.run(scenario())


def test_a_user_has_so_many_under_way() -> None:
    async def scenario() -> None:
        async with workers() as found:
            wanted = body(filter=CEL)
            under_way = [
                asyncio.create_task(found.run("ann", "test", wanted)) for _ in range(limits.FILTER_RUNS_OF_USER_MAX)
            ]
            await asyncio.sleep(0)
            with pytest.raises(FilterRunsOverloadError):
                await found.run("ann", "test", wanted)
            refused = await ask(found, "POST", "test", wanted)
            assert (refused.status, refused.headers[b"retry-after"]) == (429, b"1")
            assert (await found.run("bob", "test", wanted))[0] == 200
            assert [status for status, _ in await asyncio.gather(*under_way)] == [200] * len(under_way)
            assert len(found._free) <= limits.FILTER_WORKERS_MAX

    asyncio.run(scenario())


def test_a_cancelled_run_gives_its_answer_to_nobody() -> None:
    async def scenario() -> None:
        async with workers() as found:
            await found.run("ann", "convert", body(filter="true"))
            running = asyncio.create_task(found.run("ann", "convert", body(filter='ce.type == "mine"')))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            _, answer = await found.run("bob", "convert", body(filter='ce.type == "his"'))
            assert b"his" in answer

    asyncio.run(scenario())


def test_a_process_that_was_started_before_answers_the_first_run() -> None:
    async def scenario() -> None:
        async with workers() as found:
            found.warm()
            found.warm()
            assert (await found.run("ann", "test", body(filter=CEL)))[0] == 200
            found.warm()
            await asyncio.sleep(0)
            assert found._warming is None
            assert len(found._free) == 1, "the run has waited for it, and nobody started another one"
        async with workers() as found:
            found.warm()
            await asyncio.sleep(0)
        assert found._free == []

    asyncio.run(scenario())


def test_a_process_that_does_not_start() -> None:
    async def scenario() -> None:
        async with workers(command=("/bin/false",)) as found:
            found.warm()
            assert found._warming is not None
            await asyncio.wait([found._warming])
            assert found._free == [], "who tries a filter is told"
        async with workers(command=("/bin/false",)) as found:
            with pytest.raises(FilterWorkerError):
                await found.run("ann", "test", body(filter="true"))
        async with workers(command=("/no/such/program",)) as found:
            with pytest.raises(FilterWorkerError):
                await found.run("ann", "test", body(filter="true"))

    asyncio.run(scenario())
