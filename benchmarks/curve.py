"""What does an event cost beside filters that do not match? And with two processes or threads instead of one?

    python -m benchmarks.curve [--filters 100 1000 10000 100000] [--forms 1/1/2 1/1/1 2/1/2 1/2/2 2/2/2]
    python -m benchmarks.curve --page docs/reference/published.md

Processor time for an event by process, from /proc, at a steady rate: each event is wanted by one trigger, and no event
matches any of the filters, which have five conditions each and belong to the same broker. Each point has a server of
its own with the same warm-up. A form is fronts/dispatchers/partitions: the matcher has a thread for each partition. All
numbers of filters are measured with the first form, all forms with `--form-filters`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.dispatch import subscriber
from benchmarks.objects import create_all, wait_ready
from benchmarks.published import results
from benchmarks.published.page import write
from benchmarks.published.setups import filter_text, http
from benchmarks.published.tables import show
from benchmarks.shards import ROLES, processor_s, steady
from headgate.testing.server import Object, Server, object_of

WANTED = "this"
SIZES = ("filters", "forms", "form_filters", "rounds", "events", "rate", "warm", "idle")
"""The options that change a figure."""


def triggers_of(filters: int, url: str) -> Iterator[Object]:
    """The one that wants every event, and those that want none."""
    to = {"broker": "default", "subscriber": {"uri": url}}
    for name, value in (("wanted", WANTED), *((f"f{number}", f"kind-{number}") for number in range(filters))):
        yield object_of("triggers", "default", name, {**to, "filter": {"expression": filter_text("kind", value)}})


def event(number: int) -> bytes:
    """It meets the first four conditions of every filter, and all five of one."""
    head = {"specversion": "1.0", "id": str(number), "source": "/shop/orders/eu-west", "type": "order.created"}
    data = json.dumps({"total": 150, "active": True, "kind": WANTED}).encode()
    return http(
        "/default/default", {"content-type": "application/json"} | {f"ce-{key}": head[key] for key in head}, data
    )


def point(filters: int, form: str, options: argparse.Namespace) -> dict[str, Any]:
    """One server."""
    arguments = [word for name, count in numbers(form).items() for word in (f"--{name}", str(count))]
    warm = int(options.rate * options.warm)
    events = [event(number) for number in range(warm + options.events)]
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as scratch, subscriber() as (url, pipe):
        folder = Path(scratch)
        with Server(folder / "data", log=folder / "server.log", arguments=tuple(arguments)) as server:
            triggers = list(triggers_of(filters, url))
            asyncio.run(create_all(server, "triggers", triggers))
            wait_ready(server, triggers)
            taken = steady(lambda: processor_s(server), ROLES, server.port, pipe, events, options)
    return {"us": taken.us_per_event, "idle_ms_per_s": sum(taken.idle_ms_per_s.values())}


def measured(filters: int, form: str, found: list[dict[str, Any]]) -> dict[str, Any]:
    """The medians of some servers."""
    us = {role: round(statistics.median(one["us"][role] for one in found), 1) for role in ROLES}
    return {
        "filters": filters,
        **numbers(form),
        "rounds": len(found),
        "us_per_event": us,
        "total_us": round(statistics.median(sum(one["us"].values()) for one in found), 1),
        "idle_ms_per_s": round(statistics.median(one["idle_ms_per_s"] for one in found), 1),
    }


def points(options: argparse.Namespace, tell: Callable[[str], None]) -> list[dict[str, Any]]:
    """All of them, round by round, every other round backwards: what drifts meets all alike."""
    wanted = [(filters, options.forms[0]) for filters in options.filters]
    wanted += [(options.form_filters, form) for form in options.forms[1:]]
    found: dict[tuple[int, str], list[dict[str, Any]]] = {one: [] for one in wanted}
    for number in range(options.rounds):
        for filters, form in wanted if number % 2 == 0 else reversed(wanted):
            tell(f"round {number + 1}: {filters:,} filters, {form}")
            one = point(filters, form, options)
            found[filters, form].append(one)
            tell(f"{sum(one['us'].values()):.0f} us an event")
    return [measured(filters, form, one) for (filters, form), one in found.items()]


def numbers(form: str) -> dict[str, int]:
    """Of a form, by the names of the server's options."""
    return dict(zip(("fronts", "dispatchers", "partitions"), map(int, form.split("/")), strict=True))


def parser() -> argparse.ArgumentParser:
    """The flags."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--filters", type=int, nargs="+", default=[100, 1_000, 10_000, 100_000], metavar="N")
    forms = ["1/1/2", "1/1/1", "2/1/2", "1/2/2", "2/2/2"]
    made.add_argument("--forms", nargs="+", default=forms, metavar="F/D/P")
    made.add_argument("--form-filters", type=int, default=1_000, help="beside which forms are compared")
    made.add_argument("--rounds", type=int, default=1, help="servers of each point; the median counts")
    made.add_argument("--events", type=int, default=10_000, help="of each point (default: %(default)s)")
    made.add_argument("--rate", type=float, default=500.0, help="events a second (default: %(default)s)")
    made.add_argument("--warm", type=float, default=20.0, help="seconds of the same load that are not counted")
    made.add_argument("--idle", type=float, default=5.0, help="seconds without any load, before it")
    made.add_argument("--json", action="store_true", help="print JSON instead of a table")
    made.add_argument("--page", type=Path, metavar="FILE", help="write this page, and its results beside it")
    return made


def main() -> None:
    """Parses the flags, runs, prints, writes."""
    options, tell = parser().parse_args(), results.teller()
    flags = results.flags_of(parser(), options, SIZES)
    record = results.run_record("curve", flags)
    found = {"run": record, "rate": options.rate, "points": points(options, tell)}
    if options.json:
        print(json.dumps(found))
    else:
        show("curve", "filters", found)
    if options.page:
        results.put(options.page.with_suffix(".json"), "curve", "filters", found)
        write(options.page)


if __name__ == "__main__":
    main()
