"""`headgate cluster`: the topics of a deployment on Kafka, and the move of a server there and back."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from headgate.backend.config_file import load
from headgate.backend.kafka.topics import Admin, Misfit
from headgate_api.errors import HeadgateError
from headgate_cli.client import print_error, print_table
from headgate_cli.options import JsonLinesOption

if TYPE_CHECKING:
    from headgate.backend.kafka.cluster_import import Moved

EXIT_MISFIT = 1
EXIT_LEFT = 1
EXIT_ERROR = 2

_ConfigOption = Annotated[Path, typer.Option("--config", help="The configuration file.")]
_LeaveOption = Annotated[
    bool, typer.Option("--leave-behind", help="Move even if something stays behind, after showing its numbers.")
]

app = typer.Typer(
    name="cluster",
    help="Create and check the topics of a deployment on Kafka; move a server to Kafka or back.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    """Known errors become `error:` and `hint:` lines and exit code 2."""
    try:
        yield
    except HeadgateError as error:
        print_error(error.message, hint=error.hint)
        raise typer.Exit(EXIT_LEFT if error.code == "left-behind" else EXIT_ERROR) from error


@app.command()
def init(config: _ConfigOption = Path("headgate.yaml"), as_json: JsonLinesOption = False) -> None:
    """Create the missing topics, then check all topics.

    Existing topics are not changed, so you can run the command again.

    Exit status: 0 when every topic is as it must be; 1 when a setting does not fit; 2 when the file is invalid or the
    cluster does not answer.

    \b
    Examples:
      headgate cluster init
      headgate cluster init --config headgate.yaml --json
    """  # noqa: D301 - click reads \b as "keep these lines"
    with _errors():
        admin = Admin(load(config).kafka)
        for name in admin.create_missing():
            typer.echo(json.dumps({"topic": name, "made": True}) if as_json else f"made {name}")
        found = admin.check()
    _report(found, as_json)


@app.command()
def check(config: _ConfigOption = Path("headgate.yaml"), as_json: JsonLinesOption = False) -> None:
    """Compare the topics with the configuration: partitions, replicas, settings, rights, and in-sync replicas.

    It changes nothing. With --json it prints a line for each wrong setting, and nothing when all are right.

    Exit status: 0 when everything fits; 1 when a setting does not, with what to do; 2 when the file is invalid or the
    cluster does not answer.

    \b
    Examples:
      headgate cluster check
      headgate cluster check --config headgate.yaml --json
    """  # noqa: D301 - click reads \b as "keep these lines"
    with _errors():
        found = Admin(load(config).kafka).check()
    _report(found, as_json)


@app.command("import")
def import_(
    data: Annotated[Path, typer.Option("--data", help="The data directory of the stopped server.")],
    config: _ConfigOption = Path("headgate.yaml"),
    leave_behind: _LeaveOption = False,
    as_json: JsonLinesOption = False,
) -> None:
    """Move a server without Kafka into a new deployment: objects, events, undelivered events, dead letters.

    Stop the server first. No server of the deployment may run yet. Create the topics with `headgate cluster init`. The
    command only reads the directory. It does not move unread events of pull subscriptions and unfinished replays. If
    there are any, it moves nothing without --leave-behind.

    An interrupted move does not count: delete the topics, create them again, and repeat the command.

    Exit status: 0 when everything is there, counted in Kafka; 1 when something would be left behind; 2 when the
    directory or the file is invalid, the deployment is not fresh, or Kafka does not answer.

    \b
    Examples:
      headgate cluster import --data /var/lib/headgate
      headgate cluster import --data /var/lib/headgate --config headgate.yaml --leave-behind
    """  # noqa: D301 - click reads \b as "keep these lines"
    # Here, because most commands need neither the log nor Kafka.
    from headgate.backend.kafka.cluster_import import check_fresh, import_state
    from headgate.observe import logs
    from headgate.server.datadir import stopped_server

    logs.configure("cluster")
    with _errors():
        found = load(config).kafka
        with stopped_server(data) as state:
            check_fresh(found)
            state.left.check(is_accepted=leave_behind)
            with _progress() as tell:
                moved = import_state(found, state, tell)
    _report_moved(moved, as_json)


@app.command()
def export(
    data: Annotated[Path, typer.Option("--data", help="The new data directory.")],
    config: _ConfigOption = Path("headgate.yaml"),
    leave_behind: _LeaveOption = False,
    as_json: JsonLinesOption = False,
) -> None:
    """Move a deployment into the data directory of a server without Kafka: the reverse of `import`.

    Stop all servers of the deployment first. The command only reads the topics. Start the new server with as many
    --partitions as the topic of the events has.

    Exit status: 0 when everything is written; 1 when something would be left behind; 2 when the directory is not
    empty, a dispatcher runs, or Kafka does not answer: then the directory is empty again.

    \b
    Examples:
      headgate cluster export --data /var/lib/headgate
    """  # noqa: D301 - click reads \b as "keep these lines"
    # Here, because most commands need neither the log nor Kafka.
    from headgate.backend.kafka.cluster_export import export_state
    from headgate.observe import logs
    from headgate.server.datadir import new_directory

    logs.configure("cluster")
    with _errors():
        found = load(config).kafka
        with new_directory(data) as own, _progress() as tell:
            moved = export_state(found, data, own, tell, leave_behind=leave_behind)
    _report_moved(moved, as_json)
    typer.echo(f"next: headgate serve --data {data} --partitions {found.topics.events.partitions}", err=True)


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


def _report_moved(moved: Moved, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(moved._asdict(), sort_keys=True))
        return
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(moved.objects.items()))
    typer.echo(f"objects       {kinds}")
    typer.echo(f"events        {moved.events:,}")
    typer.echo(f"undelivered   {moved.undelivered:,}")
    typer.echo(f"dead letters  {moved.dead_letters:,}")


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str, int, int], object]]:
    """A bar for each thing that is moved on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda *_: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as shown:
        tasks = {}

        def tell(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = shown.add_task(what, total=total)
            shown.update(tasks[what], completed=done)

        yield tell
