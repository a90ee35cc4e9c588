"""Do thousands of tenants on one log slow each other down?

    python -m benchmarks.tenants [--brokers 1 5000] [--rates 0 1 10 100] [--events 200000] [--seconds 5] [--json]

Every broker has 3 subscribers with 5 filters each, on JSON paths that no other broker uses: 75,000 filters, as many
shapes. Half of the events belong to one broker, the noisy one; the others to all others alike. A match rate of 10 %
means that of the 15 filters of an event's broker each matches with a probability of a tenth. Beside it, in the same
run, one broker with its 15 filters gets all events.

Two measurements for each: a batch over a real chunk log on two threads, whose matches are counted inside Spark and
compared with what the events were made to match; and real-time mode at a fixed rate, one event a chunk, from before the
append to the last row of an event (of quiet brokers) at the dispatcher's socket.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import random
import shutil
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import structlog
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from rich.table import Table

from benchmarks.match_latency import DELIVERY, Sink
from benchmarks.matcher import THREADS, cpu_s, read
from benchmarks.plans import Plans
from benchmarks.tables import print_whole
from headgate.event.arrow import EVENT_SCHEMA, StoredEvent, to_batch
from headgate.log.directory import LogDirectory, Partition
from headgate.log.writer import Encoded, PartitionWriter
from headgate.match.dataframe import match_events
from headgate.match.requirements import connector_jar
from headgate.match.session import start_session, task_slots
from headgate.match.spark_runner import SparkRunner
from headgate.match.table import build_table
from headgate.objects.kinds.routing import RoutingTable, Target
from headgate_api.event.model import DataKind, Event

SUBSCRIBERS, FILTERS = 3, 5
PER_BROKER = SUBSCRIBERS * FILTERS
CHUNK_EVENTS = 1_000
REPEATS = 5  # of every chunk: making events takes longer than matching them
TYPES = ("order.created", "order.changed", "order.cancelled")
NOISY = 0


@dataclass(frozen=True)
class Result:
    """One match rate with one number of brokers.

    Attributes:
        events_per_s: Best of the runs, by the clock.
        events_per_s_cpu: The same by the processor time of the whole JVM, as if two cores were ours alone.
        p50_ms: Of events of quiet brokers that match anything; None where nothing matches.
    """

    brokers: int
    filters: int
    patterns: int
    rate_percent: float
    build_s: float
    events_per_s: float
    events_per_s_cpu: float
    matches_per_s: float
    p50_ms: float | None
    p99_ms: float | None


def broker_name(broker: int) -> str:
    return f"tenant-{broker}/main"


def path(broker: int, number: int) -> str:
    return f"t{broker}_{number}"


def filter_text(broker: int, number: int) -> str:
    """Filter `number` of a broker: five kinds, each in three variants, on a path of its own."""
    place, kind = f"data.{path(broker, number)}", TYPES[number % len(TYPES)]
    match number % FILTERS:
        case 0:
            return f'{place} == "wanted-{broker}"'
        case 1:
            return f'{place}.startsWith("europe/")'
        case 2:
            return f'ce.type in ["{kind}", "order.any"] && {place} > 100'
        case 3:
            return f'{place} in ["red", "green-{broker}"] && data.active'
        case _:
            return f'ce.tenant == "{broker}" && {place}.endsWith("-hot") && data.count != 3'


def value(broker: int, number: int, wanted: bool) -> object:
    """What stands at the filter's path in an event that it wants, or does not."""
    match number % FILTERS:
        case 0:
            return f"wanted-{broker}" if wanted else "other"
        case 1:
            return f"europe/{broker}" if wanted else "us-east"
        case 2:
            return 200 if wanted else 7
        case 3:
            return "red" if wanted else "blue"
        case _:
            return "plate-hot" if wanted else "plate-cold"


def make_event(broker: int, rate: float, rng: random.Random) -> tuple[StoredEvent, int]:
    """An event of a broker, and how many filters it matches: those whose type is not the event's never do."""
    kind = rng.randrange(len(TYPES))
    data: dict[str, object] = {"active": True, "count": 1}
    matches = 0
    for number in range(PER_BROKER):
        wanted = rng.random() < rate
        data[path(broker, number)] = value(broker, number, wanted)
        matches += wanted and (number % FILTERS != 2 or kind == number % len(TYPES))
    event = Event(
        *("1.0", str(rng.getrandbits(63)), "/bench", TYPES[kind]),
        extensions={"tenant": str(broker)},
        data_kind=DataKind.JSON,
        data=json.dumps(data, separators=(",", ":")).encode(),
    )
    return StoredEvent(broker_name(broker), event), matches


