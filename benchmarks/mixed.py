"""What does it cost when the matcher cannot decide? 10,000 triggers of every dialect, some of them left to cel-cpp.

    python -m benchmarks.mixed [--filters 10000] [--events 200000] [--shares 0 1 10 100] [--json]

Of the filters, a share also wants a regular expression that only cel-cpp can search: those are CANDIDATE. Every event
satisfies it, so the same pairs match at every share, which is checked. Spark's part is the batch of the matcher
benchmark on two threads. The dispatcher's part is what its code does for the rows of a sample: one view an event,
`dispatch.verdicts.evaluate` for every candidate, on one thread; without reading the event, which it has to do for every
delivery anyway. *Both* is the rate if the two cores do nothing else, from the processor time of the two parts together.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from rich.table import Table

from benchmarks.matcher import BROKER, CHUNK_EVENTS, THREADS, cpu_s, read
from benchmarks.tables import print_whole
from headgate.delivery.events import SharedEvent
from headgate.delivery.verdicts import evaluate
from headgate.event.arrow import EVENT_SCHEMA, StoredEvent, to_batch
from headgate.filter.cel.evaluate import EventView, OutcomeKind
from headgate.filter.compile.compiler import compile_filter
from headgate.filter.compile.plan import CompiledFilter, Verdict
from headgate.log.directory import Partition
from headgate.log.writer import Encoded, PartitionWriter
from headgate.match.dataframe import match_events
from headgate.match.requirements import connector_jar
from headgate.match.session import start_session
from headgate.match.table import build_table
from headgate_api.event.model import DataKind, Event

TYPES = 1_000
REGIONS = ("eu-west", "eu-north", "us-east", "us-west", "ap-south")
SAMPLE = 4_000
UNDECIDED = {"cel": 'data.note.matches("[0-9]+-(a|b)+c")'}


@dataclass(frozen=True)
class Result:
    """One share of candidates.

    Attributes:
        candidates_per_event: Rows that Spark leaves to cel-cpp.
        spark_events_per_s: Best of the runs, by the clock.
        spark_events_per_s_cpu: The same by processor time, as if two cores were ours alone.
        decision_us: One candidate in the dispatcher.
        both_events_per_s: See the module.
    """

    share_percent: float
    filters: int
    candidate_filters: int
    matches_per_event: float
    candidates_per_event: float
    spark_events_per_s: float
    spark_events_per_s_cpu: float
    decision_us: float
    both_events_per_s: float


def wanted(number: int) -> dict[str, Any]:
    """Filter `number`, in the dialects' turn; all of them look for one type and something more."""
    kind, region, amount = f"com.example.t{number % TYPES}", REGIONS[number % len(REGIONS)], number % 97
    match number % 7:
        case 0:
            return {"attributes": {"type": kind, "region": region}}
        case 1:
            return {"cel": f'ce.type == "{kind}" && data.amount > {amount}'}
        case 2:
            return {"cesql": f"type = '{kind}' AND region LIKE '{region[:2]}-%'"}
        case 3:
            return {"jms": f"type = '{kind}' AND region IN ('{region}', 'none')"}
        case 4:
            return {"eventPattern": {"detail-type": [kind], "detail": {"amount": [{"numeric": [">", amount]}]}}}
        case 5:
            return {"all": [{"exact": {"type": kind}}, {"prefix": {"region": region[:4]}}]}
        case _:
            return {"cel": f'ce.type == "{kind}" && "x{number % 11}" in data.tags'}


def filters(count: int, share: float) -> list[CompiledFilter]:
    every = round(1 / share) if share else 0
    return [
        compile_filter(None, [wanted(number), UNDECIDED] if every and number % every == every - 1 else [wanted(number)])
        for number in range(count)
    ]


def is_candidate(one: CompiledFilter) -> bool:
    return any(not row.signature.exact and not row.is_of_doubt for row in one.rows)


def make_event(rng: random.Random) -> Event:
    data = {
        "amount": rng.randrange(100),
        "note": f"order {rng.randrange(10_000)}-abbac",
        "tags": [f"x{rng.randrange(11)}" for _ in range(3)],
        "customer": {"id": rng.randrange(10**6), "name": "Somebody", "tier": "gold"},
    }
    return Event(
        *("1.0", str(rng.getrandbits(63)), "/bench", f"com.example.t{rng.randrange(TYPES)}"),
        extensions={"region": rng.choice(REGIONS)},
        data_kind=DataKind.JSON,
        data=json.dumps(data, separators=(",", ":")).encode(),
    )


