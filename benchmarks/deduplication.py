"""What an event costs that is to be stored once, and the memory of those that are known.

    python -m benchmarks.deduplication                      ten million events, in chunks of 1, 100 and 2,000

A chunk is looked at as in the front, before it is written; the log beneath writes nothing. *New* are events that nobody
has sent, *known* the same once more. The memory is what the process grew by. Times are processor time.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table

from benchmarks.tables import print_whole
from headgate.event.arrow import StoredEvent, to_batch
from headgate.ingress.deduplication import DeduplicatingWriter
from headgate.log.writer import Encoded
from headgate_api.event.model import Event

BROKER = "default/default/6c5b2f7e-3d0c-4a55-9d8e-2f1a7c9b0e4d"
WINDOWS = {BROKER: 600_000_000}
FILL_EVENTS = 2_000
SAMPLE_EVENTS = 20_000


@dataclass(frozen=True)
class Result:
    """Microseconds of an event."""

    known_events: int
    memory_mb: float
    chunk_events: int
    new_us: float
    known_us: float


class Nowhere:
    """A partition's writer that writes nothing."""

    def __init__(self) -> None:
        self.append_time_us = 0
        self._next = 0

    def append(self, chunk: Encoded) -> int:
        self.append_time_us = time.time_ns() // 1_000
        self._next += chunk.batch.num_rows
        return self._next - chunk.batch.num_rows

    def probe(self) -> None:
        """It always can."""


def chunk(first: int, count: int) -> Encoded:
    events = [Event("1.0", str(first + number), "/shop/orders/service", "t") for number in range(count)]
    return Encoded(to_batch([StoredEvent(BROKER, event) for event in events]), ["t"] * count, windows=WINDOWS)


def spent_us(once: DeduplicatingWriter, chunks: Sequence[Encoded]) -> float:
    began = time.process_time()
    for one in chunks:
        once.append(one)
    return (time.process_time() - began) / sum(one.batch.num_rows for one in chunks) * 1e6


def memory_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4_096 / 1e6


def measure(events: int) -> Iterator[Result]:
    once = DeduplicatingWriter(Nowhere(), events_max=events + 10 * SAMPLE_EVENTS)
    chunk(0, FILL_EVENTS)
    before_mb = memory_mb()
    for first in range(0, events, FILL_EVENTS):
        once.append(chunk(first, FILL_EVENTS))
    grown_mb = memory_mb() - before_mb
    first = events
    for size in (1, 100, FILL_EVENTS):
        chunks = [chunk(at, size) for at in range(first, first + SAMPLE_EVENTS, size)]
        first += SAMPLE_EVENTS
        new_us = spent_us(once, chunks)
        yield Result(events, round(grown_mb, 1), size, round(new_us, 2), round(spent_us(once, chunks), 2))


def main() -> None:
    """Parses the flags, runs, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=10_000_000, help="that are known (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON lines")
    asked = parser.parse_args()
    found = []
    for one in measure(asked.events):
        found.append(one)
        if asked.json:
            print(json.dumps(asdict(one)), flush=True)
    if asked.json:
        return
    table = Table("events of a chunk", "new: us an event", "known: us an event")
    for one in found:
        table.add_row(f"{one.chunk_events:,}", f"{one.new_us}", f"{one.known_us}")
    print_whole(table)
    print(f"{asked.events:,} known events take {found[0].memory_mb} MB")


if __name__ == "__main__":
    main()
