"""A schedule: a real dispatcher on real files, among subscribers that fail, in a world of virtual time that kills it.

What is real: Dispatcher with its recovery, outbox, scheduler, attempts, dead letters, cursors, and their files. What is
simulated: time, threads, disks, the matcher (which rows there are is a rule), front (a log that is appended to) and all
subscribers. The ledger notes each attempt as the subscriber's side saw it; `verdicts.py` judges it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from headgate import limits
from headgate.control.routing import Target
from headgate.deadletters.store import DeadLetterStore
from headgate.delivery.clock import Clocks
from headgate.delivery.cursors import CursorChange, CursorStore, Flusher
from headgate.delivery.retry import Answer, Outcome
from headgate.errors import UnavailableError
from headgate.event.arrow import EVENT_SCHEMA, StoredEvent, to_batch
from headgate.event.model import DataKind, Event
from headgate.filter.compile.plan import Verdict
from headgate.log.writer import Encoded, PartitionWriter
from headgate.observe import metrics
from headgate.outbox.takeover import Accepted
from headgate.server import composition as dispatcher_module
from tests.delivery.harness import BROKER, Routes, Running, target
from tests.simulation.virtual import EPOCH_US, Disk, VirtualLoop, executors

PARTITIONS = 2
MODULES = (
    "outbox.writer",
    "outbox.reader",
    "delivery.cursors",
    "delivery.events",
    "delivery.journal",
    "deadletters.sender",
)
"""Modules of the dispatcher that have threads."""
QUIET_S_MAX = 900.0
"""Virtual seconds in which everything must have ended once nothing fails any more."""


@dataclass
class Attempt:
    """One event in one POST.

    Attributes:
        life: Of the dispatcher that made it.
        target: Of the trigger.
        key: (partition, offset) of the event.
        started_at: Virtual seconds.
        ended_at: When the dispatcher heard; None when it never did.
        outcome: What it heard.
        stored: Whether the reply in the answer was stored; None when there was none.
        members: How many events the POST had.
    """

    life: int
    target: int
    key: tuple[int, int]
    started_at: float
    ended_at: float | None = None
    outcome: Outcome | None = None
    stored: bool | None = None
    members: int = 1


@dataclass
class Life:
    """One dispatcher, from its start to its end.

    Attributes:
        flushed_at: When what the last successful flush holds was taken, virtual seconds.
        killed_at: Virtual seconds; None when it ended by itself.
    """

    flushed_at: float = -1.0
    killed_at: float | None = None


@dataclass
class Ledger:
    """What happened."""

    accepted: dict[tuple[int, int], Event] = field(default_factory=dict)
    attempts: list[Attempt] = field(default_factory=list)
    lives: list[Life] = field(default_factory=list)
    buried: dict[tuple[int, str], list[float]] = field(default_factory=dict)  # when each time, virtual seconds
    at_sink: set[tuple[int, str]] = field(default_factory=set)
    replies: list[str] = field(default_factory=list)
    dropped: int = 0
    parallel_max: dict[int, int] = field(default_factory=dict)
    unfinished: str = ""


class World:
    """One schedule.

    Args:
        seed: Decides everything.
        folder: Empty.
    """

    def __init__(self, seed: int, folder: Path) -> None:
        self.rng = rng = random.Random(seed)
        self.folder = folder
        self.ledger = Ledger()
        self.loop = VirtualLoop()
        self.wall_jump_us = 0
        self.healthy = False
        self.ids: dict[str, tuple[int, int]] = {}
        self.front = Disk(self.loop, rng)
        self.logs = [
            PartitionWriter(folder / "log" / str(n), EVENT_SCHEMA, files=self.front) for n in range(PARTITIONS)
        ]
        self.targets = {t.id: t for t in map(self._target, range(1, rng.randint(2, 4) + 1))}
        self.routes = Routes(*self.targets.values())
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
        )

    def now_us(self) -> int:
        return EPOCH_US + int(self.loop.now * 1e6) + self.wall_jump_us

    def wants(self, number: int, key: tuple[int, int]) -> bool:
        """The filters: whether a target wants an event; replies are wanted by the first one."""
        if self.ledger.accepted[key].type == "reply":
            return number == 1
        return key[1] % number == 0 or number == 1

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
                extensions={"partitionkey": f"{partition}-{self.rng.randrange(3)}"},
            )
            for _ in range(count)
        ]
        self.append(partition, events)

    def append(self, partition: int, events: Sequence[Event]) -> bool:
        """Whether they are accepted."""
        try:
            batch = to_batch([StoredEvent(BROKER, event) for event in events])
            first = self.logs[partition].append(Encoded(batch, [event.type for event in events]))
        except UnavailableError:
            return False
        for offset, event in enumerate(events, start=first):
            self.ledger.accepted[partition, offset] = event
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
                self.loop.run_until_complete(self._lives())
        finally:
            for log in self.logs:
                log.close()
            self.loop.close()
            asyncio.set_event_loop(None)
        self.ledger.dropped = int(metrics.DELIVERIES.labels("failed").value - before)
        return self.ledger

    async def _lives(self) -> None:
        faults = asyncio.ensure_future(self._produce())
        for number in range(self.rng.randint(1, 4)):
            await self._live(number, last=False)
        await faults
        self.healthy = True
        self.front.full = False
        await self._live(len(self.ledger.lives), last=True)

    async def _produce(self) -> None:
        """Events come in, clocks jump, front's disk is full for a while."""
        for _ in range(self.rng.randint(3, 10)):
            await asyncio.sleep(self.rng.uniform(0.0, 1.5))
            self.publish(self.rng.randint(1, 12))
            if self.rng.random() < 0.15:
                self.wall_jump_us += self.rng.choice([-20, -5, 5, 3_600, 86_400]) * 1_000_000
            self.front.full = self.rng.random() < 0.1
        self.front.full = False

    async def _live(self, number: int, *, last: bool) -> None:
        """One dispatcher, until it is killed, or, the last one, until nothing is left."""
        life = Life()
        self.ledger.lives.append(life)
        disk = Disk(self.loop, self.rng)
        with _installed(self, disk, life):
            running = Running(
                self.folder,
                self.routes,
                transport=_Subscribers(self, number, disk),
                ingress_url="http://front",
                drain_s=5.0 if last else 0.0,
                clocks=Clocks(self.loop.time, self.now_us, self.rng.random),
                files=disk,
            )
            work = running.task
            matching = asyncio.ensure_future(self._match(running))
            if last:
                await self._until_quiet(running)
            else:
                trouble = asyncio.ensure_future(self._trouble(disk))
                await asyncio.wait([work], timeout=self.rng.choice([0.002, 0.05, 0.5, 2.0, 6.0]) * self.rng.random())
                trouble.cancel()
                disk.kill()
                life.killed_at = self.loop.now
            matching.cancel()
            await running.end()

    async def _until_quiet(self, running: Running) -> None:
        deadline, work = self.loop.now + QUIET_S_MAX, running.task
        await asyncio.wait([work, asyncio.ensure_future(running.ready.wait())], return_when=asyncio.FIRST_COMPLETED)
        quiet, store = 0, DeadLetterStore(self.folder / "deadletters.db")
        while quiet < 3 and not work.done():
            await asyncio.sleep(0.5)
            scheduler = running.dispatcher.scheduler
            left = [
                f"target {state.target.id}: {len(state.deliveries.live)} in memory, lag {state.lag}"
                for state in scheduler._states.values()
                if state.deliveries.live or state.lag is not None
            ]
            matches = running.dispatcher.matches
            unmatched = [n for n in range(PARTITIONS) if matches.passed(n) < self.logs[n].next_offset]
            waiting = store.waiting()
            quiet = 0 if left or unmatched or waiting else quiet + 1
            if self.loop.now > deadline:
                self.ledger.unfinished = f"{left} {unmatched} {waiting}"
                break
        store.close()

    async def _trouble(self, disk: Disk) -> None:
        """The dispatcher's disk is slow or full for a while."""
        while True:
            await asyncio.sleep(self.rng.uniform(0.0, 2.0))
            disk.slow_s = self.rng.choice([0.0, 0.0, 0.1, 0.5])
            disk.full = self.rng.random() < 0.25
            await asyncio.sleep(self.rng.uniform(0.0, 0.8))
            disk.full = False

    async def _match(self, running: Running) -> None:
        """The matcher: rows of each partition from where the outbox ends, in pieces."""
        await running.ready.wait()
        matches = running.dispatcher.matches
        at = dict.fromkeys(range(PARTITIONS), 0) | matches.resume()
        while True:
            for partition, log in enumerate(self.logs):
                end = min(log.next_offset, at[partition] + self.rng.randint(1, 8))
                if end > at[partition] and not matches.is_full():
                    rows = [
                        (offset, number, int(Verdict.CANDIDATE if offset % 5 == 0 else Verdict.MATCH))
                        for offset in range(at[partition], end)
                        for number in sorted(self.targets)
                        if self.wants(number, (partition, offset))
                    ]
                    matches.take(Accepted(partition, 1, rows, end))
                    at[partition] = end
            await asyncio.sleep(self.rng.uniform(0.001, 0.1))

    # --- subscribers ----------------------------------------------------------------------------------

    def mood(self, number: int) -> str:
        """How a subscriber is for a while: well, or failing in some way."""
        until, mood = self.moods.get(number, (-1.0, ""))
        if self.loop.now >= until:
            mood = self.rng.choices(["well", "flaky", "down", "hangs", "refuses", "slow"], [6, 4, 1, 1, 1, 1])[0]
            self.moods[number] = (self.loop.now + self.rng.expovariate(0.5), mood)
        return mood


