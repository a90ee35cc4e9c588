"""Is nobody but the dispatcher let in while the server stops, and does every part have its share of the time?"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from headgate import limits
from headgate.dispatch.replies import TOKEN_HEADER
from headgate.server.gate import Gate
from headgate.server.ready import PARTS
from headgate.server.supervisor import DRAIN_S, Supervisor
from headgate.settings import Settings
from tests.ingress.support import call, fallback

TOKEN = bytes(range(32))


def ask(gate: Gate, path: str = "/ns/b", *headers: tuple[str, str]) -> Any:
    answer, _ = asyncio.run(call(gate, path=path, headers=headers))
    return answer


def test_an_open_gate_lets_everybody_in() -> None:
    assert ask(Gate(fallback, TOKEN)).status == 299


@pytest.mark.parametrize(
    "headers",
    [
        (),
        ((TOKEN_HEADER, ""),),
        ((TOKEN_HEADER, TOKEN.hex()[:-1]),),
        ((TOKEN_HEADER, TOKEN.hex()), (TOKEN_HEADER, TOKEN.hex())),
    ],
)
def test_a_closed_gate_sends_strangers_away_for_a_while(headers: tuple[tuple[str, str], ...]) -> None:
    gate = Gate(fallback, TOKEN)
    gate.close()
    answer = ask(gate, "/ns/b", *headers)
    assert (answer.status, answer.headers["connection"]) == (503, "close")
    assert int(answer.headers["retry-after"]) > 0
    assert json.loads(answer.body)["code"] == "stopping"


def test_a_closed_gate_lets_replies_in_and_tells_of_health() -> None:
    gate = Gate(fallback, TOKEN)
    gate.close()
    assert ask(gate, "/ns/b", (TOKEN_HEADER, TOKEN.hex())).status == 299
    assert [ask(gate, path).status for path in ("/livez", "/readyz", "/metrics")] == [299] * 3


@pytest.mark.parametrize("nth", [1, 2, 4])
def test_a_stop_ends_also_the_part_that_is_just_being_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    started: list[asyncio.subprocess.Process] = []
    begin = asyncio.create_subprocess_exec

    async def spawn(*_: str, **more: Any) -> asyncio.subprocess.Process:
        number = len(started) + 1
        if number == nth:
            os.kill(os.getpid(), signal.SIGTERM)
            for _ in range(20):  # whoever waits for the signal gets his turn
                await asyncio.sleep(0.001)
        process = await begin("sleep", "600", **more)
        started.append(process)
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", spawn)

    async def work() -> None:
        server = Supervisor(Settings(data=tmp_path, metrics=False), lambda _: None)
        try:
            assert await asyncio.wait_for(server.run(), 20) == 0
        finally:
            left = [process for process in started if process.returncode is None]
            for process in left:
                process.kill()
                await process.wait()
        assert not left

    asyncio.run(work())
    assert len(started) == nth


def test_the_shares_of_a_stop_are_all_of_its_time() -> None:
    assert DRAIN_S.keys() == set(PARTS)
    assert sum(DRAIN_S.values()) == limits.DRAIN_S_MAX
    assert list(DRAIN_S)[-1] == "front", "replies are stored until the dispatcher has ended"
    assert DRAIN_S["dispatcher"] > limits.DISPATCHER_DRAIN_S_MAX
    assert DRAIN_S["front"] > limits.FRONT_DRAIN_S_MAX
