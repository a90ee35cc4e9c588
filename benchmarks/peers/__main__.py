"""Headgate beside the best of its peers, in one run: its matcher beside matchers, the whole of it beside whole systems.

    python -m benchmarks.peers                                      everything that can be built here
    python -m benchmarks.peers --only quamina ruler                 our matcher beside these, one core each
    python -m benchmarks.peers --only artemis nats                  our server beside these, on the same cores
    python -m benchmarks.peers --only --also 'NAME=COMMAND'         our matcher beside a program of yours
    python -m benchmarks.peers --page docs/reference/published.md

Matchers get the filters and the events of the shared workload (HEADGATE_SHARED), and must find in its first events what
cel-cpp finds. `--also` runs a matcher that is not built here: it reads CEL, and `benchmarks/peers/matchers.py` says how
it is asked. Systems are durable: they sync an event before its acknowledgement, for which each producer waits;
TMPDIR must be on a real disk.

All run in turns, and the first of a round is another one each time; a figure is the median of the rounds. Processor
time is that of all processes, from `/proc`. The peers' programs are built in `--cache`, of pinned versions.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.peers import builds, matchers, systems
from benchmarks.published import results
from benchmarks.published.page import write
from benchmarks.published.tables import show

SIZES = ("only", "filters", "producers", "consumers", "rounds", "seconds", "warm", "rate", "steady")
"""The options that change a figure."""
NAMES = [peer.name for peer in (*builds.MATCHERS, *builds.SYSTEMS)]


def parser() -> argparse.ArgumentParser:
    """The flags."""
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--only", nargs="*", choices=NAMES, default=NAMES, help="these peers (default: all)")
    made.add_argument("--also", action="append", default=[], metavar="NAME=COMMAND", help="another matcher")
    made.add_argument("--filters", type=int, nargs="+", default=[100, 10_000], help="of the matchers")
    made.add_argument("--producers", type=int, nargs="+", default=[64, 128], help="of the systems, at once")
    made.add_argument("--consumers", type=int, default=100, help="of the systems, each with a filter")
    made.add_argument("--rounds", type=int, default=2, help="(default: %(default)s)")
    made.add_argument("--seconds", type=float, default=4.0, help="of each measurement (default: %(default)s)")
    made.add_argument("--warm", type=float, default=10.0, help="seconds before it (default: %(default)s)")
    made.add_argument("--rate", type=float, default=100.0, help="events a second where latency is measured")
    made.add_argument("--steady", type=float, default=4.0, help="seconds of it (default: %(default)s)")
    made.add_argument(
        "--cache",
        type=Path,
        default=Path(tempfile.gettempdir()) / "headgate-peers",
        help="where the programs are built and the workload is made (default: %(default)s)",
    )
    made.add_argument("--json", action="store_true", help="print one JSON object a line instead of a table")
    made.add_argument("--page", type=Path, metavar="FILE", help="write this page, and its results beside it")
    return made


def found(options: argparse.Namespace, tell: results.Tell) -> Iterator[tuple[str, dict[str, Any]]]:
    """The findings by their names."""
    options.cache = options.cache.absolute()
    options.cache.mkdir(parents=True, exist_ok=True)
    if options.also or any(peer.name in options.only for peer in builds.MATCHERS):
        for count in options.filters:
            with tempfile.TemporaryDirectory(prefix="headgate-bench-") as scratch:
                yield f"matchers-{count}", matchers.in_turns(count, options, tell, Path(scratch))
    if any(peer.name in options.only for peer in builds.SYSTEMS):
        yield "systems", systems.in_turns(options, tell)


def main() -> None:
    """Parses the flags, runs, prints, writes."""
    options = parser().parse_args()
    flags = results.flags_of(parser(), options, SIZES)
    record = results.run_record("peers", flags)
    for name, one in found(options, results.teller()):
        done = {"run": record, **one}
        if options.json:
            print(json.dumps({name: done}), flush=True)
        else:
            show("peers", name, done)
        if options.page:
            results.put(options.page.with_suffix(".json"), "peers", name, done)
            write(options.page)


if __name__ == "__main__":
    main()
