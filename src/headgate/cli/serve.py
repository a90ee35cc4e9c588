"""`headgate serve`: runs the broker on this machine."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from typing import Any

import structlog
from rich.console import Console

from headgate.cli import serve_options as options
from headgate.cli.client import fail
from headgate.errors import HeadgateError
from headgate.observe import logs
from headgate.server import preflight
from headgate.server.child import FATAL_STATUS
from headgate.server.effective import effective
from headgate.server.supervisor import Supervisor

_log = structlog.get_logger(__name__)


def serve(
    data: options.Data = None,
    listen: options.Listen = None,
    grpc: options.Grpc = None,
    tls_cert: options.TlsCert = None,
    tls_key: options.TlsKey = None,
    tls_mode: options.TlsMode = None,
    tls_listen: options.TlsListen = None,
    tls_grpc: options.TlsGrpc = None,
    tls_client_ca: options.TlsClientCa = None,
    tls_client_auth: options.TlsClientAuth = None,
    tls_ca: options.TlsCa = None,
    authentication_config: options.AuthenticationConfig = None,
    token_auth_file: options.TokenAuthFile = None,
    audit_log_path: options.AuditLogPath = None,
    public_url: options.PublicUrl = None,
    secrets_key_file: options.SecretsKeyFile = None,
    secrets_key_command: options.SecretsKeyCommand = None,
    allow_anonymous: options.AllowAnonymous = None,
    default_authorization_mode: options.DefaultAuthorizationMode = None,
    allowed_host: options.AllowedHost = None,
    eventtype_auto_create: options.EventtypeAutoCreate = None,
    manifests: options.Manifests = None,
    partitions: options.Partitions = None,
    fronts: options.Fronts = None,
    dispatchers: options.Dispatchers = None,
    retain_hours: options.RetainHours = None,
    retain_mb: options.RetainMb = None,
    backlog_hours: options.BacklogHours = None,
    backlog_mb: options.BacklogMb = None,
    on_corrupt: options.OnCorrupt = None,
    accept_lost: options.AcceptLost = None,
    config: options.Config = None,
    kafka: options.Kafka = None,
    spark: options.Spark = None,
    role: options.Role = None,
    advertise: options.Advertise = None,
) -> None:
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
        status = _run(options_of(locals()))  # every option is a setting of its name
    except HeadgateError as error:
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
    logs.configure("supervisor")
    preflight.check_machine(settings, cluster)
    preflight.tell_openness(settings)
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    place = f"data in {settings.data}" if cluster is None else f"on Kafka at {cluster.kafka.bootstrap}"

    def say(text: str) -> None:
        """To a person, or as one more line of the log."""
        if console.is_terminal:
            console.print(f"headgate: {text}")
        else:
            _log.info(text)

    def announce(seconds: float) -> None:
        say(f"ready after {seconds:.1f} s: POST CloudEvents to {settings.url}/default/default")

    say(f"starting on {settings.url}, {place} (Spark takes some seconds)")

    return asyncio.run(Supervisor(settings, announce, cluster).run())
