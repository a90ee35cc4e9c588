"""The Spark session: one JVM that belongs to this process, with the connector's jar and everything else switched off.

The JVM ends with this process, however it ends: its gateway exits when PySpark's pipe to its stdin closes.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Final

import structlog
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from headgate.match.errors import SparkGoneError
from headgate.match.requirements import check_java, install_java
from headgate.observe import logs
from headgate_api.limits import JVM_GC_S, JVM_HEAP_MIB, JVM_RETAINED_MAX

FUNCTIONS_SETTING: Final = "spark.sql.catalog.headgate"
FUNCTIONS_VALUE: Final = "dev.headgate.connector.keys.Functions"
"""Where `headgate.extract` is found."""

_CALENDAR: Final = "-Duser.timezone=UTC"
_HUGE_METHODS: Final = "-XX:-DontCompileHugeMethods"
"""The match of dozens of shapes is one generated method above 8,000 bytes, which the JVM would only interpret."""
_HERE: Final = "127.0.0.1"
_OF_A_CLUSTER: Final[Mapping[str, str]] = MappingProxyType(
    {"spark.executor.extraJavaOptions": f"{_CALENDAR} {_HUGE_METHODS} -XX:+ExitOnOutOfMemoryError"}
)
"""Executors have folders of their own, and the driver the address that they reach it at."""
CLASS_ARCHIVE: Final = Path(sys.prefix) / "var" / "headgate" / "spark-classes.jsa"
"""Spark's classes as the JVM keeps them in memory, if `server.class_archive` has made it: a start only maps them.

The JVM passes over an archive that was made of other jars or by another Java.
"""
_OF_AN_ARCHIVE: Final = (f"-XX:SharedArchiveFile={CLASS_ARCHIVE}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off")
_SAYS_ALWAYS: Final = ("WARNING: Using incubator modules",)
_log = structlog.get_logger(__name__)


def task_slots(partitions: int) -> int:
    """Threads for two runs beside each other: a task a partition each, and one for what Spark does besides."""
    return 2 * partitions + 1


def start_session(
    *,
    jar: Path,
    threads: int,
    scratch: Path,
    heap_mib: int = JVM_HEAP_MIB,
    more_jars: Sequence[Path] = (),
    master: str | None = None,
    options: Mapping[str, str] = MappingProxyType({}),
) -> SparkSession:
    """Start the JVM and Spark in it, from the main thread; takes seconds. A second call returns the first session.

    Raises SparkMissingError without a suitable Java, SparkGoneError when the JVM ended at once (too little memory).

    Args:
        heap_mib: The JVM's heap, and as much again for Arrow's buffers at most.
        more_jars: What the queries need beside the connector: for Kafka, `store.kafka.spark_jars`.
        master: Where tasks run, as Spark's `spark.master` has it; None: in this JVM, with `threads`.
        options: Further options of Spark; they win over those of this module. They may hold secrets.
    """
    check_java()
    scratch = scratch.absolute()
    scratch.mkdir(parents=True, exist_ok=True)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.pop("SPARK_HOME", None)  # another installation's jars would not fit this PySpark
    master = master or f"local[{threads}]"
    placed: Mapping[str, str] = _OF_A_CLUSTER
    if master.startswith("local"):
        placed = {"spark.driver.bindAddress": _HERE, "spark.driver.host": _HERE, "spark.local.dir": str(scratch)}
        # Else Spark looks up the machine's own name, which need not be known.
        os.environ |= {"SPARK_LOCAL_IP": _HERE, "SPARK_LOCAL_HOSTNAME": "localhost"}
    wanted = {**_settings([jar, *more_jars], scratch, heap_mib), **placed, **options}
    conf = SparkConf().setAppName("headgate").setMaster(master).setAll(list(wanted.items()))
    on_interrupt = signal.getsignal(signal.SIGINT)
    try:
        with logs.heard("spark", _SAYS_ALWAYS):
            SparkContext.getOrCreate(conf)
    except PySparkRuntimeError as error:
        raise SparkGoneError(f"the JVM did not start: {error}", hint=install_java()) from error
    finally:  # at once: PySpark takes Ctrl-C for itself, and the supervisor alone decides what it means
        signal.signal(signal.SIGINT, on_interrupt)
    return SparkSession.builder.getOrCreate()


def stop_session(spark: SparkSession, scratch: Path) -> None:
    """End Spark and its JVM, which may have ended already, and remove its temporary files."""
    with suppress(Py4JError, OSError):
        spark.sparkContext.setLogLevel("OFF")  # tasks that end after what they report to are errors to Spark
    try:
        spark.stop()
    except (Py4JError, OSError) as error:
        _log.debug("the JVM had ended already", reason=str(error))
    shutil.rmtree(scratch, ignore_errors=True)


def collect_garbage(spark: SparkSession) -> threading.Thread:
    """The JVM gives back memory that it has no use for; it matches meanwhile, and the thread waits for its end."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None

    def collect() -> None:
        with suppress(Py4JError, OSError):  # it has ended, which others say
            jvm.System.gc()

    thread = threading.Thread(target=collect, name="collects-garbage", daemon=True)
    thread.start()
    return thread


