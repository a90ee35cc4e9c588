"""How long does a seek by expression take? First and last event of which CEL is true, by what it lets skip.

A log of events of some 300 bytes with JSON data, in chunks of 8,192, is looked through by `scan.search` as a seek does,
from cold files where the system lets us drop its page cache. The event sought is the last one that was stored, for
`first`, and the first one, for `last`: everything else has to be looked at or passed over.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.stream import BROKER, CHUNK_EVENTS, RULE, event
from headgate.event.arrow import EVENT_SCHEMA, StoredEvent, time_range_us, to_batch
from headgate.log.directory import LogDirectory, Partition
from headgate.log.writer import Encoded, PartitionWriter
from headgate.scan.chunks import ChunkLog
from headgate.scan.pages import LogScanner
from headgate.scan.search import EventFinder, FilterSearch
from headgate.scan.source import NEXT, start_offsets
from headgate_api.event.model import Event

TSO = 449_320_000_000_000
WAYS = {
    "pinned filter value": ('ce.type == "com.acme.checkpoint" && data.tso == %d', 2.0),
    "text in data": ('data.gtid == "3E11FA47-71CA:%d"', 15.0),
    "text in an attribute": ('ce.id == "tx-%d"', 15.0),
    "number in data, ordered": ("data.tso >= %d", 15.0),
    "number in data, equal": ("data.tso == %d", 15.0),
}
"""Expressions of which only one event is true, and the seconds that 10,000,000 events may take."""


def marked(number: int, tso: int) -> Event:
    """An event that a transaction ends with."""
    plain = event(number, rare=False)
    data = json.loads(plain.data or b"{}") | {"tso": tso, "gtid": f"3E11FA47-71CA:{tso}"}
    return Event(
        "1.0",
        f"tx-{tso}",
        plain.source,
        "com.acme.checkpoint",
        plain.subject,
        plain.time,
        plain.datacontenttype,
        None,
        {},
        plain.data_kind,
        json.dumps(data, separators=(",", ":")).encode(),
    )


def transactional(number: int) -> Event:
    """Any other event; its number in the database is small."""
    plain = event(number, rare=False)
    data = json.loads(plain.data or b"{}") | {"tso": number, "gtid": f"3E11FA47-71CA:{number}"}
    fields = {name: getattr(plain, name) for name in plain.__struct_fields__}
    return Event(**{**fields, "data": json.dumps(data, separators=(",", ":")).encode()})


def write(directory: Path, events: int) -> None:
    """Fills a partition; its first event has number TSO, its last one TSO + 1."""
    common = [transactional(number) for number in range(CHUNK_EVENTS)]
    plain = to_batch([StoredEvent(BROKER, each) for each in common])
    first = to_batch([StoredEvent(BROKER, each) for each in [marked(0, TSO), *common[1:]]])
    last = to_batch([StoredEvent(BROKER, each) for each in [*common[:-1], marked(0, TSO + 1)]])
    values = {id(batch): batch.column("type").to_pylist() for batch in (plain, first, last)}
    chunks = max(2, events // CHUNK_EVENTS)
    with PartitionWriter(Partition(directory / "0", "stop"), EVENT_SCHEMA) as writer:
        for number in range(chunks):
            batch = first if number == 0 else last if number == chunks - 1 else plain
            writer.append(Encoded(batch, values[id(batch)], time_range_us=time_range_us(batch)))


def drop_caches(directory: Path) -> None:
    """Takes the files out of the page cache."""
    for path in (directory / "0").iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


async def seek(directory: Path, cel: str, *, last: bool) -> tuple[int | None, float]:
    """(offset found, seconds)."""
    with ThreadPoolExecutor(1) as threads:
        started = time.perf_counter()
        finder = EventFinder(
            ChunkLog(LogDirectory(directory, "stop")), LogScanner(ChunkLog(LogDirectory(directory, "stop")), threads)
        )
        found = await finder.find(
            FilterSearch(BROKER, RULE, cel, last),
            {0: 0},
            start_offsets(ChunkLog(LogDirectory(directory, "stop")), NEXT),
        )
        return None if found is None else found.offset, time.perf_counter() - started


def main() -> int:
    """Prints the table; 1 when another event was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=1_000_000, help="events in the partition")
    parser.add_argument("--directory", type=Path, help="where the partition is made and removed")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line instead of a table")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as name:
        directory = Path(name)
        print("writing ...", file=sys.stderr)
        write(directory, arguments.events)
        ends = start_offsets(ChunkLog(LogDirectory(directory, "stop")), NEXT)
        if not arguments.json:
            print(f"{ends[0]:,} events\n{'sought by':28} {'':6} {'seconds':>8} {'events/s':>12} {'goal for 10 M':>14}")
        wrong = False
        for way, (cel, goal_s) in WAYS.items():
            for last in (False, True):
                drop_caches(directory)
                if last and ">=" in cel:
                    continue  # everything behind it would be as good
                found, took_s = asyncio.run(seek(directory, cel % (TSO if last else TSO + 1), last=last))
                wrong |= found != (0 if last else ends[0] - 1)
                which, per_s = "last" if last else "first", ends[0] / took_s
                if arguments.json:
                    print(json.dumps({"way": way, "which": which, "seconds": took_s, "events_per_s": per_s}))
                else:
                    print(f"{way:28} {which:6} {took_s:8.2f} {per_s:12,.0f} {goal_s:12.0f} s", flush=True)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
