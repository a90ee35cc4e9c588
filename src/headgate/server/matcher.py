"""The process that decides who wants what: Spark and the loop that keeps one query in force."""

from __future__ import annotations

import gc
import os
import threading

from headgate.control.store import Store
from headgate.limits import GC_YOUNG_OBJECTS
from headgate.log.directory import LogDirectory
from headgate.match.runner import serve
from headgate.server import child, ready


def run(context: child.Context) -> None:
    """Matches until told to stop."""
    gc.set_threshold(GC_YOUNG_OBJECTS)  # a table of many filters is made of millions of objects that stay
    settings, stop = context.settings, threading.Event()
    starting = threading.Event()
    starting.set()

    def on_stop() -> None:
        if starting.is_set():
            # Nothing is under way yet. PySpark cannot be told to stop starting, and answers the end of its JVM, which
            # a signal to all processes brings, with tracebacks; the JVM ends with this process.
            os._exit(0)
        stop.set()

    child.on_stop(on_stop)
    mark = ready.Mark(settings.run_directory, context.part.name)
    mark.note("Spark starts")
    store = Store.open(settings.data / "control.db")
    try:
        serve(
            routing=store,
            log=LogDirectory(settings.log_directory, settings.on_corrupt),
            partitions=settings.partitions,
            dispatchers=settings.dispatchers,
            run_directory=settings.run_directory,
            token=context.token,
            stop=stop,
            on_ready=mark.ready,
            on_note=mark.note,
            on_step=mark.beat,
            on_started=starting.clear,
            heap_mib=settings.jvm_memory_mb,
        )
    finally:
        store.close()
