"""Filters and events of a command from options, files and stdin, bounded."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import msgspec
import typer

from headgate.cli import client
from headgate.event.json_text import AmbiguousJsonError, decode_strictly
from headgate.filter.cel.errors import FilterError
from headgate.limits import EVENT_BYTES_MAX, OBJECT_BYTES_MAX

if TYPE_CHECKING:
    from headgate.filter.compile.plan import CompiledFilter

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


fail = functools.partial(client.fail, status=client.EXIT_USAGE)


def refuse(error: FilterError) -> NoReturn:
    """Prints an error of a filter with its place, and ends with status 2."""
    fail(f"{error.message}\n{error.caret}".rstrip("\n"), error.hint)


def compiled(cel: str | None, filter_json: str | None, *, advised: bool = False) -> CompiledFilter:
    """The filter that the options give; with advice on it, on standard error, where it is asked for."""
    from headgate.filter.compile.compiler import compile_filter  # other commands use this module and compile nothing
    from headgate.filter.tools.advice import advice

    if (cel is None) == (filter_json is None):
        fail("give either a CEL expression or --filter-json", "headgate filter explain 'ce.type == \"order\"'")
    try:
        found: dict[str, object] | list[object] = {"cel": cel}
        if cel is None:
            found = json_value(text_of(filter_json or ""), dict[str, object] | list[object])
        spec: tuple[dict[str, object] | None, list[object]] = (None, found) if isinstance(found, list) else (found, [])
        made = compile_filter(*spec)
        for one in advice(*spec) if advised else ():
            typer.echo(f"advice: {one.message}", err=True)
        return made
    except FilterError as error:
        refuse(error)


def text_of(given: str) -> str:
    """An argument that is JSON text, `-` for stdin, or else a file's name."""
    if given == "-":
        return _bounded(sys.stdin.read(OBJECT_BYTES_MAX + 1))
    if given.lstrip()[:1] in ("{", "["):
        return _bounded(given)
    try:
        with Path(given).open(encoding="utf-8") as file:
            return _bounded(file.read(OBJECT_BYTES_MAX + 1))
    except (OSError, ValueError) as error:  # ValueError: no UTF-8, or no name that a file can have
        fail(f"cannot read the filter from {given[:100]}: {error}")


def _bounded(text: str) -> str:
    if len(text) > OBJECT_BYTES_MAX:
        fail(f"the filter is longer than {OBJECT_BYTES_MAX} characters")
    return text


def json_value(text: str, shape: type | object) -> dict[str, object] | list[object]:
    """A JSON object or list."""
    try:
        found = decode_strictly(text.encode(), shape)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError, AmbiguousJsonError) as error:
        fail(f"the filter is no JSON object or list: {error}")
    assert isinstance(found, Mapping | Sequence)
    return found  # type: ignore[return-value]


def lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, with their numbers from 1."""
    try:
        if str(path) == "-":
            yield from _numbered(sys.stdin.buffer)
        else:
            with path.open("rb") as file:
                yield from _numbered(file)
    except OSError as error:
        fail(f"cannot read events from {path}: {error}")


def _numbered(raw: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    for number, line in enumerate(raw, start=1):
        if len(line) > _LINE_BYTES_MAX:
            fail(f"line {number} is longer than {_LINE_BYTES_MAX} bytes")
        if line.strip():
            yield number, line
