"""A matcher without Spark, for servers of tests that prove something else: no JVM, ready in a second.

cel-cpp evaluates every filter of an event's broker. That is exact, and its cost grows with the number of filters, which
is what Spark's plan is there to avoid. See `Server(spark=...)`.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import partial
from typing import Final

from headgate.event.arrow import from_batch_all
from headgate.filter.cel.evaluate import EventView, OutcomeKind, Program, program
from headgate.filter.compile.plan import Verdict
from headgate.log.directory import LogDirectory
from headgate.log.reader import PartitionReader, end_offsets
from headgate.match.driver_link import DriverLinks, LinkAddress
from headgate.match.errors import DriverLinkError
from headgate.match.generations import Matcher, fresh_run_number
from headgate.objects.kinds.routing import RoutingTable
from headgate.objects.store.store import Store
from headgate.outbox.link_format import HELLO_ACCEPTED, Hello, encode_hello
from headgate.outbox.shards import dispatcher_of
from headgate.server import child, ready
from headgate_api.errors import HeadgateError
from tests.outbox.frames import encode_generation, encode_passed, encode_row

POLL_S: Final = 0.01
IDLE_POLL_S: Final = 0.04
"""Where nothing has come for a while: many servers of a test run do nothing most of the time."""
_IDLE_STEPS: Final = 50
PASSED_S: Final = 1.0
"""How often a partition without new events says where it is, as docs/spec/match-link.md asks."""
VERDICTS: Final = {OutcomeKind.TRUE: Verdict.MATCH, OutcomeKind.ERROR: Verdict.ERROR}

Wanted = Mapping[str, list[tuple[int, int, Program]]]
"""By broker: who owns each target, its number and its filter."""


class PlainRun:
    """Reads the partitions along in a thread, from `start` on, and tells the dispatchers who wants what."""

    def __init__(
        self, log: LogDirectory, table: RoutingTable, number: int, start: Mapping[int, int], link: LinkAddress
    ) -> None:
        self.number = number
        self.generation = table.generation
        self.newer: RoutingTable | None = None
        """Filters to go on to, as soon as the thread has seen them."""
        self._link = link
        self._table = table
        self._log = log
        self._start = start
        self._reason = ""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"run-{number}", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def failure(self) -> str:
        return self._reason

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            with contextlib.ExitStack() as opened:
                followed = [
                    _Followed(
                        opened.enter_context(PartitionReader(self._log.partition(partition), offset)),
                        [opened.enter_context(one) for one in self._connections(partition)],
                    )
                    for partition, offset in self._start.items()
                ]
                wanted, then, idle = self._wanted(self._table), None, 0
                while not self._stopped.wait(POLL_S if idle < _IDLE_STEPS else IDLE_POLL_S):
                    if (newer := self.newer) is not None:
                        self.newer = None
                        wanted, then = self._wanted(newer), newer.generation
                    came = [one.step(wanted, then) for one in followed]
                    then = None
                    idle = 0 if any(came) else idle + 1
        except (HeadgateError, OSError) as error:  # as a task of Spark that fails: the matcher begins anew
            self._reason = str(error)

    def _wanted(self, table: RoutingTable) -> Wanted:
        wanted = defaultdict[str, list[tuple[int, int, Program]]](list)
        for target in table.targets.values():
            owner = dispatcher_of(target.id, len(self._link.endpoints))
            wanted[target.broker].append((owner, target.id, program(target.filter.cel)))
        return wanted

    def _connections(self, partition: int) -> Iterator[socket.socket]:
        """One to each dispatcher, by their numbers."""
        count = len(self._link.endpoints)
        for number, endpoint in enumerate(self._link.endpoints):
            start = self._start[partition]
            hello = Hello(self.number, self.generation, partition, len(self._start), start, number, count)
            connection = socket.create_connection((endpoint.host, endpoint.port))
            yield connection  # whoever takes it closes it, also where the dispatcher refuses what comes next
            connection.sendall(encode_hello(hello, self._link.token))
            if connection.recv(1) != HELLO_ACCEPTED:
                raise DriverLinkError(f"dispatcher {number} refused partition {partition}")


class _Followed:
    """One partition and its connections, by the dispatcher's number."""

    def __init__(self, reader: PartitionReader, ends: list[socket.socket]) -> None:
        self._reader = reader
        self._ends = ends
        self._said_at = 0.0

    def step(self, wanted: Wanted, then: int | None) -> bool:
        """Sends the rows of what has come since, or says now and then that nothing has; whether something has.

        `then`: the generation of `wanted`, which was another one before.
        """
        now = time.monotonic()
        if then is not None:
            for end in self._ends:
                end.sendall(encode_passed(self._reader.position) + encode_generation(then))
        if (chunk := self._reader.read()) is None and now - self._said_at < PASSED_S:
            return False
        has_come = chunk is not None
        frames = [bytearray() for _ in self._ends]
        while chunk is not None:
            for offset, stored in enumerate(from_batch_all(chunk.batch), chunk.first_offset):
                view = EventView(stored.event, chunk.append_time_us)
                for dispatcher, target, filter_ in wanted.get(stored.broker, ()):
                    if (verdict := VERDICTS.get(filter_.evaluate_view(view).kind)) is not None:
                        frames[dispatcher] += encode_row(verdict, target, offset)
            chunk = self._reader.read()
        for end, rows in zip(self._ends, frames, strict=True):
            end.sendall(rows + encode_passed(self._reader.position))
        self._said_at = now
        return has_come


class PlainRunner:
    """Starts runs."""

    def __init__(self, log: LogDirectory, partitions: int) -> None:
        self._log = log
        self._partitions = range(partitions)
        self._run: PlainRun | None = None

    def ends(self) -> dict[int, int]:
        return end_offsets(self._log, self._partitions)

    def start(self, table: RoutingTable, number: int, start: Mapping[int, int], link: LinkAddress) -> PlainRun:
        """Starts a run; a partition that `start` does not name starts at 0."""
        offsets = {partition: start.get(partition, 0) for partition in self._partitions}
        self._run = PlainRun(self._log, table, number, offsets, link)
        return self._run

    def change(self, number: int, table: RoutingTable) -> bool:
        """Has the last run go on to other filters."""
        if self._run is None or self._run.number != number:
            return False
        self._run.newer = table
        return True


def run(context: child.Context) -> None:
    """Matches until told to stop, in place of `headgate.server.processes.matcher`."""
    settings, stop = context.settings, threading.Event()
    child.on_stop(stop.set)
    report = ready.PartReport(settings.run_directory, context.part.name)
    with closing(Store.open(settings.data / "control.db")) as store, closing(store.commits()) as commits:
        matcher = Matcher(
            store,
            PlainRunner(LogDirectory(settings.log_directory, settings.on_corrupt), settings.partitions),
            partial(DriverLinks.published, settings.run_directory, context.token, settings.dispatchers, commits),
            on_active=store.counters.activate,
            on_ready=report.ready,
            on_note=report.note,
            on_step=report.beat,
            first_run=fresh_run_number(),
        )
        matcher.run(stop)
