"""How fast does a reader pass over what it does not want? Events a second, by filter value, by expression, and plainly.

A partition of events of some 300 bytes, of which one in 100,000 is wanted, is read by `scan.scan`, the one reader
behind every way to read. RabbitMQ published for its streams 404,645 messages/s by a SQL filter on properties, and
4,868,549 messages/s where Bloom filters help.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from headgate.event.arrow import EVENT_SCHEMA, StoredEvent, time_range_us, to_batch
from headgate.filter.skipping.prune import filter_value_rule
from headgate.log.directory import LogDirectory, Partition
from headgate.log.writer import Encoded, PartitionWriter
from headgate.scan.chunks import ChunkLog
from headgate.scan.scan import Scan
from headgate.scan.source import Query
from headgate_api.event.model import DataKind, Event

BROKER = "bench/orders/6c5b2f7e-3d0c-4a55-9d8e-2f1a7c9b0e4d"
CHUNK_EVENTS = 8_192
ONE_IN = 100_000
RULE = filter_value_rule("type")
RARE = "com.acme.order.disputed"

WAYS = {
    "filter value": (Query(BROKER, RULE, frozenset({RARE})), 20_000_000),
    "expression on an attribute": (Query(BROKER, RULE, cel=f'ce.subject == "{RARE}"'), 2_000_000),
    "expression on data": (Query(BROKER, RULE, cel='data.status == "disputed" && data.amount > 10'), 2_000_000),
    "everything, as Arrow batches": (Query(BROKER, RULE), 1_000_000),
}
"""What is read, and the events a second that it should at least do."""


def event(number: int, *, rare: bool) -> Event:
    """An order; about 300 bytes with its attributes."""
    data = {
        "order": f"o-{number}",
        "amount": 12.5 + number % 7,
        "status": "disputed" if rare else "open",
        "customer": {"id": f"c-{number % 97}", "tier": "gold" if number % 3 else "basic"},
        "items": [{"sku": "x-100", "n": 2}],
    }
    return Event(
        "1.0",
        f"a1b2c3d4-{number:012d}",
        "/shop/orders/eu-west",
        RARE if rare else f"com.acme.order.{('created', 'paid', 'sent')[number % 3]}",
        RARE if rare else f"order-{number}",
        "2026-03-04T05:06:07.123456Z",
        "application/json",
        None,
        {},
        DataKind.JSON,
        json.dumps(data, separators=(",", ":")).encode(),
    )


def write(directory: Path, events: int) -> int:
    """Fills a partition; returns how many rare events it holds."""
    common = [event(number, rare=False) for number in range(CHUNK_EVENTS)]
    plain = to_batch([StoredEvent(BROKER, each) for each in common])
    common[CHUNK_EVENTS // 2] = event(0, rare=True)
    mixed = to_batch([StoredEvent(BROKER, each) for each in common])
    values = {id(batch): batch.column("type").to_pylist() for batch in (plain, mixed)}
    rare = 0
    with PartitionWriter(Partition(directory / "0", "stop"), EVENT_SCHEMA) as writer:
        for first in range(0, events, CHUNK_EVENTS):
            batch = mixed if first // ONE_IN != (first + CHUNK_EVENTS) // ONE_IN else plain
            rare += batch is mixed
            writer.append(Encoded(batch, values[id(batch)], time_range_us=time_range_us(batch)))
    return rare


def measure(directory: Path, query: Query) -> tuple[int, int, float]:
    """(events passed, events matched, seconds) of one reader from the beginning to the end."""
    scan = Scan(ChunkLog(LogDirectory(directory, "stop")), query, {0: 0})
    started = time.perf_counter()
    while scan.step(1 << 20) or not scan.at_end():
        pass
    took_s = time.perf_counter() - started
    passed, matched = scan.positions[0], scan.counters.events_matched
    scan.close()
    return passed, matched, took_s


def main() -> int:
    """Prints the table; 1 when a reader found something else than what is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=10_000_000, help="events in the partition, 300 bytes each")
    parser.add_argument("--directory", type=Path, help="where the partition is made and removed")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line instead of a table")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as name:
        directory = Path(name)
        print("writing ...", file=sys.stderr)
        rare = write(directory, arguments.events)
        size = sum(path.stat().st_size for path in (directory / "0").iterdir())
        if not arguments.json:
            print(f"{arguments.events:,} events, {size / 1e9:.1f} GB, {rare} of them wanted")
            print(f"{'read by':30} {'events/s':>14} {'goal':>12} {'matched':>10}")
        wrong = False
        for way, (query, goal) in WAYS.items():
            passed, matched, took_s = measure(directory, query)
            wrong |= matched != (passed if query.cel is None and query.values is None else rare)
            if arguments.json:
                print(json.dumps({"way": way, "events_per_s": passed / took_s, "goal": goal, "matched": matched}))
            else:
                print(f"{way:30} {passed / took_s:>14,.0f} {goal:>12,} {matched:>10,}", flush=True)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
