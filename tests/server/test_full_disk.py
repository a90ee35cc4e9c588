"""Is a front whose disk was full ready again by itself, on a real file system without room?"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.server import child
from headgate.settings import Settings
from headgate.testing.server import free_port
from tests.support import eventually, small_disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", kb=16 << 10) as mount:
        yield mount


@pytest.fixture
def front(disk: Path) -> Iterator[str]:
    """The URL of a front alone."""
    settings = Settings(data=disk / "data", listen=f"127.0.0.1:{free_port()}", grpc="off", partitions=1)
    settings.metrics_directory.mkdir(parents=True)
    command = [sys.executable, "-m", "headgate.server", "front-0"]
    environment = child.environment(settings, bytes(32))
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment) as process:
        try:
            eventually(lambda: log_line(settings.url) == "[+]log ok")
            yield settings.url
        finally:
            process.terminate()


def log_line(url: str) -> str:
    """What /readyz says of the log; nothing while nobody answers."""
    try:
        with urllib.request.urlopen(f"{url}/readyz?verbose", timeout=10) as answer:
            text = answer.read().decode()
    except urllib.error.HTTPError as error:
        text = error.read().decode()
    except OSError:
        return ""
    return next((line for line in text.splitlines() if "]log" in line), "")


def post(url: str) -> int:
    headers = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": "t"}
    try:
        with urllib.request.urlopen(
            urllib.request.Request(f"{url}/default/default", b"x" * 50_000, headers), timeout=30
        ) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_a_front_is_ready_again_once_there_is_room_without_another_event(front: str, disk: Path) -> None:
    assert post(front) == 202
    with (disk / "ballast").open("wb", buffering=0) as ballast:
        free = os.statvfs(disk)
        ballast.write(bytes(free.f_bavail * free.f_frsize))
    assert post(front) == 503
    assert log_line(front).startswith("[-]log failed")
    time.sleep(2.5)  # longer than the pause between two tries
    assert log_line(front).startswith("[-]log failed"), "there is still no room"
    (disk / "ballast").unlink()
    eventually(lambda: log_line(front) == "[+]log ok")
    assert post(front) == 202
