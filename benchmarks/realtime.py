"""Spark's real-time mode alone, from Kafka to Kafka, beside Headgate on Kafka: what is Spark's, and what is ours?

    python -m benchmarks.realtime                       300 events a second for 20 s, 10,000 triggers
    python -m benchmarks.realtime --rate 1000 --triggers 100

The first is a query of one filter, as Spark's own documentation of real-time mode has it: it reads a topic, keeps the
records of which a field in JSON has a value (all of them), and writes them to another topic. Its latency is from before
a record is given to Kafka's client to its arrival at a consumer of the other topic. Headgate's is from before a POST to
its arrival at a subscriber, with many filters: the same two topics and the same query in between, and behind them what
a broker does. Both have two partitions, one Kafka broker and `local[N]`, one after the other.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from clusters.kafka import Kafka
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table

from benchmarks import latency
from benchmarks.cluster import PARTITIONS, one_broker
from benchmarks.tables import print_whole
from headgate.backend.kafka.spark_jars import spark_jars
from headgate.match.query import tasks_of
from headgate.match.requirements import connector_jar
from headgate.match.session import start_session, stop_session

BATCH_S = 300
DRAIN_S_MAX = 30.0


@dataclass(frozen=True)
class Result:
    """Milliseconds from sent to received."""

    what: str
    rate: int
    received: int
    p50_ms: float
    p99_ms: float


@contextmanager
def copying(spark: SparkSession, bootstrap: str, scratch: Path) -> Iterator[None]:
    """Spark's own query from the topic `in` to the topic `out` runs while the block lasts."""
    topics = {"kafka.bootstrap.servers": bootstrap}
    read = spark.readStream.format("kafka").options(**topics, subscribe="in").load()
    rows = read.where(F.get_json_object(F.col("value").cast("string"), "$.tier") == "gold").select("key", "value")
    sink = rows.writeStream.format("kafka").options(**topics, topic="out", checkpointLocation=str(scratch / "check"))
    query = sink.outputMode("update").trigger(realTime=f"{BATCH_S} seconds").start()  # type: ignore[call-overload]
    while not tasks_of(spark.sparkContext, str(query.runId)):
        time.sleep(0.1)
    yield
    query.stop()


def through_spark(folder: Path, rate: int, seconds: float, warm: float) -> Result:
    """The latency of the query alone."""
    with Kafka(folder / "kafka") as kafka:
        topics = [NewTopic(name, PARTITIONS) for name in ("in", "out")]
        for done in AdminClient({"bootstrap.servers": kafka.bootstrap}).create_topics(topics).values():
            done.result()
        spark = start_session(jar=connector_jar(), threads=PARTITIONS, scratch=folder / "spark", more_jars=spark_jars())
        try:
            with copying(spark, kafka.bootstrap, folder):
                exchange(kafka.bootstrap, rate, warm)
                took_ms = exchange(kafka.bootstrap, rate, seconds)
        finally:
            stop_session(spark, folder / "spark")
    quantiles = statistics.quantiles(took_ms, n=100, method="inclusive")
    return Result("Spark alone, one filter", rate, len(took_ms), round(quantiles[49], 2), round(quantiles[98], 2))


def exchange(bootstrap: str, rate: int, seconds: float) -> list[float]:
    """Sends records at a rate, open loop; how long each took to the other topic, in milliseconds."""
    took_ms: list[float] = []
    count = int(rate * seconds)
    ready = threading.Event()

    def receive() -> None:
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"{time.time_ns()}", "fetch.wait.max.ms": 5})
        consumer.subscribe(["out"], on_assign=lambda *_: ready.set())
        ends = time.monotonic() + seconds + DRAIN_S_MAX
        while len(took_ms) < count and time.monotonic() < ends:
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                took_ms.append((time.time_ns() - json.loads(message.value() or b"")["sent"]) / 1e6)
        consumer.close()

    receiver = threading.Thread(target=receive)
    receiver.start()
    ready.wait(DRAIN_S_MAX)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "acks": "all"})
    started = time.monotonic()
    for number in range(count):
        time.sleep(max(0.0, started + number / rate - time.monotonic()))
        record = {"sent": time.time_ns(), "tier": "gold", "n": number}
        producer.produce("in", json.dumps(record).encode(), key=str(number))
        producer.poll(0)
    producer.flush()
    receiver.join()
    if len(took_ms) != count:
        raise SystemExit(f"error: {len(took_ms)} of {count} records came")
    return took_ms


def through_headgate(folder: Path, arguments: argparse.Namespace) -> Result:
    """The latency of a deployment on Kafka, as `benchmarks.cluster` measures it."""
    with one_broker(folder) as form:
        found = asyncio.run(latency.measure(form.servers[0], latency.Receiver(), arguments))
    what = f"Headgate on Kafka, {arguments.triggers:,} filters"
    return Result(what, arguments.rate, found["deliveries"], found["p50_ms"], found["p99_ms"])


def main() -> None:
    """Parses the flags, runs, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=300, help="events a second (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=20, help="that are measured (default: %(default)g)")
    parser.add_argument("--warm", type=float, default=20, help="seconds before that (default: %(default)g)")
    parser.add_argument("--triggers", type=int, default=10_000, help="of Headgate (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line instead of a table")
    arguments = parser.parse_args()
    arguments.changes = 0  # as `latency.measure` has it
    results = []
    with Console(stderr=True).status("Spark alone") as status:
        with tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder:
            results.append(through_spark(Path(folder), arguments.rate, arguments.seconds, arguments.warm))
        status.update("Headgate")
        with tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder:
            results.append(through_headgate(Path(folder), arguments))
    if arguments.json:
        for one in results:
            print(json.dumps(asdict(one)))
        return
    table = Table("", "events/s", "received", "p50 ms", "p99 ms", title="From Kafka to Kafka in real-time mode")
    for one in results:
        table.add_row(one.what, f"{one.rate}", f"{one.received:,}", f"{one.p50_ms:.1f}", f"{one.p99_ms:.1f}")
    print_whole(table)


if __name__ == "__main__":
    main()
