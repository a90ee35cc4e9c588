"""Parts are forked from one process, live like processes that were started alone, and import only what they need."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headgate.server import parts
from headgate.server.parts import Role, ServerPart
from headgate.server.processes.zygote import Zygote, reap_orphans
from headgate.settings import Settings
from headgate_api import limits
from tests.support import REPOSITORY, eventually, times, until

READER = ServerPart(Role.READER)
PATIENCE_S = 120


def is_ready(settings: Settings, part: ServerPart) -> bool:
    return (settings.run_directory / f"{part.name}.ready").exists()


async def live(folder: Path) -> None:
    """The life of some parts; ends with an error where one does not live like a process of its own."""
    settings = Settings(data=folder / "data", metrics=False)
    zygote = Zygote(settings, bytes(32), None)
    settings.run_directory.mkdir(parents=True)
    try:
        first = await zygote.start(READER)
        await until(lambda: is_ready(settings, READER))
        assert zygote.pid is not None
        command = Path(f"/proc/{first.pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        assert command[1:] == [b"-m", b"headgate.server", b"reader"]
        status = Path(f"/proc/{first.pid}/stat").read_text().rsplit(")", 1)[1].split()
        assert int(status[1]) == os.getpid(), "its parent is the supervisor"
        first.terminate()
        assert await first.wait() == 0
        first.kill()  # it has ended: nothing happens

        for _ in range(times(5, 20)):  # at every moment of their begin
            killed = await zygote.start(READER)
            killed.kill()
            assert await killed.wait() == -signal.SIGKILL

        orphan = await zygote.start(READER)
        os.kill(zygote.pid, signal.SIGKILL)
        with pytest.raises(OSError, match=r"has ended|[Bb]roken pipe|reset"):
            await zygote.start(READER)
        assert orphan.returncode is None, "parts live on without it"
        again = await zygote.start(READER)  # by another one

        os.kill(zygote.pid, signal.SIGSTOP)  # as where a disk does not answer
        patience_s, limits.FORK_S_MAX = limits.FORK_S_MAX, 0.2  # type: ignore[misc]
        with pytest.raises(OSError, match=r"silent for 0\.2 s"):
            await zygote.start(READER)
        limits.FORK_S_MAX = patience_s  # type: ignore[misc]
        late = await zygote.start(READER)
        late.kill()
        await late.wait()

        os.kill(zygote.pid, signal.SIGSTOP)
        starting = asyncio.create_task(zygote.start(READER))
        await asyncio.sleep(0)
        zygote.give_up()
        with pytest.raises(OSError, match=r"has ended|[Bb]roken pipe|reset"):
            await starting
        await zygote.close()
        orphan.terminate()
        again.terminate()
        assert {await orphan.wait(), await again.wait()} <= {0, -signal.SIGTERM}
    finally:
        await zygote.close()


LIFE = """
import asyncio, sys
from pathlib import Path
from tests.server.test_zygote import live
asyncio.run(live(Path(sys.argv[1])))
"""
"""A process of its own: its descendants' orphans become its children, which those of another test must not."""


@pytest.mark.system
def test_a_part_lives_and_ends_like_a_process_of_its_own(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIFE, tmp_path], cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr


FORKLESS = """
import os, sys
if "headgate.server.processes.zygote" in sys.orig_argv:
    fork, forks = os.fork, []
    def failing():
        forks.append(1)
        if len(forks) == int(os.environ["FAILING_FORK"]):
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return fork()
    os.fork = failing
"""


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.parametrize("nth", [1, 2])
def test_a_part_that_cannot_be_forked_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nth: int) -> None:
    (tmp_path / "sitecustomize.py").write_text(FORKLESS)
    monkeypatch.setenv("FAILING_FORK", str(nth))
    path = [str(tmp_path), str(REPOSITORY / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    done = subprocess.run(
        [sys.executable, "-c", SUPERVISOR, tmp_path], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 1
    assert "OSError: the process that parts are forked from has ended, or cannot fork" in done.stderr
    assert "Resource temporarily unavailable" in done.stderr


SUPERVISOR = """
import asyncio, sys
from pathlib import Path
from headgate.server.parts import Role, ServerPart
from headgate.server.processes.zygote import Zygote
from headgate.settings import Settings
async def work():
    zygote = Zygote(Settings(data=Path(sys.argv[1]), metrics=False), bytes(32), None)
    part = await zygote.start(ServerPart(Role.READER))
    print(zygote.pid, part.pid, flush=True)
    await asyncio.sleep(600)
asyncio.run(work())
"""


@pytest.mark.slow
@pytest.mark.system
def test_nothing_outlives_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with subprocess.Popen([sys.executable, "-c", SUPERVISOR, tmp_path], stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        pids = [int(pid) for pid in killed.stdout.readline().split()]
        assert len(pids) == 2
        killed.kill()

    def living() -> list[int]:
        return [pid for pid in pids if Path(f"/proc/{pid}/cmdline").exists() and not is_zombie(pid)]

    eventually(lambda: not living(), lambda: f"{living()} live on")


def is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def test_orphans_are_let_go_and_known_children_are_not() -> None:
    with subprocess.Popen(["true"]) as known:
        os.waitid(os.P_PID, known.pid, os.WEXITED | os.WNOWAIT)
        reap_orphans(frozenset({known.pid}))
        assert known.wait() == 0
    orphan = os.fork()
    if not orphan:
        os._exit(3)
    os.waitid(os.P_PID, orphan, os.WEXITED | os.WNOWAIT)
    reap_orphans(frozenset())
    with pytest.raises(ChildProcessError):
        os.waitpid(orphan, 0)


IMPORTED = """
import json, os, sys
from headgate.server.processes import zygote
from headgate.settings import Settings
zygote.import_parts(Settings())
print(json.dumps([len(os.listdir("/proc/self/task")), sorted(sys.modules)]))
"""


def test_parts_share_what_they_import_and_none_has_what_it_does_not_need() -> None:
    import json

    from headgate.server.processes.zygote import _THREADLESS

    answer = subprocess.run(
        [sys.executable, "-c", IMPORTED], env={**os.environ, **_THREADLESS}, capture_output=True, text=True, check=True
    )
    threads, modules = json.loads(answer.stdout)
    assert threads == 1, "a thread does not survive a fork, and what it holds stays locked"
    shared = {part.role for part in parts.of_server(Settings())} - {Role.MATCHER}
    assert {f"headgate.server.processes.{role}" for role in shared} <= set(modules)
    foreign = {"pyspark", "py4j", "confluent_kafka", "typer", "numpy", "pandas", "headgate_client", "headgate.cli"}
    assert not foreign & set(modules)
