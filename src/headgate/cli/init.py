"""`headgate init`: the files of a first server, with a line of explanation for each thing in them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from headgate_api.errors import InvalidInputError

_CONFIG: Final = """\
# Settings of `headgate serve --config headgate.yaml`. `headgate config schema` describes all of them,
# `headgate config check` checks this file. Paths are relative to the directory in which the server is started.
# yaml-language-server: $schema=headgate.schema.json

# Everything durable: events, objects, cursors, dead letters.
data: headgate-data

# Events, the API, the console (/ui/) and metrics. Only this machine reaches 127.0.0.1.
# Before the server listens elsewhere, give it a certificate and users: docs/howto/secure.md.
listen: 127.0.0.1:8080
# gRPC; off for none.
grpc: 127.0.0.1:8081

# Brokers and triggers that are applied at each start. `headgate apply -f objects` does the same while the server runs.
manifests: objects

# Delivered events stay in the log for so long: they can be read, counted and sent again.
retain_hours: 168
# Events that a trigger has not got yet are kept for so long.
backlog_hours: 168

# What lets others in:
# tls_cert: server.pem
# tls_key: server.key
# token_auth_file: tokens.csv     # headgate token create --user ci --file tokens.csv

# Subscribers may be anywhere. With `public` none may be on this machine or in its networks.
# egress: public
"""
_OBJECTS: Final = """\
# A broker accepts events: POST them to http://127.0.0.1:8080/default/orders.
apiVersion: eventing.knative.dev/v1
kind: Broker
metadata:
  name: orders
  namespace: default
---
# A trigger says which of them go to which subscriber.
apiVersion: eventing.knative.dev/v1
kind: Trigger
metadata:
  name: large-orders
  namespace: default
spec:
  broker: orders
  filter:
    # CEL on attributes and data. `headgate filter test` tries it; other languages: docs/reference/filters/index.md.
    expression: ce.type == "order.paid" && data.total > 100
  subscriber:
    # Any HTTP server that answers a POST with 2xx.
    uri: http://127.0.0.1:9000/large-orders
  delivery:
    # How often it is tried again, and how long until then. Then the event becomes a dead letter.
    retry: 5
    backoffPolicy: exponential
    backoffDelay: PT0.5S
"""
FILES: Final = {"headgate.yaml": _CONFIG, "objects/orders.yaml": _OBJECTS}
"""By path below the directory."""


def init(
    directory: Annotated[
        Path, typer.Argument(metavar="[DIR]", help="Where the files go.", show_default="here")
    ] = Path(),
) -> None:
    """Write headgate.yaml, and a broker with a trigger, all with comments. Nothing that exists is overwritten.

    It prints the commands that start the server and send a first event.

    \b
    Examples:
      headgate init
      headgate init shop && cd shop && headgate serve --config headgate.yaml
    """  # noqa: D301 - click reads \b as "keep these lines"
    paths = {directory / name: text for name, text in FILES.items()}
    for path in paths:
        if path.exists():
            raise InvalidInputError(f"{path} exists already", hint="headgate init DIR writes into another directory")
    try:
        for path, text in paths.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
            typer.echo(f"wrote {path}", err=True)
    except OSError as error:
        raise InvalidInputError(
            f"{error.filename}: {error.strerror}", hint="name a directory that you may write"
        ) from error
    if directory != Path():
        typer.echo(f"cd {directory}")
    typer.echo("headgate serve --config headgate.yaml")
    typer.echo("headgate send -b orders --type order.paid --data '{\"total\": 250}'")
