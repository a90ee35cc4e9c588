"""How long does the table of many filters take to build, how large is it, and what does a broadcast of it cost?

    python -m benchmarks.broadcast [--filters 10000 100000 1000000] [--heap-mib 6144] [--json]

Each filter compares the type with a constant of its own, and one thing more: a string in the data, a range of a number,
or a list of strings, in turns. One of each is compiled, the others get its plan with another constant: compiling is
measured by `benchmarks.admission`. The table is built as a matcher builds it, then it is broadcast by a first match of
100,000 events, of which each meets one filter, all over the table; every match is checked. Later matches of the same
events say what an event costs. The heap is what is used after a full collection.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from rich.table import Table

from benchmarks.matcher import BROKER, CHUNK_EVENTS, cpu_s, read
from benchmarks.tables import print_whole
from headgate.event.arrow import EVENT_SCHEMA, StoredEvent, to_batch
from headgate.filter.compile.compiler import compile_cel
from headgate.filter.compile.plan import CompiledFilter, Constant, Verdict
from headgate.log.directory import Partition
from headgate.log.writer import Encoded, PartitionWriter
from headgate.match.dataframe import match_events
from headgate.match.requirements import connector_jar
from headgate.match.session import start_session
from headgate.match.table import TableBuilder, wanted
from headgate_api.event.json_format import decode_event
from headgate_api.event.model import Event

THREADS = 2
EVENTS = 100_000
RUNS = 3
WARM_UP = 2_000
"""Filters of a first table that does not count: the JVM loads and compiles its classes then."""
PLACEHOLDER = "a type"
SHAPES = (
    f'ce.type == "{PLACEHOLDER}" && data.user.tier == "gold"',
    f'ce.type == "{PLACEHOLDER}" && data.total >= 10.0 && data.total < 20.0',
    f'ce.type == "{PLACEHOLDER}" && data.region in ["eu-west-1", "eu-west-2", "us-east-1"]',
)
DATA = {"user": {"tier": "gold"}, "total": 15.5, "region": "eu-west-2"}


@dataclass(frozen=True)
class Result:
    """One number of filters.

    Attributes:
        build_s: Seconds for the table of all filters, by the processor time of Python.
        change_s: The same again after one filter has changed.
        arrow_mb: Size of the table's columns, in MB.
        first_match_s: Seconds of the first match, by the clock: it carries the table into the JVM and broadcasts it.
        first_match_cpu_s: The same by the processor time of the JVM.
        event_us: Processor time of the JVM for an event, in microseconds, the best of some runs.
        heap_mb: What the JVM's heap holds more than before, in MB.
        resident_mb: What this Python process has in memory more than before, in MB.
    """

    filters: int
    build_s: float
    change_s: float
    arrow_mb: float
    first_match_s: float
    first_match_cpu_s: float
    event_us: float
    heap_mb: float
    resident_mb: float


def type_of(number: int) -> str:
    return f"com.example.shop.kind-{number:07d}"


def filters(count: int) -> Iterator[CompiledFilter]:
    """The filters, each with a type of its own."""
    templates = [compile_cel(text) for text in SHAPES]
    for number in range(count):
        yield _with_type(templates[number % len(templates)], type_of(number))


def _with_type(template: CompiledFilter, type_: str) -> CompiledFilter:
    def own(constant: Constant) -> Constant:
        return type_ if constant == PLACEHOLDER else constant

    rows = tuple(replace(row, key=tuple(map(own, row.key))) for row in template.rows)
    if rows == template.rows:
        sys.exit("wrong: the type is no part of the key any more")
    return replace(template, cel=template.cel.replace(PLACEHOLDER, type_), rows=rows)


def write_log(log: Path, filters_: int) -> None:
    """Events that are spread over the filters; each meets the one filter of its type."""
    with PartitionWriter(Partition(log / "0", "stop"), EVENT_SCHEMA) as writer:
        for start in range(0, EVENTS, CHUNK_EVENTS):
            some = [
                StoredEvent(BROKER, _event(_wanted_by(number, filters_)))
                for number in range(start, start + CHUNK_EVENTS)
            ]
            writer.append(Encoded(to_batch(some), [entry.event.type for entry in some]))


def _wanted_by(event: int, filters_: int) -> int:
    """The number of the filter that an event meets: neighbours are far from each other."""
    return event * 7_919 % filters_


def _event(number: int) -> Event:
    head = {"specversion": "1.0", "id": str(number), "source": "/bench", "type": type_of(number)}
    return decode_event(json.dumps({**head, "datacontenttype": "application/json", "data": DATA}).encode())


def heap_mb(spark: SparkSession) -> float:
    """What the heap holds after a collection, in MB."""
    gc.collect()  # Python's references keep tables in the JVM
    jvm = spark._jvm
    assert jvm is not None
    jvm.java.lang.System.gc()
    runtime = jvm.java.lang.Runtime.getRuntime()
    return float((runtime.totalMemory() - runtime.freeMemory()) / 1e6)


def resident_mb() -> float:
    """What this process has in memory, in MB."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024 / 1e6


