"""How long until filters are in force? Many admitted one after the other, and one more beside very many.

    python -m benchmarks.admission [--admit 10000] [--together 50000] [--apply 100000] [--among 100000] [--json]

The rooms themselves in one process, without HTTP. *Checking* is what the admission webhook does with a trigger: decode,
validate, compile a filter that no other trigger has. *Admitting* is what the API does: the same, and store it durably;
one after the other (a commit each), from eight threads (which share commits), and many together as the requests of
`headgate apply` have them, by one process that does everything and with two that compile. *Applying* is `headgate apply
-f` with a folder of manifests, from its start to its end, at a real server that matches beside it; the processor time
is that of each process. *Taking effect* is what the matcher does then: table, plan and a query of all filters, and a
change to which that query goes on; each time the newest filter must match an event.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import structlog
import yaml
from rich.table import Table

from benchmarks.idle import Reading
from benchmarks.match_latency import DELIVERY, Sink
from benchmarks.plans import Plans
from benchmarks.tables import print_whole
from headgate.event.arrow import EVENT_SCHEMA, StoredEvent, to_batch
from headgate.filter.compile.compiler import compile_cel
from headgate.log.directory import LogDirectory, Partition
from headgate.log.writer import Encoded, PartitionWriter
from headgate.match.requirements import connector_jar
from headgate.match.session import start_session, task_slots
from headgate.match.spark_runner import SparkRunner
from headgate.objects.api.admission import Admission, TriedFilters
from headgate.objects.api.grants import Grants
from headgate.objects.api.together import TogetherApi
from headgate.objects.api.validator_processes import ValidatorProcesses
from headgate.objects.kinds.egress import UrlPolicy
from headgate.objects.kinds.managers import WriteOptions
from headgate.objects.kinds.routing import RoutingStep, RoutingTable, Target
from headgate.objects.store.store import Store
from headgate.testing.server import Server, parts_of
from headgate_api.errors import HeadgateError
from headgate_api.event.model import DataKind, Event
from headgate_api.limits import APPLIES_AT_ONCE_MAX, APPLY_OBJECTS_MAX, GC_YOUNG_OBJECTS
from headgate_api.objects.kinds import Kind

TRIGGERS_A_FILE = 10_000
BROKER = "default/default/6c5b2f7e-3d0c-4a55-9d8e-2f1a7c9b0e4d"


@dataclass(frozen=True)
class Result:
    """Seconds by the clock, and of this process's processor time.

    Attributes:
        what: What was done.
        filters: How many filters there were.
    """

    what: str
    filters: int
    clock_s: float
    cpu_s: float


class Watch:
    """Both clocks."""

    def __init__(self) -> None:
        self._clock, self._cpu = time.perf_counter(), time.process_time()

    def result(self, what: str, filters: int) -> Result:
        clock_s, cpu_s = time.perf_counter() - self._clock, time.process_time() - self._cpu
        return Result(what, filters, round(clock_s, 4), round(cpu_s, 4))


def text(number: int) -> str:
    """A filter that no other number has."""
    return f'ce.type == "com.example.t{number}" && data.amount > 7 && data.region in ["eu-{number}", "us"]'


def trigger(number: int) -> dict[str, object]:
    return {
        "apiVersion": "eventing.knative.dev/v1",
        "kind": "Trigger",
        "metadata": {"name": f"t{number}", "namespace": "default"},
        "spec": {
            "broker": "default",
            "filter": {"cel": text(number)},
            "subscriber": {"uri": "http://localhost:8099/"},
        },
    }


def check(scratch: Path, count: int) -> Result:
    store = Store.open(scratch / "control-none.db")
    admission = Admission(store)
    compile_cel.cache_clear()
    watch = Watch()
    for number in range(count):
        admission.review(Kind.TRIGGER, trigger(number), None)
    result = watch.result("checked by 1 thread", count)
    store.close()
    return result


def admit(scratch: Path, count: int, threads: int) -> Result:
    store = Store.open(scratch / f"control-{threads}.db")
    admission = Admission(store)
    compile_cel.cache_clear()
    watch = Watch()
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(lambda number: admission.create(Kind.TRIGGER, trigger(number)), range(count)):
            pass
    result = watch.result(f"admitted by {threads} thread{'s' * (threads > 1)}", count)
    table = store.snapshot()
    if len(table.targets) != count:
        raise SystemExit(f"wrong: {len(table.targets)} of {count} filters are routed")
    store.close()
    return result


def admit_together(scratch: Path, count: int, processes: int) -> Result:
    store = Store.open(scratch / f"control-by-{processes}.db")
    admission, grants = Admission(store), Grants(store, UrlPolicy())
    validators = ValidatorProcesses(admission.validator, processes)
    together = TogetherApi(admission, grants, TriedFilters(store, grants.authorizer), validators)
    compile_cel.cache_clear()

    def one_request(first: int) -> None:
        documents = [trigger(number) for number in range(first, min(first + APPLY_OBJECTS_MAX, count))]
        for one in together.apply(Kind.TRIGGER, documents, WriteOptions(), namespace="default"):
            if isinstance(one, HeadgateError):
                raise one

    watch = Watch()
    with ThreadPoolExecutor(APPLIES_AT_ONCE_MAX) as pool:
        for _ in pool.map(one_request, range(0, count, APPLY_OBJECTS_MAX)):
            pass
    by = f"{processes} processes compile" if processes > 1 else "1 process compiles"
    result = watch.result(f"admitted {APPLY_OBJECTS_MAX} together, {by}", count)
    if len(store.snapshot().targets) != count:
        raise SystemExit(f"wrong: not all of {count} filters are routed")
    together.close()
    store.close()
    return result


def apply(scratch: Path, count: int) -> Iterator[Result]:
    """One `headgate apply -f` of a folder; a row for the command and for each process that takes part."""
    folder = scratch / "manifests"
    folder.mkdir()
    for first in range(0, count, TRIGGERS_A_FILE):
        several = range(first, min(first + TRIGGERS_A_FILE, count))
        text = "".join(f"---\n{yaml.dump(trigger(number), Dumper=yaml.CSafeDumper)}" for number in several)
        (folder / f"{first:08}.yaml").write_text(text)
    with Server(scratch / "server", log=scratch / "server.log") as server:
        parts = {name: pid for name, pid in parts_of(server.pid).items() if name.startswith(("control", "front"))}
        before = {name: Reading.of(pid).processor_s for name, pid in parts.items()}
        began, children = time.perf_counter(), os.times()
        command = [Path(sys.executable).with_name("headgate"), "apply", "-f", str(folder), "--server", server.url]
        made = subprocess.run(command, capture_output=True, check=True, text=True).stdout.count(" created\n")
        clock_s, ended = time.perf_counter() - began, os.times()
        used = {name: Reading.of(pid).processor_s - before[name] for name, pid in parts.items()}
        if made != count:
            raise SystemExit(f"wrong: {made} of {count} triggers were created")
    used["command"] = ended.children_user + ended.children_system - children.children_user - children.children_system
    for name, cpu_s in used.items():
        yield Result(f"by one apply: {name}", count, round(clock_s, 2), round(cpu_s, 2))


def target(plans: Plans, number: int) -> Target:
    return Target(number, f"default/t{number}", BROKER, plans.of(number), "http://localhost/", DELIVERY)


def take_effect(scratch: Path, count: int) -> Iterator[Result]:
    """The first table of all filters, then one filter more at a time, then a hundred more."""
    spark = start_session(jar=connector_jar(), threads=task_slots(1), scratch=scratch / "spark", heap_mib=4_096)
    with PartitionWriter(Partition(scratch / "log" / "0", "stop"), EVENT_SCHEMA) as writer:
        runner = SparkRunner(spark, LogDirectory(scratch / "log", "stop"), 1, scratch / "runs")
        plans, sink = Plans(text), Sink()
        targets = {number: target(plans, number) for number in range(count)}
        table = RoutingTable(1, 1, {}, dict(targets))
        run = None
        for what, more in (("in force, from nothing", 0), *[("one more in force", 1)] * 5, ("100 more", 100)):
            new = {len(targets) + number: target(plans, len(targets) + number) for number in range(more)}
            targets |= new
            watch = Watch()
            if run is None:
                run = runner.start(table, 1, {0: writer.next_offset}, sink.address)
            else:
                step = RoutingStep(table.version, frozenset(new))
                table = RoutingTable(table.generation + 1, table.version + 1, {}, dict(targets), steps=(step,))
                if not runner.change(1, table):
                    raise SystemExit("wrong: the query does not go on to these filters")
                sink.wait_in_force(table.generation)
            data = json.dumps({"amount": 8, "region": "us"}).encode()
            kind = f"com.example.t{len(targets) - 1}"
            event = Event("1.0", "1", "/bench", kind, data_kind=DataKind.JSON, data=data)
            offset = writer.next_offset
            writer.append(Encoded(to_batch([StoredEvent(BROKER, event)]), [event.type]))
            sink.wait_for(offset)
            yield watch.result(what, len(targets))
        assert run is not None
        run.stop()
    spark.stop()


def results(arguments: argparse.Namespace, scratch: Path) -> Iterator[Result]:
    if arguments.admit:
        gc.freeze()
        gc.set_threshold(GC_YOUNG_OBJECTS)  # as the process does that admits
        yield check(scratch, arguments.admit)
        yield admit(scratch, arguments.admit, 1)
        yield admit(scratch, arguments.admit, 8)
    for processes in (1, 2) if arguments.together else ():
        yield admit_together(scratch, arguments.together, processes)
    if arguments.apply:
        yield from apply(scratch, arguments.apply)
    if arguments.among:
        yield from take_effect(scratch, arguments.among)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--admit", type=int, default=10_000)
    parser.add_argument("--together", type=int, default=50_000)
    parser.add_argument("--apply", type=int, default=100_000)
    parser.add_argument("--among", type=int, default=100_000)
    parser.add_argument("--json", action="store_true", help="print JSON lines")
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with tempfile.TemporaryDirectory(prefix="headgate-admission-") as temporary:
        found = []
        for one in results(arguments, Path(temporary)):
            found.append(one)
            if arguments.json:
                print(json.dumps(asdict(one)), flush=True)
    if arguments.json:
        return
    table = Table(title="until filters are in force")
    for heading in ("what", "filters", "s", "cpu s (Python)"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    for one in found:
        table.add_row(one.what, f"{one.filters:,}", f"{one.clock_s:.2f}", f"{one.cpu_s:.2f}")
    print_whole(table)


if __name__ == "__main__":
    main()
