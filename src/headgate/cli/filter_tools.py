"""`headgate filter` without a server: test, explain, convert, compare, dialects; and backtest on a data directory.

With a broker `explain` asks a server what its events have had.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headgate.filter.cel.errors import EvaluationError, FilterError
from headgate.filter.cel.evaluate import EventView, OutcomeKind, program
from headgate.filter.cel.transform import apply_transform, check_transform
from headgate.filter.compile.compiler import compile_cel, compile_filter
from headgate.filter.compile.plan import CompiledFilter
from headgate.filter.compile.request import KNOWN, spec_of
from headgate.filter.dialects import CUSTOM, DIALECTS, to_cel
from headgate.filter.dialects.subscriptions import NAMES
from headgate.filter.skipping.prune import FILTER_VALUE
from headgate.filter.tools.advice import advice
from headgate.filter.tools.algebra import Meaning, Relation
from headgate.filter.tools.explain import FilterExplanation, explain
from headgate.filter.tools.trace import Trace, trace
from headgate.filter.tools.witness import witness
from headgate_api.errors import HeadgateError
from headgate_api.event import rfc3339
from headgate_api.event.json_format import decode_event, encode_event
from headgate_api.event.json_text import AmbiguousJsonError, decode_strictly
from headgate_api.event.names import NAMESPACE_DEFAULT
from headgate_api.limits import EVENT_BYTES_MAX, OBJECT_BYTES_MAX
from headgate_api.objects.kinds import Kind
from headgate_cli import client
from headgate_cli.options import JsonLinesOption, JsonOption, Namespace, Server, offers

if TYPE_CHECKING:
    from headgate_cli.backtest import AskPage

_LINE_BYTES_MAX: Final = 2 * EVENT_BYTES_MAX
"""One line of events: the data may be written as Base64 and with escapes."""

CelOption = Annotated[str | None, typer.Option("--cel", metavar="EXPRESSION", help="The filter as a CEL expression.")]
FilterOption = Annotated[
    str | None,
    typer.Option(
        "--filter-json",
        metavar="JSON|FILE",
        help="A trigger's spec.filter (an object) or spec.filters (a list): JSON text, a file, or - for stdin.",
    ),
]
_ROWS_SHOWN: Final = 20
_WIDTH_PIPED: Final = 100_000
"""Piped, a line is as long as it needs to be."""
_TEXT_CHARACTERS: Final = 70
_DECIDED: Final = {
    "matcher": "the matcher, exactly",
    "cel": "cel-cpp, for every event that the matcher finds",
    "both": "the matcher, and cel-cpp for events that only a candidate row finds",
    "nobody": "no part: the filter is false for every event",
}
_RELATIONS: Final = {
    Relation.EQUAL: "equal: both are true of the same events",
    Relation.IMPLIES: "the first is within the second: wherever it is true, the second is",
    Relation.IMPLIED: "the second is within the first: wherever it is true, the first is",
    Relation.DISJOINT: "disjoint: no event makes both true",
    Relation.OVERLAPS: "they overlap: both are true of the event",
    Relation.UNKNOWN: "unknown: nothing is sure of the two",
}
_Spec = tuple[dict[str, object] | None, list[object]]
"""`spec.filter` and `spec.filters`."""
_fail = functools.partial(client.fail, status=client.EXIT_USAGE)


def try_filter(
    events: Annotated[Path, typer.Argument(metavar="EVENTS", help="Events in JSON, one a line; - for stdin.")] = Path(
        "-"
    ),
    cel: CelOption = None,
    filter_json: FilterOption = None,
    transform: Annotated[
        str | None,
        typer.Option(
            "--transform", metavar="EXPRESSION", help="Also print what a trigger's spec.transform makes of each match."
        ),
    ] = None,
    explained: Annotated[bool, typer.Option("--explain", help="Also name the part that decided.")] = False,
    traced: Annotated[bool, typer.Option("--trace", help="Also show the value of every part of the filter.")] = False,
    publish_time: Annotated[
        str | None,
        typer.Option(
            "--publish-time", metavar="TIME", help="When the events were stored, RFC 3339.", show_default="now"
        ),
    ] = None,
    as_json: JsonLinesOption = False,
) -> None:
    """Evaluate a filter on events: print true, false or the error for each.

    Exit status: 2 when the filter or an event is invalid, else 0.

    \b
    Example:
      headgate filter test --cel 'data.total > 100' --transform '{"data": {"id": data.id}}' events.jsonl
    """  # noqa: D301 - click reads \b as "keep these lines"
    wanted = _compiled(cel, filter_json)
    tested = program(wanted.cel)
    if transform is not None:
        _check_transform(transform)
    stored_us = int(time.time() * 1e6) if publish_time is None else rfc3339.micros(publish_time)
    if stored_us is None:
        _fail(f"--publish-time {publish_time!r} is no time", "as in RFC 3339: 2026-01-31T09:30:00Z")
    for number, line in _lines(events):
        try:
            view = EventView(decode_event(line), stored_us)
        except HeadgateError as error:
            _fail(f"line {number}: {error.message}", error.hint)
        outcome = tested.evaluate_view(view)
        parts = trace(cel if cel is not None else wanted.cel, view) if traced or explained else None
        sent, fault = _sent(transform, view) if transform is not None and outcome.kind is OutcomeKind.TRUE else ("", "")
        if as_json:
            result: dict[str, object] = {"line": number, "id": view.event.id, "outcome": outcome.kind.name.lower()}
            if outcome.message:
                result["error"] = outcome.message
            if parts is not None and explained:
                result["decided"] = {"part": parts.decided_text, "value": parts.decided.value}
            if parts is not None and traced:
                result["trace"] = msgspec.to_builtins(parts)
            if sent:
                result["sent"] = json.loads(sent)
            if fault:
                result["transformError"] = fault
            typer.echo(json.dumps(result, ensure_ascii=False))
            continue
        shown = f"error: {outcome.message}" if outcome.kind is OutcomeKind.ERROR else outcome.kind.name.lower()
        typer.echo(f"{shown}\t(decided by {parts.decided_text})" if parts is not None and explained else shown)
        if sent or fault:
            typer.echo(f"  sent: {sent}" if sent else f"  transform error: {fault}")
        if parts is not None and traced:
            _show_trace(parts)


def explain_filter(
    given: Annotated[
        str | None, typer.Argument(metavar="EXPRESSION", help="The filter as a CEL expression, as with --cel.")
    ] = None,
    cel: CelOption = None,
    filter_json: FilterOption = None,
    filter_value: Annotated[
        str,
        typer.Option(
            "--filter-value", metavar="EXPRESSION", help="The broker's filter value, by which readers skip chunks."
        ),
    ] = FILTER_VALUE,
    as_json: JsonLinesOption = False,
    broker: Annotated[
        str,
        typer.Option(
            "--broker",
            "-b",
            help="Ask the server which names in it no event of this broker has had: NAME or NAMESPACE/NAME.",
            autocompletion=offers("brokers"),
        ),
    ] = "",
    namespace: Namespace = NAMESPACE_DEFAULT,
    server: Server = client.SERVER_DEFAULT,
) -> None:
    """Explain a filter: its CEL, the index it is matched by, the part that decides, and its cost.

    Only with --broker it asks a server.

    \b
    Examples:
      headgate filter explain 'ce.type in ["a", "b"] && data.amount > 100'
      headgate filter explain 'ce.type == "order.payd"' --broker shop/orders
    """  # noqa: D301 - click reads \b as "keep these lines"
    if given is not None and cel is not None:
        _fail("the filter is given twice", "either EXPRESSION or --cel")
    spec = _spec(cel if given is None else given, filter_json)
    if broker:
        for message in _unseen(server, client.named_path(Kind.BROKER, broker, namespace, "catalogue"), spec):
            typer.echo(f"advice: {message}", err=True)
    wanted = _compiled_spec(spec, advised=True)
    try:
        explanation = explain(wanted, filter_value=filter_value)
    except FilterError as error:
        _refuse(error.at_field("--filter-value"))
    if as_json:
        typer.echo(msgspec.json.encode(explanation).decode())
    else:
        _show_explanation(explanation)


def convert(
    given: Annotated[
        str, typer.Argument(metavar="FILTER|FILE", help="The filter as text, a file that holds it, or - for stdin.")
    ] = "-",
    source: Annotated[str, typer.Option("--from", metavar="DIALECT", help=f"One of: {', '.join(KNOWN)}.")] = "filter",
    target: Annotated[str, typer.Option("--to", metavar="DIALECT", help="cel.")] = "cel",
    canonical: Annotated[
        bool, typer.Option("--canonical", help="Print the canonical form that the matcher uses.")
    ] = False,
) -> None:
    """Translate a filter of any dialect to CEL.

    \b
    Examples:
      headgate filter convert --from attributes '{"type": "order.created", "tenant": ""}'
      headgate filter convert --from prefix '{"type": "order."}' --to cel
    """  # noqa: D301 - click reads \b as "keep these lines"
    if target != "cel":
        _fail(f"a filter cannot be written in {target!r}", "cel is what every dialect becomes")
    try:
        text = to_cel(*spec_of(source, _dialect_text(given).rstrip("\n")))
        meaning = compile_cel(text).cel
    except FilterError as error:
        _refuse(error)
    typer.echo(meaning if canonical else text)


def compare(
    one: Annotated[str, typer.Argument(metavar="FILTER", help="CEL, or JSON as in spec.filter or spec.filters.")],
    other: Annotated[str, typer.Argument(metavar="FILTER", help="Another one.")],
    as_json: JsonOption = False,
) -> None:
    """Say what is sure of two filters: equal, one within the other, never true together, or both true of an event.

    Nothing is sure of filters that are compared by what is not understood, such as regular expressions.

    \b
    Examples:
      headgate filter compare 'ce.type == "order.paid"' 'ce.type.startsWith("order.")'
      headgate filter compare '[{"prefix": {"type": "order."}}]' 'ce.type == "a" || ce.type == "b"'
    """  # noqa: D301 - click reads \b as "keep these lines"
    first, second = (
        Meaning(_compiled(None, text) if text.lstrip()[:1] in ("{", "[") else _compiled(text, None))
        for text in (one, other)
    )
    found = first.relation(second)
    example = witness(first, second) if found is Relation.UNKNOWN else None
    if example is None:
        typer.echo(json.dumps({"relation": found}) if as_json else _RELATIONS[found])
        return
    text, found = encode_event(example).decode(), Relation.OVERLAPS
    if as_json:
        typer.echo(json.dumps({"relation": found, "example": json.loads(text)}))
    else:
        typer.echo(f"{_RELATIONS[found]} {text}")


def dialects(as_json: JsonLinesOption = False) -> None:
    """List the dialects, with those of installed packages and their faults.

    Example: headgate filter dialects
    """
    ours = [(name, "headgate", None) for name in (*DIALECTS, *NAMES) if name not in CUSTOM or CUSTOM[name].taken]
    for name, package, custom in (*ours, *((name, item.package, item) for name, item in CUSTOM.items())):
        fault = custom.fault() if custom is not None else ""
        if as_json:
            row: dict[str, object] = {"name": name, "package": package, "fault": fault}
            if custom is not None and not fault:
                row["schema"] = custom.load().schema
            typer.echo(json.dumps(row, ensure_ascii=False))
            continue
        where = "filters" if name in NAMES else "filter, filters"
        typer.echo(f"{name:<15} {where:<16} {package}{f'  broken: {fault}' if fault else ''}")


def _dialect_text(given: str) -> str:
    """Like `_text_of`; but what names no file is the filter itself."""
    try:
        is_file = given == "-" or Path(given).is_file()
    except (OSError, ValueError):  # too long, or a NUL
        is_file = False
    return _text_of(given) if is_file else given


@contextlib.contextmanager
def asking(data: Path, broker: str) -> Iterator[AskPage]:
    """Asks the objects and the log of a data directory, which it only reads; `broker` is namespace/name."""
    # Here, because `test` and `explain` need nothing of it, and it is half of what the module would import.
    from headgate.inspect.backtest import Backtests
    from headgate.log.directory import LogDirectory
    from headgate.objects.views.object_reader import ObjectReader
    from headgate.scan.chunks import ChunkLog
    from headgate.scan.pages import LogScanner

    objects = ObjectReader(data)
    with ThreadPoolExecutor(1) as threads, asyncio.Runner() as runner:
        log = ChunkLog(LogDirectory(data / "log", "stop"))
        backtests = Backtests(objects, log, LogScanner(log, threads))
        yield lambda asked: runner.run(backtests.page(broker, asked))


# --- what commands are given -----------------------------------------------------------------------


def _refuse(error: FilterError) -> NoReturn:
    """Prints an error of a filter with its place, and ends with status 2."""
    _fail(f"{error.message}\n{error.caret}".rstrip("\n"), error.hint)


def _unseen(server: str, path: str, spec: _Spec) -> Iterator[str]:
    """What a server says of names in a filter, by its broker's catalogue."""
    one, listed = spec
    try:
        found = client.request(server, "POST", path, body={"filter": one} if one is not None else {"filters": listed})
    except client.ApiRefusedError as error:
        if error.status != HTTPStatus.UNPROCESSABLE_ENTITY:
            raise
        return  # it is no filter: what is wrong with it is said here, with its place
    yield from (item["message"] for item in found["items"])


