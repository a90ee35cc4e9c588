"""The process that decides who wants what: Spark and the loop that keeps one query in force."""

from __future__ import annotations

from contextlib import closing

from headgate.control.store import Store
from headgate.log.directory import LogDirectory
from headgate.match.runner import serve
from headgate.server import child, ready
from headgate.server.matcher_stop import MatcherStop


def run(context: child.Context) -> None:
    """Matches until told to stop."""
    child.spare_collector()  # a table of many filters is made of millions of objects that stay
    settings, stop = context.settings, MatcherStop()
    mark = ready.Mark(settings.run_directory, context.part.name)
    mark.note("Spark starts")
    with closing(Store.open(settings.data / "control.db")) as store:
        serve(
            routing=store,
            log=LogDirectory(settings.log_directory, settings.on_corrupt),
            partitions=settings.partitions,
            dispatchers=settings.dispatchers,
            run_directory=settings.run_directory,
            token=context.token,
            stop=stop.asked,
            on_ready=mark.ready,
            on_note=mark.note,
            on_step=mark.beat,
            on_started=stop.started,
            heap_mib=settings.jvm_memory_mb,
        )
