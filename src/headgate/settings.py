"""Settings of `headgate serve`, from options and the environment."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, Literal

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from headgate.limits import BACKLOG_BYTES_MAX, BACKLOG_S_MAX

OFF: Final = "off"
_ALLOWED_HOST: Final = re.compile(r"\*|(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*|[0-9a-f.]*:[0-9a-f:.]*")


def hosts_of(text: str) -> list[str]:
    """The hosts of a comma-separated text, in lower case and without the brackets of an IPv6 address."""
    return [one.strip().lower().strip("[]") for one in text.split(",") if one.strip()]


ACCEPTABLE_LOSSES: Final = ("control.db", "dispatch.db")
"""Databases whose loss stops a server that has events, unless it is accepted."""


class Settings(BaseSettings):
    """Settings of one server; each field is also read from the environment (`HEADGATE_LISTEN`, ...).

    Attributes:
        data: Directory of everything that lasts: log, outbox, objects, cursors.
        listen: HOST:PORT of ingress, API and metrics.
        grpc: HOST:PORT of gRPC; `off` for none.
        allowed_host: Names that clients may call the server by beside its own, `headgate.example.com, *.svc`; `*` for
            any.
        partitions: Partitions of the event log. Each costs the matcher one task; the number may only grow.
        manifests: Directory of YAML objects that are applied on start; None for none.
        jvm_memory_mb: Heap of the matcher's JVM.
        segment_mb: Size at which a log segment is closed.
        retain_hours: Log and outbox segments whose newest record is older go, once they are below the retention floor.
        retain_mb: Over this size of a partition its oldest segments go likewise; None: size does not matter.
        backlog_hours: What a trigger or subscription has not taken is given up when it is older.
        backlog_mb: The same when more than so much of a partition was stored after it.
        on_corrupt: What readers do at a damaged place of the log: `stop` there, or `skip` it and say so.
        accept_lost: Databases that may be missing beside events that are there, `control.db, dispatch.db`.
        metrics: Whether `/metrics` is served.
        egress: Where subscribers and dead-letter sinks may be: `local` (this machine and its networks, too) or
            `public` (what is routed in the Internet only).
        egress_allow: Networks allowed all the same, `10.0.0.0/8, ::1`.
        egress_deny: Networks that are always refused.
        egress_ports: Ports allowed, `80, 443, 8000-8999`; empty for all.
        egress_schemes: Schemes allowed, `http, https`.
    """

    model_config = SettingsConfigDict(env_prefix="HEADGATE_", frozen=True)

    data: Path = Path("headgate-data")
    listen: str = "127.0.0.1:8080"
    grpc: str = "127.0.0.1:8081"
    allowed_host: str = ""
    partitions: int = Field(default=2, ge=1, le=64)
    manifests: Path | None = None
    jvm_memory_mb: int = Field(default=2048, ge=512)
    segment_mb: int = Field(default=256, ge=1, le=1024)
    retain_hours: float = Field(default=168.0, ge=0)
    retain_mb: int | None = Field(default=None, ge=0)
    backlog_hours: float = Field(default=BACKLOG_S_MAX / 3_600, gt=0)
    backlog_mb: int = Field(default=BACKLOG_BYTES_MAX >> 20, ge=1)
    on_corrupt: Literal["stop", "skip"] = "stop"
    accept_lost: str = ""
    metrics: bool = True
    egress: Literal["local", "public"] = "local"
    egress_allow: str = ""
    egress_deny: str = ""
    egress_ports: str = ""
    egress_schemes: str = "http, https"

    @field_validator("listen")
    @classmethod
    def _host_and_port(cls, value: str) -> str:
        host, colon, port = value.rpartition(":")
        if not (host and colon and port.isdigit() and int(port) < 65536):
            raise ValueError(f"{value!r} is not HOST:PORT, for example 127.0.0.1:8080")
        return value

    @field_validator("grpc")
    @classmethod
    def _grpc(cls, value: str) -> str:
        return value if value == OFF else cls._host_and_port(value)

    @field_validator("allowed_host")
    @classmethod
    def _allowed_host(cls, value: str) -> str:
        for name in hosts_of(value):
            if not _ALLOWED_HOST.fullmatch(name):
                raise ValueError(f"{name!r} is no host, for example headgate.example.com, *.example.com or 10.0.0.5")
        return value

    @property
    def allowed_hosts(self) -> frozenset[str]:
        """The names of `allowed_host`, as a client would say them in lower case."""
        return frozenset(hosts_of(self.allowed_host))

    @field_validator("accept_lost")
    @classmethod
    def _accept_lost(cls, value: str) -> str:
        unknown = sorted(set(_names(value)) - set(ACCEPTABLE_LOSSES))
        if unknown:
            raise ValueError(f"{unknown[0]!r} is not one of {', '.join(ACCEPTABLE_LOSSES)}")
        return value

    @property
    def losses_accepted(self) -> list[str]:
        """The names in `accept_lost`."""
        return _names(self.accept_lost)

    @property
    def host(self) -> str:
        """The host part of `listen`, without the brackets of an IPv6 address."""
        return self.listen.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """The port part of `listen`."""
        return int(self.listen.rpartition(":")[2])

    @property
    def url(self) -> str:
        """Where clients on this machine reach the server."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host, self.host)
        return f"http://{host}:{self.port}"

    @property
    def log_directory(self) -> Path:
        """The event log: one directory per partition."""
        return self.data / "log"

    @property
    def metrics_directory(self) -> Path:
        """The metrics files of the processes."""
        return self.run_directory / "metrics"

    @property
    def reader_socket(self) -> Path:
        """Where the process that reads the log for consumers listens."""
        return self.run_directory / "reader.sock"

    @property
    def dispatcher_socket(self) -> Path:
        """Where the process that owns the cursors of subscriptions listens."""
        return self.run_directory / "dispatcher.sock"

    @property
    def reader_rpc(self) -> Path:
        """Where it answers gRPC."""
        return self.run_directory / "reader.rpc"

    @property
    def dispatcher_rpc(self) -> Path:
        """Where the dispatcher answers gRPC."""
        return self.run_directory / "dispatcher.rpc"

    @property
    def run_directory(self) -> Path:
        """What matters only while the server runs: ready files, the match link's address, metrics."""
        return self.data / "run"


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
