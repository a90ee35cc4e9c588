"""Does a real server end cleanly while it starts, and keep its parts where nothing can be logged?"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headgate.testing.server import START_S_MAX, Server, free_port, parts_of
from tests.support import eventually

pytestmark = [pytest.mark.system, pytest.mark.slow]


def has_jvm(pid: int) -> bool:
    """Whether a process has started a JVM."""
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread or a child has just ended, `java -version` for one
            for child in task.read_text().split():
                if Path(f"/proc/{child}/comm").read_text() == "java\n":
                    return True
    return False


@pytest.mark.parametrize("to_all", [None, signal.SIGTERM, signal.SIGINT])
def test_a_stop_while_spark_starts_says_nothing_and_is_quick(tmp_path: Path, to_all: signal.Signals | None) -> None:
    """A service manager may send SIGTERM to all processes, the JVM included; a terminal sends SIGINT at Ctrl-C."""
    server = Server(tmp_path / "data", log=tmp_path / "log", spark=True)
    server.start(wait=False)
    try:
        eventually(lambda: (matcher := parts_of(server.pid).get("matcher")) and has_jvm(matcher))
        if to_all is signal.SIGINT:
            assert server.interrupt() == 0
        elif to_all is not None:
            os.killpg(server.pid, to_all)
        assert server.stop() == 0
    finally:
        server.kill()
    said = (tmp_path / "log").read_text()
    assert "Traceback" not in said
    assert "py4j" not in said.lower()
    assert "ERROR" not in said


@pytest.mark.parametrize("broken", ["full disk", "pipe without a reader"])
def test_a_part_comes_back_where_nothing_can_be_logged(tmp_path: Path, broken: str) -> None:
    listen = f"127.0.0.1:{free_port()}"
    command = [str(Path(sys.executable).with_name("headgate")), "serve", "--data", str(tmp_path), "--listen", listen]
    if broken == "full disk":
        stderr = os.open("/dev/full", os.O_WRONLY)
    else:
        reading, stderr = os.pipe()
        os.close(reading)
    with subprocess.Popen([*command, "--grpc", "off"], stderr=stderr) as server:
        os.close(stderr)
        watched = Server(tmp_path, port=int(listen.rpartition(":")[2]))

        def parts() -> dict[str, int]:
            assert server.poll() is None, "the server has ended"
            return parts_of(server.pid)

        try:
            for part in ("front-0", "dispatcher-0"):
                eventually(lambda: parts() and watched.is_ready(), seconds=START_S_MAX)
                before = parts()[part]
                os.kill(before, signal.SIGKILL)
                eventually(lambda part=part, before=before: parts().get(part, before) != before)
            eventually(lambda: parts() and watched.is_ready(), seconds=START_S_MAX)
        finally:
            server.terminate()
        assert server.wait(60) == 0
