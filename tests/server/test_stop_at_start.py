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
from headgate.backend.config import ClusterConfig, KafkaConfig
from headgate.backend.kafka.objects import KafkaObjects

def wait(*_, **__):
    print("opens", flush=True)
    time.sleep(60)

KafkaObjects.__init__ = wait
part = parts.ServerPart(parts.Role(sys.argv[1]))
cluster = ClusterConfig(kafka=KafkaConfig(bootstrap="127.0.0.1:1"))
context = child.Context(Settings(data=Path(sys.argv[2]), kafka="127.0.0.1:1"), b"", part, cluster)
importlib.import_module(parts.module_of(context.settings, part)).run(context)
"""

HANGING = """
import importlib, signal, sys, time
from pathlib import Path
from types import SimpleNamespace
from headgate.server import child, parts
from headgate.server.processes import matcher as embedded
from headgate.settings import Settings
from headgate.backend.config import ClusterConfig, KafkaConfig

def hang(*, on_started, **_):
    if sys.argv[3] == "has started":
        on_started()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # as in a call that no signal breaks off
    print("hangs", flush=True)
    time.sleep(60)

matcher = importlib.import_module(sys.argv[1])
if matcher is embedded:
    matcher.serve = hang
else:
    matcher.serve_kafka = hang
    matcher.open_cache = lambda *_: SimpleNamespace(close=lambda: None)
embedded.MATCHER_STOP_S_MAX = 0.2
cluster = ClusterConfig(kafka=KafkaConfig(bootstrap="127.0.0.1:1"))
matcher.run(child.Context(Settings(data=Path(sys.argv[2])), b"", parts.ServerPart(parts.Role.MATCHER), cluster))
"""


@pytest.mark.parametrize(
    ("module", "spark"),
    [
        ("headgate.server.processes.matcher", "has started"),
        ("headgate.server.processes.kafka.matcher", "starts"),
        pytest.param("headgate.server.processes.matcher", "starts", marks=pytest.mark.slow),
        pytest.param("headgate.server.processes.kafka.matcher", "has started", marks=pytest.mark.slow),
    ],
)
def test_a_matcher_leaves_a_spark_that_hangs(module: str, spark: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", HANGING, module, str(tmp_path), spark]
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
