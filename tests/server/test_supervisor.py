"""Does every part live until all are told to stop, and does a stop then end all of them?"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from headgate.server import child, parts, ready
from headgate.server.parts import Role, ServerPart
from headgate.server.processes import supervisor
from headgate.server.processes.supervisor import DRAIN, Supervisor
from headgate.server.processes.zygote import Zygote
from headgate.settings import Settings
from headgate_api import limits
from headgate_api.errors import FatalError

PARTS = [part.name for part in parts.of_server(Settings())]


@pytest.mark.parametrize("nth", [1, 2, 4])
def test_a_stop_ends_also_the_part_that_is_just_being_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    started: list[asyncio.subprocess.Process] = []

    async def spawn(_: Zygote, part: ServerPart) -> asyncio.subprocess.Process:
        number = len(started) + 1
        if number == nth:
            os.kill(os.getpid(), signal.SIGTERM)
            for _ in range(20):  # whoever waits for the signal gets his turn
                await asyncio.sleep(0.001)
        process = await asyncio.create_subprocess_exec("sleep", "600")
        started.append(process)
        return process

    monkeypatch.setattr(Zygote, "start", spawn)

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


def test_a_stop_gives_up_a_start_that_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FORK_AT_STOP_S_MAX", 0.01)
    given_up = asyncio.Event()

    async def spawn(_: Zygote, part: ServerPart) -> asyncio.subprocess.Process:
        os.kill(os.getpid(), signal.SIGTERM)
        await given_up.wait()
        raise OSError("nothing comes")

    monkeypatch.setattr(Zygote, "start", spawn)
    monkeypatch.setattr(Zygote, "give_up", lambda _: given_up.set())
    server = Supervisor(Settings(data=tmp_path, metrics=False), lambda _: None)
    assert asyncio.run(asyncio.wait_for(server.run(), 20)) == 0


def test_the_shares_of_a_stop_are_all_of_its_time() -> None:
    assert sorted(role for roles, _ in DRAIN for role in roles) == sorted(Role)
    shares = {role: seconds for roles, seconds in DRAIN for role in roles}
    assert sum(seconds for _, seconds in DRAIN) == limits.DRAIN_S_MAX
    assert DRAIN[-1][0] == {Role.FRONT}, "replies are stored until the dispatcher has ended"
    assert shares[Role.DISPATCHER] > limits.DISPATCHER_DRAIN_S_MAX
    assert shares[Role.MATCHER] > limits.MATCHER_STOP_S_MAX
    assert shares[Role.FRONT] > limits.FRONT_DRAIN_S_MAX
    assert min(shares[Role.READER], shares[Role.CONTROL]) > limits.READ_DRAIN_S_MAX


def test_what_one_role_leaves_of_its_time_the_next_ones_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = ((frozenset(Role) - {Role.FRONT}, 15.0), (frozenset({Role.FRONT}), 0.0))
    monkeypatch.setattr(supervisor, "DRAIN", shares)
    monkeypatch.setattr(Zygote, "start", _parts_that_catch_a_stop("sys.exit(0)"))
    server = Supervisor(Settings(data=tmp_path, metrics=False), lambda _: None)
    assert asyncio.run(asyncio.wait_for(server.run(), 20)) == 0


def test_a_part_that_does_not_stop_in_time_says_where_it_stands_and_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(supervisor, "DRAIN", ((frozenset(Role), 0.1),))
    monkeypatch.setattr(Zygote, "start", _parts_that_catch_a_stop("pass"))
    server = Supervisor(Settings(data=tmp_path, metrics=False), lambda _: None)
    assert asyncio.run(asyncio.wait_for(server.run(), 20)) == 1
    assert capfd.readouterr().err.count("in where_it_stands") == len(PARTS)


def _parts_that_catch_a_stop(
    answer: str,
) -> Callable[[Zygote, ServerPart], Awaitable[asyncio.subprocess.Process]]:
    """Starts processes that answer SIGTERM with a statement; when all of them run, the server is told to stop."""
    program = f"""
import faulthandler, signal, sys, time
def where_it_stands():
    print("begun", flush=True)
    while True:
        time.sleep(0.01)
def stop(*_):
    {answer}
