"""One run: a Spark query in real-time mode, from explicit offsets to the match link or to another sink.

Spark's checkpoint is not our cursor (the outbox is): every run gets a throw-away one.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from py4j.java_gateway import JavaObject, JVMView
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headgate.log.directory import LogDirectory
from headgate.match.driver_link import LinkAddress
from headgate.match.errors import RunFailedError, SparkGoneError
from headgate_api.errors import HeadgateError
from headgate_api.limits import REAL_TIME_BATCH_S

SOURCE = "headgate"
"""The connector's format name."""


class SparkRun:
    """A started query; `number` is the run's on the match link, `generation` that of the filters that it evaluates.

    Its calls go into the JVM; they raise SparkGoneError when there is none any more.
    """

    def __init__(
        self, number: int, generation: int, query: StreamingQuery, context: SparkContext, checkpoint: Path
    ) -> None:
        self.number = number
        self.generation = generation
        self._query = query
        self._context = context
        self._checkpoint = checkpoint

    @property
    def alive(self) -> bool:
        with spark_errors(f"run {self.number} does not answer"):
            return bool(self._query.isActive)

    def failure(self) -> str:
        """Why the query died, in one line; empty when it runs or was stopped."""
        with spark_errors(f"run {self.number} does not answer"):
            error = self._query.exception()
        return "" if error is None else _innermost(str(error))

    def running_tasks(self) -> int:
        with spark_errors(f"run {self.number} does not answer"):
            return tasks_of(self._context, str(self._query.runId))

    def has_ended_batch(self, number: int) -> bool:
        """Whether a batch has ended, as the checkpoint says: `recentProgress` is empty in real-time mode."""
        return (self._checkpoint / "commits" / str(number)).exists()

    def stop(self) -> None:
        """End the query, and return when its tasks have ended; may be called twice. Raises RunFailedError."""
        try:
            with spark_errors(f"run {self.number} did not stop"):
                self._query.stop()
        finally:
            shutil.rmtree(self._checkpoint, ignore_errors=True)


def start_run(
    spark: SparkSession,
    matches: Callable[[DataFrame], DataFrame],
    *,
    log: LogDirectory,
    start: Mapping[int, int],
    run: int,
    generation: int,
    link: LinkAddress,
    scratch: Path,
    wakeups: Path | None = None,
    table: str | None = None,
    batch_s: int = REAL_TIME_BATCH_S,
) -> SparkRun:
    """Start a query; returns when Spark has planned it, before its tasks have opened their connections.

    `start` has the first offset of every partition that is read; `run` grows with every run. Raises RunFailedError when
    Spark refuses the query, SparkGoneError without a JVM.

    Args:
        matches: From events (columns of the log plus partition, offset, append_time_us) to rows of partition INT,
            offset BIGINT, target INT, verdict TINYINT; only operators that real-time mode admits.
        wakeups: Where the log's writers tell of new events, see `log.wakeups`; None: the tasks look all the time.
        table: The name of the match table whose newer generations the tasks go on to.
        batch_s: Length of the one batch: the run must be replaced before (a batch boundary breaks its connections).
    """
    options = {
        "path": str(log.directory.absolute()),
        "partitions": ",".join(str(partition) for partition in sorted(start)),
        "onCorrupt": log.on_corrupt,
        "startOffsets": json.dumps({str(partition): offset for partition, offset in start.items()}),
        "linkEndpoints": ",".join(map(str, link.endpoints)),
        "linkToken": link.token.hex(),
        "run": str(run),
        "generation": str(generation),
        # Not made absolute: the JVM has our directory, and the name of a socket has room for 107 bytes.
        **({} if wakeups is None else {"wakeups": str(wakeups)}),
        **({} if table is None else {"table": table}),
    }
    return start_query(
        spark,
        lambda: matches(spark.readStream.format(SOURCE).options(**options).load()),
        lambda jvm: jvm.dev.headgate.connector.link.MatchWriter(run),
        run=run,
        generation=generation,
        scratch=scratch,
        batch_s=batch_s,
    )


def start_query(
    spark: SparkSession,
    rows: Callable[[], DataFrame],
    sink: Callable[[JVMView], JavaObject],
    *,
    run: int,
    generation: int,
    scratch: Path,
    batch_s: int,
) -> SparkRun:
    """Start a query in real-time mode, whatever it reads and writes; returns when Spark has planned it.

    `rows` makes the stream that `sink` takes, a `ForeachWriter` of the JVM. Raises as `start_run`.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    checkpoint = Path(tempfile.mkdtemp(prefix=f"run-{run}-", dir=scratch.absolute()))
    try:
        with spark_errors(f"run {run} did not start"):
            writer = rows().writeStream.outputMode("update").option("checkpointLocation", str(checkpoint))
            writer = writer.trigger(realTime=f"{batch_s} seconds")  # type: ignore[call-overload]  # not in its overloads
            # A JVM writer has no Python face, and Python's `foreach` holds rows back until they are 1 MiB.
            jvm = spark.sparkContext._jvm
            assert jvm is not None
            writer._jwrite = writer._jwrite.foreach(sink(jvm))
            query = writer.start()
    except HeadgateError:
        shutil.rmtree(checkpoint, ignore_errors=True)
        raise
    return SparkRun(run, generation, query, spark.sparkContext, checkpoint)


def tasks_of(context: SparkContext, group: str) -> int:
    """How many tasks of a job group run now; a streaming query's group is its run id. Calls into the JVM."""
    tracker, store = context.statusTracker(), context._jsc.sc().statusStore()
    known = [job for job in tracker.getJobIdsForGroup(group) if tracker.getJobInfo(job) is not None]
    return sum(store.job(job).numActiveTasks() for job in known)


@contextmanager
def spark_errors(what: str) -> Iterator[None]:
    """Translate what Spark and the way to it raise: RunFailedError when Spark refused, SparkGoneError without a JVM."""
    try:
        yield
    except (Py4JNetworkError, ConnectionError) as error:
        raise SparkGoneError(f"{what}: the JVM has ended ({error})") from error
    except (PySparkException, Py4JError) as error:
        raise RunFailedError(f"{what}: {_innermost(str(error))}") from error


def _innermost(message: str) -> str:
    """The line of a JVM stack trace that names the cause: the last one, without its package."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by: ")]
    return (causes[-1].removeprefix("Caused by: ") if causes else lines[0] if lines else "unknown").strip()
