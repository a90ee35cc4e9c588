"""The options of `headgate serve`, a setting each; without one, the setting comes from elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Data = Annotated[Path | None, typer.Option(help="Directory of all durable data.")]
Listen = Annotated[str | None, typer.Option(help="HOST:PORT for events, the API and metrics. Default: 127.0.0.1:8080.")]
Grpc = Annotated[str | None, typer.Option(help="HOST:PORT for gRPC, or off. Default: 127.0.0.1:8081.")]
TlsCert = Annotated[
    Path | None,
    typer.Option(help="PEM file of the certificate chain. You may replace it and the key at any time."),
]
TlsKey = Annotated[Path | None, typer.Option(help="PEM file of the certificate's key.")]
TlsMode = Annotated[
    str | None,
    typer.Option(help="disabled, permissive (plain and TLS ports) or strict (TLS only, as with --tls-cert alone)."),
]
TlsListen = Annotated[
    str | None, typer.Option(help="HOST:PORT of HTTP over TLS in permissive mode. Default: 127.0.0.1:8443.")
]
TlsGrpc = Annotated[
    str | None, typer.Option(help="HOST:PORT of gRPC over TLS in permissive mode, or off. Default: 127.0.0.1:8444.")
]
TlsClientCa = Annotated[Path | None, typer.Option(help="PEM file of the CAs whose client certificates are accepted.")]
TlsClientAuth = Annotated[
    str | None, typer.Option(help="Whether clients must present a certificate: required (default) or optional.")
]
TlsCa = Annotated[Path | None, typer.Option(help="PEM file of the server's own CA, shown to clients.")]
AuthenticationConfig = Annotated[
    Path | None, typer.Option(help="File of Kubernetes' AuthenticationConfiguration: issuers of tokens (OIDC).")
]
TokenAuthFile = Annotated[
    Path | None, typer.Option(help="File of tokens, see headgate token. It may change while the server runs.")
]
AuditLogPath = Annotated[
    Path | None, typer.Option(help="File of the audit log: writes and refusals, a JSON line each.")
]
PublicUrl = Annotated[
    str | None, typer.Option(help="URL at which clients reach the server, for example that of a proxy.")
]
SecretsKeyFile = Annotated[
    Path | None, typer.Option(help="File of the keys that encrypt stored Secrets: lines NAME:BASE64.")
]
SecretsKeyCommand = Annotated[
    str | None, typer.Option(help="Command that prints these keys, for example from a key management service.")
]
AllowAnonymous = Annotated[
    bool | None,
    typer.Option(
        "--allow-anonymous", help="Answer requests without credentials, also on addresses other than loopback."
    ),
]
DefaultAuthorizationMode = Annotated[
    str | None,
    typer.Option(help="Who may send to a broker without an EventPolicy: allow-same-namespace, allow-all, deny-all."),
]
AllowedHost = Annotated[
    list[str] | None,
    typer.Option(help="Another host name that requests may use: NAME, *.NAME, or * for any. Repeatable."),
]
EventtypeAutoCreate = Annotated[
    bool | None,
    typer.Option(
        "--eventtype-auto-create", help="Create an EventType object for each type of events that a broker accepts."
    ),
]
Manifests = Annotated[Path | None, typer.Option(help="Directory of YAML objects to apply on start.")]
Partitions = Annotated[int | None, typer.Option(help="Partitions of the event log.")]
Fronts = Annotated[
    int | None, typer.Option(help="Processes that accept events. Default: one for every four cores, at least one.")
]
Dispatchers = Annotated[
    int | None,
    typer.Option(help="Processes that deliver. Default: as before; at first one for every four cores."),
]
RetainHours = Annotated[
    float | None, typer.Option(help="How long delivered events stay in the log. Default: 168 (a week).")
]
RetainMb = Annotated[
    int | None, typer.Option(help="Size of a partition above which delivered events are removed earlier.")
]
BacklogHours = Annotated[float | None, typer.Option(help="How long undelivered events are kept. Default: 168.")]
BacklogMb = Annotated[
    int | None, typer.Option(help="MiB of undelivered events that are kept per partition. Default: 16384.")
]
OnCorrupt = Annotated[str | None, typer.Option(help="What readers do at a damaged chunk: stop (default) or skip.")]
AcceptLost = Annotated[
    str | None,
    typer.Option(
        help="Start although these databases are lost, whole or in part: control.db, dispatch.db, deadletters.db,"
        " replays.db, subscriptions.db."
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(help="headgate.yaml: settings, and the deployment on Kafka that this server belongs to."),
]
Kafka = Annotated[
    str | None, typer.Option(help="HOST:PORT of Kafka's brokers, separated by commas, instead of the file's.")
]
Spark = Annotated[
    str | None, typer.Option(help="Spark's master on Kafka, spark://HOST:PORT or local[N], instead of the file's.")
]
Role = Annotated[
    str | None,
    typer.Option(help="On Kafka, any of control,front,matcher,dispatcher,reader,source. Default: all of them."),
]
Advertise = Annotated[
    str | None, typer.Option(help="On Kafka, URL at which the other servers of the deployment reach this one.")
]
