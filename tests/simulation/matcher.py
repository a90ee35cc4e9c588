"""The matcher of a schedule: runs that send rows and progress over the match link to every dispatcher.

A row goes to the dispatcher that owns its target, now and then to the others, too, who must leave it. As in Spark a
run dies as a whole when one of its connections closes. Then the next one starts where the dispatcher that is furthest
behind needs it. Now and then a newer run starts at the end of the log beside the old one, which stops when the newer
one counts at every dispatcher. Filters change now and then, too: each partition of a run goes on to their generation at
an instant of its own, differently at each dispatcher.

Nothing changes while something changes, as in `match/generations.py`. While a newer run starts, the older one goes on
to no newer filters: `Matcher._is_busy` waits, and `SparkRunner.change` refuses all but the run that was started last.
Else filters could be in force by the older run, and the newer one would take over with those of before. For the same
reason no newer run is started before the one in force has come to what it goes on to. `tests/match/test_matcher.py`
holds the real one to both.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from headgate.filter.compile.plan import Verdict
from headgate.outbox.link import MatchLinkServer, _LinkConnection
from headgate.outbox.link_format import DRIVER_PARTITION, HELLO_ACCEPTED, Hello, encode_hello
from headgate.outbox.shards import dispatcher_of
from tests.delivery.harness import TOKEN
from tests.outbox.frames import encode_generation, encode_passed, encode_row
from tests.simulation.ledger import PARTITIONS

if TYPE_CHECKING:
    from tests.simulation.world import Process, World

STRAY_SHARE = 0.1
"""How many rows go to a dispatcher, too, that does not own their target."""
NEWER_SHARE = 0.05
"""How often a newer run is started beside one that counts, each time that the matcher looks."""
CHANGE_SHARE = 0.1
"""How often filters change, each time that the matcher looks."""
EVENTS_MAX = 8
"""Events that a run sends at once."""


class Link(MatchLinkServer):
    """The dispatcher's side of the match link, without a socket."""

    async def start(self, run_directory: Path) -> int:
        """Nobody can come by a port: see `Connection`."""
        return 0


class _Transport(asyncio.Transport):
    """The bytes between two sides that live on one loop."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._protocol = protocol
        self.closed = False
        self.paused = False
        self.said = b""

    def write(self, data: Any) -> None:
        self.said += bytes(data)

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def abort(self) -> None:
        if not self.closed:
            self.closed = True
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)


class Connection:
    """The matcher's end of one connection to a dispatcher.

    Args:
        process: Of the dispatcher; it listens.
        hello: What the connection says first; it is accepted.
    """

    def __init__(self, process: Process, hello: Hello) -> None:
        self._process = process
        self._protocol = _LinkConnection(process.running.dispatcher._link)
        self._transport = _Transport(self._protocol)
        process.context.run(self._protocol.connection_made, self._transport)
        self.send(encode_hello(hello, TOKEN))

    @property
    def alive(self) -> bool:
        """Whether both sides are there."""
        return not (self._transport.closed or self._process.disk.dead)

    @property
    def paused(self) -> bool:
        """Whether the dispatcher does not read now."""
        return self._transport.paused

    def send(self, data: bytes) -> None:
        """The dispatcher's side gets these bytes now, if it is there."""
        if self.alive:
            self._process.context.run(self._protocol.data_received, data)

    def close(self) -> None:
        """As the system does when the process ends."""
        if self.alive:
            self._process.context.run(self._transport.abort)

    def lines(self) -> list[dict[str, Any]]:
        """The JSON lines since the last call."""
        said, self._transport.said = self._transport.said.removeprefix(HELLO_ACCEPTED), b""
        return [json.loads(line) for line in said.splitlines()]