class _Subscribers:
    """The network, as one life of the dispatcher has it."""

    def __init__(self, world: World, life: int, disk: Disk) -> None:
        self._world = world
        self._life = life
        self._disk = disk

    async def post(self, url: str, headers: Sequence[tuple[str, str]], body: bytes, timeout_s: float) -> Outcome:
        world, number = self._world, int(url.rpartition("/")[2])
        ids = _ids(dict(headers), body)
        if url.startswith("http://sink/"):
            return await self._sink(number, ids, timeout_s)
        now = world.loop.now
        attempts = [Attempt(self._life, number, world.ids[id_], now, members=len(ids)) for id_ in ids]
        world.ledger.attempts += attempts
        world.flying[number] = world.flying.get(number, 0) + 1
        most = world.ledger.parallel_max
        most[number] = max(most.get(number, 0), world.flying[number])
        try:
            outcome = await self._answer(number, ids, timeout_s)
        finally:
            world.flying[number] -= 1
        if self._disk.dead:
            await asyncio.sleep(3_600)  # nobody is there to hear it
        for attempt in attempts:
            attempt.ended_at, attempt.outcome = world.loop.now, outcome
        if outcome.reply is not None:
            for attempt in attempts:
                attempt.stored = False
        return outcome

    async def _answer(self, number: int, ids: list[str], timeout_s: float) -> Outcome:
        world, rng = self._world, self._world.rng
        delay_s = rng.uniform(0.0005, 0.05)
        if world.poison and any(int(id_.strip("er")) % world.poison == 1 for id_ in ids if id_[0] == "e"):
            await asyncio.sleep(delay_s)
            return Outcome(400, body=b"never")
        mood = "well" if world.healthy else world.mood(number)
        match mood:
            case "down":
                return Outcome(0, "connection", "refused", unsent=True)
            case "hangs":
                await asyncio.sleep(timeout_s)
                return Outcome(0, "timeout")
            case "refuses":
                await asyncio.sleep(delay_s)
                return Outcome(rng.choice([301, 400, 403, 413]))
            case "slow":
                delay_s = rng.uniform(0.0, 1.5 * timeout_s)
            case "flaky":
                fault = rng.choice(["500", "429", "reset", "protocol", "malformed", "none", "none"])
                if fault != "none":
                    await asyncio.sleep(delay_s)
                    return _FAULTS[fault]
            case _:
                pass
        if delay_s > timeout_s:
            await asyncio.sleep(timeout_s)
            return Outcome(0, "timeout")
        await asyncio.sleep(delay_s)
        if number == 1 and ids[0][0] == "e" and rng.random() < 0.2:
            headers = [("ce-specversion", "1.0"), ("ce-id", f"r{next(world.numbers)}")]
            return Outcome(200, reply=Answer(headers, b""))
        return Outcome(rng.choice([200, 202, 204]))

    async def _sink(self, number: int, ids: list[str], timeout_s: float) -> Outcome:
        world, rng = self._world, self._world.rng
        await asyncio.sleep(rng.uniform(0.001, 0.05))
        if not world.healthy and rng.random() < 0.4:
            return rng.choice([Outcome(503), Outcome(0, "connection"), Outcome(400)])
        if not self._disk.dead:
            world.ledger.at_sink.update((number, id_) for id_ in ids)
        return Outcome(202)


