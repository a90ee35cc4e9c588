"""`headgate log`: verifies, counts, lists and dumps the log. Data goes to stdout, everything else to stderr."""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from headgate.log.directory import Partition
from headgate.log.verify import PartitionReport, Record, inspect, partitions, records
from headgate_api.errors import HeadgateError
from headgate_api.event import rfc3339
from headgate_cli import client
from headgate_cli.client import print_table
from headgate_cli.options import JsonLinesOption

if TYPE_CHECKING:
    from headgate.inspect.chunks import ChunkListView, ChunkView

EXIT_DAMAGED = 1
EXIT_ERROR = 2
_CHUNK_HEADS: Final = ["FIRST", "NEXT", "EVENTS", "BYTES", "CODEC", "STORED", "EVENT TIMES", "BLOOM", "FULL", "FILTER"]
_HEADS: Final = ["PARTITION", "FIRST", "NEXT", "CHUNKS", "FILES", "MB", "APPENDED FROM", "TO"]
_fail = functools.partial(client.fail, status=EXIT_ERROR)

app = typer.Typer(
    name="log",
    help="Verify, count, list and dump the log. Safe beside a running server.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_PathArgument = Annotated[
    Path, typer.Argument(metavar="PATH", help="A data directory, its log/, or one partition (data/log/0).")
]


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    """Known errors become `error:` and `hint:` lines and exit code 2."""
    try:
        yield
    except HeadgateError as error:
        _fail(error.message, error.hint)
    except BrokenPipeError as error:
        # Whoever read our output has seen enough; the interpreter's own flush at exit must not complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from error
    except OSError as error:
        _fail(str(error), "check the path and its permissions")


@app.command()
def verify(path: _PathArgument, as_json: JsonLinesOption = False) -> None:
    """Check every checksum, every header and every record.

    Exit status: 0 when the log is whole; 1 when it is damaged, with each damaged place; 2 when it cannot be read.

    \b
    Examples:
      headgate log verify data
      headgate log verify data/dispatcher/0/outbox --json
    """  # noqa: D301 - click reads \b as "keep these lines"
    with _errors():
        damaged = False
        for directory in partitions(path):
            report = inspect(directory, bodies=True)
            damaged |= bool(report.problems)
            if as_json:
                typer.echo(json.dumps(_report_json(report)))
            else:
                _print_verified(report)
    if damaged:
        typer.echo("hint: restore the damaged segments from a copy; records before and behind them are good", err=True)
        raise typer.Exit(EXIT_DAMAGED)


def _print_verified(report: PartitionReport) -> None:
    for problem in report.problems:
        typer.echo(f"{problem.path}: byte {problem.byte}: {problem.reason}")
    verdict = "DAMAGED" if report.problems else "ok"
    typer.echo(
        f"{report.directory}: {verdict}, {report.records} records ({report.first_offset} to {report.next_offset}) "
        f"in {report.chunks} chunks, {report.segments} segments, {report.bytes} bytes"
    )
    if report.tail_bytes:
        typer.echo(f"{report.directory}: {report.tail_bytes} bytes behind the last durable record", err=True)


@app.command()
def stats(path: _PathArgument, as_json: JsonLinesOption = False) -> None:
    """Count records, chunks and bytes of every partition. Reads headers only.

    \b
    Examples:
      headgate log stats data
      headgate log stats data/log --json
    """  # noqa: D301 - click reads \b as "keep these lines"
    with _errors():
        reports = [inspect(directory, bodies=False) for directory in partitions(path)]
    if as_json:
        for report in reports:
            typer.echo(json.dumps(_report_json(report)))
        return
    print_table([_HEADS, *map(_row, reports)])


def _row(report: PartitionReport) -> list[str]:
    counts = (report.first_offset, report.next_offset, report.chunks, report.segments)
    times = [rfc3339.text(time_us)[:16] for time_us in report.append_time_us] if report.append_time_us else ["", ""]
    return [report.directory.name, *map(str, counts), f"{report.bytes / 1e6:.1f}", *times]


