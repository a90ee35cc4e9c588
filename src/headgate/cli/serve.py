"""`headgate serve`: runs the broker on this machine; `headgate demo` shows it at work, and checks every count."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import GenericAlias
from typing import Annotated, Any, Final

import structlog
import typer
from rich.console import Console

from headgate.backend.config import ClusterConfig
from headgate.observe import logs
from headgate.server import listening, preflight
from headgate.server.child import FATAL_STATUS
from headgate.server.effective import effective
from headgate.server.processes.supervisor import Supervisor
from headgate.settings import OFF, ClientAuth, Settings
from headgate_api.errors import HeadgateError
from headgate_cli.access import with_options
from headgate_cli.client import fail

_log = structlog.get_logger(__name__)


_OPTIONS: Final[tuple[tuple[str, type | GenericAlias, str], ...]] = (
    ("data", Path, "Directory of all durable data."),
    ("listen", str, "HOST:PORT for events, the API and metrics. Default: 127.0.0.1:8080."),
    ("grpc", str, "HOST:PORT for gRPC, or off. Default: 127.0.0.1:8081."),
    ("tls_cert", Path, "PEM file of the certificate chain. You may replace it and the key at any time."),
    ("tls_key", Path, "PEM file of the certificate's key."),
    ("tls_mode", str, "disabled, permissive (plain and TLS ports) or strict (TLS only, as with --tls-cert alone)."),
    ("tls_listen", str, "HOST:PORT of HTTP over TLS in permissive mode. Default: 127.0.0.1:8443."),
    ("tls_grpc", str, "HOST:PORT of gRPC over TLS in permissive mode, or off. Default: 127.0.0.1:8444."),
    ("tls_client_ca", Path, "PEM file of the CAs whose client certificates are accepted."),
    ("tls_client_auth", str, "Whether clients must present a certificate: required (default) or optional."),
    ("tls_ca", Path, "PEM file of the server's own CA, shown to clients."),
    ("authentication_config", Path, "File of Kubernetes' AuthenticationConfiguration: issuers of tokens (OIDC)."),
    ("token_auth_file", Path, "File of tokens, see headgate token. It may change while the server runs."),
    ("audit_log_path", Path, "File of the audit log: writes and refusals, a JSON line each."),
    ("public_url", str, "URL at which clients reach the server, for example that of a proxy."),
    ("secrets_key_file", Path, "File of the keys that encrypt stored Secrets: lines NAME:BASE64."),
    ("secrets_key_command", str, "Command that prints these keys, for example from a key management service."),
    ("allow_anonymous", bool, "Answer requests without credentials, also on addresses other than loopback."),
    (
        "default_authorization_mode",
        str,
        "Who may send to a broker without an EventPolicy: allow-same-namespace, allow-all, deny-all.",
    ),
    ("allowed_host", list[str], "Another host name that requests may use: NAME, *.NAME, or * for any. Repeatable."),
    ("eventtype_auto_create", bool, "Create an EventType object for each type of events that a broker accepts."),
    ("manifests", Path, "Directory of YAML objects to apply on start."),
    ("partitions", int, "Partitions of the event log."),
    ("fronts", int, "Processes that accept events. Default: one for every four cores, at least one."),
    ("dispatchers", int, "Processes that deliver. Default: as before; at first one for every four cores."),
    ("retain_hours", float, "How long delivered events stay in the log. Default: 168 (a week)."),
    ("retain_mb", int, "Size of a partition above which delivered events are removed earlier."),
    ("backlog_hours", float, "How long undelivered events are kept. Default: 168."),
    ("backlog_mb", int, "MiB of undelivered events that are kept per partition. Default: 16384."),
    ("on_corrupt", str, "What readers do at a damaged chunk: stop (default) or skip."),
    (
        "accept_lost",
        str,
        "Start although these databases are lost, whole or in part: control.db, dispatch.db, deadletters.db,"
        " replays.db, subscriptions.db.",
    ),
    ("verbose", bool, "On a terminal, show all that the server does, not only warnings."),
    ("log_format", str, "Lines on stderr: text, json or auto (default: text on a terminal, else json)."),
    ("config", Path, "headgate.yaml: settings, and the deployment on Kafka that this server belongs to."),
    ("kafka", str, "HOST:PORT of Kafka's brokers, separated by commas, instead of the file's."),
    ("spark", str, "Spark's master on Kafka, spark://HOST:PORT or local[N], instead of the file's."),
    ("role", str, "On Kafka, any of control,front,matcher,dispatcher,reader,source. Default: all of them."),
    ("advertise", str, "On Kafka, URL at which the other servers of the deployment reach this one."),
)
"""Of `headgate serve`: each is a setting of its name, see `Settings`."""


@with_options(
    {
        name: Annotated[type_ | None, typer.Option(f"--{name.replace('_', '-')}", help=says)]
        for name, type_, says in _OPTIONS
    }
)
def serve(**given: Any) -> None:  # noqa: ANN401 - by the table
    """Run the broker: accept events, match them, deliver them. Stop it with Ctrl-C.

    An option wins over the environment (HEADGATE_DATA, HEADGATE_LISTEN, ...). The environment wins over the file of
    --config, and the file over the default. headgate config check checks a file. headgate config show says where each
    setting comes from.

    Exit status: 0 after an orderly stop (SIGTERM, Ctrl-C); 78 when a restart does not help: a wrong setting or
    file, no Java, a data directory of a newer version; 1 when the problem may go away.

    Example: headgate serve --data ./headgate-data --listen 127.0.0.1:8080

    Example: headgate serve --listen 0.0.0.0:8443 --tls-cert server.pem --tls-key server.key --tls-client-ca ca.pem

    Example: headgate serve --config headgate.yaml --role control,front
    """
    try:
        status = _run(options_of(given))
    except HeadgateError as error:
        if given["log_format"] == logs.Form.JSON or os.environ.get("HEADGATE_LOG_FORMAT") == logs.Form.JSON:
            logs.configure("supervisor", logs.Form.JSON)
            _log.error(str(error), hint=error.hint)
            sys.exit(exit_status(error))
        fail(str(error), error.hint, status=exit_status(error))
    sys.exit(status)


def options_of(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Options of the command as `effective` takes them."""
    return {**parameters, "allowed_host": ",".join(parameters["allowed_host"] or ()) or None}


