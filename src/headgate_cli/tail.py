"""`headgate tail`: the events of a broker as they were stored, whatever partition they are in."""

from __future__ import annotations

import heapq
import json
import queue
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Annotated, Any, Final
from urllib.parse import quote, urlencode

import typer

from headgate_api import positions
from headgate_api.errors import UnavailableError
from headgate_api.event.names import NAMESPACE_DEFAULT, full_name
from headgate_cli.client import BROKER_DEFAULT, SERVER_DEFAULT, TIMES_HELP, lines, print_line, time_text
from headgate_cli.options import Broker, Namespace, Server

_CONTROL: Final = re.compile("[\x7f-\x9f]")
_HELD_MAX: Final = 10_000
"""Events that wait for older ones of other partitions."""
_HELD_S_MAX: Final = 0.2
"""How long they wait where the server sends nothing more."""
_LINES_MAX: Final = 1_000
"""Of the server, that are read and not looked at."""
_HEADS: Final = ("STORED", "TYPE", "SOURCE", "ID", "SUBJECT", "DATA")


@dataclass(slots=True)
class InOrder:
    """Merges partitions, each of which is in order: an event waits until every partition has one that is not older.

    With more than `held_max` waiting, the oldest goes on anyway.
    """

    held_max: int = _HELD_MAX
    partitions: set[int] = field(default_factory=set)  # of the log, once they are known
    _held: list[tuple[str, int, int, Any]] = field(default_factory=list)
    _count: Counter[int] = field(default_factory=Counter)

    def add(self, stored: str, partition: int, offset: int, event: Any) -> Iterator[Any]:  # noqa: ANN401 - the caller's
        """Takes an event, and gives those that need not wait any more."""
        heapq.heappush(self._held, (stored, partition, offset, event))
        self._count[partition] += 1
        while len(self._held) > self.held_max or (
            self.partitions and all(self._count[one] > 0 for one in self.partitions)
        ):
            yield self._oldest()

    def rest(self) -> Iterator[Any]:
        """Gives all that wait, in order."""
        while self._held:
            yield self._oldest()

    def __bool__(self) -> bool:
        return bool(self._held)

    def _oldest(self) -> Any:  # noqa: ANN401 - the caller's
        _, partition, _, event = heapq.heappop(self._held)
        self._count[partition] -= 1
        return event


def tail(
    broker: Broker = BROKER_DEFAULT,
    from_: Annotated[
        str, typer.Option("--from", help=f"earliest, latest, next, {TIMES_HELP} or a position (0:123,1:456).")
    ] = "next",
    to: Annotated[
        str, typer.Option(help="Where it ends, exclusive, as --from. Then the command waits for no more.")
    ] = "",
    filter_: Annotated[str | None, typer.Option("--filter", help="CEL, or JSON as in a trigger's spec.filter.")] = None,
    first: Annotated[
        str | None, typer.Option(help="Start at the first event for which this CEL expression is true.")
    ] = None,
    value: Annotated[list[str] | None, typer.Option(help="Only chunks with this filter value. Repeatable.")] = None,
    limit: Annotated[int | None, typer.Option(help="Stop after this many events.")] = None,
    follow: Annotated[bool, typer.Option(help="Wait for more events at the end.")] = True,
    namespace: Namespace = NAMESPACE_DEFAULT,
    server: Server = SERVER_DEFAULT,
    as_json: Annotated[bool, typer.Option("--json", help="Print the server's lines, progress included.")] = False,
) -> None:
    """Print a broker's events as they were stored, and wait for new ones. Ctrl-C ends it and prints the position.

    \b
    Examples:
      headgate tail --filter 'data.amount > 100'
      headgate tail -b shop/orders --from 1h --to 30m
      headgate tail -b shop/orders --from 2026-01-02T10:00:00Z --no-follow --value com.shop.order.paid --json
    """  # noqa: D301 - click reads \b as "keep these lines"
    parameters = [("from", time_text(from_)), ("follow", str(follow and not to).lower()), ("stored", "true")]
    options = (("to", time_text(to) or None), ("filter", filter_), ("first", first))
    parameters += [(name, text) for name, text in options if text is not None]
    parameters += [("filterValue", each) for each in value or ()]
    parameters += [("limit", str(limit))] if limit is not None else []
    url = events_path(full_name(broker, namespace), parameters)
    places: dict[int, int] = {}
    show: Callable[[Iterable[Any]], None] = _print_lines if as_json else _Columns().print
    held = InOrder()
    errors = 0
    try:
        for line in _heard(server, url):
            if line is None:
                show(held.rest())
                continue
            found = json.loads(line)
            if "specversion" in found:  # an event, whatever its extensions are called
                partition, offset = map(int, found["hgposition"].split(":"))
                shown = line if as_json else found
                show(held.add(found.get("hgstored", ""), partition, offset, shown))
                places[partition] = offset + 1
            elif "progress" in found:
                places |= positions.parse(found["progress"]["position"])
                held.partitions |= places.keys()
                if found["progress"].get("atEnd"):
                    show(held.rest())
                if as_json and not held:  # else it would tell of events that are not printed
                    show([line])
                if (known := found["progress"].get("filterErrors", 0)) > errors:
                    errors = known
                    tell = f"headgate: the filter is an error on {errors} of the events so far; they are not printed"
                    print(tell, file=sys.stderr)
            else:
                show(held.rest())
                if as_json:
                    show([line])
                raise UnavailableError(found["error"]["message"], hint=_on(places))
    except KeyboardInterrupt:
        pass
    show(held.rest())
    if places:
        print(f"headgate: {_on(places)}", file=sys.stderr)


