"""The benchmark that nobody published: filters of many tenants on the server, end to end, by load.

    python -m benchmarks.published                                  5,000 brokers, the three setups
    python -m benchmarks.published --brokers 50 --seconds 3         the same in minutes
    python -m benchmarks.published --page docs/reference/published.md
    python -m benchmarks.published --render docs/reference/published.md

Brokers, each of its own tenant, with three triggers whose filters have five conditions (`3`); with five for each of the
three (`15`); and with none (`none`). In every setup some quiet brokers have one trigger without a filter each. Events
come over HTTP and are answered when they are on disk; the wanted ones are POSTed to a subscriber in another process.
Of the events 0, 1, 10 and 100 in a hundred match one filter each. An event of a broker meets four of the five
conditions of each of its filters, whether it matches or not.

Figures: events/s that are stored and that are delivered (closed loop), latency from when an event was due to its
arrival (steady rate), processor time and bytes written by process, pauses and allocations of the JVM by a flight
recording. `python -m benchmarks.peers` puts the peers on the same page.

`--page` keeps the results beside the page, NAME.json, and puts those of this run in the place of older ones of the same
setup; `--render` only writes the page from them.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.published import results, run
from benchmarks.published.page import write
from benchmarks.published.setups import setups
from benchmarks.published.tables import show

SIZES = ("brokers", "match", "connections", "seconds", "rate", "steady", "warm")
"""The options that change a figure."""


def parser() -> argparse.ArgumentParser:
    """The flags."""
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.published",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--brokers", type=int, default=5_000)
    made.add_argument("--setups", nargs="*", choices=["3", "15", "none"], default=["none", "3", "15"])
    made.add_argument("--match", type=float, nargs="+", default=[0, 1, 10, 100], metavar="PERCENT")
    made.add_argument("--connections", type=int, default=64, help="of the closed loop (default: %(default)s)")
    made.add_argument("--seconds", type=float, default=10.0, help="of each closed loop (default: %(default)s)")
    made.add_argument("--rate", type=float, default=100.0, help="events a second, where latency is measured")
    made.add_argument("--steady", type=float, default=20.0, help="seconds of each such rate (default: %(default)s)")
    made.add_argument("--warm", type=float, default=30.0, help="seconds that are not counted (default: %(default)s)")
    made.add_argument("--json", action="store_true", help="print one JSON object a line instead of a table")
    made.add_argument("--page", type=Path, metavar="FILE", help="write this page, and its results beside it")
    made.add_argument("--render", type=Path, metavar="FILE", help="measure nothing, write this page again")
    return made


def main() -> None:
    """Parses the flags, runs, prints, writes."""
    arguments = parser().parse_args()
    if arguments.render:
        write(arguments.render)
        return
    tell, flags = results.teller(), results.flags_of(parser(), arguments, SIZES)

    def keep(section: str, name: str, record: results.Section, found: results.Section) -> None:
        done = {"run": record, **found}
        if arguments.json:
            print(json.dumps({section: {name: done}}), flush=True)
        else:
            show(section, name, done)
        if arguments.page:
            results.put(arguments.page.with_suffix(".json"), section, name, done)
            write(arguments.page)

    for name in arguments.setups:
        setup = setups(arguments.brokers)[name]
        record = results.run_record("published", ["--setups", name, *flags])
        keep("setups", name, record, run.measure(setup, arguments, lambda text, name=name: tell(f"{name}: {text}")))


if __name__ == "__main__":
    main()
