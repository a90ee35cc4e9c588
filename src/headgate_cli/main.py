"""The `headgate` command: the table of its commands."""

from __future__ import annotations

from typing import Final

import typer

from headgate_api import __version__
from headgate_cli.lazy import CommandTable, group_of

COMMANDS: Final[CommandTable] = {
    "serve": (
        "headgate.cli.serve:serve",
        "Run the broker: accept events, match them, deliver them. Stop it with Ctrl-C.",
    ),
    "demo": (
        "headgate.cli.serve:demo",
        "Show Headgate at work: a server, triggers in several dialects, a producer and a subscriber, "
        "all on this machine.",
    ),
    "init": (
        "headgate.cli.init:init",
        "Write headgate.yaml, and a broker with a trigger, all with comments. Nothing that exists is overwritten.",
    ),
    "doctor": (
        "headgate.cli.machine:doctor",
        "Check this machine: Java, memory, disk and its fdatasync, file limit, ports, clock, data directory.",
    ),
    "config": ("headgate.cli.config:app", "Check headgate.yaml, and show the effective settings."),
    "backup": (
        "headgate.cli.machine:backups",
        "Save the data directory, also while its server runs, and verify backups.",
    ),
    "restore": (
        "headgate.cli.machine:restore",
        "Create a data directory from a backup. It must not exist, or must be empty.",
    ),
    "upgrade": (
        "headgate.cli.machine:upgrade",
        "Say what the first start of this version would change in a data directory: tables, compiled filters, disk.",
    ),
    "health": ("headgate.cli.machine:health", "Ask the server on this machine whether every part of it works."),
    "logs": (
        "headgate.cli.server_log:logs",
        "Print what the server on this machine says: also what a terminal without --verbose hides.",
    ),
    "token": ("headgate.cli.token:app", "Create, list and revoke tokens in the file that the server reads."),
    "send": ("headgate_cli.events:send", "Publish CloudEvents: one from options, or many from a file of JSON lines."),
    "tail": (
        "headgate_cli.tail:tail",
        "Print a broker's events as they were stored, and wait for new ones. Ctrl-C ends it and prints the position.",
    ),
    "consume": (
        "headgate_cli.events:consume",
        "Print a subscription's events in JSON, one on each line, and acknowledge them.",
    ),
    "seek": (
        "headgate_cli.events:seek",
        "Move a subscription, for all its consumers: events are delivered again, or skipped.",
    ),
    "why": (
        "headgate_cli.inspection:why",
        "Show what happened to an event: not stored, filtered (and by which part), an error, matched, delivered, "
        "given up.",
    ),
    "trace": (
        "headgate_cli.inspection:trace",
        "Show the whole path of an event: where it is stored, its matches, every attempt and its answer.",
    ),
    "conformance": (
        "headgate_cli.conformance:conformance",
        "Check a broker against the Knative Broker contract: control plane, routing, data plane.",
    ),
    "apply": (
        "headgate_cli.objects:apply",
        "Create or update brokers, triggers, subscriptions, event policies, secrets from YAML or JSON.",
    ),
    "get": (
        "headgate_cli.showing:get",
        "Show objects: brokers, triggers, subscriptions, event policies, secrets and others.",
    ),
    "describe": (
        "headgate_cli.showing:describe",
        "Show objects with their status and conditions, in a readable form.",
    ),
    "delete": (
        "headgate_cli.objects:delete",
        "Delete objects by kind and name, or from a file. Objects with finalizers wait for them.",
    ),
    "trigger": ("headgate_cli.objects:triggers", "Pause and resume the deliveries of triggers."),
    "lint": (
        "headgate_cli.inspection:lint",
        "Compare the filters of a broker: which are equal, implied by others, never or always true.",
    ),
    "status": (
        "headgate_cli.inspection:status",
        "Show how a server is: its version, parts, rates, backlog, and what needs attention.",
    ),
    "version": (
        "headgate_cli.inspection:version",
        "Print the version of this command, and that of the server if one answers.",
    ),
    "deadletter": ("headgate_cli.redelivery:deadletters", "Events that could not be delivered."),
    "pending": ("headgate_cli.redelivery:pending", "Events that wait for their time."),
    "replay": ("headgate_cli.redelivery:replays", "Send a broker's stored events to one target again."),
    "subscription": (
        "headgate_cli.events:subscriptions",
        "Show a subscription's state, and count what a filter would match in its backlog.",
    ),
    "mcp": (
        "headgate_cli.mcp:mcp",
        "Let an assistant ask a server: why, trace, tail, list, describe, explain, convert, backtest, lint.",
    ),
    "filter": (
        "headgate_cli.main:filters",
        "Try a filter on events, explain how it is matched, and count the stored events that it matches.",
    ),
    "migrate": ("headgate_cli.migrate:app", "Write the rules of another system as manifests of triggers."),
    "log": ("headgate.cli.log:app", "Verify, count, list and dump the log. Safe beside a running server."),
    "cluster": (
        "headgate.cli.cluster:app",
        "Create and check the topics of a deployment on Kafka; move a server to Kafka or back.",
    ),
}
"""Every command; what needs the package headgate-broker is in `headgate.cli`."""
FILTER_COMMANDS: Final[CommandTable] = {
    "test": (
        "headgate.cli.filter_tools:try_filter",
        "Evaluate a filter on events: print true, false or the error for each.",
    ),
    "explain": (
        "headgate.cli.filter_tools:explain_filter",
        "Explain a filter: its CEL, the index it is matched by, the part that decides, and its cost.",
    ),
    "convert": ("headgate.cli.filter_tools:convert", "Translate a filter of any dialect to CEL."),
    "compare": (
        "headgate.cli.filter_tools:compare",
        "Say what is sure of two filters: equal, one within the other, never true together, or both true of an event.",
    ),
    "backtest": (
        "headgate_cli.backtest:backtest",
        "Count the stored events that a filter would have matched: by hour, and compared with other filters.",
    ),
    "dialects": (
        "headgate.cli.filter_tools:dialects",
        "List the dialects, with those of installed packages and their faults.",
    ),
}

app = typer.Typer(
    name="headgate",
    cls=group_of(COMMANDS),
    help="A CloudEvents broker that evaluates every subscriber's filter on the server.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"headgate {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """A CloudEvents broker that evaluates every subscriber's filter on the server."""


filters = typer.Typer(
    name="filter",
    cls=group_of(FILTER_COMMANDS),
    help="Try a filter on events, explain how it is matched, and count the stored events that it matches.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@filters.callback()
def _filters() -> None:
    """The commands of the table, whose app has no other."""


def main() -> None:
    """Entry point."""
    app()
