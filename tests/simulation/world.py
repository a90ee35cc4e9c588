"""A schedule: real dispatchers on real files, among subscribers that fail, in a world of virtual time that kills them.

What is real: Dispatcher with its recovery, match link, takeover, outbox, scheduler, attempts, dead letters, cursors,
and their files. There are one or two of them, each with the targets of its shard, each killed at instants of its own.
What is simulated: time, threads, disks, sockets, the matcher (which rows there are is a rule), front (a log that is
appended to) and all subscribers. The ledger notes each attempt as the subscriber's side saw it; `verdicts.py` judges.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sqlite3
from collections.abc import Iterator, Sequence
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from headgate.deadletters.store import DeadLetterState, DeadLetterStore
from headgate.delivery.cursors import CursorChange, CursorStore, Flusher
from headgate.delivery.retry import Clocks
from headgate.event.arrow import EVENT_SCHEMA, StoredEvent, to_batch
from headgate.log.directory import Partition
from headgate.log.writer import Encoded, PartitionWriter
from headgate.objects.kinds.routing import Target
from headgate.observe import metrics
from headgate.outbox.shards import Shard, dispatcher_of
from headgate.outbox.takeover import Accepted
from headgate.server.peers import inward
from headgate.server.processes import dispatcher as composition
from headgate.server.processes.shard_deliveries import SenderIdentity
from headgate.storage.files import DispatcherDirectory
from headgate_api import limits
from headgate_api.errors import UnavailableError
from headgate_api.event import rfc3339
from headgate_api.event.attributes import DELIVERY_TIME
from headgate_api.event.model import DataKind, Event
from tests.delivery.harness import BROKER, Routes, Running, target
from tests.simulation.ledger import PARTITIONS, Ledger, Life
from tests.simulation.matcher import Link, Matcher
from tests.simulation.network import Front, Subscribers
from tests.simulation.virtual import EPOCH_US, Disk, VirtualLoop, executors

MODULES = (
    "storage.threads",
    "delivery.journal",
)
"""Modules by which the dispatcher has threads."""
TARGETS_MAX = 5
QUIET_S_MAX = 900.0
"""Virtual seconds in which everything must have ended once nothing fails any more."""


@dataclass
class Process:
    """One life of a dispatcher.

    Attributes:
        number: Of the dispatcher.
        disk: As this process sees it.
        life: What the ledger says of it.
        taken: When what a flush writes was taken, by the change's identity, virtual seconds.
        context: Everything that the process does happens in it.
        running: The dispatcher.
    """

    number: int
    disk: Disk
    life: Life
    taken: dict[int, float] = field(default_factory=dict)
    context: Context = field(default_factory=copy_context)
    running: Running = field(init=False)

    @property
    def listens(self) -> bool:
        """Whether the matcher finds it."""
        return self.running.ready.is_set() and not self.disk.dead


PROCESS: ContextVar[Process] = ContextVar("process")
"""Whose code runs now."""


class World:
    """One schedule.

    Args:
        seed: Decides everything.
        folder: Empty.
        later: Some events are not to be delivered at once, and filters stay as they are.
    """

    def __init__(self, seed: int, folder: Path, *, later: bool = False) -> None:
        self.later = later
        self.rng = rng = random.Random(seed)
        self.folder = folder
        self.ledger = Ledger()
        self.loop = VirtualLoop()
        self.wall_jump_us = 0
        self._latest_us = 0
        self.healthy = False
        self.ids: dict[str, tuple[int, int]] = {}
        self.front = Disk(self.loop, rng)
        self.logs = [
            PartitionWriter(
                Partition(folder / "log" / str(n), "stop"), EVENT_SCHEMA, files=self.front, clock_us=self.now_us
            )
            for n in range(PARTITIONS)
        ]
        self.dispatchers = rng.randint(1, 2)
        self.processes: dict[int, Process] = {}
        self.takeovers = 0
        self.pending = 0
        """How often an event was stored to wait for its time."""
        self.in_force = 0
        """The generation that has come into force at every dispatcher."""
        self.changes = 0
        self.targets = {t.id: t for t in map(self._target, range(1, rng.randint(2, 4) + 1))}
        self.routes = Routes(*self.targets.values())
        self.filters: dict[int, list[tuple[int, int]]] = {number: [(0, 0)] for number in self.targets}
        """By target, each generation that changed its filter, with what the filter compares from there on."""
        self.decided: dict[tuple[int, tuple[int, int]], list[int]] = {}
        """By dispatcher and event, the generations by which it was accepted, once more after each kill that it did not
        survive on the disk: the last one stands."""
        self.moods: dict[int, tuple[float, str]] = {}
        self.poison = rng.choice([0, 0, 5, 9])
        self.numbers = iter(range(1 << 30))
        self.flying: dict[int, int] = {}
        self.patience_s = rng.choice([0.5, 5.0, 60.0])

    def _target(self, number: int) -> Target:
        rng = self.rng
        form = rng.choice(["binary", "binary", "binary", "json", "batch"])
        return target(
            number,
            f"http://subscriber/{number}",
            retry=rng.choice([0, 1, 3, 6, None]),
            backoff_policy=rng.choice(["linear", "exponential"]),
            backoff_delay_s=rng.choice([0.01, 0.1, 0.5]),
            timeout_s=rng.choice([0.5, 3.0]),
            ordered=rng.random() < 0.5,
            format=form,
            batch_size=rng.randint(2, 6),
            batch_wait_s=0.05,
            parallelism=rng.choice([1, 4, 32]),
            dead_letter_uri=rng.choice([None, f"http://sink/{number}", f"http://sink/{number}"]),
            delay_us=rng.choice([0, 0, 100_000, 3_000_000]) if self.later else 0,
        )

    def now_us(self) -> int:
        return EPOCH_US + int(self.loop.now * 1e6) + self.wall_jump_us

    def latest_us(self) -> int:
        """The latest time that the machine's clock has said so far."""
        self._latest_us = max(self._latest_us, self.now_us())
        return self._latest_us

    def change(self) -> None:
        """Filters change: one becomes another, or there is one more target."""
        if self.later:
            return
        number, generation = self.rng.randint(2, TARGETS_MAX), self.routes.generation + 1
        if number not in self.targets:
            number = len(self.targets) + 1
            self.targets[number] = self._target(number)
            self.routes.put(self.targets[number])
        self.filters.setdefault(number, []).append((generation, self.rng.randrange(number)))
        self.routes.change()

    def wants(self, number: int, key: tuple[int, int], generation: int) -> bool:
        """The filters: whether a target wants an event; replies are wanted by the first one, and all other events."""
        if number == 1 or self.ledger.accepted[key].type == "reply":
            return number == 1
        known = [remainder for since, remainder in self.filters[number] if since <= generation]
        return bool(known) and key[1] % number == known[-1]

    def decided_by(self, number: int, key: tuple[int, int]) -> list[int]:
        """The generations that decided about an event for a target; all but the last were forgotten in a kill."""
        return self.decided[dispatcher_of(number, self.dispatchers), key]

    # --- front ----------------------------------------------------------------------------------------

    def publish(self, count: int) -> None:
        """Producers' events, in one partition."""
        partition = self.rng.randrange(PARTITIONS)
        events = [
            Event(
                "1.0",
                f"e{next(self.numbers)}",
                "/sim",
                "t",
                data_kind=DataKind.JSON,
                datacontenttype="application/json",
                data=b'{"n":1}',
                extensions={"partitionkey": f"{partition}-{self.rng.randrange(3)}", **self._later()},
            )
            for _ in range(count)
        ]
        self.append(partition, events)

    def _later(self) -> dict[str, str]:
        """Some events say when they are to be delivered."""
        if not self.later or self.rng.random() < 0.7:
            return {}
        return {DELIVERY_TIME: rfc3339.text(self.now_us() + int(self.rng.uniform(-1.0, 5.0) * 1e6))}

    def append(self, partition: int, events: Sequence[Event]) -> bool:
        """Whether they are accepted."""
        try:
            batch = to_batch([StoredEvent(BROKER, event) for event in events])
            first = self.logs[partition].append(Encoded(batch, [event.type for event in events]))
        except UnavailableError:
            return False
        for offset, event in enumerate(events, start=first):
            self.ledger.accepted[partition, offset] = event
            self.ledger.in_force[partition, offset] = self.in_force
            self.ledger.stored_us[partition, offset] = self.now_us()
            self.ids[event.id] = (partition, offset)
        return True

    # --- lives ----------------------------------------------------------------------------------------

    def run(self) -> Ledger:
        """The schedule, to its end."""
        asyncio.set_event_loop(self.loop)
        before = metrics.DELIVERIES.labels("failed").value
        try:
            with contextlib.ExitStack() as stack:
                stack.enter_context(mock.patch.object(limits, "TARGET_QUEUE_MAX", self.rng.choice([8, 64, 1_024])))
                stack.enter_context(mock.patch.object(limits, "RETRY_S_DEFAULT", self.patience_s))
                stack.enter_context(mock.patch.object(limits, "CACHED_PAGES_S", self.rng.choice([1.5, 30.0])))
                stack.enter_context(_installed(self))
                self.loop.run_until_complete(self._lives())
        finally:
            for log in self.logs:
                log.close()
            self.loop.close()
            asyncio.set_event_loop(None)
        self.ledger.dropped = int(metrics.DELIVERIES.labels("failed").value - before)
        return self.ledger

    async def _lives(self) -> None:
        """Dispatchers live and are killed; then all is well, and nothing may be left."""
        killed = [asyncio.Event() for _ in range(self.dispatchers)]
        over = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for number in range(self.dispatchers):
                group.create_task(self._dispatcher(number, killed[number], over))
            matching = group.create_task(Matcher(self).run())
            await self._produce()
            for one in killed:
                await one.wait()
            self.healthy = True
            await self._until_quiet()
            over.set()
            matching.cancel()

    async def _dispatcher(self, number: int, killed: asyncio.Event, over: asyncio.Event) -> None:
        """The lives of one dispatcher: those that are killed, and the last one."""
        for _ in range(self.rng.randint(1, 4)):
            await self._live(number, None)
        killed.set()
        await self._live(number, over)

    async def _produce(self) -> None:
        """Events come in, clocks jump, front's disk is full for a while."""
        for _ in range(self.rng.randint(3, 10)):
            await asyncio.sleep(self.rng.uniform(0.0, 1.5))
            self.publish(self.rng.randint(1, 12))
            if self.rng.random() < 0.15:
                self.latest_us()
                self.wall_jump_us += self.rng.choice([-20, -5, 5, 3_600, 86_400]) * 1_000_000
            self.front.full = self.rng.random() < 0.1
        self.front.full = False

    async def _live(self, number: int, over: asyncio.Event | None) -> None:
        """One dispatcher, until it is killed; the last one, until all is over."""
        life_number, life = len(self.ledger.lives), Life(number)
        self.ledger.lives.append(life)
        process = self.processes[number] = Process(number, disk := Disk(self.loop, self.rng), life)
        process.context.run(PROCESS.set, process)
        process.running = process.context.run(
            Running,
            self.folder,
            self.routes,
            shard=Shard(number, self.dispatchers),
            transport=Subscribers(self, life_number, disk),
            identity=SenderIdentity(url="http://front"),
            drain_s=5.0 if over else 0.0,
            clocks=Clocks(self.loop.time, self.now_us, self.rng.random),
            files=disk,
        )
        work = process.running.task
        if over is not None:
            await asyncio.wait([work, asyncio.ensure_future(over.wait())], return_when=asyncio.FIRST_COMPLETED)
        else:
            trouble = asyncio.ensure_future(self._trouble(disk))
            await asyncio.wait([work], timeout=self.rng.choice([0.002, 0.05, 0.5, 2.0, 6.0]) * self.rng.random())
            trouble.cancel()
            disk.kill()
            life.killed_at = self.loop.now
        await process.running.end()

    async def _until_quiet(self) -> None:
        deadline = self.loop.now + QUIET_S_MAX
        quiet = 0
        while quiet < 3 and not self.ledger.unfinished:
            await asyncio.sleep(0.5)
            left = [one for process in self.processes.values() for one in self._left(process)]
            quiet = 0 if left else quiet + 1
            if self.loop.now > deadline:
                self.ledger.unfinished = str(left)

    def _left(self, process: Process) -> Iterator[str]:
        """What a dispatcher still has to do."""
        if not process.listens:
            yield f"dispatcher {process.number} starts"
            return
        for state in process.running.dispatcher.scheduler._states.values():
            if state.deliveries.live or state.lag is not None:
                yield f"target {state.target.id}: {len(state.deliveries.live)} in memory, lag {state.lag}"
        matches = process.running.dispatcher.matches
        for partition, log in enumerate(self.logs):
            if matches.passed(partition) < log.next_offset:
                yield f"dispatcher {process.number}: {matches.passed(partition)} of partition {partition} matched"
        with contextlib.closing(
            DeadLetterStore(DispatcherDirectory.of(self.folder, process.number).dead_letters)
        ) as store:
            if waiting := store.waiting():
                yield f"dispatcher {process.number}: {waiting} dead letters wait"
            if pending := store.reader.first_pending():
                yield f"dispatcher {process.number}: {pending} is pending"

    async def _trouble(self, disk: Disk) -> None:
        """The dispatcher's disk is slow or full for a while."""
        while True:
            await asyncio.sleep(self.rng.uniform(0.0, 2.0))
            disk.slow_s = self.rng.choice([0.0, 0.0, 0.1, 0.5])
            disk.full = self.rng.random() < 0.25
            await asyncio.sleep(self.rng.uniform(0.0, 0.8))
            disk.full = False

    # --- subscribers ----------------------------------------------------------------------------------

    def mood(self, number: int) -> str:
        """How a subscriber is for a while: well, or failing in some way."""
        until, mood = self.moods.get(number, (-1.0, ""))
        if self.loop.now >= until:
            mood = self.rng.choices(["well", "flaky", "down", "hangs", "refuses", "slow"], [6, 4, 1, 1, 1, 1])[0]
            self.moods[number] = (self.loop.now + self.rng.expovariate(0.5), mood)
        return mood