def _settings(jars: Sequence[Path], scratch: Path, heap_mib: int) -> dict[str, str]:
    log4j = Path(str(resources.files("headgate.match") / "log4j2.properties"))
    java_options = (
        f"-Dlog4j2.configurationFile={log4j.as_uri()}",
        _CALENDAR,
        f"-Djava.io.tmpdir={scratch}",
        f"-Duser.home={scratch}",  # a user without an entry has none, and Spark does not start then
        f"-XX:MaxDirectMemorySize={heap_mib}m",
        "-XX:+UseG1GC",
        "-XX:+ExplicitGCInvokesConcurrent",  # `collect_garbage`; Spark itself asks for it every half an hour, too
        # What a change of filters takes for a moment goes back to the machine, also while nothing else happens.
        f"-XX:G1PeriodicGCInterval={int(JVM_GC_S * 1_000)}",
        "-XX:MinHeapFreeRatio=10",
        "-XX:MaxHeapFreeRatio=25",
        # A heap that is kept so small is always fuller than what G1 takes for a reason to look at all of it, and each
        # look stops the matches for some 20 ms.
        "-XX:-G1UseAdaptiveIHOP",
        "-XX:InitiatingHeapOccupancyPercent=85",
        "-XX:+ExitOnOutOfMemoryError",
        "-XX:-UsePerfData",
        _HUGE_METHODS,
        *(_OF_AN_ARCHIVE if CLASS_ARCHIVE.exists() else ()),
    )
    return {
        "spark.jars": ",".join(map(str, jars)),
        FUNCTIONS_SETTING: FUNCTIONS_VALUE,
        "spark.driver.memory": f"{heap_mib}m",
        "spark.driver.extraJavaOptions": " ".join(
            f'"{option}"' if " " in option else option for option in java_options
        ),
        "spark.hadoop.fs.permissions.umask-mode": "077",  # Hadoop's files have modes of their own
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Spark's own count of running tasks (`query.tasks_of`) holds back what comes within 100 ms of the last change,
        # until something else happens: in a quiet query the heartbeat, which comes every 10 s.
        "spark.ui.liveUpdate.period": "0",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.caseSensitive": "true",
        "spark.sql.ansi.enabled": "true",
        # PySpark would look up the caller's source line for every Column: two thirds of the time a plan takes to write.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.adaptive.enabled": "false",
        # A table of rows takes a page at once, by default one of 64 MiB; larger rows get larger pages.
        "spark.buffer.pageSize": "1m",
        # A day-long process that starts a query for every change of filters: keep little of the past.
        "spark.ui.retainedJobs": str(JVM_RETAINED_MAX),
        "spark.ui.retainedStages": str(JVM_RETAINED_MAX),
        "spark.ui.retainedTasks": str(JVM_RETAINED_MAX),
        "spark.sql.ui.retainedExecutions": str(JVM_RETAINED_MAX),
        "spark.sql.streaming.numRecentProgressUpdates": "1",
    }
