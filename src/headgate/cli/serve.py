"""`headgate serve`: runs the broker on this machine."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError
from rich.console import Console

from headgate.errors import InvalidInputError
from headgate.observe import logs
from headgate.server import preflight
from headgate.server.policy import url_policy
from headgate.server.supervisor import Supervisor
from headgate.settings import Settings


def serve(
    data: Annotated[Path | None, typer.Option(help="The data directory: everything durable.")] = None,
    listen: Annotated[
        str | None, typer.Option(help="HOST:PORT for events, the API and metrics. Default: 127.0.0.1:8080.")
    ] = None,
    grpc: Annotated[str | None, typer.Option(help="HOST:PORT for gRPC, or off. Default: 127.0.0.1:8081.")] = None,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(help="Another host name that requests may use; *.NAME, or * for any. Repeatable."),
    ] = None,
    manifests: Annotated[Path | None, typer.Option(help="Directory of YAML objects to apply on start.")] = None,
    partitions: Annotated[int | None, typer.Option(help="Partitions of the event log.")] = None,
    retain_hours: Annotated[
        float | None, typer.Option(help="How long delivered events stay in the log. Default: 168 (a week).")
    ] = None,
    retain_mb: Annotated[
        int | None, typer.Option(help="Size of a partition above which delivered events are removed earlier.")
    ] = None,
    backlog_hours: Annotated[
        float | None, typer.Option(help="How long undelivered events are kept. Default: 168.")
    ] = None,
    backlog_mb: Annotated[
        int | None, typer.Option(help="MiB of undelivered events that are kept per partition. Default: 16384.")
    ] = None,
    on_corrupt: Annotated[
        str | None, typer.Option(help="What readers do at a damaged chunk: stop (default) or skip.")
    ] = None,
    accept_lost: Annotated[
        str | None, typer.Option(help="Start although this file is lost: control.db, dispatch.db or both.")
    ] = None,
) -> None:
    """Run the broker: accept events, match them, deliver them. Stop it with Ctrl-C.

    Every option can also be set in the environment: HEADGATE_DATA, HEADGATE_LISTEN, ...

    Example: headgate serve --data ./headgate-data --listen 127.0.0.1:8080
    """
    given = {
        "data": data,
        "listen": listen,
        "grpc": grpc,
        "allowed_host": ",".join(allowed_host) if allowed_host else None,
        "manifests": manifests,
        "partitions": partitions,
        "retain_hours": retain_hours,
        "retain_mb": retain_mb,
        "backlog_hours": backlog_hours,
        "backlog_mb": backlog_mb,
        "on_corrupt": on_corrupt,
        "accept_lost": accept_lost,
    }
    try:
        settings = Settings(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors()[0]
        raise InvalidInputError(
            f"--{str(first['loc'][0]).replace('_', '-')}: {first['msg']}",
            hint="headgate serve --help shows the options",
        ) from error
    url_policy(settings)  # an invalid setting fails here, not in a child process
    logs.configure("supervisor")
    preflight.check(settings)
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(f"headgate: starting on {settings.url}, data in {settings.data} (Spark takes some seconds)")

    def announce(seconds: float) -> None:
        console.print(f"headgate: ready after {seconds:.1f} s: POST CloudEvents to {settings.url}/default/default")

    sys.exit(asyncio.run(Supervisor(settings, announce).run()))
