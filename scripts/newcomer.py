"""How long a newcomer takes from an empty directory to the first filtered delivery: by the wheels, and by a clone.

python -m scripts.newcomer [--wheels DIR] [--only wheel|clone]

Each way types the commands of the documentation in an empty directory. The caches of uv and Maven are warm: an
installation that is not counted comes first. It prints the seconds of each step; the exit status is 1 when a way took
longer than `SECONDS_MAX`, or ended otherwise than with the one event that the filter takes.
"""

from __future__ import annotations

import argparse
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from headgate.testing.server import Server, free_port
from headgate_api import DISTRIBUTION

SECONDS_MAX: Final = 120.0
"""For each way: what takes longer is given up by most people."""
WAYS: Final = ("wheel", "clone")
REPOSITORY: Final = Path(__file__).resolve().parents[1]
MANIFEST: Final = """\
apiVersion: eventing.knative.dev/v1
kind: Broker
metadata: {{name: default}}
---
apiVersion: eventing.knative.dev/v1
kind: Trigger
metadata: {{name: large-orders}}
spec:
  broker: default
  filter: {{expression: 'ce.type == "order.paid" && data.total > 100'}}
  subscriber: {{uri: "http://127.0.0.1:{port}/"}}
"""


class StepFailedError(Exception):
    """A command failed, or the wrong event came."""


@dataclass
class Way:
    """One way, as it went.

    Attributes:
        name: One of `WAYS`.
        folder: The empty directory.
        steps: What was done, and the seconds that it took.
    """

    name: str
    folder: Path
    steps: list[tuple[str, float]] = field(default_factory=list)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Measures a step."""
        started = time.monotonic()
        yield
        self.steps.append((name, time.monotonic() - started))

    def run(self, *command: object) -> None:
        """Runs a command of the newcomer's, in his directory and without our environment.

        Raises:
            StepFailedError: It failed.
        """
        words = [str(word) for word in command]
        done = subprocess.run(words, cwd=self.folder, env=_environment(), capture_output=True, text=True)
        if done.returncode:
            raise StepFailedError(f"{' '.join(words)}: {done.stdout[-500:]}{done.stderr[-1000:]}")

    @property
    def seconds(self) -> float:
        """Of all steps."""
        return sum(seconds for _, seconds in self.steps)


def _environment() -> dict[str, str]:
    ours = ("VIRTUAL_ENV", "PYTHONPATH", "MAKEFLAGS", "MAKELEVEL", "CI")
    return {name: value for name, value in os.environ.items() if name not in ours and not name.startswith("HEADGATE_")}


def _fill_cache(wheels: Path) -> None:
    """Installs once what `by_wheel` will install; our own environment has filled the cache for `by_clone`."""
    with tempfile.TemporaryDirectory(prefix="headgate-newcomer-") as folder:
        by_wheel(Way("cache", Path(folder)), wheels)


def by_wheel(way: Way, wheels: Path) -> Path:
    """Installs the wheels; returns the folder of the programs."""
    programs = way.folder / "venv" / "bin"
    uv = _uv()
    with way.step("uv venv"):
        way.run(uv, "venv", "--python", sys.executable, "venv")
    with way.step(f"uv pip install {DISTRIBUTION}"):
        way.run(uv, "pip", "install", "--python", programs / "python", "--find-links", wheels, DISTRIBUTION)
    return programs


def by_clone(way: Way, wheels: Path) -> Path:
    """Clones this repository and sets it up; returns the folder of the programs."""
    with way.step("git clone"):
        way.run("git", "clone", "--no-local", "--depth", "1", f"file://{REPOSITORY}", "headgate")
    with way.step("make setup"):
        way.run("make", "-C", "headgate", "setup")
    return way.folder / "headgate" / ".venv" / "bin"


INSTALL: Final[dict[str, Callable[[Way, Path], Path]]] = {"wheel": by_wheel, "clone": by_clone}


def walk(way: Way, wheels: Path) -> None:
    """Goes one way to its end.

    Raises:
        StepFailedError: It did not end with the event that the filter takes.
    """
    received: queue.SimpleQueue[str] = queue.SimpleQueue()
    program = INSTALL[way.name](way, wheels) / "headgate"
    with _subscriber(received) as port:
        (way.folder / "shop.yaml").write_text(MANIFEST.format(port=port))
        server = Server(way.folder / "data", log=way.folder / "server.log", program=program)
        try:
            with way.step("headgate serve, until it is ready"):
                server.start()
            with way.step("headgate apply"):
                way.run(program, "apply", "-f", "shop.yaml", "--server", server.url)
            with way.step("the trigger becomes Ready"):
                server.wait_trigger_ready("default", "large-orders", seconds=SECONDS_MAX)
            with way.step("headgate send, twice"):
                for total in (50, 250):
                    options = ("--type", "order.paid", "--id", f"total-{total}", "--data", f'{{"total": {total}}}')
                    way.run(program, "send", *options, "--server", server.url)
            with way.step("the subscriber has the event"):
                try:
                    first = received.get(timeout=SECONDS_MAX)
                except queue.Empty:
                    raise StepFailedError("no event came") from None
            if first != "total-250":
                raise StepFailedError(f"{first} came, which the filter does not take")
        finally:
            server.stop()


@contextmanager
def _subscriber(received: queue.SimpleQueue[str]) -> Iterator[int]:
    """Takes every POST, and notes the id of its event; yields its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(202)
            self.send_header("content-length", "0")
            self.end_headers()
            received.put(self.headers["ce-id"])

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", free_port()), Handler) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        yield listening.server_port
        listening.shutdown()


def _uv() -> str:
    beside = Path(sys.executable).with_name("uv")
    return str(beside) if beside.is_file() else shutil.which("uv") or "uv"


def _table(way: Way) -> Table:
    table = Table(f"by the {way.name}")
    table.add_column("seconds", justify="right")
    for name, seconds in way.steps:
        table.add_row(name, f"{seconds:.1f}")
    table.add_section()
    verdict = "ok" if way.seconds <= SECONDS_MAX else "MISSED"
    table.add_row(
        f"from an empty directory to the first delivery, at most {SECONDS_MAX:.0f}: {verdict}", f"{way.seconds:.1f}"
    )
    return table


def main() -> int:
    """Goes the ways, prints their table, and returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m scripts.newcomer", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--wheels", type=Path, default=REPOSITORY / "dist", help="where the wheels are (make dist)")
    parser.add_argument("--only", choices=WAYS, help="one way alone")
    options = parser.parse_args()
    wheels = options.wheels.resolve()
    if len({*wheels.glob("headgate_broker-*.whl"), *wheels.glob("headgate_client-*.whl")}) != 2:
        print(f"error: {wheels} does not hold one wheel of each distribution\nhint: make dist", file=sys.stderr)
        return 1
    ways = []
    for name in [options.only] if options.only else WAYS:
        with tempfile.TemporaryDirectory(prefix="headgate-newcomer-") as folder:
            ways.append(Way(name, Path(folder)))
            try:
                if name == "wheel":
                    _fill_cache(wheels)
                walk(ways[-1], wheels)
            except StepFailedError as error:
                print(f"error: {name}: {error}", file=sys.stderr)
                return 1
        Console(width=100).print(_table(ways[-1]))
    return int(any(way.seconds > SECONDS_MAX for way in ways))


if __name__ == "__main__":
    sys.exit(main())
