"""A topic `outbox` in memory, with everybody who writes to it and reads it: drivers, runs, tasks, zombies, dispatchers.

Each act is one small step of one of them; a seed decides which. Records reach each outbox partition on their own, so
at any instant one partition may have much more of a task than another.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from headgate.backend.kafka.outbox_records import (
    EventRecord,
    HelloRecord,
    OutboxRecord,
    OverRecord,
    PassedRecord,
    decode_state,
    encode_state,
)
from headgate.backend.kafka.outbox_takeover import Matched, OutboxTakeover, Outcome
from headgate.outbox.link_format import RunActive
from headgate.outbox.shards import dispatcher_of

TARGETS = 6
AHEAD_MAX = 12
"""Events that a task has written and that are not acknowledged everywhere."""

Place = tuple[int, str, int, int]
"""What a commit is: offset, state; and for the checks: how much had counted, up to which offset."""
Counted = tuple[int, int, int, tuple[tuple[int, int], ...]]
"""Source partition, offset, generation, targets of an event that counted."""


class Truth:
    """The source partitions: their offsets, which have holes, and who wants which event by which filters."""

    def __init__(self, rng: random.Random, sources: int, partitions: int) -> None:
        self.rng = rng
        self.sources = sources
        self.partitions = partitions
        self.seed = rng.random()
        self.offsets: list[list[int]] = [[] for _ in range(sources)]
        self.ends = [rng.choice([0, 0, 7]) for _ in range(sources)]
        self.starts = list(self.ends)
        self._targets: dict[tuple[int, int, int], tuple[tuple[int, int], ...]] = {}

    def produce(self) -> None:
        source = self.rng.randrange(self.sources)
        for _ in range(self.rng.randint(1, 12)):
            self.offsets[source].append(self.ends[source] + self.rng.choice([0, 0, 0, 1]))
            self.ends[source] = self.offsets[source][-1] + 1
        self.ends[source] += self.rng.randrange(2)

    def targets(self, source: int, offset: int, generation: int, partition: int) -> tuple[tuple[int, int], ...]:
        """Of one event, in one outbox partition; others with each generation."""
        key = source, offset, generation
        if key not in self._targets:
            rng = random.Random(f"{self.seed} {key}")
            chosen = sorted(rng.sample(range(TARGETS), rng.choice([0, 1, 2, TARGETS])))
            self._targets[key] = tuple((target + TARGETS * generation, rng.randint(1, 3)) for target in chosen)
        return tuple(t for t in self._targets[key] if dispatcher_of(t[0], self.partitions) == partition)


@dataclass
class Partition:
    """One outbox partition, and a reader that is never interrupted: what it counts is what must count."""

    number: int
    takeover: OutboxTakeover
    log: list[OutboxRecord | None] = field(default_factory=list)  # None: a number that the log left out
    states: dict[int, str] = field(default_factory=dict)  # behind the record at a place in the log
    counted: list[Counted] = field(default_factory=list)
    counted_at: list[int] = field(default_factory=list)  # where in the log
    owners: dict[tuple[int, int], int] = field(default_factory=dict)  # generation by which each offset passed
    over: set[int] = field(default_factory=set)
    active: set[int] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)

    def watermark(self, source: int) -> int | None:
        return self.takeover.watermark(source)

    def owner(self, source: int) -> int | None:
        each = self.takeover.state.takeover.partitions.get(source)
        return each.contenders[0] if each and each.owned else None


@dataclass
class Task:
    """One attempt of a task: it writes the events of one source partition from its batch's start on."""

    run: int
    generation: int
    source: int
    at: int  # offset of the next event to write
    passed: int
    queues: list[deque[tuple[OutboxRecord, int]]]  # a partition: records to be stored, and the offset they are of

    def acknowledged(self) -> int:
        """Everything below is stored in every outbox partition."""
        return min((queue[0][1] for queue in self.queues if queue), default=self.at)


