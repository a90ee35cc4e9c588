"""Settings of `headgate serve`; `server/effective.py` takes them from options, the environment and a file."""

from __future__ import annotations

import ipaddress
import os
import re
from enum import StrEnum
from pathlib import Path
from typing import Final, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator
from pydantic.config import JsonDict
from pydantic_settings import BaseSettings, SettingsConfigDict

from headgate_api.limits import BACKLOG_BYTES_MAX, BACKLOG_S_MAX, CORES_A_FRONT, DISPATCHERS_MAX, FRONTS_MAX

OFF: Final = "off"
_ALLOWED_HOST: Final = re.compile(r"\*|(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*|[0-9a-f.]*:[0-9a-f:.]*")


def networks_of(text: str) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    """Networks and addresses from a text such as `10.0.0.0/8, ::1`; ValueError names what is neither."""
    found = []
    for name in _names(text):
        try:
            found.append(ipaddress.ip_network(name))
        except ValueError as error:
            raise ValueError(f"{name!r} is no address and no network: {error}") from error
    return tuple(found)


def hosts_of(text: str) -> list[str]:
    """The hosts of a comma-separated text, in lower case and without the brackets of an IPv6 address."""
    return [name.lower().strip("[]") for name in _names(text)]


ACCEPTABLE_LOSSES: Final = ("control.db", "dispatch.db", "deadletters.db", "replays.db", "subscriptions.db")
"""Databases whose loss, whole or in part, stops a server unless it is accepted."""
LISTED: Final = frozenset(
    {
        "accept_lost",
        "allowed_host",
        "egress_allow",
        "egress_deny",
        "egress_ports",
        "egress_schemes",
        "role",
        "trusted_proxies",
    }
)
"""Settings of several values, separated by commas."""
MASKED: Final = frozenset({"secrets_key_command"})
"""Settings that are not shown: people write secrets into commands."""


class TlsMode(StrEnum):
    """Which addresses of a server speak TLS."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    STRICT = "strict"


class ClientAuth(StrEnum):
    """Whether clients show certificates."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRED = "required"


def local_url(scheme: str, listen: str) -> str:
    """Where clients on this machine reach HOST:PORT."""
    host, _, port = listen.rpartition(":")
    reached = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]", "::": "[::1]"}.get(host, host)
    return f"{scheme}://{reached}:{port}"


def _without_default(schema: JsonDict) -> None:
    """Take the default out of a field's schema: without a value the data directory decides, see `server/datadir.py`."""
    del schema["default"]