_FAULTS = {
    "500": Outcome(500),
    "429": Outcome(429, retry_after="1"),
    "reset": Outcome(0, "connection", "reset"),
    "protocol": Outcome(0, "protocol"),
    "malformed": Outcome(200, "reply-malformed"),
}


def _ids(headers: dict[str, str], body: bytes) -> list[str]:
    kind = headers.get("content-type", "")
    if kind.startswith("application/cloudevents-batch"):
        return [item["id"] for item in json.loads(body)]
    if kind.startswith("application/cloudevents"):
        return [json.loads(body)["id"]]
    return [headers["ce-id"]]


def _replied(attempt: Attempt, event_id: str) -> bool:
    """Whether an attempt was answered with the event of this id."""
    reply = attempt.outcome.reply if attempt.outcome else None
    return reply is not None and ("ce-id", event_id) in reply.headers


class _Front:
    """The way in for replies."""

    def __init__(self, world: World, disk: Disk) -> None:
        self._world = world
        self._disk = disk

    async def __aenter__(self) -> _Front:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def post(self, url: str, headers: Sequence[tuple[str, str]], body: bytes, timeout_s: float) -> Outcome:
        world, named = self._world, dict(headers)
        answered = [attempt for attempt in world.ledger.attempts if _replied(attempt, named["ce-id"])]
        for attempt in answered:
            attempt.ended_at = None  # nobody knows yet what came of it
        await asyncio.sleep(world.rng.uniform(0.0005, 0.02))
        if self._disk.dead:
            await asyncio.sleep(3_600)
        event = Event("1.0", named["ce-id"], "/reply", "reply", extensions={"headgatehops": named["headgate-hops"]})
        stored = world.append(world.rng.randrange(PARTITIONS), [event])
        for attempt in answered:
            attempt.stored, attempt.ended_at = stored, world.loop.now
        if not stored:
            return Outcome(503)
        world.ledger.replies.append(event.id)
        return Outcome(202)