def pick(brokers: int, rng: random.Random) -> int:
    """Half of the events are the noisy broker's."""
    return NOISY if brokers == 1 or rng.random() < 0.5 else rng.randrange(1, brokers)


def write_log(log: Path, brokers: int, rate: float, events: int) -> int:
    """Two partitions; returns the number of matches."""
    shutil.rmtree(log, ignore_errors=True)
    rng, matches = random.Random(1), 0
    for partition in range(THREADS):
        with PartitionWriter(Partition(log / str(partition), "stop"), EVENT_SCHEMA) as writer:
            for _ in range(0, events // THREADS // REPEATS, CHUNK_EVENTS):
                made = [make_event(pick(brokers, rng), rate, rng) for _ in range(CHUNK_EVENTS)]
                chunk = to_batch([entry for entry, _ in made])
                types = [entry.event.type for entry, _ in made]
                for _ in range(REPEATS):
                    writer.append(Encoded(chunk, types))
                matches += REPEATS * sum(count for _, count in made)
    return matches


def targets(brokers: int) -> list[Target]:
    """All filters; 75,000 compilations would take a minute."""
    plans = [Plans(partial(filter_text, number=number)) for number in range(PER_BROKER)]
    return [
        Target(
            *(broker * PER_BROKER + number, f"n/t{broker}-{number}", broker_name(broker)),
            *(plans[number].of(broker), "http://localhost/", DELIVERY),
        )
        for broker in range(brokers)
        for number in range(PER_BROKER)
    ]


def batch(
    spark: SparkSession, log: Path, table_of: list[Target], expected: int, events: int, runs: int
) -> tuple[float, float, float, float, int]:
    """Seconds to build, events/s by clock and by processor, matches/s, patterns. A wrong count ends the program."""
    start = time.perf_counter()
    table = build_table(spark, ((target.id, target.broker, target.filter) for target in table_of))
    matched = match_events(read(spark, log, range(THREADS)), table)
    build_s = time.perf_counter() - start
    totals = (F.count("*"), F.sum("target"), F.max("offset"), F.min("partition"), F.sum("verdict"))
    best_s = best_cpu_s = float("inf")
    for _ in range(runs + 1):
        start, start_cpu = time.perf_counter(), cpu_s(spark)
        found = matched.agg(*totals).collect()[0][0]
        best_s, best_cpu_s = min(best_s, time.perf_counter() - start), min(best_cpu_s, cpu_s(spark) - start_cpu)
        if found != expected:
            sys.exit(f"wrong: {found} matches, the events were made for {expected}")
    return build_s, events / best_s, events / best_cpu_s * THREADS, expected / best_s, len(table.patterns)


def produce(log: Path, brokers: int, rate: float, orders: Connection) -> None:
    """Another process: append at a rate when asked; answer with offset and clock of each event that counts."""
    rng = random.Random(2)
    with PartitionWriter(Partition(log / "0", "stop"), EVENT_SCHEMA) as writer:
        orders.send(writer.next_offset)
        while order := orders.recv():
            per_s, count = order
            made = [(*make_event(broker := pick(brokers, rng), rate, rng), broker) for _ in range(count)]
            counted, due = [], time.perf_counter()
            clocks = array("q")
            for entry, matches, broker in made:
                due += 1 / per_s
                while (left := due - time.perf_counter()) > 0:
                    time.sleep(left)
                if matches and (brokers == 1 or broker != NOISY):
                    counted.append(writer.next_offset)
                    clocks.append(time.perf_counter_ns())
                writer.append(Encoded(to_batch([entry]), [entry.event.type]))
            orders.send((writer.next_offset, counted, clocks))


def latency(
    spark: SparkSession, scratch: Path, table_of: list[Target], brokers: int, rate: float, per_s: int, seconds: float
) -> tuple[float, float] | None:
    """p50 and p99 in milliseconds of the events of quiet brokers that match."""
    log = scratch / "live"
    shutil.rmtree(log, ignore_errors=True)
    orders, theirs = multiprocessing.get_context("spawn").Pipe()
    producer = multiprocessing.get_context("spawn").Process(target=produce, args=(log, brokers, rate, theirs))
    producer.start()
    orders.recv()
    sink = Sink()
    run = SparkRunner(spark, LogDirectory(log, "stop"), 1, scratch / "runs").start(
        RoutingTable.of(1, 1, {}, table_of), 1, {0: 0}, sink.address
    )
    took: list[int] = []
    for warm in (True, False):
        orders.send((per_s, int(per_s * (3 if warm else seconds))))
        end, counted, clocks = orders.recv()
        while sink.passed < end:
            time.sleep(0.01)
        took = [sink.arrived[offset] - clock for offset, clock in zip(counted, clocks, strict=True)]
    run.stop()
    orders.send(None)
    producer.join()
    if not took:
        return None
    took.sort()
    return took[len(took) // 2] / 1e6, took[int(0.99 * len(took))] / 1e6


def results(arguments: argparse.Namespace, scratch: Path) -> Iterator[Result]:
    spark = start_session(
        jar=connector_jar(), threads=task_slots(1), scratch=scratch / "spark", heap_mib=arguments.heap_mib
    )
    spark.conf.set("spark.sql.leafNodeDefaultParallelism", THREADS)
    try:
        for brokers in arguments.brokers:
            made = targets(brokers)
            for percent in arguments.rates:
                expected = write_log(scratch / "log", brokers, percent / 100, arguments.events)
                found = batch(spark, scratch / "log", made, expected, arguments.events, arguments.runs)
                build_s, per_s, per_s_cpu, matches_per_s, patterns = found
                waited = (
                    latency(spark, scratch, made, brokers, percent / 100, arguments.live_rate, arguments.seconds)
                    if arguments.seconds
                    else None
                )
                p50, p99 = waited or (None, None)
                yield Result(
                    *(brokers, len(made), patterns, percent, round(build_s, 2), round(per_s), round(per_s_cpu)),
                    *(round(matches_per_s), p50, p99),
                )
    finally:
        spark.stop()


def show(found: Sequence[Result], live_rate: int) -> None:
    table = Table(
        title=f"{PER_BROKER} filters a broker, half of the events of one broker; batch on {THREADS} threads, "
        f"latency of quiet brokers at {live_rate:,} events/s"
    )
    headings = (
        *("match rate", "brokers", "filters", "patterns", "build s", "events/s", "by cpu", "to 1 broker"),
        *("matches/s", "p50 ms", "p99 ms"),
    )
    for heading in headings:
        table.add_column(heading, justify="right")
    alone = {one.rate_percent: one for one in found if one.brokers == 1}
    for one in sorted(found, key=lambda one: (one.rate_percent, one.brokers)):
        beside = alone.get(one.rate_percent)
        ratio = f"{one.events_per_s_cpu / beside.events_per_s_cpu:.2f}" if beside else "-"
        waited = ["-" if ms is None else f"{ms:.2f}" for ms in (one.p50_ms, one.p99_ms)]
        table.add_row(
            *(f"{one.rate_percent:g} %", f"{one.brokers:,}", f"{one.filters:,}", str(one.patterns)),
            *(f"{one.build_s:.1f}", f"{one.events_per_s:,}", f"{one.events_per_s_cpu:,}", ratio),
            *(f"{one.matches_per_s:,}", *waited),
        )
    print_whole(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--brokers", type=int, nargs="+", default=[1, 5_000], metavar="N")
    parser.add_argument("--rates", type=float, nargs="+", default=[0, 1, 10, 100], metavar="PERCENT")
    parser.add_argument("--events", type=int, default=500_000, help="events in the log (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=3, help="measured runs; the best counts (default: %(default)s)")
    parser.add_argument("--live-rate", type=int, default=500, help="events/s for the latency (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=5, help="of real-time mode; 0 leaves it out")
    parser.add_argument("--heap-mib", type=int, default=4_096, help="the JVM's heap (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON lines")
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with tempfile.TemporaryDirectory(prefix="headgate-tenants-") as scratch:
        found = []
        for one in results(arguments, Path(scratch)):
            found.append(one)
            if arguments.json:
                print(json.dumps(asdict(one)), flush=True)
        if not arguments.json:
            show(found, arguments.live_rate)


if __name__ == "__main__":
    main()
