"""A Spark standalone cluster on loopback for examples, benchmarks and tests: a master and some workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyspark

from clusters import LocalCluster, launched
from headgate.testing.server import free_port
from headgate_api.errors import UnavailableError

START_S_MAX: Final = 120.0
_EXECUTOR: Final = b"org.apache.spark.executor.CoarseGrainedExecutorBackend"
_REGISTERED: Final = "Successfully registered with driver"
_TASK_BEGINS: Final = "INFO Executor: Running task"
_TASK_ENDS: Final = "INFO Executor: Finished task"
_SPARK_CLASS: Final = Path(pyspark.__file__).parent / "bin" / "spark-class"


@dataclass(frozen=True)
class Executor:
    """A process that runs tasks.

    Attributes:
        pid: Its process id.
        tasks: Tasks that have begun in it and not come to their end, as its log says.
    """

    pid: int
    tasks: int


class SparkCluster(LocalCluster):
    """A master, which is number 0, and its workers, whose executors end by themselves when they miss theirs.

    They are those of the installed pyspark.

    Args:
        folder: Where logs and the workers' files go; made when absent.
        workers: How many.
        cores: Task slots of each worker; they need not be real cores.
        memory: Of each worker, for its executors, as Spark writes it.

    Attributes:
        workers: How many it started with.
    """

    def __init__(self, folder: Path, workers: int = 2, *, cores: int = 8, memory: str = "4g") -> None:
        super().__init__(folder)
        self.workers = workers
        self._offer = ("--cores", str(cores), "--memory", memory)
        self._port = free_port()
        self._status_port = free_port()

    @property
    def url(self) -> str:
        """`spark.master` for programs."""
        return f"spark://127.0.0.1:{self._port}"

    @property
    def pids(self) -> list[int]:
        """Process ids of the master and the workers that run; executors are children of workers."""
        return [process.pid for process in self._running.values()]

    def start(self) -> None:
        """Starts the master and every worker; returns when all workers are in the cluster.

        Raises:
            UnavailableError: They are not within `START_S_MAX`.
        """
        try:
            self._start(0, "Master", "--host", "127.0.0.1", "--port", str(self._port), "--webui-port",
                        str(self._status_port))  # fmt: skip
            for number in range(1, self.workers + 1):
                self.start_worker(number)
            deadline = time.monotonic() + START_S_MAX
            while self.alive() < self.workers:
                if time.monotonic() > deadline:
                    raise UnavailableError(f"Spark at {self.url} is not ready", hint=f"its logs: {self.folder}/*.log")
                time.sleep(0.1)
        except BaseException:
            self.stop()
            raise

    def start_worker(self, number: int) -> None:
        """Starts a worker; it is in the cluster some seconds later."""
        place = ("--host", "127.0.0.1", "--webui-port", "0", "--work-dir", str(self.folder / f"worker-{number}"))
        self._start(number, "Worker", *place, *self._offer, self.url)

    def stop(self) -> None:
        """Ends every process."""
        for number in sorted(self._running, reverse=True):
            process = self._running.pop(number)
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self, number: int, kind: str, *arguments: str) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        environment = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
        environment |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
        environment["SPARK_DAEMON_JAVA_OPTS"] = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
        name = f"{kind.lower()}-{number}" if number else kind.lower()
        command = (str(_SPARK_CLASS), f"org.apache.spark.deploy.{kind.lower()}.{kind}", *arguments)
        self._running[number] = launched(command, self.folder / f"{name}.log", "TERM", environment)

    def alive(self) -> int:
        """Workers that the master knows."""
        return int(self._status().get("aliveworkers", 0))

    def executors(self, program: str) -> list[Executor]:
        """A program's executors that its driver knows, by its `spark.app.name`; those with the most tasks first."""
        programs = {one["id"].encode() for one in self._status().get("activeapps", []) if one["name"] == program}
        found = []
        for place in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = place.read_bytes().split(b"\0")
                if _EXECUTOR in words and programs & set(words):
                    said = (place.parent / "cwd" / "stderr").read_text(errors="replace")
                    if _REGISTERED in said:
                        tasks = said.count(_TASK_BEGINS) - said.count(_TASK_ENDS)
                        found.append(Executor(int(place.parent.name), tasks))
            except OSError:  # it has just ended
                continue
        return sorted(found, key=lambda one: -one.tasks)

    def _status(self) -> dict[str, Any]:
        """What the master says of itself; nothing when it does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._status_port}/json/", timeout=2) as answer:
                return json.loads(answer.read())  # type: ignore[no-any-return]
        except (OSError, ValueError):  # while it starts, it answers everything with a page
            return {}
