"""`headgate filter backtest`: counts what a filter would have taken, by a running server or from a data directory."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from headgate_api.backtest import BacktestPage, BacktestRequest, BacktestResult, BacktestSummary
from headgate_api.event.names import NAMESPACE_DEFAULT, full_name
from headgate_api.limits import BACKTEST_HOURS_MAX, BACKTEST_S_MAX
from headgate_api.objects.kinds import OWN_API_VERSION
from headgate_cli.client import (
    BROKER_DEFAULT,
    SERVER_DEFAULT,
    TIMES_HELP,
    api_path,
    filter_value,
    print_table,
    request,
    time_text,
)
from headgate_cli.lazy import module_of
from headgate_cli.options import Broker, JsonOption, Namespace, Server

_HOURS_SHOWN: Final = 48
_TRIGGERS_SHOWN: Final = 20
_BAR: Final = 40

AskPage = Callable[[BacktestRequest], BacktestPage]


def backtest(
    expression: Annotated[str, typer.Argument(metavar="FILTER", help="CEL, or JSON as in a trigger's spec.filter.")],
    broker: Broker = BROKER_DEFAULT,
    from_: Annotated[str, typer.Option("--from", help=f"Only events stored since then: {TIMES_HELP}.")] = "",
    to: Annotated[str, typer.Option("--to", help="Only events stored before then, as --from.")] = "",
    against: Annotated[str, typer.Option("--against", metavar="FILTER", help="A second filter to compare with.")] = "",
    share: Annotated[
        float, typer.Option("--sample", metavar="SHARE", help="Read only this share of the events, such as 0.01.")
    ] = 1.0,
    triggers: Annotated[
        bool, typer.Option("--triggers/--no-triggers", help="Compare with the broker's triggers.")
    ] = True,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", metavar="DIR", help="Read this data directory instead of asking a server.", show_default=False
        ),
    ] = None,
    as_json: JsonOption = False,
    namespace: Namespace = NAMESPACE_DEFAULT,
    server: Server = SERVER_DEFAULT,
) -> None:
    """Count the stored events that a filter would have matched: by hour, and compared with other filters.

    It reads all stored events. With --sample it reads some of them and estimates the count, with a margin of error.
    A count ends after 10 minutes and says how far it came. Nothing is changed or delivered.

    \b
    Examples:
      headgate filter backtest 'data.amount > 1000' --from 30d
      headgate filter backtest '{"prefix": {"type": "order."}}' --broker shop/orders --sample 0.01
      headgate filter backtest 'data.amount > 1000' --against 'data.amount > 500' --data headgate-data --json
    """  # noqa: D301 - click reads \b as "keep these lines"
    asked = BacktestRequest(
        filter=filter_value(expression),
        against=filter_value(against),
        from_=time_text(from_) or "earliest",
        to=time_text(to) or "next",
        share=share,
        triggers=triggers,
    )
    path = full_name(broker, namespace)
    result = backtested(asked, server, path, data)
    if as_json:
        typer.echo(msgspec.json.encode(as_answer(result, path)).decode())
    else:
        _print(result, path)


def as_answer(result: BacktestSummary, broker: str) -> dict[str, Any]:
    """What `--json` prints."""
    return {"broker": broker, **msgspec.to_builtins(result)}


def backtested(asked: BacktestRequest, server: str, broker: str, data: Path | None = None) -> BacktestSummary:
    """Asks a server, or a data directory, for page after page and BACKTEST_S_MAX at most, with a bar meanwhile."""
    until = time.monotonic() + BACKTEST_S_MAX
    with _asking(data, server, broker) as ask, _progress() as show:

        def goes_on(done: float) -> bool:
            show(done)
            return time.monotonic() < until

        return counted_by(ask, asked, goes_on)


def counted_by(ask: AskPage, asked: BacktestRequest, goes_on: Callable[[float], bool]) -> BacktestSummary:
    """Page after page, for as long as `goes_on` says so, which gets how much of the work is done, 0 to 1."""
    result = BacktestResult(asked.share, has_second=bool(asked.against))
    page = ask(asked)
    result.add(page)
    while page.next and goes_on(result.done):
        page = ask(msgspec.structs.replace(asked, next=page.next))
        result.add(page)
    return result.summary()


def asking_server(server: str, broker: str) -> AskPage:
    """Asks a server for pages; `broker` is NAMESPACE/NAME."""
    namespace, _, name = broker.partition("/")
    url = api_path(OWN_API_VERSION, namespace, "brokers", name, "backtest")

    def ask(asked: BacktestRequest) -> BacktestPage:
        return msgspec.convert(request(server, "POST", url, body=msgspec.to_builtins(asked)), BacktestPage)

    return ask


@contextlib.contextmanager
def _asking(data: Path | None, server: str, broker: str) -> Iterator[AskPage]:
    if data is None:
        yield asking_server(server, broker)
        return
    with module_of("headgate.cli.filter_tools", "headgate filter backtest --data").asking(data, broker) as ask_files:
        yield ask_files


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[float], object]]:
    """A bar on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    columns = (TextColumn("counting"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("", total=1.0)
        yield lambda done: shown.update(task, completed=done)


def _print(found: BacktestSummary, broker: str) -> None:
    def shown(name: str, count: int | None) -> str:
        """A count, and for a sample between which counts the true one lies."""
        within = found.intervals.get(name)
        margin = f" ({within.low:,} to {within.high:,})" if within is not None else ""
        return f"{'about ' if found.sampled else ''}{count:,}{margin}"

    typer.echo(f"stored   {found.stored:,} events, {found.scanned:,} scanned ({broker} and others of this log)")
    if not found.complete:
        typer.echo("stopped  before the end: what follows is of the events scanned; --sample looks at fewer", err=True)
    elif found.intervals:
        typer.echo(f"sampled  for {found.confidence:.0%} of samples the true counts lie between those in parentheses")
    elif found.sampled:
        typer.echo("sampled  too few windows for a margin of error; --sample with a larger share looks at more")
    errors = f", an error on {shown('errors', found.errors)}" if found.errors else ""
    typer.echo(f"taken    {shown('taken', found.taken)}{errors}")
    if found.against is not None and found.both is not None:
        errors = f", an error on {shown('againstErrors', found.against_errors)}" if found.against_errors else ""
        typer.echo(f"against  {shown('against', found.against)}{errors}")
        only, other = found.taken - found.both, found.against - found.both
        both = shown("both", found.both)
        typer.echo(f"both     {both}; only the filter {max(0, only):,}, only the other {max(0, other):,}")
    _print_examples(found)
    _print_hours(found)
    _print_triggers(found)


def _print_examples(found: BacktestSummary) -> None:
    """Some events that one filter alone takes."""
    alone = {"only the filter": found.only_filter, "only the other": found.only_against}
    rows = [[which, one.stored, one.type, one.source, one.id] for which, events in alone.items() for one in events]
    if rows:
        typer.echo()
        print_table([["EXAMPLES OF", "STORED", "TYPE", "SOURCE", "ID"], *rows])


def _print_hours(found: BacktestSummary) -> None:
    if not found.hours:
        return
    shown = found.hours[-_HOURS_SHOWN:]
    most = max(1, *(one.taken for one in shown))
    has_second = found.against is not None
    heads = ["HOUR", "TAKEN", *(["AGAINST"] if has_second else []), ""]
    rows = [
        [one.hour, f"{one.taken:,}", *([f"{one.against:,}"] if has_second else []), "#" * -(-one.taken * _BAR // most)]
        for one in shown
    ]
    typer.echo()
    print_table([heads, *rows])
    left_out = len(found.hours) - len(shown) + found.hours_left_out
    if left_out:
        typer.echo(f"... and {left_out} hours more; --json lists up to {BACKTEST_HOURS_MAX:,}")


def _print_triggers(found: BacktestSummary) -> None:
    if not found.triggers:
        return
    about = "about " if found.triggers_estimated or found.sampled else ""
    shown = found.triggers[:_TRIGGERS_SHOWN]
    typer.echo()
    heads = ["TRIGGER", "TAKES TOO", "SHARE"]
    print_table([heads, *([one.name, f"{about}{one.both:,}", f"{one.share:.0%}"] for one in shown)])
    if len(found.triggers) > len(shown):
        typer.echo(f"... and {len(found.triggers) - len(shown)} triggers more; --json lists them")
    if found.triggers_left_out:
        typer.echo(f"... and {found.triggers_left_out} triggers that were not compared")
