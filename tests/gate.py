"""A run as a whole, a plugin of pytest: which tests share a process, and what the run has started.

Tests that share a fixture of a file or of the session run in one process, where it is made once. What starts servers,
JVMs or Kafka comes first, so that the many small tests fill what is left at the end.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import tempfile
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from xdist.scheduler import LoadScopeScheduling

from headgate.server.parts import MATCHER_VARIABLE
from tests.support import DEPTH

COSTLY: Final = ("spark", "kafka", "system", "crash")
"""The marks of tests that start more than a process of Python."""
RUN: Final = "HEADGATE_TEST_RUN"
"""In the environment of everything that one run starts."""
SAMPLE_S: Final = 0.5
LOOKS_MAX: Final = 4
_JVM: Final = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
"""No test runs Spark so long that its second compiler pays: without it a server starts for two thirds of the work. The
room for code is that of both compilers: the code of all tests fills the smaller one, and is then compiled again."""
PROGRAMS: Final[dict[str, Callable[[list[bytes]], bool]]] = {
    "servers": lambda words: b"serve" in words[1:4] and any(word.endswith(b"headgate") for word in words[1:3]),
    "JVMs": lambda words: words[0].endswith(b"java"),
    "Kafka brokers": lambda words: b"kafka.Kafka" in words,
}


def groups_file() -> Path:
    """Where the processes of a run write which group each test is in: only they collect, another one hands out."""
    return Path(tempfile.gettempdir()) / f"headgate-test-groups-{os.environ[RUN]}"


class Groups(LoadScopeScheduling):
    """Hands out whole groups. xdist's own `loadgroup` hands out single tests: with pytest 9.2 no mark reaches it."""

    def _split_scope(self, nodeid: str) -> str:
        if not hasattr(self, "_groups"):
            self._groups = json.loads(groups_file().read_text())
            groups_file().unlink()
        return self._groups.get(nodeid, nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Groups | None:
    """For `--dist loadgroup` alone."""
    return Groups(config, log) if config.getvalue("dist") == "loadgroup" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Finds out which tests go together, and puts the groups that are costly first."""
    above: dict[str, str] = {}

    def group(name: str) -> str:
        while (parent := above.setdefault(name, name)) != name:
            name = parent
        return name

    of_item = {item: [item.nodeid, *_shared_fixtures(item)] for item in items}
    for _, *fixtures in of_item.values():
        for fixture in fixtures[1:]:
            above[group(fixtures[0])] = group(fixture)
    groups = {item: group(names[-1]) for item, names in of_item.items()}
    costly = Counter(groups[item] for item in items if any(map(item.get_closest_marker, COSTLY)))
    items.sort(key=lambda item: -costly[groups[item]])
    if worker := os.environ.get("PYTEST_XDIST_WORKER"):
        written = groups_file().with_suffix(f".{worker}")
        written.write_text(json.dumps({item.nodeid: name for item, name in groups.items()}))
        written.replace(groups_file())


def pytest_collection_finish() -> None:
    """Thousands of tests are objects that stay: the collector need not look at them again and again."""
    gc.collect()
    gc.freeze()


def _shared_fixtures(item: pytest.Item) -> Iterator[str]:
    """The fixtures of a test that other tests have too, of those that are ours: `system.server`, `test_tls.secured`."""
    if item.get_closest_marker("kafka"):
        yield "tests.kafka"  # a contract suite asks for it only when it has come so far
    definitions = item._fixtureinfo.name2fixturedefs if isinstance(item, pytest.Function) else {}
    for name, found in definitions.items():
        if found[-1].scope != "function" and found[-1].func.__module__.startswith("tests."):
            yield f"{Path(found[-1].baseid).stem}.{name}"


class Started:
    """Counts the programs that a run starts, by looking at the system's processes now and then."""

    def __init__(self) -> None:
        self._mark = f"{RUN}={os.environ[RUN]}".encode()
        self._seen: set[tuple[str, int]] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        looks: dict[Path, int] = {}
        while not self._ended.wait(SAMPLE_S):
            # A process becomes the program that it starts soon after it was forked; later looks would only cost time.
            looks = {process: looks.get(process, 0) + 1 for process in Path("/proc").glob("[0-9]*")}
            for process in (process for process, count in looks.items() if count <= LOOKS_MAX):
                try:
                    words = (process / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
                    kinds = [kind for kind, holds in PROGRAMS.items() if holds(words)]
                    if kinds and self._mark in (process / "environ").read_bytes().split(b"\0"):
                        self._seen |= {(kind, int(process.name)) for kind in kinds}
                except OSError:  # it has just ended
                    continue

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Says what was started, and how much work the tests were that start it."""
        self._ended.set()
        counts = Counter(kind for kind, _ in self._seen)
        started = ", ".join(f"{counts[kind]} {kind}" for kind in PROGRAMS)
        reports = [one for found in terminalreporter.stats.values() for one in found if hasattr(one, "duration")]
        work = Counter[bool]()
        for one in reports:
            work[not one.keywords.keys().isdisjoint(COSTLY)] += one.duration
        terminalreporter.section("the whole run")
        terminalreporter.write_line(f"started: {started}")
        terminalreporter.write_line(
            f"seconds of all processes: {work[True]:.0f} in tests that start them, {work[False]:.0f} in the others"
        )


def pytest_configure(config: pytest.Config) -> None:
    """Every process of the run has the run's environment; only the one that reads all reports counts."""
    os.environ.setdefault(RUN, uuid.uuid4().hex)
    os.environ.setdefault("SPARK_SUBMIT_OPTS", _JVM)
    if DEPTH == "gate":  # tests about Spark ask for it: `Server(spark=True)`
        os.environ.setdefault(MATCHER_VARIABLE, "tests.plain_matcher")
        root = str(Path(__file__).resolve().parents[1])  # where a server finds it
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A run in the background of a script: the programs that tests start would inherit it, and pass over Ctrl-C.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not os.environ.get("PYTEST_XDIST_WORKER"):
        config.pluginmanager.register(Started())