def events_path(broker: str, parameters: Sequence[tuple[str, str]]) -> str:
    """The path that answers with stored events of a broker, NAMESPACE/NAME."""
    return f"/{quote(broker)}/events?{urlencode(parameters)}"


def _heard(server: str, url: str) -> Iterator[bytes | None]:
    """The server's lines; None where none comes for a while. A thread reads them, since a read cannot be given up."""
    heard: queue.Queue[bytes | BaseException | None] = queue.Queue(_LINES_MAX)

    def hear() -> None:
        try:
            for line in lines(server, url, accept="application/x-ndjson"):
                heard.put(line)
            heard.put(None)
        except BaseException as error:  # noqa: BLE001 - it is raised where the lines are looked at
            heard.put(error)

    threading.Thread(target=copy_context().run, args=(hear,), daemon=True).start()
    while True:
        try:
            said = heard.get(timeout=_HELD_S_MAX)
        except queue.Empty:
            yield None
            continue
        if said is None:
            return
        if isinstance(said, BaseException):
            raise said
        yield said


def _on(places: dict[int, int]) -> str:
    """Where to go on; "" when nothing was read."""
    return f"read up to --from {positions.write(places)}" if places else ""


def _print_lines(found: Iterable[bytes]) -> None:
    """Events as the server writes them."""
    for line in found:
        typer.echo(_harmless(line.decode().rstrip()))


class _Columns:
    """Events below heads, in columns that grow with what is in them; those that come together fit from the start."""

    def __init__(self) -> None:
        self._widths = [0] * (len(_HEADS) - 1)

    def print(self, found: Iterable[dict[str, Any]]) -> None:
        rows = [_cells(event) for event in found]
        if rows and not any(self._widths):
            rows.insert(0, list(_HEADS))
        for row in rows:
            self._widths = [max(width, len(cell)) for width, cell in zip(self._widths, row[:-1], strict=True)]
        for row in rows:
            print_line(row, [*self._widths, 0])


def _cells(event: dict[str, Any]) -> list[str]:
    cells = [event.get(name, "") for name in ("hgstored", "type", "source", "id", "subject")]
    cells[0] = f"{cells[0][:23]}Z" if cells[0] else ""  # to the millisecond
    data = event.get("data", event.get("data_base64", ""))
    cells.append(json.dumps(data, ensure_ascii=False, separators=(",", ":")) if data != "" else "")
    return list(map(_harmless, cells))


def _harmless(text: str) -> str:
    """A terminal obeys control characters. JSON has those above U+007E in texts only, and writes them so."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