class _Link:
    """The match link: there is no socket, `World._match` speaks for it."""

    def __init__(self, *_: object) -> None:
        pass

    async def start(self, directory: Path) -> None:
        pass

    async def close(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


@contextlib.contextmanager
def _installed(world: World, disk: Disk, life: Life) -> Iterator[None]:
    """The world in the places of threads, sockets and files."""
    take, flush, apply = Flusher._flush, CursorStore.flush, DeadLetterStore.apply
    taken: dict[int, float] = {}

    def flushed(store: CursorStore, change: CursorChange) -> None:
        if disk.dead:
            return
        if disk.full:
            raise sqlite3.OperationalError("database or disk is full")
        flush(store, change)
        life.flushed_at = max(life.flushed_at, taken.get(id(change), -1.0))

    def taking(flusher: Flusher) -> None:
        at = world.loop.now
        take(flusher)
        taken[id(flusher._unwritten)] = at

    def applied(store: DeadLetterStore, new: Any, gone: Any, changed: Any) -> int:
        if disk.dead:
            return 0
        if disk.full:
            raise sqlite3.OperationalError("database or disk is full")
        count = apply(store, new, gone, changed)
        for letter in new[:count]:
            world.ledger.buried.setdefault((letter.target, letter.event.id), []).append(world.loop.now)
        return count

    with contextlib.ExitStack() as stack:
        replace = lambda *names: stack.enter_context(mock.patch.object(*names))  # noqa: E731
        executor = executors(disk)
        for name in MODULES:
            stack.enter_context(mock.patch(f"headgate.{name}.ThreadPoolExecutor", executor))
        replace(dispatcher_module, "HttpTransport", lambda: _Front(world, disk))
        replace(dispatcher_module, "MatchLinkServer", _Link)
        replace(CursorStore, "flush", flushed)
        replace(Flusher, "_flush", taking)
        replace(DeadLetterStore, "apply", applied)
        yield
