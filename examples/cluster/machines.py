"""What the deployment is made of: three brokers of Kafka, a Spark cluster, and two servers with every role."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headgate.testing import Server, parts_of
from headgate.testing.kafka import Kafka
from headgate.testing.spark import SparkCluster

PARTITIONS = 2
SLOTS = 2 * PARTITIONS
"""Of each matcher: two runs stand beside each other while filters change."""


@dataclass(frozen=True)
class Machines:
    """Everything that runs.

    Attributes:
        kafka: Three brokers.
        spark: A master and two workers.
        servers: Two of `headgate serve`, each with control, front, matcher, dispatcher and reader. One control process
            leads and one matcher, the others stand by.
    """

    kafka: Kafka
    spark: SparkCluster
    servers: tuple[Server, ...]

    def state(self, server: Server, part: str) -> str:
        """What a process says of itself in `/readyz?verbose`."""
        with urllib.request.urlopen(f"{server.url}/readyz?verbose", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return next((line for line in lines if line.startswith(f"[+]{part} ")), "")

    def leader(self, part: str, stands_by: str) -> Server:
        """The server whose process of that name does not stand by."""
        return next((one for one in self.servers if stands_by not in self.state(one, part)), self.servers[0])

    def kill_part(self, server: Server, part: str) -> None:
        """SIGKILL to one process of a server; its supervisor starts another one."""
        os.kill(parts_of(server.pid)[part], signal.SIGKILL)


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Machines]:
    """Starts everything, one after the other; at the block's end everything has ended.

    Args:
        folder: Where data and logs go.
    """
    with contextlib.ExitStack() as stack:
        kafka = stack.enter_context(Kafka(folder / "kafka", 3, heap_mb=256))
        spark = stack.enter_context(SparkCluster(folder / "spark"))
        file = folder / "headgate.yaml"
        topics = {"events": {"partitions": PARTITIONS}, "outbox": {"partitions": 4}, "refused": {"partitions": 1}}
        options = {
            "spark.cores.max": SLOTS,
            "spark.executor.cores": SLOTS // 2,
            "spark.executor.memory": "768m",
            "spark.driver.host": "127.0.0.1",
        }
        config = {
            "kafka": {"bootstrap": kafka.bootstrap, "topics": topics},
            "spark": {"master": spark.url, "options": options},
        }
        file.write_text(json.dumps(config, indent=2))  # JSON is YAML
        headgate = Path(sys.executable).with_name("headgate")
        subprocess.run([headgate, "cluster", "init", "--config", file], check=True, stdout=subprocess.DEVNULL)
        arguments = ("--config", str(file), "--public-url", "http://127.0.0.1:8080")
        servers = tuple(
            Server(folder / f"server-{number}", arguments=arguments, log=folder / f"server-{number}.log")
            for number in (1, 2)
        )
        for server in servers:
            stack.callback(server.kill)
            server.start(wait=False)
        for server in servers:
            server.wait_ready()
        yield Machines(kafka, spark, servers)
        for server in servers:
            server.stop()