faulthandler.register(signal.{child.STACKS_SIGNAL.name})
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
signal.signal(signal.SIGTERM, stop)
where_it_stands()
"""
    running: list[str] = []

    async def spawn(_: Zygote, part: ServerPart) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert await process.stdout.readline() == b"begun\n"
        running.append(part.name)
        if len(running) == len(PARTS):
            os.kill(os.getpid(), signal.SIGTERM)
        return process

    return spawn


def test_a_part_that_cannot_be_started_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RESTART_PAUSE_S_MIN", 0.01)
    tried: list[str] = []

    async def spawn(_: Zygote, part: ServerPart) -> asyncio.subprocess.Process:
        tried.append(part.name)
        if len(tried) == 1:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        if len(tried) == len(PARTS) + 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return await asyncio.create_subprocess_exec("sleep", "600")

    monkeypatch.setattr(Zygote, "start", spawn)
    server = Supervisor(Settings(data=tmp_path, metrics=False), lambda _: None)
    assert asyncio.run(asyncio.wait_for(server.run(), 20)) == 0
    assert sorted(tried) == sorted([*PARTS, tried[0]])


def test_a_part_that_cannot_work_ends_the_server_with_its_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[asyncio.subprocess.Process] = []

    async def spawn(_: Zygote, part: ServerPart) -> asyncio.subprocess.Process:
        if part.name == "reader":
            ready.refuse(tmp_path / "run", "reader", FatalError("this is wrong", hint="do that"))
            process = await asyncio.create_subprocess_exec("sh", "-c", f"exit {child.FATAL_STATUS}")
        else:
            process = await asyncio.create_subprocess_exec("sleep", "600")
        started.append(process)
        return process

    monkeypatch.setattr(Zygote, "start", spawn)
    server = Supervisor(Settings(data=tmp_path, metrics=False), lambda _: None)
    with pytest.raises(FatalError, match="this is wrong") as failure:
        asyncio.run(asyncio.wait_for(server.run(), 20))
    assert failure.value.hint == "do that"
    assert len(started) <= len(PARTS), "nothing was started again"
    assert all(process.returncode is not None for process in started)


def test_what_a_part_said_is_missed_only_where_no_disk_took_it(tmp_path: Path) -> None:
    error = FatalError("this is wrong")
    assert not ready.refuse(tmp_path / "none", "reader", error)
    assert "reader cannot work" in ready.refusal(tmp_path / "none", "reader").message
    assert ready.refuse(tmp_path, "reader", error)
    assert ready.refusal(tmp_path, "reader").message == "this is wrong"


def test_a_keeper_that_ends_ends_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    async def spawn(_: Zygote, part: ServerPart) -> asyncio.subprocess.Process:
        if part.name == "matcher":
            raise ZeroDivisionError("a mistake")
        return await asyncio.create_subprocess_exec("sleep", "600")

    monkeypatch.setattr(Zygote, "start", spawn)
    server = Supervisor(Settings(data=tmp_path, metrics=False), lambda _: None)
    with pytest.raises(ZeroDivisionError):
        asyncio.run(asyncio.wait_for(server.run(), 20))


KEEPING = """
import asyncio, sys
from pathlib import Path
from headgate_api import limits
from headgate.observe import logs
from headgate.server.processes.supervisor import Supervisor
from headgate.server.processes.zygote import Zygote
from headgate.settings import Settings
async def start(_, part):
    return await asyncio.create_subprocess_exec(sys.argv[2], part.name)
limits.RESTART_PAUSE_S_MIN = 0.05
logs.configure("supervisor")
Zygote.start = start
sys.exit(asyncio.run(Supervisor(Settings(data=Path(sys.argv[1])), print).run()))
"""


@pytest.mark.parametrize("broken", ["full disk", pytest.param("pipe without a reader", marks=pytest.mark.slow)])
def test_parts_are_started_again_where_nothing_can_be_logged(tmp_path: Path, broken: str) -> None:
    starts = tmp_path / "starts"
    part = tmp_path / "part"
    part.write_text(f"#!/bin/sh\necho $1 >> {starts}\nexit 1\n")
    part.chmod(0o755)
    reading, stderr = os.pipe() if broken != "full disk" else (None, os.open("/dev/full", os.O_WRONLY))
    if reading is not None:
        os.close(reading)
    command = [sys.executable, "-c", KEEPING, str(tmp_path / "data"), str(part)]
    with subprocess.Popen(command, stderr=stderr) as server:
        os.close(stderr)
        try:
            deadline = time.monotonic() + 60
            while not starts.exists() or min(starts.read_text().split().count(one) for one in PARTS) < 4:
                assert time.monotonic() < deadline, "parts are not started again"
                assert server.poll() is None
                time.sleep(0.05)
        finally:
            server.terminate()
        assert server.wait(60) == 0
