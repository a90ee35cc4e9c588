"""The process that decides who wants what: Spark and the loop that keeps one query in force."""

from __future__ import annotations

import threading

from headgate.control.store import Store
from headgate.match.runner import serve
from headgate.server import child, ready


def run(context: child.Context) -> None:
    """Matches until told to stop."""
    settings, stop = context.settings, threading.Event()
    child.on_stop(stop.set)
    mark = ready.Mark(settings.run_directory, "matcher")
    mark.note("Spark starts")
    store = Store.open(settings.data / "control.db")
    try:
        serve(
            routing=store,
            log=settings.log_directory,
            partitions=settings.partitions,
            run_directory=settings.run_directory,
            token=context.token,
            stop=stop,
            on_ready=mark.ready,
            on_note=mark.note,
            on_step=mark.beat,
            heap_mib=settings.jvm_memory_mb,
        )
    finally:
        store.close()
