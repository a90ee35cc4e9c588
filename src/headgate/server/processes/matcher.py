"""The process that decides who wants what: Spark and the loop that keeps one query in force."""

from __future__ import annotations

import faulthandler
import os
import threading
import time
from collections.abc import Callable
from contextlib import closing

import structlog

from headgate.log.directory import LogDirectory
from headgate.match.spark_runner import serve
from headgate.objects.store.store import Store
from headgate.server import child, ready
from headgate_api.limits import MATCHER_STOP_S_MAX

_log = structlog.get_logger(__name__)


class MatcherStop:
    """Listens for a stop: at once while Spark starts, and in time whatever Spark does later.

    It ends the process where nothing else can: to those who take its matches the matcher is one that was killed.
    """

    def __init__(self) -> None:
        self.asked = threading.Event()
        self._started = threading.Event()
        child.on_stop(self._stop)

    def started(self) -> None:
        """Spark has started: from now on the matcher looks at `asked`."""
        self._started.set()

    def _stop(self) -> None:
        if not self._started.is_set():
            # Nothing is under way yet. PySpark cannot be told to stop starting, and answers the end of its JVM, which
            # a signal to all processes brings, with tracebacks; the JVM ends with this process.
            os._exit(0)
        self.asked.set()
        time.sleep(MATCHER_STOP_S_MAX)
        _log.warning("Spark does not stop in time and is left; the next matcher ends its runs")
        faulthandler.dump_traceback()
        os._exit(0)  # in the order of a stop, the main thread may wait for a run to begin, or to end


def _match(context: child.Context, stop: MatcherStop, report: ready.PartReport) -> None:
    settings = context.settings
    with closing(Store.open(settings.data / "control.db")) as store:
        serve(
            routing=store,
            log=LogDirectory(settings.log_directory, settings.on_corrupt),
            partitions=settings.partitions,
            dispatchers=settings.dispatchers,
            run_directory=settings.run_directory,
            token=context.token,
            stop=stop.asked,
            on_ready=report.ready,
            on_note=report.note,
            on_step=report.beat,
            on_started=stop.started,
            heap_mib=settings.jvm_memory_mb,
        )


def run(context: child.Context, match: Callable[[child.Context, MatcherStop, ready.PartReport], None] = _match) -> None:
    """Matches until told to stop; `match` starts Spark, and returns when it is asked to stop."""
    child.spare_collector()  # a table of many filters is made of millions of objects that stay
    stop = MatcherStop()
    report = ready.PartReport(context.settings.run_directory, context.part.name)
    report.note("Spark starts")
    match(context, stop, report)
