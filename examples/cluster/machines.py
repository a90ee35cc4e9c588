"""What the deployment is made of: brokers of Kafka, a Spark cluster, and two servers that share the work."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from clusters.kafka import Kafka
from clusters.spark import SparkCluster

from examples.cluster.ledger import ORDERED
from headgate.backend.config import TopicsConfig
from headgate.backend.kafka.matcher_leadership import REHEARSED, STANDS_BY
from headgate.demo.run import BROKER, NAMESPACE, TRIGGERS, trigger_spec
from headgate.testing.server import ApiError, Object, Server, parts_of
from headgate_api.errors import UnavailableError

ROLES: Final = ("control,front,matcher,dispatcher,reader", "control,front,matcher,dispatcher")
"""Of the first and the second server: one control process and one matcher lead, the others stand by."""
WHOLE_S_MAX: Final = 240.0
"""Until what was killed works again."""
_LOOK_S: Final = 0.1
_LEADS: Final = {"control": ("leads",), "matcher": ("leads", "generation")}
"""How the note of a process begins that leads."""


@dataclass(frozen=True)
class Sizes:
    """How large the deployment is.

    Attributes:
        servers: Of `headgate serve`, one or two.
        brokers: Brokers of Kafka.
        partitions: Of the topic `events`: each is a task of a run.
        rate_per_s: Events that are published.
    """

    servers: int = 2
    brokers: int = 3
    partitions: int = 2
    rate_per_s: float = 20.0

    @property
    def slots(self) -> int:
        """Task slots of each matcher: two runs stand beside each other while filters change."""
        return 2 * self.partitions

    def config(self, bootstrap: str, master: str, name: str) -> Object:
        """`headgate.yaml` of a server; `name` is how Spark shows its matcher."""
        copies = {"replication": self.brokers, "min_insync": min(2, self.brokers)}
        topics: dict[str, Object] = {role: dict(copies) for role in TopicsConfig.model_fields}
        topics["events"] |= {"partitions": self.partitions}
        topics["outbox"] |= {"partitions": 2 * self.partitions}
        options = {
            "spark.app.name": name,
            "spark.cores.max": self.slots,
            "spark.executor.cores": self.slots // 2,
            "spark.executor.memory": "768m",
            "spark.driver.host": "127.0.0.1",
        }
        return {"kafka": {"bootstrap": bootstrap, "topics": topics}, "spark": {"master": master, "options": options}}


@dataclass(frozen=True)
class Machines:
    """Everything that runs.

    Attributes:
        kafka: The brokers.
        spark: A master and two workers.
        servers: See `ROLES`.
    """

    kafka: Kafka
    spark: SparkCluster
    servers: tuple[Server, ...]

    def leader(self, part: str) -> Server:
        """The server whose `control` or `matcher` leads.

        Raises:
            UnavailableError: None does.
        """
        for server in self.servers:
            if _note(server, part).startswith(_LEADS[part]):
                return server
        raise UnavailableError(f"no {part} leads", hint="`/readyz?verbose` of the servers says more")

    def kill_part(self, server: Server, part: str) -> None:
        """SIGKILL to a process of a server; its supervisor starts another one."""
        os.kill(parts_of(server.pid)[part], signal.SIGKILL)

    def kill_executor(self) -> None:
        """SIGKILL to an executor of the matcher that leads, the one with the most tasks; Spark starts another one."""
        name = self._app(self.leader("matcher"))
        os.kill(self.spark.executors(name)[0].pid, signal.SIGKILL)

    def _app(self, server: Server) -> str:
        """The name of a server's matcher in Spark."""
        return server.data.name

    def is_whole(self, brokers: int, workers: int) -> bool:
        """Whether so many brokers and workers, every process of the servers, and all executors work."""
        return (
            len(self.kafka.pids) == brokers
            and self.spark.alive() == workers
            and all(server.is_ready() for server in self.servers)
            and all(len(self.spark.executors(self._app(server))) >= workers for server in self.servers)
        )

    def is_warm(self) -> bool:
        """Whether every matcher that stands by has rehearsed; it does so as soon as there are events."""
        standing = [note for server in self.servers if (note := _note(server, "matcher")).startswith(STANDS_BY)]
        return len(standing) == len(self.servers) - 1 and all(REHEARSED in note for note in standing)


