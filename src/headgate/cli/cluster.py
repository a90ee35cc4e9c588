"""`headgate cluster`: the topics of a deployment on Kafka, and the move of a server there and back."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import typer

from headgate.cli.client import JsonLinesOption, print_table
from headgate.cli.cluster_move import ConfigOption, errors, export, import_
from headgate.store.config_file import load
from headgate.store.kafka.topics import Admin, Misfit

EXIT_MISFIT = 1

app = typer.Typer(
    name="cluster",
    help="Create and check the topics of a deployment on Kafka; move a server to Kafka or back.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command()
def init(config: ConfigOption = Path("headgate.yaml"), as_json: JsonLinesOption = False) -> None:
    """Create the missing topics, then check all topics.

    Existing topics are not changed, so you can run the command again.

    Exit status: 0 when every topic is as it must be; 1 when a setting does not fit; 2 when the file is invalid or the
    cluster does not answer.

    \b
    Examples:
      headgate cluster init
      headgate cluster init --config headgate.yaml --json
    """  # noqa: D301 - click reads \b as "keep these lines"
    with errors():
        admin = Admin(load(config).kafka)
        for name in admin.create_missing():
            typer.echo(json.dumps({"topic": name, "made": True}) if as_json else f"made {name}")
        found = admin.check()
    _report(found, as_json)


@app.command()
def check(config: ConfigOption = Path("headgate.yaml"), as_json: JsonLinesOption = False) -> None:
    """Compare the topics with the configuration: partitions, replicas, settings, rights, and in-sync replicas.

    It changes nothing. With --json it prints a line for each wrong setting, and nothing when all are right.

    Exit status: 0 when everything fits; 1 when a setting does not, with what to do; 2 when the file is invalid or the
    cluster does not answer.

    \b
    Examples:
      headgate cluster check
      headgate cluster check --config headgate.yaml --json
    """  # noqa: D301 - click reads \b as "keep these lines"
    with errors():
        found = Admin(load(config).kafka).check()
    _report(found, as_json)


app.command("import")(import_)
app.command()(export)


def _report(found: list[Misfit], as_json: bool) -> None:
    if as_json:
        for misfit in found:
            typer.echo(json.dumps(asdict(misfit)))
    elif found:
        _print(found)
    else:
        typer.echo("every topic is as it must be")
    if found:
        raise typer.Exit(EXIT_MISFIT)


def _print(found: list[Misfit]) -> None:
    rows = [[each.topic, each.setting, each.found or "-", each.wanted, each.hint] for each in found]
    print_table([["topic", "setting", "is", "must be", "what to do"], *rows])