@app.command()
def chunks(
    path: _PathArgument,
    as_json: JsonLinesOption = False,
    before: Annotated[
        int | None, typer.Option("--before", min=1, metavar="OFFSET", help="Only chunks that begin before it.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, metavar="N", help="Chunks of each partition.")] = 20,
    filter_: Annotated[
        str,
        typer.Option(
            "--filter", metavar="FILTER", help="Also say which a reader skips: CEL, or JSON as in a trigger's spec."
        ),
    ] = "",
    filter_value: Annotated[
        str,
        typer.Option("--filter-value", metavar="RULE", help="The broker's filter value: an attribute's name, or CEL."),
    ] = "type",
) -> None:
    """Show the newest chunks: offsets, bytes, times, Bloom filters, and which of them a filter skips. No body is read.

    FULL is the share of a Bloom filter's bits that are set: the fuller, the more often a chunk is read for nothing.

    \b
    Examples:
      headgate log chunks data
      headgate log chunks data/log/0 --limit 100 --filter 'ce.type == "order.paid"'
    """  # noqa: D301 - click reads \b as "keep these lines"
    # Here: the other commands need nothing of filters.
    from headgate.filter.skipping.prune import filter_value_rule
    from headgate.inspect.chunks import ChunkQuery, listed

    with _errors():
        rule, asked = filter_value_rule(filter_value), ChunkQuery(before, limit, filter_)
        for directory in partitions(path):
            number = int(directory.name) if directory.name.isdecimal() else 0
            found = listed(Partition(directory, "skip"), asked, rule, number=number)
            if as_json:
                typer.echo(msgspec.json.encode(found).decode())
            else:
                _print_chunks(directory, found)


def _print_chunks(directory: Path, found: ChunkListView) -> None:
    totals, columns = found.totals, len(_CHUNK_HEADS) - (found.totals.chunks_read is None)
    print_table([row[:columns] for row in (_CHUNK_HEADS, *map(_chunk_row, found.items))])
    said = f"{directory}: {totals.chunks} chunks, {totals.events} events, {totals.bytes} bytes"
    if totals.chunks_read is not None:
        said += f"; {totals.chunks_read} chunks, {totals.bytes_read} bytes are read; skipped: {found.skips}"
    typer.echo(said)
    if found.before is not None:
        typer.echo(f"hint: --before {found.before} shows older ones", err=True)


def _chunk_row(one: ChunkView) -> list[str]:
    offsets = [str(one.first_offset), str(one.next_offset)]
    if one.damage:
        return [*offsets, "", "", "", f"damaged: {one.damage}", "", "", "", ""]
    bloom = [f"{one.bloom_bytes} B", f"{one.bloom_filled:.0%}"] if one.bloom_bytes else ["none", ""]
    times = f"{one.time_from} to {one.time_to}" if one.time_from else ""
    return [*offsets, str(one.events), str(one.bytes), one.codec, one.stored, times, *bloom, _decision(one)]


def _decision(one: ChunkView) -> str:
    if one.decision is None:
        return ""
    if not one.decision.read:
        return f"skipped: {one.decision.by}"
    values = ", ".join(map(json.dumps, one.decision.values)) or one.decision.by
    more = one.decision.values_left_out
    return f"read: {values} and {more} more" if more else f"read: {values}"


@app.command()
def dump(
    path: _PathArgument,
    as_json: JsonLinesOption = False,
    start: Annotated[int, typer.Option("--from", min=0, metavar="OFFSET", help="First offset to print.")] = 0,
    limit: Annotated[
        int | None, typer.Option("--limit", min=0, metavar="N", help="Maximum number of records of each partition.")
    ] = None,
) -> None:
    """Print records: offset, append time and every column that has a value.

    Bytes that are not UTF-8 text appear as {"base64": "..."}.

    \b
    Examples:
      headgate log dump data/log/0 --from 1000 --limit 10
      headgate log dump data --json | jq .record.type
    """  # noqa: D301 - click reads \b as "keep these lines"
    with _errors():
        for directory in partitions(path):
            for record in records(directory, start=start, limit=limit):
                typer.echo(_record_json(directory, record) if as_json else _record_line(directory, record))


def _value(value: object) -> object:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    return value


def _record_json(directory: Path, record: Record) -> str:
    columns = {name: _value(value) for name, value in record.columns.items()}
    line = {
        "partition": directory.name,
        "offset": record.offset,
        "append_time_us": record.append_time_us,
        "record": columns,
    }
    return json.dumps(line, ensure_ascii=False)


def _record_line(directory: Path, record: Record) -> str:
    # Values are JSON: a record's control characters must not reach the terminal.
    shown = {name: value for name, value in record.columns.items() if value is not None}
    columns = " ".join(f"{name}={json.dumps(_value(value))}" for name, value in shown.items())
    return f"{directory.name}:{record.offset} {rfc3339.text(record.append_time_us)} {columns}"


def _report_json(report: PartitionReport) -> dict[str, object]:
    problems = [{"file": str(p.path), "byte": p.byte, "reason": p.reason} for p in report.problems]
    head = {"directory": str(report.directory), "ok": not report.problems}
    return {**head, **asdict(replace(report, problems=[])), "directory": head["directory"], "problems": problems}