class Settings(BaseSettings):
    """Settings of one server; each field is also read from the environment (`HEADGATE_LISTEN`, ...).

    Attributes:
        data: Directory of all durable data: log, outbox, objects, cursors.
        listen: HOST:PORT of ingress, API and metrics.
        grpc: HOST:PORT of gRPC; `off` for none.
        tls_cert: PEM file of the server's certificate and its intermediate certificates; read again when it changes.
        tls_key: PEM file of its key, without a passphrase.
        tls_mode: `disabled`; `strict`: `listen` and `grpc` accept only TLS; `permissive`: they stay plain, and
            `tls_listen` and `tls_grpc` accept TLS. Without a value: `strict` with a certificate, else `disabled`.
        tls_listen: HOST:PORT of HTTP over TLS in the mode `permissive`.
        tls_grpc: HOST:PORT of gRPC over TLS in the mode `permissive`; `off` for none.
        tls_client_ca: PEM file of the CAs whose client certificates are accepted.
        tls_client_auth: Whether a client must present a certificate of these CAs: `required` or `optional`. Without a
            value: `required` with `tls_client_ca`.
        tls_ca: PEM file of the CA with which clients verify this server; the status of a broker shows it.
        authentication_config: File of Kubernetes' `AuthenticationConfiguration`: the trusted issuers of tokens.
        console_client_id: Client id of the console; an issuer of `authentication_config` must have it in its
            audiences. Without a value, users paste a token.
        token_auth_file: File of hashed tokens in Kubernetes' columns; read again when it changes.
        audit_log_path: File of the audit log. Without a value: no audit log.
        audit_log_maxsize: Size in MiB at which the audit log begins a new file.
        audit_log_maxbackup: Number of older files of the audit log that are kept.
        public_url: URL at which clients reach the server, for example that of a proxy. Without a value: that of
            `listen`.
        secrets_key_file: File of the keys that encrypt stored Secrets, one `NAME:BASE64` on each line. The first key
            encrypts.
        secrets_key_command: Command that prints these keys; run without a shell at every start of a process.
        allow_anonymous: Whether requests without credentials are answered when an authentication method is configured,
            and whether the server may listen on other addresses than loopback when none is.
        default_authorization_mode: Who may send to a broker that no EventPolicy applies to, in addition to those whom
            roles allow. `allow-same-namespace`: service accounts of its namespace. `allow-all`: every known user.
            `deny-all`: nobody, whatever roles say.
        allowed_host: Names that clients may use for the server in addition to its own, `headgate.example.com, *.svc`;
            `*` for any.
        trusted_proxies: Addresses and networks of proxies in front of the server, `127.0.0.1, 10.0.0.0/8`. Their header
            `X-Forwarded-For` says which address a request came from. Without a value, the header is ignored.
        eventtype_auto_create: Whether each type of events that a broker accepts gets an EventType object, like
            Knative's flag `eventtype-auto-create`. On Kafka, the control process that leads makes them.
        partitions: Partitions of the event log. Each costs the matcher one task. The number can only grow.
        fronts: Processes that accept events, each with its share of the partitions. Without a value: one for every
            four cores.
        dispatchers: Processes that deliver, each for its own triggers and subscriptions. Without a value: as many as
            the data directory was written for; for a new directory, one for every four cores.
        manifests: Directory of YAML objects that are applied when the server starts.
        jvm_memory_mb: Heap of the matcher's JVM.
        segment_mb: Size at which a log segment is closed.
        retain_hours: Log and outbox segments are deleted when their newest record is older and below the retention
            floor.
        retain_mb: When a partition is larger, its oldest segments below the retention floor are deleted. Without a
            value: no limit.
        backlog_hours: An event that a trigger or subscription has not taken is dropped when it is older.
        backlog_mb: An event that a trigger or subscription has not taken is dropped when more than this was stored
            after it in its partition.
        on_corrupt: What readers do at a damaged place of the log: `stop`, or `skip` it and report it.
        accept_lost: Databases of which a part or all may be lost, such as `control.db, dispatch.db`.
        metrics: Whether `/metrics` is served.
        log_format: Form of the lines on stderr: `text`, `json`, or `auto`, which is text on a terminal, else JSON.
        verbose: Whether text also has what is no warning. JSON and `headgate logs` always have all lines.
        egress: Where subscribers and dead-letter sinks may be: `local` (also this machine and its networks) or
            `public` (only addresses that are routed in the Internet).
        egress_allow: Networks that are allowed even if `egress` refuses them, `10.0.0.0/8, ::1`.
        egress_deny: Networks that are always refused.
        egress_ports: Allowed ports, `80, 443, 8000-8999`; empty for all.
        egress_schemes: Allowed schemes, `http, https`.
        config: Configuration file, headgate.yaml: settings with these names, and a deployment on Kafka.
        kafka: HOST:PORT of some of Kafka's brokers, separated by commas; replaces the value in the file.
        spark: Spark's master, `local[4]`, `spark://HOST:PORT` or `k8s://...`; replaces the value in the file.
        role: What this server does in a deployment on Kafka, `control, front, matcher, dispatcher, reader, source`;
            empty for all roles.
        advertise: URL at which the other servers of a deployment on Kafka reach this one. Without a value: that of
            `listen`, with this machine's name if it listens on all addresses.
    """

    model_config = SettingsConfigDict(env_prefix="HEADGATE_", frozen=True)

    data: Path = Path("headgate-data")
    listen: str = "127.0.0.1:8080"
    grpc: str = "127.0.0.1:8081"
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_mode: Literal["disabled", "permissive", "strict"] | None = None
    tls_listen: str = "127.0.0.1:8443"
    tls_grpc: str = "127.0.0.1:8444"
    tls_client_ca: Path | None = None
    tls_client_auth: Literal["optional", "required"] | None = None
    tls_ca: Path | None = None
    authentication_config: Path | None = None
    console_client_id: str = ""
    token_auth_file: Path | None = None
    audit_log_path: Path | None = None
    audit_log_maxsize: int = Field(default=100, ge=1, le=10_240)
    audit_log_maxbackup: int = Field(default=10, ge=0, le=1_000)
    public_url: str = ""
    secrets_key_file: Path | None = None
    secrets_key_command: str = ""
    allow_anonymous: bool = False
    default_authorization_mode: Literal["allow-same-namespace", "allow-all", "deny-all"] = "allow-same-namespace"
    allowed_host: str = ""
    trusted_proxies: str = ""
    eventtype_auto_create: bool = False
    partitions: int = Field(default=2, ge=1, le=64)
    fronts: int = Field(default_factory=lambda known: _fronts(known["partitions"]), ge=1, le=FRONTS_MAX)
    dispatchers: int = Field(default=1, ge=1, le=DISPATCHERS_MAX, json_schema_extra=_without_default)
    manifests: Path | None = None
    jvm_memory_mb: int = Field(default=2048, ge=512)
    segment_mb: int = Field(default=256, ge=1, le=1024)
    retain_hours: float = Field(default=168.0, ge=0, allow_inf_nan=False)
    retain_mb: int | None = Field(default=None, ge=0)
    backlog_hours: float = Field(default=BACKLOG_S_MAX / 3_600, gt=0, allow_inf_nan=False)
    backlog_mb: int = Field(default=BACKLOG_BYTES_MAX >> 20, ge=1)
    on_corrupt: Literal["stop", "skip"] = "stop"
    accept_lost: str = ""
    metrics: bool = True
    log_format: Literal["auto", "text", "json"] = "auto"
    verbose: bool = False
    egress: Literal["local", "public"] = "local"
    egress_allow: str = ""
    egress_deny: str = ""
    egress_ports: str = ""
    egress_schemes: str = "http, https"
    config: Path | None = None
    kafka: str = ""
    spark: str = ""
    role: str = ""
    advertise: str = ""

    @field_validator("listen", "tls_listen")
    @classmethod
    def _host_and_port(cls, value: str) -> str:
        host, colon, port = value.rpartition(":")
        if not (host and colon and port.isdigit() and int(port) < 65536):
            raise ValueError(f"{value!r} is not HOST:PORT, for example 127.0.0.1:8080")
        return value

    @field_validator("grpc", "tls_grpc")
    @classmethod
    def _grpc(cls, value: str) -> str:
        return value if value == OFF else cls._host_and_port(value)

    @field_validator("public_url", "advertise")
    @classmethod
    def _url(cls, value: str) -> str:
        parsed = urlsplit(value)
        has_more = parsed.path.strip("/") or parsed.query or parsed.fragment
        is_address = parsed.scheme in ("http", "https") and parsed.hostname and not has_more
        if value and not is_address:
            raise ValueError(f"{value!r} is no http or https URL, for example https://events.example.com")
        return value.rstrip("/")

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

    @field_validator("trusted_proxies")
    @classmethod
    def _trusted_proxies(cls, value: str) -> str:
        networks_of(value)
        return value

    @property
    def proxies(self) -> list[str]:
        return _names(self.trusted_proxies)

    @field_validator("accept_lost")
    @classmethod
    def _accept_lost(cls, value: str) -> str:
        unknown = sorted(set(_names(value)) - set(ACCEPTABLE_LOSSES))
        if unknown:
            raise ValueError(f"{unknown[0]!r} is not one of {', '.join(ACCEPTABLE_LOSSES)}")
        return value

    @property
    def losses_accepted(self) -> list[str]:
        return _names(self.accept_lost)

    @property
    def is_on_kafka(self) -> bool:
        """Whether the server is part of a deployment on Kafka; else it keeps everything in `data`."""
        return bool(self.kafka)

    @property
    def host(self) -> str:
        """Without the brackets of an IPv6 address."""
        return self.listen.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        return int(self.listen.rpartition(":")[2])

    @property
    def mode(self) -> TlsMode:
        """`tls_mode`, or what it is without a value."""
        if self.tls_mode is None:
            return TlsMode.DISABLED if self.tls_cert is None else TlsMode.STRICT
        return TlsMode(self.tls_mode)

    @property
    def client_auth(self) -> ClientAuth:
        """`tls_client_auth`, or what it is without a value."""
        if self.tls_client_ca is None:
            return ClientAuth.NONE
        return ClientAuth(self.tls_client_auth or ClientAuth.REQUIRED)

    @property
    def has_authentication(self) -> bool:
        """Whether clients can show who they are, so that those that do not are refused."""
        has_certificates = self.client_auth is not ClientAuth.NONE and self.mode is not TlsMode.DISABLED
        return has_certificates or self.token_auth_file is not None or self.authentication_config is not None

    @property
    def urls(self) -> tuple[str, ...]:
        """Where clients reach the server, by TLS first; `public_url` replaces the URL of its scheme."""
        own = {
            TlsMode.DISABLED: (local_url("http", self.listen),),
            TlsMode.STRICT: (local_url("https", self.listen),),
            TlsMode.PERMISSIVE: (local_url("https", self.tls_listen), local_url("http", self.listen)),
        }[self.mode]
        if not self.public_url:
            return own
        if len(own) == 1:
            return (self.public_url,)
        scheme = urlsplit(self.public_url).scheme
        return tuple(self.public_url if urlsplit(url).scheme == scheme else url for url in own)

    @property
    def url(self) -> str:
        """Where clients reach the server: without TLS, unless they must use it."""
        return self.urls[-1]

    @property
    def is_reached_plain(self) -> bool:
        """Whether the server's own processes reach `url` as anybody does: it listens there, without TLS or users."""
        return self.url == local_url("http", self.listen) and not self.has_authentication

    @property
    def log_directory(self) -> Path:
        return self.data / "log"

    @property
    def usage_directory(self) -> Path:
        """What the processes say of the usage of quotas."""
        return self.run_directory / "usage"

    @property
    def metrics_directory(self) -> Path:
        return self.run_directory / "metrics"

    @property
    def reader_socket(self) -> Path:
        """Where the process that reads the log for consumers listens."""
        return self.run_directory / "reader.sock"

    def dispatcher_socket(self, number: int) -> Path:
        """Where a dispatcher listens, which owns dead letters, replays and the cursors of subscriptions."""
        return self.run_directory / f"dispatcher-{number}.sock"

    @property
    def control_socket(self) -> Path:
        return self.run_directory / "control.sock"

    def front_inward(self, number: int) -> Path:
        """Where a front takes events that dispatchers send to this server's own brokers."""
        return self.run_directory / f"front-{number}.in"

    def front_socket(self, number: int) -> Path:
        """Where a front listens for the other processes."""
        return self.run_directory / f"front-{number}.sock"

    def front_log_socket(self, number: int) -> Path:
        """Where a front takes what other fronts send for its partitions."""
        return self.run_directory / f"front-{number}.log"

    def log_wakeups(self, partition: int) -> Path:
        """Where the writer of a partition wakes those that wait at its end; the connector knows the name, too."""
        return self.run_directory / f"log-{partition}.wake"

    def front_rpc(self, number: int) -> Path:
        """Where a front answers the producers that other fronts pass on."""
        return self.run_directory / f"front-{number}.rpc"

    @property
    def reader_rpc(self) -> Path:
        return self.run_directory / "reader.rpc"

    def dispatcher_rpc(self, number: int) -> Path:
        return self.run_directory / f"dispatcher-{number}.rpc"

    @property
    def run_directory(self) -> Path:
        """What matters only while the server runs: ready files, the match link's address, metrics."""
        return self.data / "run"


def _fronts(partitions: int) -> int:
    """How many fronts a server has that is not told, by the cores that it may use."""
    return max(1, min(len(os.sched_getaffinity(0)) // CORES_A_FRONT, partitions))


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