def _compiled(cel: str | None, filter_json: str | None) -> CompiledFilter:
    """The filter that the options give."""
    return _compiled_spec(_spec(cel, filter_json))


def _spec(cel: str | None, filter_json: str | None) -> _Spec:
    if (cel is None) == (filter_json is None):
        _fail("give either a CEL expression or --filter-json", "headgate filter explain 'ce.type == \"order\"'")
    if cel is not None:
        return {"cel": cel}, []
    found = _json_value(_text_of(filter_json or ""), dict[str, object] | list[object])
    return (None, found) if isinstance(found, list) else (found, [])


def _compiled_spec(spec: _Spec, *, advised: bool = False) -> CompiledFilter:
    """The filter of a spec; with advice on it, on standard error, where it is asked for."""
    try:
        made = compile_filter(*spec)
        for one in advice(*spec) if advised else ():
            typer.echo(f"advice: {one.message}", err=True)
        return made
    except FilterError as error:
        _refuse(error)


def _check_transform(text: str) -> None:
    try:
        check_transform(text)
    except FilterError as error:
        _refuse(error.at_field("--transform"))


def _sent(transform: str, view: EventView) -> tuple[str, str]:
    """The event that a transform makes, in JSON; or why it makes none."""
    try:
        return encode_event(apply_transform(transform, view)).decode(), ""
    except EvaluationError as error:
        return "", error.message


