"""How many events a second does the match take? `benchmarks.peers` has other matchers beside it.

    python -m benchmarks.matcher [--filters 100 1000 10000 100000] [--json] [--scratch D]

The workload is `bench/` of the shared folder (HEADGATE_SHARED, or `../shared` beside the repository): 20,000 events,
repeated to 500,000 in a real chunk log of two partitions, and neutral filters, which become CEL and are compiled like
any other. The match runs as a batch on two threads, its rows are counted inside Spark. Before each measurement the
matches on the first 2,000 events are compared with the workload's own truth. `--ceiling CEL`, which must be true of
every event of the workload, is joined to each filter, as the ceiling of a right is.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.table import Table

from benchmarks.tables import print_whole
from headgate.event.arrow import EVENT_SCHEMA, StoredEvent, to_batch
from headgate.filter.compile.compiler import compile_filter
from headgate.filter.compile.plan import CompiledFilter, Verdict
from headgate.log.directory import Partition
from headgate.log.writer import Encoded, PartitionWriter
from headgate.match.dataframe import match_events
from headgate.match.query import SOURCE
from headgate.match.requirements import connector_jar
from headgate.match.session import start_session
from headgate.match.table import MatchTable, build_table
from headgate_api.event.json_format import decode_event

REPOSITORY = Path(__file__).resolve().parent.parent
BROKER = "default/main/6c5b2f7e-3d0c-4a55-9d8e-2f1a7c9b0e4d"
SAMPLE = 2_000
THREADS = 2
CHUNK_EVENTS = 1_000


@dataclass(frozen=True)
class Result:
    """One number of filters.

    Attributes:
        compile_s: Seconds to compile all filters, one after the other.
        build_s: Seconds for the table, and for the plan that reads it.
        events_per_s: Best of the runs, by the clock.
        events_per_s_cpu: The same by the processor time of the whole JVM, as if two cores were ours alone.
        candidates: Rows of the sample that Spark left to cel-cpp.
    """

    filters: int
    patterns: int
    rows: int
    compile_s: float
    build_s: float
    sample_matches: int
    candidates: int
    events_per_s: float
    events_per_s_cpu: float
    matches_per_s: float


def shared() -> Path:
    """The folder with the workload."""
    path = Path(os.environ.get("HEADGATE_SHARED", REPOSITORY.parent / "shared")) / "bench"
    if not path.is_dir():
        sys.exit(f"workload not found: {path}\nhint: set HEADGATE_SHARED to the folder that holds bench/")
    return path


def generate(scratch: Path) -> Path:
    """A copy of the workload's folder with its data; kept when it is there already."""
    folder = scratch / "bench"
    if not folder.exists():
        shutil.copytree(shared(), folder, copy_function=shutil.copyfile)
        for path in folder.rglob("*"):
            path.chmod(0o755)
        folder.chmod(0o755)
    if not (folder / "data" / "truth_by_n.json").exists():
        for program in ("gen_workload.py", "truth_by_n.py"):
            subprocess.run([sys.executable, folder / program], check=True, stdout=subprocess.DEVNULL)
    return folder


def write_log(file: Path, log: Path, events: int, partitions: int, sample: int) -> None:
    """The file's events in order, over and over, in so many partitions; and the first of them in one more."""
    lines = file.read_bytes().splitlines()
    stored = [StoredEvent(BROKER, decode_event(line)) for line in lines]
    shutil.rmtree(log, ignore_errors=True)
    share = events // partitions
    for partition, count in (*((number, share) for number in range(partitions)), (partitions, sample)):
        with PartitionWriter(Partition(log / str(partition), "stop"), EVENT_SCHEMA) as writer:
            for start in range(0, count, CHUNK_EVENTS):
                some = [stored[index % len(stored)] for index in range(start, min(start + CHUNK_EVENTS, count))]
                writer.append(Encoded(to_batch(some), [entry.event.type for entry in some]))


def cel_of(neutral: dict[str, Any]) -> str:
    """A filter of the workload as CEL."""
    return " && ".join(_cel_of(predicate) for predicate in neutral["all"])


def _cel_of(predicate: dict[str, Any]) -> str:
    path = predicate["path"]
    place = ".".join(path) if path[0] == "data" else f"ce.{path[0]}"
    match predicate["op"]:
        case "exact":
            return f"{place} == {json.dumps(predicate['value'])}"
        case "prefix":
            return f"{place}.startsWith({json.dumps(predicate['value'])})"
        case "suffix":
            return f"{place}.endsWith({json.dumps(predicate['value'])})"
        case "range":
            return f"{place} >= {predicate['ge']} && {place} < {predicate['lt']}"
        case "in":
            return f"{place} in {json.dumps(predicate['values'])}"
        case "exists":
            return f"has({place})" if predicate["value"] else f"!has({place})"
        case "anything_but":
            return f"has({place}) && !({place} in {json.dumps(predicate['values'])})"
        case op:
            raise ValueError(op)


