"""What does compressing chunks cost and save? Bytes, writing and scanning, for each codec of `spec.log.compression`.

Events are orders as shops send them: some 300 bytes, names that repeat, numbers and ids that do not. Chunks of 1,000
events are what a busy broker writes, of 10 what a quiet one does. `expression` is a filter on data, true of one event
in 10,000: uncompressed chunks are searched for its constant before anything is decoded, compressed ones cannot be.

    python -m benchmarks.compression
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from headgate.event.arrow import EVENT_SCHEMA
from headgate.filter.skipping.prune import DEFAULT, filter_value_rule
from headgate.ingress.encode import Entries, encode
from headgate.log.directory import LogDirectory, Partition
from headgate.log.format import Codec
from headgate.log.writer import Encoded, PartitionWriter
from headgate.objects.kinds.specs import LogRule
from headgate.scan.chunks import ChunkLog
from headgate.scan.scan import Scan
from headgate.scan.source import Query
from headgate_api.event.model import DataKind, Event

BROKER = "default/default/6c5b2f7e-3d0c-4a55-9d8e-2f1a7c9b0e4d"
RULE = filter_value_rule(DEFAULT)
STATES = ("created", "paid", "packed", "shipped", "delivered", "returned")
CITIES = ("Berlin", "Lyon", "Porto", "Gdansk", "Malmo", "Trieste", "Cork", "Split")


@dataclass(frozen=True)
class Row:
    """What was measured of one codec and size of chunk, rates in events a second."""

    codec: Codec
    chunk_events: int
    bytes_an_event: float
    written: float
    read: float
    expression: float


def order(rng: random.Random, number: int) -> Event:
    """An order; one in 10,000 is disputed."""
    data = {
        "order": f"{rng.getrandbits(64):016x}",
        "status": "disputed" if number % 10_000 == 77 else rng.choice(STATES),
        "customer": {"id": rng.randrange(50_000), "tier": rng.choice(("gold", "silver", "none"))},
        "amount": round(rng.uniform(1, 900), 2),
        "currency": "EUR",
        "ship": {"city": rng.choice(CITIES), "zip": f"{rng.randrange(99_999):05d}"},
        "lines": [{"sku": f"SKU-{rng.randrange(9_999):04d}", "n": rng.randrange(1, 5)} for _ in range(2)],
    }
    return Event(
        "1.0",
        f"{rng.getrandbits(128):032x}",
        f"/shops/{rng.randrange(40)}",
        f"com.example.order.{data['status']}",
        time=f"2026-03-{1 + number % 28:02d}T{number % 24:02d}:{number % 60:02d}:07.{number % 1000:03d}Z",
        datacontenttype="application/json",
        data_kind=DataKind.JSON,
        data=json.dumps(data, separators=(",", ":")).encode(),
    )


def measure(folder: Path, codec: Codec, chunks: list[Encoded], chunk_events: int) -> Row:
    """Writes chunks as ingress does, and reads them twice."""
    count = len(chunks) * chunk_events
    partition = folder / f"{codec.name}-{chunk_events}" / "0"
    with PartitionWriter(Partition(partition, "stop"), EVENT_SCHEMA, codec=codec) as writer:
        started = time.perf_counter()
        for chunk in chunks:
            writer.append(Encoded(chunk.batch, chunk.filter_values, time_range_us=chunk.time_range_us))
        written = count / (time.perf_counter() - started)
    size = sum(path.stat().st_size for path in partition.glob("*.seg"))
    read = count / scan(partition.parent, None, count)
    expression = count / scan(partition.parent, 'data.status == "disputed"', -(-count // 10_000))
    return Row(codec, chunk_events, size / count, written, read, expression)


def scan(directory: Path, cel: str | None, expected: int) -> float:
    """Seconds that a reader takes; it must find what there is."""
    reader = Scan(ChunkLog(LogDirectory(directory, "stop")), Query(BROKER, RULE, cel=cel), {0: 0})
    found, started = 0, time.perf_counter()
    while not reader.at_end():
        found += sum(len(piece.offsets) for piece in reader.step(100_000))
    seconds = time.perf_counter() - started
    reader.close()
    if abs(found - expected) > 1:
        raise SystemExit(f"{cel}: {found} events, not {expected}")
    return seconds


def main() -> int:
    """Prints a line for each codec and size of chunk."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=200_000, help="in chunks of 1,000; a tenth of it in chunks of 10")
    arguments = parser.parse_args()
    rng = random.Random(1)
    print(f"{'codec':>5} {'chunk':>6} {'B/event':>8} {'written/s':>10} {'read/s':>10} {'expression/s':>12}")
    for chunk_events, count in ((1_000, arguments.events), (10, arguments.events // 10)):
        chunks = [
            encode(
                [Entries(BROKER, LogRule(RULE), [order(rng, number) for number in range(first, first + chunk_events)])]
            )
            for first in range(0, count, chunk_events)
        ]
        with tempfile.TemporaryDirectory() as folder:
            for codec in Codec:
                row = measure(Path(folder), codec, chunks, chunk_events)
                rates = f"{row.written:>10,.0f} {row.read:>10,.0f} {row.expression:>12,.0f}"
                print(f"{codec.name.lower():>5} {chunk_events:>6} {row.bytes_an_event:>8.0f} {rates}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
