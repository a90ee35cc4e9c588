"""Does every part live until all are told to stop, and does a stop then end all of them?"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from headgate import limits
from headgate.server.ready import PARTS
from headgate.server.supervisor import DRAIN_S, Supervisor
from headgate.settings import Settings


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


def test_a_part_that_cannot_be_started_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RESTART_PAUSE_S_MIN", 0.01)
    begin = asyncio.create_subprocess_exec
    tried: list[str] = []

    async def spawn(*command: str, **more: Any) -> asyncio.subprocess.Process:
        tried.append(command[3])
        if len(tried) == 1:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        if len(tried) == len(PARTS) + 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return await begin("sleep", "600", **more)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", spawn)
    server = Supervisor(Settings(data=tmp_path, metrics=False), lambda _: None)
    assert asyncio.run(asyncio.wait_for(server.run(), 20)) == 0
    assert sorted(tried) == sorted([*PARTS, tried[0]])
