"""Where does the time go until one filter more among very many is in force?

    python -m benchmarks.generation [--filters 100000] [--changes 8] [--json]

A table of all filters from nothing, then a filter more, again and again: each is a run beside the one before, until it
has passed the log's end and the new filter has matched an event. By part: seconds by the clock, and processor time of
Python and of the JVM. What the JVM does beside a part of Python's (the query starts in threads of its own) counts where
it happens; `until it matches` is what is left when the query has been started. Parts overlap where one calls another:
`all` holds them all, `start` holds `plan`.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import structlog
from pyspark.sql import DataFrame, SparkSession
from rich.table import Table

from benchmarks.admission import BROKER, target, text
from benchmarks.match_latency import Sink
from benchmarks.matcher import cpu_s
from benchmarks.plans import Plans
from benchmarks.tables import print_whole
from headgate.event.arrow import EVENT_SCHEMA, StoredEvent, to_batch
from headgate.log.directory import LogDirectory, Partition
from headgate.log.writer import Encoded, PartitionWriter
from headgate.match.dataframe import match_events
from headgate.match.query import SparkRun, start_run
from headgate.match.requirements import connector_jar
from headgate.match.session import start_session, task_slots
from headgate.match.table import TableBuilder
from headgate.objects.kinds.routing import Target
from headgate_api.event.model import DataKind, Event
from headgate_api.limits import GC_YOUNG_OBJECTS


@dataclass(frozen=True)
class Part:
    """What one part of a change took.

    Attributes:
        change: 0 for the table from nothing, then the number of the change.
        part: What was done.
        clock_s: Seconds by the clock.
        python_s: Processor time of Python.
        jvm_s: Processor time of the JVM.
    """

    change: int
    part: str
    clock_s: float
    python_s: float
    jvm_s: float


class Parts:
    """Measures parts, and tells what was found."""

    def __init__(self, spark: SparkSession, on_found: Callable[[Part], None]) -> None:
        self._spark = spark
        self._on_found = on_found

    @contextmanager
    def of(self, change: int, part: str) -> Iterator[None]:
        """Everything inside is one part."""
        clock, python, jvm = time.perf_counter(), time.process_time(), cpu_s(self._spark)
        yield
        took = (time.perf_counter() - clock, time.process_time() - python, cpu_s(self._spark) - jvm)
        self._on_found(Part(change, part, *(round(one, 3) for one in took)))


class Bench:
    """One log, and a run of all filters after the other.

    Args:
        spark: The session.
        scratch: Where log and checkpoints go.
        on_found: Called with each part.
    """

    def __init__(self, spark: SparkSession, scratch: Path, on_found: Callable[[Part], None]) -> None:
        self._spark = spark
        self._scratch = scratch
        self._tables = TableBuilder(spark)
        self._runs: list[SparkRun] = []
        self._parts = Parts(spark, on_found)

    def change(self, number: int, targets: list[Target], writer: PartitionWriter) -> None:
        """Bring these filters into force; the newest must match."""
        sink, of = Sink(), self._parts.of
        with of(number, "all"):
            with of(number, "table"):
                table = self._tables.build({one.id: one for one in targets})

            def matches(events: DataFrame) -> DataFrame:
                with of(number, "plan"):
                    return match_events(events, table)

            with of(number, "start"):
                self._runs.append(self._start(number, matches, writer.next_offset, sink))
            with of(number, "until it matches"):
                data = json.dumps({"amount": 8, "region": "us"}).encode()
                kind = f"com.example.t{len(targets) - 1}"
                event = Event("1.0", "1", "/bench", kind, data_kind=DataKind.JSON, data=data)
                offset = writer.next_offset
                writer.append(Encoded(to_batch([StoredEvent(BROKER, event)]), [event.type]))
                sink.wait_for(offset)
        if len(self._runs) > 1:
            self._runs.pop(0).stop()

    def _start(self, number: int, matches: Callable[[DataFrame], DataFrame], offset: int, sink: Sink) -> SparkRun:
        return start_run(
            self._spark,
            matches,
            log=LogDirectory(self._scratch / "log", "stop"),
            start={0: offset},
            run=number + 1,
            generation=number + 1,
            link=sink.address,
            scratch=self._scratch / "runs",
        )


def measure(spark: SparkSession, scratch: Path, filters: int, changes: int, on_found: Callable[[Part], None]) -> None:
    bench = Bench(spark, scratch, on_found)
    plans = Plans(text)
    targets = [target(plans, number) for number in range(filters)]
    with PartitionWriter(Partition(scratch / "log" / "0", "stop"), EVENT_SCHEMA) as writer:
        for number in range(changes + 1):
            if number:
                targets.append(target(plans, len(targets)))
            bench.change(number, targets, writer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--filters", type=int, default=100_000)
    parser.add_argument("--changes", type=int, default=8)
    parser.add_argument("--json", action="store_true", help="print JSON lines")
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    gc.set_threshold(GC_YOUNG_OBJECTS)  # as the matcher does
    found: list[Part] = []

    def on_found(part: Part) -> None:
        found.append(part)
        if arguments.json:
            print(json.dumps(asdict(part)), flush=True)

    with tempfile.TemporaryDirectory(prefix="headgate-generation-") as temporary:
        scratch = Path(temporary)
        spark = start_session(jar=connector_jar(), threads=task_slots(1), scratch=scratch / "spark", heap_mib=4_096)
        try:
            measure(spark, scratch, arguments.filters, arguments.changes, on_found)
        finally:
            spark.stop()
    if arguments.json:
        return
    table = Table(title=f"one filter more among {arguments.filters:,}")
    for heading in ("change", "part", "s", "cpu s (Python)", "cpu s (JVM)"):
        table.add_column(heading, justify="left" if heading == "part" else "right")
    for one in found:
        table.add_row(str(one.change), one.part, f"{one.clock_s:.2f}", f"{one.python_s:.2f}", f"{one.jvm_s:.2f}")
    print_whole(table)


if __name__ == "__main__":
    main()