def exit_status(error: HeadgateError) -> int:
    """1 for what may have passed when the server is started again, else EX_CONFIG of sysexits.h."""
    return 1 if error.retriable else FATAL_STATUS


def _run(given: Mapping[str, Any]) -> int:
    found = effective(given)
    settings, cluster = found.settings, found.cluster
    preflight.check_settings(settings, cluster)  # an invalid setting fails here, not in a child process
    form = logs.Form(settings.log_format)
    logs.configure("supervisor", form, verbose=settings.verbose)
    preflight.check_machine(settings, cluster)
    if logs.written_for_people(form):
        for line in about(settings, cluster):
            print(line, file=sys.stderr)
    else:
        preflight.tell_openness(settings)
        place = f"data in {settings.data}" if cluster is None else f"on Kafka at {cluster.kafka.bootstrap}"
        _log.info(f"starting on {settings.url}, {place} (Spark takes some seconds)")

    def announce(seconds: float) -> None:
        if logs.written_for_people(form):
            print(f"ready after {seconds:.1f} s", file=sys.stderr)
        else:
            _log.info(f"ready after {seconds:.1f} s: POST CloudEvents to {settings.url}/default/default")

    return asyncio.run(Supervisor(settings, announce, cluster).run())


def about(settings: Settings, cluster: ClusterConfig | None = None) -> Iterator[str]:
    """What a person who starts a server wants to know at once, in four lines."""
    grpc = "" if settings.grpc == OFF else f", gRPC on {settings.grpc}"
    yield f"API       {settings.url}{grpc}"
    yield f"console   {settings.url}/ui/"
    yield f"data      {settings.data}" + ("" if cluster is None else f", Kafka at {cluster.kafka.bootstrap}")
    told = listening.openness(settings)
    if not told and settings.has_authentication and not settings.allow_anonymous:
        yield "access    secured: users say who they are"
    elif not told and settings.client_auth is ClientAuth.REQUIRED:
        yield "access    secured: clients show a certificate"
    else:
        yield f"access    open: {told or 'everybody on this machine may do everything'}"


def demo(
    events: Annotated[int, typer.Option(min=1, max=1_000_000, help="How many events are published.")] = 4_000,
    rate: Annotated[float, typer.Option(min=1.0, max=10_000.0, help="Events per second.")] = 250.0,
) -> None:
    """Show Headgate at work: a server, triggers in several dialects, a producer and a subscriber, all on this machine.

    It takes half a minute. The server listens only on free loopback ports. Its data is deleted at the end.

    Exit status: 0 when every trigger got exactly its events, else 1.

    Example: headgate demo

    Example: headgate demo --events 20000 --rate 1000
    """
    from headgate.demo.run import run  # here: a server needs nothing of it

    console = Console(highlight=False)
    console.soft_wrap = not console.is_terminal
    preflight.check_spark()
    raise typer.Exit(asyncio.run(run(events, rate, console)))