def wait_until(is_so: Callable[[], bool], what: str, seconds: float = WHOLE_S_MAX) -> None:
    """Looks until something is so.

    Raises:
        UnavailableError: It is not so in time.
    """
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            raise UnavailableError(f"{what} is not so after {seconds:.0f} s")
        time.sleep(_LOOK_S)


def _note(server: Server, part: str) -> str:
    """What a process says of itself in `/readyz?verbose`; empty when it is not ready."""
    try:
        with urllib.request.urlopen(f"{server.url}/readyz?verbose", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
    except urllib.error.HTTPError as error:  # another process is not ready
        lines = error.read().decode().splitlines()
    except OSError:
        return ""
    begin = f"[+]{part} ok: "
    return next((line.removeprefix(begin) for line in lines if line.startswith(begin)), "")


@contextlib.contextmanager
def running(folder: Path, sizes: Sizes, tell: Callable[[str], None]) -> Iterator[Machines]:
    """Starts everything; at the block's end everything has ended.

    Args:
        folder: Where data and logs go.
        sizes: How large.
        tell: Hears in a line what is done.
    """
    with contextlib.ExitStack() as stack:
        tell(f"Kafka: brokers ({sizes.brokers}; the first time Maven fetches 54 MB)")
        kafka = stack.enter_context(Kafka(folder / "kafka", sizes.brokers, heap_mb=256))
        tell("Spark: a master and 2 workers")
        spark = stack.enter_context(SparkCluster(folder / "spark", cores=2 * sizes.slots))
        tell(f"Headgate: servers ({sizes.servers}); their matchers ask the master for executors")
        servers = tuple(
            _server(folder, number, roles, sizes.config(kafka.bootstrap, spark.url, f"server-{number}"))
            for number, roles in enumerate(ROLES[: sizes.servers], 1)
        )
        headgate = Path(sys.executable).with_name("headgate")
        config = folder / "server-1.yaml"
        subprocess.run([headgate, "cluster", "init", "--config", config], check=True, stdout=subprocess.DEVNULL)
        for server in servers:
            stack.callback(server.kill)
            server.start(wait=False)
        for server in servers:
            server.wait_ready()
        machines = Machines(kafka, spark, servers)
        wait_until(lambda: machines.is_whole(sizes.brokers, spark.workers), "every part works")
        yield machines


def _server(folder: Path, number: int, roles: str, config: Object) -> Server:
    file = folder / f"server-{number}.yaml"
    file.write_text(json.dumps(config, indent=2))  # JSON is YAML
    arguments = ("--config", str(file), "--role", roles, "--public-url", "http://127.0.0.1:8080")
    return Server(folder / f"server-{number}", arguments=arguments, log=folder / f"server-{number}.log")


def set_up(server: Server, subscriber_port: int) -> None:
    """Creates the broker and the triggers; returns when the matcher evaluates every one of them."""
    _create(server, "brokers", BROKER, {})
    for one in TRIGGERS:
        order = "ordered" if one.name in ORDERED else "unordered"
        spec = trigger_spec(one, subscriber_port) | {"delivery": {"order": order}}
        _create(server, "triggers", one.name, spec)
    for one in TRIGGERS:
        server.wait_trigger_ready(NAMESPACE, one.name, seconds=WHOLE_S_MAX)


def _create(server: Server, kind: str, name: str, spec: Object) -> None:
    """Creates an object; a 503 says that no control process leads at this moment, and is waited out."""
    made = False

    def has_made() -> bool:
        nonlocal made
        try:
            server.create(kind, NAMESPACE, name, spec)
        except ApiError as error:
            if error.status == 409 and made:
                return True
            if error.status != 503:
                raise
            made = True  # a 503 may come after the leader has stored it
            return False
        return True

    wait_until(has_made, f"{kind} {name} is stored")