@contextlib.contextmanager
def _installed(world: World) -> Iterator[None]:
    """The world in the places of threads, sockets and files."""
    take, flush, apply = Flusher._flush, CursorStore.flush, DeadLetterStore.apply
    accept = composition.MatchReceiver.take

    def flushed(store: CursorStore, change: CursorChange) -> None:
        process = PROCESS.get()
        if process.disk.dead:
            return
        if process.disk.full:
            raise sqlite3.OperationalError("database or disk is full")
        flush(store, change)
        process.life.flushed_at = max(process.life.flushed_at, process.taken.get(id(change), -1.0))

    def taking(flusher: Flusher) -> None:
        at = world.loop.now
        take(flusher)
        PROCESS.get().taken[id(flusher._unwritten)] = at

    def applied(store: DeadLetterStore, new: Any, gone: Any, changed: Any) -> int:
        disk = PROCESS.get().disk
        if disk.dead:
            return 0
        if disk.full:
            raise sqlite3.OperationalError("database or disk is full")
        count = apply(store, new, gone, changed)
        for letter in new[:count]:
            if letter.state is not DeadLetterState.PENDING:
                world.ledger.buried.setdefault((letter.target, letter.event.id), []).append(world.loop.now)
            else:
                world.pending += 1
        return count

    def accepting(matches: composition.MatchReceiver, accepted: Accepted) -> None:
        number, partition = PROCESS.get().number, accepted.partition
        for offset in range(matches.passed(partition), accepted.passed):
            world.decided.setdefault((number, (partition, offset)), []).append(accepted.generation)
        accept(matches, accepted)

    with contextlib.ExitStack() as stack:
        replace = lambda *names: stack.enter_context(mock.patch.object(*names))  # noqa: E731
        executor = executors(lambda: PROCESS.get().disk)
        for name in MODULES:
            stack.enter_context(mock.patch(f"headgate.{name}.ThreadPoolExecutor", executor))
        replace(inward, "HttpTransport", lambda: Front(world, PROCESS.get().disk))
        replace(composition, "MatchLinkServer", Link)
        replace(composition.MatchReceiver, "take", accepting)
        replace(CursorStore, "flush", flushed)
        replace(Flusher, "_flush", taking)
        replace(DeadLetterStore, "apply", applied)
        yield