@dataclass
class Run:
    number: int
    generation: int
    starts: list[int]
    batches: list[int]  # a source: start of the batch under way
    tasks: list[Task | None]
    hellos: list[deque[OutboxRecord]]
    introduced: bool = False


@dataclass
class Life:
    """A reader of one outbox partition, from an assignment to its end."""

    partition: int
    takeover: OutboxTakeover
    position: int
    index: int  # how much had counted where it began
    read_before: int = 0  # the offset up to which its state is; above `position` where an event was incomplete
    counted: list[Counted] = field(default_factory=list)
    checkpoints: list[Place] = field(default_factory=list)


class OutboxWorld:
    """All of it. After `run`, `faults` says what went wrong; `totals` what happened.

    Args:
        seed: Decides everything.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        sources, partitions = self.rng.randint(1, 3), self.rng.randint(1, 3)
        self.truth = Truth(self.rng, sources, partitions)
        self.near = self.rng.choice([0, 1, 5, 1_024])
        self.near_misses = self.rng.choice([1, 2, 3, 5])
        self.partitions = [Partition(number, self._takeover(0, None)) for number in range(partitions)]
        self.committed: list[Place | None] = [None] * partitions
        self.lives = [self._life(number) for number in range(partitions)]
        self.runs: list[Run] = []
        self.zombies: list[Task] = []
        self.late: list[tuple[int, OutboxRecord]] = []  # records of drivers that are dead
        self.newest = 0
        self.finishing = False
        self.totals = dict.fromkeys(
            ("records", "counted", "repeated", "restarts", "takeovers", "zombies", "split", "waits"), 0
        )

    def _takeover(self, position: int, state: str | None) -> OutboxTakeover:
        decoded = None if state is None else decode_state(state)
        return OutboxTakeover(self.truth.partitions, lambda source: 0, position, decoded)

    # --- acts ---------------------------------------------------------------------------------------

    def store(self, partition: int, record: OutboxRecord) -> None:
        """A record is in the log."""
        place = self.partitions[partition]
        if self.rng.random() < 0.05:
            place.log.append(None)
        place.log.append(record)
        self.totals["records"] += 1
        source = -1 if isinstance(record, OverRecord) else record.source
        before, owner = place.watermark(source), place.owner(source)
        outcomes = place.takeover.feed(len(place.log) - 1, record)
        if before is not None and owner is not None and isinstance(record, PassedRecord) and record.passed < before:
            self.totals["waits"] += place.owner(source) not in (owner, None)  # it was near for long
        place.states[len(place.log)] = encode_state(place.takeover.state)
        if isinstance(record, OverRecord):
            place.over |= {run for run in range(1, record.run + 1) if run == record.run or record.all_before}
        elif before is not None:
            for offset in range(before, place.watermark(source) or 0):
                place.owners[source, offset] = record.generation
        for counted in _counted(outcomes):
            place.counted.append(counted)
            place.counted_at.append(len(place.log) - 1)
            if record.run in place.over:
                place.faults.append(f"{counted} counted after its run was over")
        for outcome in outcomes:
            if isinstance(outcome, RunActive):
                place.active.add(outcome.run)
                self.totals["takeovers"] += 1

    def start_run(self) -> None:
        """A driver starts a run: at the lowest W, or below; a wrong one above, which must be refused."""
        if len(self.runs) >= 2:
            return
        is_wrong = self.rng.random() < 0.05 and not self.finishing
        self.newest += self.rng.randint(1, 3)
        starts = []
        for source in range(self.truth.sources):
            marks = [mark for place in self.partitions if (mark := place.watermark(source)) is not None]
            lowest = min(marks) if len(marks) == len(self.partitions) else self.truth.starts[source]
            start = self.rng.choice([lowest, lowest, self.rng.randint(self.truth.starts[source], lowest)])
            if is_wrong and len(marks) == len(self.partitions):
                start = min(lowest + 5, self.truth.ends[source])
            starts.append(start)
        generation = self.newest
        hellos = []
        for _ in self.partitions:
            each = [
                HelloRecord(self.newest, generation, source, start, len(starts), len(self.partitions))
                for source, start in enumerate(starts)
            ]
            self.rng.shuffle(each)
            hellos.append(deque[OutboxRecord](each))
        tasks: list[Task | None] = [None] * len(starts)
        self.runs.append(Run(self.newest, generation, starts, list(starts), tasks, hellos))

    def introduce(self) -> None:
        """A driver's hellos reach the partitions; then the query starts."""
        for run in self.runs:
            if not run.introduced:
                partition = self.rng.randrange(len(self.partitions))
                if run.hellos[partition]:
                    self.store(partition, run.hellos[partition].popleft())
                if not any(run.hellos):
                    run.introduced = True
                    for source, start in enumerate(run.starts):
                        for number in range(len(self.partitions)):
                            self.store(number, PassedRecord(run.number, run.generation, source, start))

    def _new_task(self, run: Run, source: int) -> Task:
        start = run.batches[source]
        task = Task(run.number, run.generation, source, start, start, [deque() for _ in self.partitions])
        run.tasks[source] = task
        return task

    def live_tasks(self) -> list[Task]:
        return [task for run in self.runs if run.introduced for task in run.tasks if task is not None]

    def write(self) -> None:
        """A task writes some events."""
        if tasks := self.live_tasks() + self.zombies:
            self._write(self.rng.choice(tasks), self.rng.randint(1, 6))

    def _write(self, task: Task, count: int) -> None:
        source = task.source
        offsets = self.truth.offsets[source]
        for offset in offsets[bisect_left(offsets, task.at) :]:
            if count == 0 or sum(map(len, task.queues)) > AHEAD_MAX:
                return
            for partition, queue in enumerate(task.queues):
                if targets := self.truth.targets(source, offset, task.generation, partition):
                    queue.extend((record, offset) for record in self._records(task, offset, targets))
            task.at = offset + 1
            count -= 1
        if count:
            task.at = self.truth.ends[source]

    def _records(self, task: Task, offset: int, targets: tuple[tuple[int, int], ...]) -> Iterator[EventRecord]:
        """One record, or several of one event; the cut is the same whoever writes it."""
        cut = (offset % 4) + 1 if offset % 3 == 0 else len(targets)
        for at in range(0, len(targets), cut):
            more = at + cut < len(targets)
            self.totals["split"] += more
            part = targets[at : at + cut]
            yield EventRecord(task.run, task.generation, task.source, offset, more, 0, part, [], None)

    def acknowledge(self) -> None:
        """Records of a task reach one outbox partition; sometimes it says how far it is."""
        if not (tasks := self.live_tasks() + self.zombies):
            return
        task = self.rng.choice(tasks)
        self._acknowledge(task, self.rng.randrange(len(self.partitions)), self.rng.randint(1, 8))
        if self.rng.random() < 0.4:
            self._pass(task)

    def _acknowledge(self, task: Task, partition: int, count: int) -> None:
        queue = task.queues[partition]
        while queue and count:
            self.store(partition, queue.popleft()[0])
            count -= 1

    def _pass(self, task: Task) -> None:
        """What every outbox partition has is told to all of them; a partition has it behind what is still to come."""
        passed = task.acknowledged()
        if passed > task.passed:
            task.passed = passed
            for partition, queue in enumerate(task.queues):
                record = PassedRecord(task.run, task.generation, task.source, passed)
                if queue and self.rng.random() < 0.5:
                    queue.append((record, task.at))
                else:
                    self.store(partition, record)

    def end_batch(self) -> None:
        """A batch of a run ends: all that its tasks wrote is acknowledged."""
        for run in self.runs:
            for source, task in enumerate(run.tasks):
                if task is not None and not any(task.queues) and self.rng.random() < 0.5:
                    run.batches[source] = task.at

    def fail_task(self) -> None:
        """A task is tried again from its batch's start; the one before may live on."""
        if tasks := self.live_tasks():
            task = self.rng.choice(tasks)
            run = next(run for run in self.runs if run.number == task.run)
            self._give_up(task)
            self._new_task(run, task.source)

    def _give_up(self, task: Task) -> None:
        """What was on its way may still arrive, in order; or all of it goes on, unseen."""
        if self.rng.random() < 0.5:
            self.zombies.append(task)
            self.totals["zombies"] += 1
            if len(self.zombies) > 4:
                self.zombies.pop(0)
        else:
            for partition in range(len(self.partitions)):
                self._acknowledge(task, partition, self.rng.randint(0, 4))

    def start_tasks(self) -> None:
        for run in self.runs:
            if run.introduced:
                for source, task in enumerate(run.tasks):
                    if task is None:
                        self._new_task(run, source)

    def end_run(self) -> None:
        """A run is stopped, or fails; its driver says so. Mostly one that has been followed everywhere."""
        if not self.runs:
            return
        run = self.runs[0]
        followed = len(self.runs) == 2 and all(self.runs[1].number in place.active for place in self.partitions)
        if followed or self.rng.random() < 0.1:
            self.runs.remove(run if followed else (run := self.rng.choice(self.runs)))
            for task in run.tasks:
                if task is not None:
                    self._give_up(task)
            for partition in self.rng.sample(range(len(self.partitions)), len(self.partitions)):
                self.store(partition, OverRecord(run.number, False))

    def kill_driver(self) -> None:
        """All runs are gone unsaid, or live on as zombies; the next driver begins with an over of all of them."""
        if not self.runs:
            return
        for run in self.runs:
            for task in run.tasks:
                if task is not None:
                    self._give_up(task)
            for partition, queue in enumerate(run.hellos):
                self.late += [(partition, record) for record in queue]
        self.runs.clear()
        self.newest += 1
        for partition in range(len(self.partitions)):
            self.store(partition, OverRecord(self.newest, True))

    def write_late(self) -> None:
        """A driver that was taken for dead writes a hello."""
        if self.late:
            partition, record = self.late.pop(0)
            self.store(partition, record)

    # --- dispatchers --------------------------------------------------------------------------------

    def _life(self, partition: int) -> Life:
        committed = self.committed[partition]
        offset, state, index, read = (0, None, 0, 0) if committed is None else committed
        return Life(partition, self._takeover(offset, state), offset, index, read)

    def read(self) -> None:
        life = self.rng.choice(self.lives)
        self._read(life, self.rng.randint(1, 20))

    def _read(self, life: Life, count: int) -> None:
        log = self.partitions[life.partition].log
        while count and life.position < len(log):
            record = log[life.position]
            if record is not None:
                life.counted += _counted(life.takeover.feed(life.position, record))
            life.position += 1
            count -= 1
        state, index = encode_state(life.takeover.state), life.index + len(life.counted)
        place = self.partitions[life.partition]
        if life.position > life.read_before and place.states.get(life.position, state) != state:
            place.faults.append("a life has another state than a reader without interruption")
        read = max(life.position, life.read_before)
        life.checkpoints = [*life.checkpoints[-5:], (life.takeover.resume_at, state, index, read)]

    def commit(self) -> None:
        """Any place so far is safe once its events have ended: here, any not before the last one."""
        life = self.rng.choice(self.lives)
        if life.checkpoints:
            chosen = self.rng.randrange(len(life.checkpoints))
            self.committed[life.partition] = life.checkpoints[chosen]
            life.checkpoints = life.checkpoints[chosen:]

    def kill_dispatcher(self) -> None:
        """A crash, or a rebalance: another member goes on at the last commit."""
        number = self.rng.randrange(len(self.lives))
        self._compare(self.lives[number])
        self.totals["restarts"] += 1
        committed = self.committed[number]
        self.totals["repeated"] += self.lives[number].index + len(self.lives[number].counted)
        self.totals["repeated"] -= committed[2] if committed else 0
        self.lives[number] = self._life(number)

    def _compare(self, life: Life) -> None:
        """Each life counts what one reader without interruption counts, from its commit on."""
        place = self.partitions[life.partition]
        expected = place.counted[life.index : life.index + len(life.counted)]
        if life.counted != expected:
            place.faults.append(f"a life from {life.index} on counted {life.counted[:5]}..., not {expected[:5]}...")
        read = sum(1 for at in place.counted_at if at < max(life.position, life.read_before))
        if life.index + len(life.counted) != read:
            place.faults.append(f"a life counted up to {life.index + len(life.counted)}, not to {read}")

    # --- a whole life -------------------------------------------------------------------------------

    def run(self) -> None:
        weights: list[tuple[Callable[[], None], int]] = [
            *((self.produce, 12), (self.write, 30), (self.acknowledge, 60), (self.introduce, 20)),
            *((self.start_tasks, 15), (self.start_run, 8), (self.end_run, 8), (self.end_batch, 8)),
            *((self.fail_task, 4), (self.kill_driver, 1), (self.write_late, 4)),
            *((self.read, 20), (self.commit, 12), (self.kill_dispatcher, 3)),
        ]
        acts = self.rng.choices([act for act, _ in weights], [weight for _, weight in weights], k=300)
        for act in acts:
            act()
        self.finish()

    def produce(self) -> None:
        self.truth.produce()

    def finish(self) -> None:
        """No more faults: one run ends it all, while zombies still write."""
        self.finishing = True
        self.kill_driver()
        self.start_run()
        for _ in range(100):
            self.introduce()
            self.start_tasks()
            self.write()
            self.acknowledge()
            self.write_late()
        run = self.runs[-1]
        for task in run.tasks:
            assert task is not None
            while task.at < self.truth.ends[task.source] or any(task.queues):
                self._write(task, 6)
                for partition in range(len(self.partitions)):
                    self._acknowledge(task, partition, 6)
            self._pass(task)
            for partition in range(len(self.partitions)):
                self._acknowledge(task, partition, 6)
        for life in self.lives:
            self._read(life, 1 << 30)
            self._compare(life)

    def faults(self) -> Iterator[str]:
        """What must not be."""
        for place in self.partitions:
            yield from place.faults
            self.totals["counted"] += len(place.counted)
            yield from self._faults_of(place)

    def _faults_of(self, place: Partition) -> Iterator[str]:
        last: dict[int, tuple[int, int]] = {}
        for source, offset, generation, targets in place.counted:
            before = last.get(source, (-1, -1))
            if offset <= before[0]:
                yield f"{source}/{offset} comes behind {before[0]}: repeated, or out of order"
            if generation < before[1]:
                yield f"{source}/{offset} counts for {generation}, after {before[1]}"
            last[source] = max(offset, before[0]), max(generation, before[1])
            if targets != self.truth.targets(source, offset, generation, place.number):
                yield f"{source}/{offset} of generation {generation} counts with {targets}"
        counted = {(source, offset) for source, offset, _, _ in place.counted}
        for source, offsets in enumerate(self.truth.offsets):
            if place.watermark(source) != self.truth.ends[source]:
                yield f"source {source} is at {place.watermark(source)}, not at its end {self.truth.ends[source]}"
            for offset in offsets:
                generation = place.owners.get((source, offset), -1)
                if generation < 0:
                    yield f"{source}/{offset} has not passed"
                elif (source, offset) not in counted and self.truth.targets(source, offset, generation, place.number):
                    yield f"{source}/{offset} is lost for generation {generation}"


def _counted(outcomes: list[Outcome]) -> list[Counted]:
    return [
        (each.record.source, each.record.offset, each.record.generation, each.targets)
        for each in outcomes
        if isinstance(each, Matched)
    ]
