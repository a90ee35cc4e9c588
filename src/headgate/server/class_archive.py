"""Makes the archive of Spark's classes: `python -m headgate.server.class_archive`, once for each installation.

A server starts faster with it by a third. The JVM of a server on an empty data directory writes it on its way out.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from headgate.match.session import CLASS_ARCHIVE
from headgate_api.errors import HeadgateError, UnavailableError

_S_MAX: Final = 300.0
"""For the start, and again for the JVM's writing."""


def make_archive(path: Path = CLASS_ARCHIVE) -> None:
    """Writes the archive anew; raises UnavailableError where the server does not start, or its JVM writes nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # a JVM that has mapped one writes none
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        written = Path(folder) / path.name
        log = Path(folder) / "log"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADGATE_")}
        environment["SPARK_SUBMIT_OPTS"] = f"-XX:ArchiveClassesAtExit={written} -Xlog:cds=off"
        command = [str(Path(sys.executable).with_name("headgate")), "serve", "--data", f"{folder}/data"]
        with log.open("wb") as output:
            server = subprocess.Popen(
                [*command, "--listen", "127.0.0.1:0", "--grpc", "off"],
                env=environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        try:
            _wait(lambda: b"ready after" in log.read_bytes() or server.poll() is not None)
            server.terminate()
            server.wait()
            _wait(lambda: not _is_running(server.pid))
        finally:
            if _is_running(server.pid):
                os.killpg(server.pid, signal.SIGKILL)
        if not written.exists():
            said = next((line for line in log.read_text().splitlines() if line.startswith("error: ")), "")
            raise UnavailableError(said.removeprefix("error: ") or "Spark's JVM has written no archive of its classes")
        written.replace(path)


def _wait(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + _S_MAX
    while not holds():
        if time.monotonic() > until:
            raise UnavailableError(f"no archive of Spark's classes within {_S_MAX:g} s")
        time.sleep(0.1)


def _is_running(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    try:
        make_archive()
    except (HeadgateError, OSError) as problem:
        sys.exit(f"error: {problem}\nhint: servers start without the archive of Spark's classes, only slower")
