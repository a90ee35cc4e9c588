"""A real Kafka on loopback for tests, benchmarks and examples: one or more KRaft nodes, each broker and controller."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from clusters import LocalCluster, launched
from headgate.backend.kafka.spark_jars import jars
from headgate.testing.server import free_port
from headgate_api.errors import UnavailableError

POM: Final = Path(__file__).with_name("kafka-pom.xml")
START_S_MAX: Final = 120.0
"""Three brokers need 7 s on a quiet machine and 21 s on a busy one."""
SESSION_TIMEOUT_MS: Final = 6_000
"""A broker that is silent for so long is dead to the others: half of that of a cluster, so that tests wait less."""
_JVM: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Xms64m")
_SUPERUSERS: Final = "User:ANONYMOUS;User:admin"


@dataclass(frozen=True)
class _Node:
    """Where one node is: its number from 1, its folder and its ports."""

    id: int
    folder: Path
    port: int
    sasl_port: int
    controller_port: int


class Kafka(LocalCluster):
    """A Kafka cluster of this machine.

    Clients reach it without authentication, as a superuser, at `bootstrap`. With `users` it also listens at
    `sasl_bootstrap`, where a client gives a name and a password (SASL/PLAIN); `admin` may do everything, the others
    nothing.

    Args:
        folder: Where configuration, logs and data go; made when absent.
        brokers: How many nodes.
        users: Passwords by name.
        settings: More of `server.properties`, for every node.
        heap_mb: Heap of each node.
    """

    def __init__(
        self,
        folder: Path,
        brokers: int = 1,
        *,
        users: Mapping[str, str] = MappingProxyType({}),
        settings: Mapping[str, str] = MappingProxyType({}),
        heap_mb: int = 384,
    ) -> None:
        super().__init__(folder)
        self._nodes = tuple(
            _Node(number, folder / f"node-{number}", free_port(), free_port(), free_port())
            for number in range(1, brokers + 1)
        )
        self._users = users
        self._settings = settings
        self._heap_mb = heap_mb

    @property
    def bootstrap(self) -> str:
        """HOST:PORT of every node, for clients without authentication."""
        return ",".join(f"127.0.0.1:{node.port}" for node in self._nodes)

    @property
    def sasl_bootstrap(self) -> str:
        """HOST:PORT of every node, for clients with a name and a password."""
        return ",".join(f"127.0.0.1:{node.sasl_port}" for node in self._nodes)

    @property
    def pids(self) -> dict[int, int]:
        """Process ids of the running nodes, by the node's number."""
        return {number: process.pid for number, process in self._running.items()}

    def start(self) -> None:
        """Formats and starts every node; returns when each is in the cluster.

        Raises:
            UnavailableError: A node ended, or they are not ready within `START_S_MAX`.
        """
        try:
            self._format()
            for node in self._nodes:
                self._launch(node)
            self.wait_ready()
        except BaseException:
            self.stop()
            raise

    def wait_ready(self) -> None:
        """Waits until every node that runs is in the cluster.

        Raises:
            UnavailableError: One ended, or they are not ready within `START_S_MAX`.
        """
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        # Clients log lost connections by themselves; here each is expected until the nodes are up.
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": "0"})
        deadline = time.monotonic() + START_S_MAX
        while True:
            known: set[int] = set()
            with contextlib.suppress(KafkaException):
                known = set(admin.list_topics(timeout=1).brokers)
            # The others list a node that was killed until its session ends: its own port must answer, too.
            if known >= set(self._running) and all(self._listens(number) for number in self._running):
                return
            ended = [number for number, process in self._running.items() if process.poll() is not None]
            if ended or time.monotonic() > deadline:
                what = f"Kafka's node {ended[0]} ended" if ended else f"Kafka on {self.bootstrap} is not ready"
                raise UnavailableError(what, hint=f"its log: {self.folder}/node-*/kafka.log")
            time.sleep(0.05)

    def _listens(self, number: int) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self._nodes[number - 1].port), timeout=1).close()
        except OSError:
            return False
        return True

    def restart(self, number: int, *, wait: bool = True) -> None:
        """Starts a node that was killed, with the data that it had; returns when it is in the cluster.

        Without `wait` it returns at once: an event loop's thread may start it, and another one call `wait_ready`.
        """
        self._launch(self._nodes[number - 1])
        if wait:
            self.wait_ready()

    def stop(self) -> None:
        """Ends every node at once; what they hold is given up."""
        for number in list(self._running):
            self.kill(number)

    def _format(self) -> None:
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        made = []
        for node in self._nodes:
            node.folder.mkdir(parents=True, exist_ok=True)
            (node.folder / "server.properties").write_text(self._properties(node))
            # All at once: each is a JVM of its own, and formatting one takes a second.
            id_ = f"--cluster-id={cluster}"  # as one word: one in 64 begins with a dash
            made.append(self._java(node, "kafka.tools.StorageTool", "format", id_, "-c"))
        for node, process in zip(self._nodes, made, strict=True):
            if process.wait():
                raise UnavailableError(f"Kafka's node {node.id} cannot be formatted", hint=f"{node.folder}/kafka.log")

    def _launch(self, node: _Node) -> None:
        self._running[node.id] = self._java(node, "kafka.Kafka")

    def _java(self, node: _Node, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        java = (
            "java",
            *_JVM,
            f"-Xmx{self._heap_mb}m",
            "-Dorg.apache.logging.log4j.level=WARN",
            "-cp",
            f"{jars(POM)}/*",
        )
        command = (*java, program, *arguments, str(node.folder / "server.properties"))
        return launched(command, node.folder / "kafka.log", "KILL")

    def _properties(self, node: _Node) -> str:
        """The node's `server.properties`."""
        copies = str(len(self._nodes))
        listeners = {"PLAINTEXT": node.port, "CONTROLLER": node.controller_port}
        if self._users:
            listeners["SASL_PLAINTEXT"] = node.sasl_port
        lines = {
            "process.roles": "broker,controller",
            "node.id": str(node.id),
            "controller.quorum.voters": ",".join(f"{n.id}@127.0.0.1:{n.controller_port}" for n in self._nodes),
            "controller.listener.names": "CONTROLLER",
            "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in listeners.items()),
            "listener.security.protocol.map": (
                "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT"
            ),
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": str(node.folder / "data"),
            "auto.create.topics.enable": "false",
            "group.initial.rebalance.delay.ms": "0",
            "broker.session.timeout.ms": str(SESSION_TIMEOUT_MS),
            "offsets.topic.replication.factor": copies,
            "offsets.topic.num.partitions": "3",
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": str(min(2, len(self._nodes))),
            "transaction.state.log.num.partitions": "3",
            "share.coordinator.state.topic.replication.factor": copies,
            "share.coordinator.state.topic.min.isr": "1",
        }
        if self._users:
            logins = " ".join(f'user_{name}="{password}"' for name, password in self._users.items())
            lines |= {
                "sasl.enabled.mechanisms": "PLAIN",
                "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
                    f"org.apache.kafka.common.security.plain.PlainLoginModule required {logins};"
                ),
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": _SUPERUSERS,
            }
        return "".join(f"{key}={value}\n" for key, value in {**lines, **self._settings}.items())
