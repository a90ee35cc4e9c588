"""The process that admits the events of topics that other producers write, a thread for each source of `headgate.yaml`.

Any number may run, on any server: the processes of a source share its partitions.
"""

from __future__ import annotations

import threading
from contextlib import closing
from functools import partial

from headgate.backend.kafka.objects import open_cache
from headgate.backend.kafka.source import SourceGates, SourceReader
from headgate.objects.store.store import Store
from headgate.objects.views.copies import EventPolicyCopy
from headgate.observe.metrics import SOURCE_RECORDS_ADMITTED, SOURCE_RECORDS_REFUSED
from headgate.server import child, ready
from headgate.server.authorization import default_mode
from headgate.server.peers import instance
from headgate.server.peers.instance import quota_sharers
from headgate_api.errors import FatalError, InvalidInputError
from headgate_api.limits import HEARTBEAT_S


def run(context: child.Context) -> None:
    """Admits until told to stop."""
    stop = threading.Event()
    child.on_stop(stop.set)
    with closing(open_cache(context.settings.data / "control.db", stop.is_set)) as objects:
        _admit(context, objects, stop)


def _admit(context: child.Context, objects: Store, stop: threading.Event) -> None:
    report = ready.PartReport(context.settings.run_directory, context.part.name)
    name = instance.name_of(context.settings.data)

    def identity(broker: str) -> str | None:
        found = objects.served(broker)
        return found.identity if found is not None else None

    mode = default_mode(context.settings)
    policies = EventPolicyCopy(objects, mode) if mode is not None else None
    gates = SourceGates(objects, policies, quota_sharers(context))
    readers = [
        SourceReader(context.on_kafka.kafka, source, name, identity, partial(_count, source.name), gates)
        for source in context.on_kafka.sources
    ]
    failures: list[InvalidInputError] = []

    def work(one: SourceReader) -> None:
        try:
            one.run(stop)
        except InvalidInputError as error:
            failures.append(error)
        finally:
            stop.set()  # one that fails ends the process, which begins anew

    threads = [threading.Thread(target=work, args=(one,), name="source") for one in readers]
    for thread in threads:
        thread.start()
    report.ready(True)
    while not stop.wait(HEARTBEAT_S):
        report.turn("; ".join(one.problem for one in readers if one.problem))
    report.ready(False)
    for thread in threads:
        thread.join()
    if failures:
        raise FatalError(failures[0].message, hint=failures[0].hint)


def _count(source: str, admitted: int, refused: int) -> None:
    SOURCE_RECORDS_ADMITTED.labels(source).inc(admitted)
    SOURCE_RECORDS_REFUSED.labels(source).inc(refused)