def _text_of(given: str) -> str:
    """An argument that is JSON text, `-` for stdin, or else a file's name."""
    if given == "-":
        return _bounded(sys.stdin.read(OBJECT_BYTES_MAX + 1))
    if given.lstrip()[:1] in ("{", "["):
        return _bounded(given)
    try:
        with Path(given).open(encoding="utf-8") as file:
            return _bounded(file.read(OBJECT_BYTES_MAX + 1))
    except (OSError, ValueError) as error:  # ValueError: no UTF-8, or no name that a file can have
        _fail(f"cannot read the filter from {given[:100]}: {error}")


def _bounded(text: str) -> str:
    if len(text) > OBJECT_BYTES_MAX:
        _fail(f"the filter is longer than {OBJECT_BYTES_MAX} characters")
    return text


def _json_value(text: str, shape: type | object) -> dict[str, object] | list[object]:
    """A JSON object or list."""
    try:
        found = decode_strictly(text.encode(), shape)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError, AmbiguousJsonError) as error:
        _fail(f"the filter is no JSON object or list: {error}")
    assert isinstance(found, Mapping | Sequence)
    return found  # type: ignore[return-value]


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, with their numbers from 1."""
    try:
        with contextlib.nullcontext(sys.stdin.buffer) if str(path) == "-" else path.open("rb") as raw:
            for number, line in enumerate(raw, start=1):
                if len(line) > _LINE_BYTES_MAX:
                    _fail(f"line {number} is longer than {_LINE_BYTES_MAX} bytes")
                if line.strip():
                    yield number, line
    except OSError as error:
        _fail(f"cannot read events from {path}: {error}")


# --- what they print ------------------------------------------------------------------------------


def _show_explanation(explanation: FilterExplanation) -> None:
    """A filter as the matcher sees it."""
    cost, rows = explanation.cost, explanation.rows
    typer.echo(f"meaning     {explanation.cel}")
    typer.echo(f"decided by  {_DECIDED[explanation.decided_by]}")
    typer.echo(
        f"cost        {_count(cost.lookups, 'look-up')} and {_count(cost.scans, 'comparison')} an event; "
        f"{_count(cost.steps, 'step')} where cel-cpp decides"
    )
    typer.echo(f"skipped     {explanation.skips.says}")
    for note in explanation.notes:
        typer.echo(f"note        {note}")
    if not rows:
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("row", justify="right")
    for name in ("verdict", "index", "compare"):
        table.add_column(name, overflow="fold")
    for number, row in enumerate(rows[:_ROWS_SHOWN], start=1):
        index, compare = " && ".join(row.index) or "none: a scan", " && ".join(row.compare) or "nothing"
        table.add_row(str(number), *map(Text, (row.verdict, index, compare)))
    typer.echo()
    _print(table)
    if len(rows) > _ROWS_SHOWN:
        typer.echo(f"... and {len(rows) - _ROWS_SHOWN} rows more")


def _show_trace(trace: Trace) -> None:
    """A filter on one event: a line under the part that decided, and every part with its value."""
    for line in trace.caret.splitlines():
        typer.echo(f"  {line}")
    table = Table(box=None, pad_edge=False, show_header=False)
    for _ in range(4):
        table.add_column(overflow="fold")
    for part in trace.parts:
        text = trace.text[part.start : part.end]
        text = text if len(text) <= _TEXT_CHARACTERS else text[: _TEXT_CHARACTERS - 3] + "..."
        value = f"error: {part.value}" if part.kind == "error" else part.value
        element = f"({part.element})" if part.element else ""
        table.add_row(*map(Text, (" >" if part.decided else "", "  " * part.depth + text, value, element)))
    _print(table)
    if trace.left_out:
        typer.echo("  ... and more parts")


def _print(table: Table) -> None:
    Console(width=None if sys.stdout.isatty() else _WIDTH_PIPED, highlight=False).print(table)


def _count(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
