"""The Kafka that tests start: it ends with them."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import REPOSITORY

pytestmark = pytest.mark.kafka


@pytest.mark.slow
def test_it_ends_with_a_program_that_is_killed(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from clusters.kafka import Kafka\n"
        "kafka = Kafka(Path(sys.argv[1])); kafka.start(); print(kafka.pids[1], flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as child:
        assert child.stdout is not None
        broker = Path("/proc") / child.stdout.readline().strip()
        assert "kafka.Kafka" in (broker / "cmdline").read_text()
        child.kill()
    deadline = time.monotonic() + 10
    while broker.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not broker.exists()
