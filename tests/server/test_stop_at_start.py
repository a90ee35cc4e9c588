"""A stop of a process on Kafka that has not begun yet: it waits for a Kafka that does not answer, or reads for long."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headgate.server.supervisor import DRAIN

OPENING = """
import importlib, sys, time
from pathlib import Path
from headgate.server import child, parts
from headgate.settings import Settings
from headgate.store.config import ClusterConfig, KafkaConfig
from headgate.store.kafka.objects import KafkaObjects

def wait(*_, **__):
    print("opens", flush=True)
    time.sleep(60)

KafkaObjects.open = wait
part = parts.ServerPart(parts.Role(sys.argv[1]))
cluster = ClusterConfig(kafka=KafkaConfig(bootstrap="127.0.0.1:1"))
context = child.Context(Settings(data=Path(sys.argv[2])), b"", part, cluster)
importlib.import_module(f"headgate.server.kafka.{part.role}").run(context)
"""


@pytest.mark.parametrize("role", ["control", "objects"])
def test_a_process_that_opens_the_cache_ends_at_once(role: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", OPENING, role, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as part:
        try:
            assert part.stdout is not None
            assert part.stdout.readline() == "opens\n"
            part.terminate()
            assert part.wait(DRAIN[0][1]) == -signal.SIGTERM
        finally:
            part.kill()
