"""How fast is the chunk log? Appends beside a bare write+fdatasync, group commit, reading, skipping by filter.

    python -m benchmarks.log [--json] [--seconds S] [--directory D]

`append` is `PartitionWriter.append` of a ready record batch: Arrow message, checksums, write, fdatasync, publish.
`bare` is write + fdatasync of as many bytes, alternating with it: fdatasync differs by the hour on shared disks.
`beyond sync` is the rest of an append, measured with fdatasync left out.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from rich.table import Table

from benchmarks.tables import print_whole
from headgate.event.arrow import EVENT_SCHEMA
from headgate.log.directory import LogDirectory, Partition
from headgate.log.files import FileOps
from headgate.log.group_commit import ChunkCommit
from headgate.log.reader import PartitionReader, RecordLookup
from headgate.log.writer import Encoded, PartitionWriter

DATA = b'{"order":{"id":4711,"total":99.5,"items":[{"sku":"A-1","n":2}]},"user":{"tier":"gold","country":"DE"}}'
TYPES = 5


class Row(NamedTuple):
    """One measured number."""

    what: str
    unit: str
    values: dict[str, float]


class UnsyncedFiles(FileOps):
    """For the rates that are not about the disk."""

    def fdatasync(self, fd: int) -> None:
        """Leave it in the page cache."""


def events(count: int) -> pa.RecordBatch:
    rows = [
        {
            "broker": "default/main",
            "specversion": "1.0",
            "id": f"6f1c2b8e-{n:012d}",
            "source": "/shops/berlin/checkout",
            "type": f"com.example.order.{n % TYPES}",
            "time": "2026-01-01T00:00:00.000001Z",
            "time_us": 1_767_225_600_000_001,
            "datacontenttype": "application/json",
            "data_kind": 1,
            "data": DATA,
        }
        for n in range(count)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=EVENT_SCHEMA)


def percentiles_us(samples_s: list[float]) -> tuple[float, float]:
    ordered = sorted(samples_s)
    return ordered[len(ordered) // 2] * 1e6, ordered[int(len(ordered) * 0.99)] * 1e6


def timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def append_latency(root: Path, seconds: float) -> Iterator[Row]:
    for count in (1, 100, 1000):
        batch = events(count)
        types = batch.column("type").to_pylist()
        size = batch.serialize().size + 64 + 16
        block = os.urandom(size)
        directory = root / f"append-{count}"
        bare_fd = os.open(root / f"bare-{count}", os.O_RDWR | os.O_CREAT)

        def bare(fd: int = bare_fd, block: bytes = block) -> None:
            os.write(fd, block)
            os.fdatasync(fd)

        with PartitionWriter(Partition(directory, "stop"), EVENT_SCHEMA) as writer:
            appends, bares = [], []
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                appends.append(timed(lambda b=batch, t=types, w=writer: w.append(Encoded(b, t, time_range_us=(1, 2)))))
                bares.append(timed(bare))
        os.close(bare_fd)
        with PartitionWriter(
            Partition(root / f"unsynced-{count}", "stop"), EVENT_SCHEMA, files=UnsyncedFiles()
        ) as writer:
            chunk = Encoded(batch, types, time_range_us=(1, 2))
            rest = [timed(lambda c=chunk, w=writer: w.append(c)) for _ in range(500)]
        values = dict(zip(("append p50", "append p99"), percentiles_us(appends), strict=True))
        values |= dict(zip(("bare p50", "bare p99"), percentiles_us(bares), strict=True))
        values["beyond sync p50"] = percentiles_us(rest)[0]
        yield Row(f"append, chunk of {count} ({size} B)", "us", values)


def group_commit(root: Path, seconds: float) -> Iterator[Row]:
    most = events(1000)
    types = most.column("type").to_pylist()

    def encode(items: list[int]) -> Encoded:
        # A slice: what is measured is the commit, not how events become a batch.
        return Encoded(most.slice(0, len(items)), types[: len(items)], None)

    for waiting in (1, 64, 1024):

        async def run(waiting: int = waiting) -> tuple[int, int]:
            with PartitionWriter(Partition(root / f"group-{waiting}", "stop"), EVENT_SCHEMA) as writer:
                limits = {"queue_items_max": 1 << 20, "queue_bytes_max": 1 << 30, "batch_items_max": 1000}
                commit = ChunkCommit(writer, encode, **limits)
                end = time.perf_counter() + seconds

                async def submitter() -> None:
                    while time.perf_counter() < end:
                        await commit.enqueue((0,), 500)

                await asyncio.gather(*(submitter() for _ in range(waiting)))
                await commit.close()
                return writer.next_offset, waiting

        records, _ = asyncio.run(run())
        yield Row(f"group commit, {waiting} submitters", "records/s", {"rate": records / seconds})


def read_rates(root: Path, seconds: float) -> Iterator[Row]:
    for count, chunks in ((1, 20_000), (20, 5_000), (1000, 400)):
        directory = root / f"read-{count}" / "0"
        batch = events(count)
        types = batch.column("type").to_pylist()
        with PartitionWriter(Partition(directory, "stop"), EVENT_SCHEMA, files=UnsyncedFiles()) as writer:
            for _ in range(chunks):
                writer.append(Encoded(batch, types))
        read = _passes(directory, seconds, None)
        yield Row(f"read, chunks of {count}", "M events/s", {"rate": read * chunks * count / 1e6})
        for wanted in (1, 10):
            values = frozenset(f"com.example.absent.{n}" for n in range(wanted))
            skip = _passes(directory, seconds, values)
            yield Row(
                f"skip by filter, chunks of {count}, {wanted} wanted",
                "M chunks/s",
                {"rate": skip * chunks / 1e6},
            )
        yield _lookups(directory.parent, count * chunks, seconds, f"lookup in order, chunks of {count}")


def _passes(directory: Path, seconds: float, wanted: frozenset[str] | None) -> float:
    """Passes over the whole partition a second, every batch decoded."""
    done = 0
    start = time.perf_counter()
    while (passed := time.perf_counter() - start) < seconds or not done:
        with PartitionReader(Partition(directory, "stop"), start=0) as reader:
            while (chunk := reader.read(wanted=wanted)) is not None:
                _ = chunk.batch
        done += 1
    return done / passed


def _lookups(root: Path, records: int, seconds: float, name: str) -> Row:
    lookup = RecordLookup(LogDirectory(root, "stop"))
    done = 0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for _ in range(100):
            _ = lookup.chunk(0, done % records).batch
            done += 1
    lookup.close()
    return Row(name, "M records/s", {"rate": done / seconds / 1e6})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each number")
    parser.add_argument("--directory", type=Path, help="on the disk to measure; default: the temporary directory")
    arguments = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="headgate-log-", dir=arguments.directory))
    table = Table("what", "unit", "measured", box=None, pad_edge=False)
    try:
        for part in (append_latency, group_commit, read_rates):
            for row in part(root, arguments.seconds):
                if arguments.json:
                    sys.stdout.write(json.dumps({"what": row.what, "unit": row.unit, **row.values}) + "\n")
                values = row.values.items()
                table.add_row(row.what, row.unit, "  ".join(f"{name} {value:,.4g}" for name, value in values))
    finally:
        shutil.rmtree(root)
    if not arguments.json:
        print_whole(table)


if __name__ == "__main__":
    main()
