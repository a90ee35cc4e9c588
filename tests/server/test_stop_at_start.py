"""A stop of a process that is in the middle of something which nothing breaks off."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headgate.server.processes.supervisor import DRAIN

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
context = child.Context(Settings(data=Path(sys.argv[2]), kafka="127.0.0.1:1"), b"", part, cluster)
importlib.import_module(parts.module_of(context.settings, part)).run(context)
"""

HANGING = """
import signal, sys, time
from pathlib import Path
from types import SimpleNamespace
from headgate.server import child, parts
from headgate.server.processes import matcher
from headgate.settings import Settings
from headgate.store.config import ClusterConfig, KafkaConfig
from headgate.store.kafka import matcher as on_kafka, objects

def hang(*, on_started, **_):
    if sys.argv[3] == "has started":
        on_started()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # as in a call that no signal breaks off
    print("hangs", flush=True)
    time.sleep(60)

matcher.serve = on_kafka.serve_kafka = hang
objects.open_cache = lambda *_: SimpleNamespace(close=lambda: None)
matcher.MATCHER_STOP_S_MAX = 0.2
cluster = ClusterConfig(kafka=KafkaConfig(bootstrap="127.0.0.1:1")) if sys.argv[1] == "kafka" else None
matcher.run(child.Context(Settings(data=Path(sys.argv[2])), b"", parts.ServerPart(parts.Role.MATCHER), cluster))
"""


@pytest.mark.parametrize(
    ("log", "spark"),
    [
        ("files", "has started"),
        ("kafka", "starts"),
        pytest.param("files", "starts", marks=pytest.mark.slow),
        pytest.param("kafka", "has started", marks=pytest.mark.slow),
    ],
)
def test_a_matcher_leaves_a_spark_that_hangs(log: str, spark: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", HANGING, log, str(tmp_path), spark]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as part:
        try:
            assert part.stdout is not None
            assert part.stderr is not None
            while part.stdout.readline() != "hangs\n":
                assert part.poll() is None, part.stderr.read()
            part.terminate()
            assert part.wait(DRAIN[1][1]) == 0
            assert ("in hang" in part.stderr.read()) == (spark == "has started"), "it says where it stands"
        finally:
            part.kill()


@pytest.mark.parametrize("role", ["control", pytest.param("objects", marks=pytest.mark.slow)])
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