class Run:
    """One query of the matcher: a connection for each partition to each dispatcher.

    Args:
        world: Its schedule.
        number: Above those of all runs before.
        start: The first offset, by partition.
    """

    def __init__(self, world: World, number: int, start: dict[int, int]) -> None:
        self.number = number
        self.goes_on_to = world.routes.generation
        self.counts_at: dict[int, int] = {}
        """By dispatcher, the generation that all partitions have come to there."""
        self._world = world
        self._at: dict[tuple[int, int], int] = {}
        self._generations: dict[tuple[int, int], int] = {}
        self._connections: dict[tuple[int, int], Connection] = {}
        for dispatcher, process in world.processes.items():
            for partition in range(PARTITIONS):
                first = self._at[dispatcher, partition] = start.get(partition, 0)
                said = self._generations[dispatcher, partition] = self.goes_on_to
                hello = Hello(number, said, partition, PARTITIONS, first, dispatcher, world.dispatchers)
                self._connections[dispatcher, partition] = Connection(process, hello)

    @property
    def alive(self) -> bool:
        """Whether every connection is."""
        return all(connection.alive for connection in self._connections.values())

    @property
    def in_force(self) -> int:
        """The generation that counts at every dispatcher; 0 while there is none."""
        return min(self.counts_at.values()) if len(self.counts_at) == self._world.dispatchers else 0

    def step(self) -> None:
        """Sends some events more to each dispatcher, which need not be equally far."""
        for (dispatcher, partition), connection in self._connections.items():
            at = self._at[dispatcher, partition]
            end = min(self._world.logs[partition].next_offset, at + self._world.rng.randint(0, EVENTS_MAX))
            if not connection.paused:
                rows = [row for offset in range(at, end) for row in self._rows(dispatcher, partition, offset)]
                connection.send(b"".join([*rows, encode_passed(end)]))
                self._at[dispatcher, partition] = end
            newest = self.goes_on_to
            if newest > self._generations[dispatcher, partition] and self._world.rng.random() < 0.5:
                connection.send(encode_passed(self._at[dispatcher, partition]) + encode_generation(newest))
                self._generations[dispatcher, partition] = newest

    def stop(self) -> None:
        """The query ends, and with it every connection."""
        for connection in self._connections.values():
            connection.close()

    def _rows(self, dispatcher: int, partition: int, offset: int) -> list[bytes]:
        world, verdict = self._world, Verdict.CANDIDATE if offset % 5 == 0 else Verdict.MATCH
        return [
            encode_row(verdict, target, offset)
            for target in sorted(world.targets)
            if world.wants(target, (partition, offset), self._generations[dispatcher, partition])
            and (dispatcher_of(target, world.dispatchers) == dispatcher or world.rng.random() < STRAY_SHARE)
        ]


class Matcher:
    """Keeps a run alive for as long as it is not cancelled, as `match/generations.py` does.

    Args:
        world: Its schedule.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._drivers: dict[int, Connection] = {}
        self._runs: list[Run] = []
        self._number = 0

    async def run(self) -> None:
        """Looks at everything again and again."""
        world = self._world
        while True:
            await asyncio.sleep(world.rng.uniform(0.001, 0.1))
            if self._connected():
                self._receive()
                self._start_if_due()
            for run in self._runs:
                run.step()

    def _connected(self) -> bool:
        """Whether there is a driver's connection to every dispatcher; without one no run lives."""
        world = self._world
        if self._drivers and all(driver.alive for driver in self._drivers.values()):
            return True
        for run in self._runs:
            run.stop()
        for driver in self._drivers.values():
            driver.close()
        self._runs, self._drivers = [], {}
        processes = [world.processes[number] for number in range(world.dispatchers) if number in world.processes]
        if len(processes) < world.dispatchers or not all(process.listens for process in processes):
            return False
        for process in processes:
            hello = Hello(0, 0, DRIVER_PARTITION, PARTITIONS, 0, process.number, world.dispatchers)
            self._drivers[process.number] = Connection(process, hello)
        return True

    def _receive(self) -> None:
        """What the dispatchers say of the runs."""
        world = self._world
        for dispatcher, driver in self._drivers.items():
            for line in driver.lines():
                run = next((run for run in self._runs if run.number == line.get("run")), None)
                if run is not None and line["op"] == "active":
                    assert run.counts_at.get(dispatcher, 0) < line["generation"]
                    run.counts_at[dispatcher] = line["generation"]
                    if run.in_force > world.in_force:
                        world.in_force = run.in_force
                        world.changes += 1
                elif run is not None:
                    self._end(run)
        for run in [run for run in self._runs if not run.alive]:
            self._end(run)
        if len(self._runs) == 2 and self._runs[1].in_force:
            self._end(self._runs[0])
            self._world.takeovers += 1

    def _start_if_due(self) -> None:
        world = self._world
        if world.rng.random() < CHANGE_SHARE:
            world.change()
        if not self._runs:
            self._start(self._resume())
        elif len(self._runs) == 1 and (run := self._runs[0]).in_force == run.goes_on_to:
            if world.rng.random() < NEWER_SHARE:
                self._start({partition: log.next_offset for partition, log in enumerate(world.logs)})
            else:
                run.goes_on_to = world.routes.generation

    def _start(self, start: dict[int, int]) -> None:
        self._number += 1
        self._runs.append(Run(self._world, self._number, start))
        for driver in self._drivers.values():
            driver.send(json.dumps({"op": "started", "run": self._number, "generation": 0}).encode() + b"\n")

    def _resume(self) -> dict[int, int]:
        """The lowest offset that any dispatcher needs, by partition."""
        lowest: dict[int, int] = {}
        for driver in self._drivers.values():
            driver.send(b'{"op":"resume"}\n')
            (answer,) = (line for line in driver.lines() if line["op"] == "resume")
            for partition, offset in cast(dict[str, int], answer["offsets"]).items():
                lowest[int(partition)] = min(offset, lowest.get(int(partition), offset))
        return lowest

    def _end(self, run: Run) -> None:
        run.stop()
        self._runs.remove(run)
