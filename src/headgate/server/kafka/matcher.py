"""The matcher process of a deployment on Kafka: it stands by, or starts the queries that match."""

from __future__ import annotations

import faulthandler
import gc
import os
import threading
import time
from contextlib import closing

import structlog

from headgate.limits import GC_YOUNG_OBJECTS, MATCHER_STOP_S_MAX
from headgate.server import child, ready
from headgate.store.kafka.cache import open_cache
from headgate.store.kafka.matcher import MatcherHooks, serve_kafka

_log = structlog.get_logger(__name__)


def run(context: child.Context) -> None:
    """Matches or stands by until told to stop."""
    gc.set_threshold(GC_YOUNG_OBJECTS)  # a table of many filters is made of millions of objects that stay
    settings, stop = context.settings, threading.Event()
    starting = threading.Event()
    starting.set()

    def on_stop() -> None:
        if starting.is_set():
            os._exit(0)  # PySpark cannot be told to stop starting; the JVM ends with this process
        stop.set()
        time.sleep(MATCHER_STOP_S_MAX)
        _log.warning("Spark does not stop in time and is left; who leads next ends its runs")
        faulthandler.dump_traceback()
        os._exit(0)  # in the order of a stop, the main thread may wait for a run to begin, or to end

    child.on_stop(on_stop)
    mark = ready.Mark(settings.run_directory, context.part.name)
    mark.note("Spark starts")
    with closing(open_cache(settings.data / "control.db", stop.is_set)) as filters:
        serve_kafka(
            config=context.on_kafka,
            filters=filters,
            scratch=settings.run_directory / "spark",
            stop=stop,
            hooks=MatcherHooks(on_ready=mark.ready, on_note=mark.note, on_step=mark.beat),
            on_started=starting.clear,
            heap_mib=settings.jvm_memory_mb,
        )
