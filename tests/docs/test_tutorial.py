"""The commands of the tutorial, and then of the page on backups, do what these pages show, in order, on a server."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from headgate.testing.server import free_port
from tests.docs.commands import OUTPUT, Step, stable, steps
from tests.support import REPOSITORY, eventually, times

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]  # two starts of a server, and much waiting

GO_ON: Final = ("headgate serve", "python -m examples.subscriber", "python -m examples.openid_provider")
"""Commands that do not end by themselves."""
LOOK: Final = (
    *("headgate get", "headgate deadletter list", "headgate tail"),
    *("headgate why", "headgate trace", "headgate subscription describe"),
)
"""Commands that show the same or more when they are typed again."""
WAIT_S: Final = 60.0
START_S: Final = 240.0


class Terminals:
    """One folder, one environment, and the programs that run in it; gRPC where it is told to be.

    Attributes:
        wait_s: How long commands may take that end.
        interrupted: Exit statuses of programs that go on, after Ctrl-C.
    """

    wait_s = WAIT_S
    interrupted = frozenset({0})

    def __init__(self, folder: Path, grpc: str = "off") -> None:
        self._folder = folder
        self._ports = {port: str(free_port()) for port in ("8080", "9000", "9001", "9100")}
        if grpc != "off":
            self._ports["8081"] = grpc.rpartition(":")[2]
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._exported = folder / ".exported"
        self._exported.touch()
        self._backups = folder / "backups"
        self._backups.mkdir(exist_ok=True)  # several stories may be told in one folder
        here = f"127.0.0.1:{self._ports['8080']}"
        self._environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(REPOSITORY),
            "HEADGATE_SERVER": f"http://{here}",
            "HEADGATE_LISTEN": here,
            "HEADGATE_GRPC": grpc,
        }

    def here(self, text: str) -> str:
        """The text with the ports that are free on this machine, and folders of the test for all pages."""
        text = text.replace("headgate-data", "shop-data").replace("/var/lib/headgate", "shop-data")
        text = text.replace("/backups", str(self._backups))
        for port, free in self._ports.items():
            text = text.replace(f"127.0.0.1:{port}", f"127.0.0.1:{free}").replace(f"--port {port}", f"--port {free}")
        return text

    def start(self, title: str, command: str) -> None:
        """Starts what goes on; returns when it listens. What went on in that terminal ends by Ctrl-C before."""
        if title in self._running:
            self._stop([self._running.pop(title)])
        with (self._folder / title).open("wb") as output:
            self._running[title] = subprocess.Popen(
                # Ctrl-C is heard as in a terminal, also where a shell that ignores it runs these tests.
                ["env", "--default-signal=INT", "bash", "-c", f". {self._exported}\nexec {self.here(command)}"],
                cwd=self._folder,
                env=self._environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        if command.startswith("headgate serve"):
            eventually(lambda: "ready after" in self.shown(title), lambda: self.shown(title), seconds=START_S)
        else:
            port = int(self.here(command).rpartition(" ")[2])
            eventually(lambda: listens(port), lambda: self.shown(title), seconds=START_S)

    def shown(self, title: str) -> str:
        """What a terminal shows."""
        return (self._folder / title).read_text()

    def type(self, command: str) -> str:
        """Runs commands that end; their output. What they export is there for those that follow."""
        done = subprocess.run(
            ["bash", "-ec", f". {self._exported}\n{self.here(command)}\nexport -p > {self._exported}"],
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=self.wait_s,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def stop(self) -> None:
        """Ctrl-C everywhere."""
        running = list(self._running.values())
        self._running.clear()
        self._stop(running)

    def _stop(self, running: list[subprocess.Popen[bytes]]) -> None:
        for process in running:
            os.killpg(process.pid, signal.SIGINT)
        assert {process.wait(WAIT_S) for process in running} <= self.interrupted


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def run(page: str, terminals: Terminals, go_on: tuple[str, ...] = GO_ON) -> None:
    """Types what the page says, and waits until every terminal shows what the page shows.

    Args:
        page: Below `docs`.
        terminals: Where.
        go_on: How commands begin that do not end by themselves.
    """
    blocks = steps(REPOSITORY / "docs" / page)
    for block, after in zip(blocks, [*blocks[1:], Step(False, "", "")], strict=True):
        if block.is_command and block.text.startswith(go_on):
            terminals.start(block.title, block.text)
        elif block.is_command:
            compare(block.text, after.text if after.title == OUTPUT else "", terminals)
        elif block.title != OUTPUT:
            wanted = set(stable(terminals.here(block.text)))
            shown = partial(terminals.shown, block.title)
            eventually(lambda wanted=wanted, shown=shown: wanted <= set(stable(shown())), shown)


def compare(command: str, output: str, terminals: Terminals) -> None:
    """Types a command and compares; one that only looks is typed again until it shows what the page shows."""
    wanted = stable(terminals.here(output))
    printed = terminals.type(command)

    def shows() -> bool:
        nonlocal printed
        if output and stable(printed) != wanted and command.startswith(LOOK):
            printed = terminals.type(command)
        return not output or stable(printed) == wanted

    eventually(shows, lambda: f"{command}\n{printed}", seconds=WAIT_S if command.startswith(LOOK) else 0.0)


def test_the_pages_show_what_happens(tmp_path: Path) -> None:
    terminals = Terminals(tmp_path)
    try:
        for page in ("tutorial.md", "howto/backup.md")[: times(1, 2)]:
            run(page, terminals)
    finally:
        terminals.stop()
