"""A deployment on Kafka and a Spark cluster, live: one of each part is killed while events flow, and nothing is lost.

Run it with `make demo-cluster`. It starts brokers of Kafka, a Spark master with two workers, and two servers, all on
loopback. Exit status 0 when every trigger got exactly its events, and ordered ones in their order, else 1.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from examples.cluster.machines import Sizes
from examples.cluster.story import KILLS, run


def main() -> None:
    """Parses the flags and runs the demo."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=20.0, help="events per second")
    parser.add_argument("--partitions", type=int, default=2, help="partitions of the topic events")
    parser.add_argument("--brokers", type=int, default=3, help="brokers of Kafka")
    parser.add_argument("--kill", default=",".join(KILLS), help="what is killed, in this order; default: %(default)s")
    arguments = parser.parse_args()
    chosen = tuple(filter(None, arguments.kill.split(",")))
    if unknown := set(chosen) - set(KILLS):
        parser.error(f"--kill: {', '.join(sorted(unknown))}; it takes {', '.join(KILLS)}")
    if "broker" in chosen and arguments.brokers < 3:
        parser.error("--kill broker: with fewer than 3 brokers nothing can be stored then")
    console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
    folder = Path(tempfile.mkdtemp(prefix="headgate-cluster-"))
    sizes = Sizes(brokers=arguments.brokers, partitions=arguments.partitions, rate_per_s=arguments.rate)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: every process is stopped
    outcome = asyncio.run(run(folder, sizes, chosen, console))
    sys.exit(0 if outcome.ledger.is_exact else 1)


if __name__ == "__main__":
    main()