def compiled(folder: Path, count: int, ceiling: str) -> tuple[list[CompiledFilter], float]:
    """The workload's filters, below a ceiling (empty: none), and the seconds that compiling took."""
    lines = (folder / "data" / f"filters_{count}.jsonl").read_bytes().splitlines()
    texts = [cel_of(json.loads(line)) for line in lines]
    start = time.perf_counter()
    return [compile_filter({"cel": text}, (), ceiling) for text in texts], time.perf_counter() - start


def read(spark: SparkSession, log: Path, partitions: Sequence[int]) -> DataFrame:
    source = spark.read.format(SOURCE).option("path", str(log))
    return source.option("partitions", ",".join(map(str, partitions))).load()


def check(events: DataFrame, table: MatchTable, truth: int) -> tuple[int, int]:
    """Matches and candidates of the sample; ends the program when the matches are not the truth."""
    rows = match_events(events, table).select("offset", "target", "verdict").toArrow().to_pylist()
    matches = len({(row["offset"], row["target"]) for row in rows if row["verdict"] == Verdict.MATCH})
    if matches != truth:
        sys.exit(f"wrong: {matches} matches in the first {SAMPLE} events, the truth is {truth}")
    return matches, sum(row["verdict"] == Verdict.CANDIDATE for row in rows)


def cpu_s(spark: SparkSession) -> float:
    """Processor time of the JVM so far."""
    pid = spark._jvm.java.lang.ProcessHandle.current().pid()
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(
    spark: SparkSession, folder: Path, log: Path, count: int, events: int, runs: int, ceiling: str = ""
) -> Result:
    filters, compile_s = compiled(folder, count, ceiling)
    truth = json.loads((folder / "data" / "truth_by_n.json").read_text())[str(count)]["matches"]
    start = time.perf_counter()
    table = build_table(spark, ((number, BROKER, one) for number, one in enumerate(filters)))
    matched = match_events(read(spark, log, range(THREADS)), table)
    build_s = time.perf_counter() - start
    matches, candidates = check(read(spark, log, [THREADS]), table, truth)
    # Every column is asked for, so that none is optimised away.
    totals = (F.count("*"), F.sum("target"), F.max("offset"), F.min("partition"), F.sum("verdict"))
    best_s, best_cpu_s, rows = float("inf"), float("inf"), 0
    for _ in range(runs + 1):  # the first warms the JVM up
        start, start_cpu = time.perf_counter(), cpu_s(spark)
        rows = matched.agg(*totals).collect()[0][0]  # a new frame each time: Spark would reuse the old one's shuffle
        best_s, best_cpu_s = min(best_s, time.perf_counter() - start), min(best_cpu_s, cpu_s(spark) - start_cpu)
    return Result(
        filters=count,
        patterns=len(table.patterns),
        rows=table.row_count,
        compile_s=round(compile_s, 2),
        build_s=round(build_s, 2),
        sample_matches=matches,
        candidates=candidates,
        events_per_s=round(events / best_s),
        events_per_s_cpu=round(events / best_cpu_s * THREADS),
        matches_per_s=round(rows / best_s),
    )


def results(arguments: argparse.Namespace, scratch: Path) -> Iterator[Result]:
    folder = generate(scratch)
    log = scratch / "log"
    write_log(folder / "data" / "events.jsonl", log, arguments.events, THREADS, SAMPLE)
    spark = start_session(jar=connector_jar(), threads=THREADS, scratch=scratch / "spark", heap_mib=arguments.heap_mib)
    try:
        for count in arguments.filters:
            yield measure(spark, folder, log, count, arguments.events, arguments.runs, arguments.ceiling)
    finally:
        spark.stop()


def show(found: Sequence[Result]) -> None:
    table = Table(title=f"match, {THREADS} threads, JSON parsed per event")
    headings = (
        "filters",
        "patterns",
        "compile s",
        "build s",
        "events/s",
        "by cpu",
        "matches/s",
        "left to CEL",
    )
    for heading in headings:
        table.add_column(heading, justify="right")
    for one in found:
        table.add_row(
            *(f"{one.filters:,}", str(one.patterns), f"{one.compile_s:.1f}", f"{one.build_s:.2f}"),
            *(f"{one.events_per_s:,.0f}", f"{one.events_per_s_cpu:,.0f}", f"{one.matches_per_s:,.0f}"),
            str(one.candidates),
        )
    print_whole(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--filters", type=int, nargs="+", default=[100, 1_000, 10_000, 100_000], metavar="N")
    parser.add_argument("--events", type=int, default=500_000, help="events in the log (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=3, help="measured runs; the best counts (default: %(default)s)")
    parser.add_argument("--heap-mib", type=int, default=4_096, help="the JVM's heap (default: %(default)s)")
    parser.add_argument("--scratch", type=Path, help="folder to work in and keep (default: a temporary one)")
    parser.add_argument("--ceiling", default="", metavar="CEL", help="joined to every filter")
    parser.add_argument("--json", action="store_true", help="print JSON lines")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headgate-matcher-") as temporary:
        found = []
        for one in results(arguments, arguments.scratch or Path(temporary)):
            found.append(one)
            if arguments.json:
                print(json.dumps(asdict(one)), flush=True)
        if not arguments.json:
            show(found)


if __name__ == "__main__":
    main()