def write_log(log: Path, events: int) -> list[Event]:
    """Two partitions, and the sample, which is returned, in one more."""
    shutil.rmtree(log, ignore_errors=True)
    rng = random.Random(1)
    made = [make_event(rng) for _ in range(20_000)]
    for partition, count in (*((number, events // THREADS) for number in range(THREADS)), (THREADS, SAMPLE)):
        with PartitionWriter(Partition(log / str(partition), "stop"), EVENT_SCHEMA) as writer:
            for start in range(0, count, CHUNK_EVENTS):
                some = [made[(start + index) % len(made)] for index in range(CHUNK_EVENTS)]
                writer.append(
                    Encoded(to_batch([StoredEvent(BROKER, event) for event in some]), [one.type for one in some])
                )
    return made[:SAMPLE]


def decide(
    sample: Sequence[Event], compiled: Sequence[CompiledFilter], rows: list[dict[str, int]]
) -> tuple[int, int, float]:
    """What the dispatcher does with the sample's rows: pairs that match, candidates, seconds for these."""
    matched = {(row["offset"], row["target"]) for row in rows if row["verdict"] == Verdict.MATCH}
    open_pairs = {(row["offset"], row["target"]) for row in rows if row["verdict"] == Verdict.CANDIDATE} - matched
    by_event: dict[int, list[int]] = {}
    for offset, target in open_pairs:
        by_event.setdefault(offset, []).append(target)
    for _, target in open_pairs:
        evaluate(compiled[target].cel, cast(SharedEvent, SimpleNamespace(view=EventView(sample[0]))))  # compiles
    true = 0
    start = time.process_time()
    for offset, targets in by_event.items():
        shared = cast(SharedEvent, SimpleNamespace(view=EventView(sample[offset])))
        true += sum(evaluate(compiled[target].cel, shared).kind is OutcomeKind.TRUE for target in targets)
    return len(matched) + true, len(open_pairs), time.process_time() - start


def measure(
    spark: SparkSession, log: Path, sample: Sequence[Event], arguments: argparse.Namespace, percent: float
) -> Result:
    compiled = filters(arguments.filters, percent / 100)
    table = build_table(spark, ((number, BROKER, one) for number, one in enumerate(compiled)))
    matched = match_events(read(spark, log, range(THREADS)), table)
    totals = (F.count("*"), F.sum("target"), F.max("offset"), F.min("partition"), F.sum("verdict"))
    best_s = best_cpu_s = float("inf")
    for _ in range(arguments.runs + 1):
        start, start_cpu = time.perf_counter(), cpu_s(spark)
        matched.agg(*totals).collect()
        best_s, best_cpu_s = min(best_s, time.perf_counter() - start), min(best_cpu_s, cpu_s(spark) - start_cpu)
    rows = match_events(read(spark, log, [THREADS]), table).select("offset", "target", "verdict").toArrow().to_pylist()
    matches, candidates, took_s = decide(sample, compiled, rows)
    cpu_of_both = best_cpu_s / arguments.events + took_s / SAMPLE
    return Result(
        share_percent=percent,
        filters=len(compiled),
        candidate_filters=sum(
            any(not row.signature.exact for row in one.rows if not row.is_of_doubt) for one in compiled
        ),
        matches_per_event=matches / SAMPLE,
        candidates_per_event=round(candidates / SAMPLE, 3),
        spark_events_per_s=round(arguments.events / best_s),
        spark_events_per_s_cpu=round(arguments.events / best_cpu_s * THREADS),
        decision_us=round(took_s / candidates * 1e6, 1) if candidates else 0.0,
        both_events_per_s=round(THREADS / cpu_of_both),
    )


def results(arguments: argparse.Namespace, scratch: Path) -> Iterator[Result]:
    sample = write_log(scratch / "log", arguments.events)
    spark = start_session(jar=connector_jar(), threads=THREADS, scratch=scratch / "spark", heap_mib=4_096)
    matches: float | None = None
    try:
        for percent in arguments.shares:
            found = measure(spark, scratch / "log", sample, arguments, percent)
            if matches is not None and matches != found.matches_per_event:
                sys.exit(f"wrong: {found.matches_per_event} matches an event at {percent} %, {matches} before")
            matches = found.matches_per_event
            yield found
    finally:
        spark.stop()


def show(found: Sequence[Result]) -> None:
    table = Table(
        title=f"{found[0].filters:,} triggers of mixed dialects, {found[0].matches_per_event:.1f} matches an event"
    )
    headings = (
        "left to cel-cpp",
        "filters",
        "candidates/event",
        "Spark events/s",
        "by cpu",
        "us each",
        "both events/s",
        "to 0 %",
    )
    for heading in headings:
        table.add_column(heading, justify="right")
    for one in found:
        table.add_row(
            *(f"{one.share_percent:g} %", f"{one.candidate_filters:,}", f"{one.candidates_per_event:.2f}"),
            *(f"{one.spark_events_per_s:,}", f"{one.spark_events_per_s_cpu:,}", f"{one.decision_us:.1f}"),
            *(f"{one.both_events_per_s:,}", f"{one.both_events_per_s / found[0].both_events_per_s:.2f}"),
        )
    print_whole(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--filters", type=int, default=10_000)
    parser.add_argument("--events", type=int, default=500_000, help="events in the log (default: %(default)s)")
    parser.add_argument("--shares", type=float, nargs="+", default=[0, 1, 10, 100], metavar="PERCENT")
    parser.add_argument("--runs", type=int, default=3, help="measured runs; the best counts (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON lines")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headgate-mixed-") as scratch:
        found = []
        for one in results(arguments, Path(scratch)):
            found.append(one)
            if arguments.json:
                print(json.dumps(asdict(one)), flush=True)
        if not arguments.json:
            show(found)


if __name__ == "__main__":
    main()