def measure(spark: SparkSession, log: Path, count: int) -> Result:
    """Builds and broadcasts the table of so many filters."""
    write_log(log, count)
    heap_before, resident_before = heap_mb(spark), resident_mb()
    targets = wanted((number, BROKER, one) for number, one in enumerate(filters(count)))
    builder = TableBuilder(spark)
    start = time.process_time()
    builder.build(targets)
    build_s = time.process_time() - start
    changed = targets | wanted([(0, BROKER, _with_type(compile_cel(SHAPES[0]), type_of(0)))])
    start = time.process_time()
    table = builder.build(changed, changed={0})
    change_s = time.process_time() - start
    arrow_mb = table.rows.toArrow().nbytes / 1e6
    began, began_cpu = time.perf_counter(), cpu_s(spark)
    matched = match_events(read(spark, log, [0]), table)
    found = matched.select("offset", "target", "verdict").toArrow()
    first_match_s, first_match_cpu_s = time.perf_counter() - began, cpu_s(spark) - began_cpu
    pairs = zip(*(found.column(name).to_pylist() for name in ("offset", "target", "verdict")), strict=True)
    if {pair[:2] for pair in pairs if pair[2] == Verdict.MATCH} != {
        (event, _wanted_by(event, count)) for event in range(EVENTS)
    }:
        sys.exit(f"wrong: {found.num_rows} matches of {EVENTS} events, each of which meets one filter")
    best_s = float("inf")
    for _ in range(RUNS):
        began_cpu = cpu_s(spark)
        matched.agg(F.count("*"), F.sum("target"), F.sum("verdict")).collect()
        best_s = min(best_s, cpu_s(spark) - began_cpu)
    return Result(
        filters=count,
        build_s=round(build_s, 2),
        change_s=round(change_s, 2),
        arrow_mb=round(arrow_mb, 1),
        first_match_s=round(first_match_s, 2),
        first_match_cpu_s=round(first_match_cpu_s, 2),
        event_us=round(best_s / EVENTS * 1e6, 1),
        heap_mb=round(heap_mb(spark) - heap_before, 1),
        resident_mb=round(resident_mb() - resident_before, 1),
    )


def show(found: Sequence[Result]) -> None:
    table = Table(title="the table of all filters of a matcher")
    heads = (
        "filters",
        "build s",
        "after a change s",
        "columns MB",
        "first match s",
        "of the JVM s",
        "JVM's heap MB",
        "Python MB",
    )
    for head in heads:
        table.add_column(head, justify="right")
    for one in found:
        table.add_row(
            *(f"{one.filters:,}", f"{one.build_s:.2f}", f"{one.change_s:.2f}", f"{one.arrow_mb:,.0f}"),
            *(
                f"{one.first_match_s:.1f}",
                f"{one.first_match_cpu_s:.1f}",
                f"{one.event_us:.1f}",
                f"{one.heap_mb:,.0f}",
                f"{one.resident_mb:,.0f}",
            ),
        )
    print_whole(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--filters", type=int, nargs="+", default=[10_000, 100_000, 1_000_000], metavar="N")
    parser.add_argument("--heap-mib", type=int, default=6_144, help="the JVM's heap (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON lines")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headgate-broadcast-") as temporary:
        scratch = Path(temporary)
        spark = start_session(
            jar=connector_jar(), threads=THREADS, scratch=scratch / "spark", heap_mib=arguments.heap_mib
        )
        found = []
        try:
            measure(spark, scratch / "log", WARM_UP)
            for count in arguments.filters:
                found.append(one := measure(spark, scratch / f"log-{count}", count))
                if arguments.json:
                    print(json.dumps(asdict(one)), flush=True)
        finally:
            spark.stop()
        if not arguments.json:
            show(found)


if __name__ == "__main__":
    main()
