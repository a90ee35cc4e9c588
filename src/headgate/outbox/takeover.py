"""Hand-over of partitions between matcher runs: which run owns each partition, and when the next one does. Pure.

Per partition there is a watermark W (every event below it is complete: its rows have been accepted) and a row of
contenders in the order of their runs. The first one may be the owner. Events are accepted from the owner only, in
order, each exactly once, never with a gap. That one sentence is all the rest relies on: the outbox of a partition is in
offset order, and an ordered trigger stays ordered while one run follows another.

A contender's rows are *held* in memory from W on until they count or the owner has passed them, so that whoever dies,
the next one can go on at W. Held rows are bounded: over the limit the link stops reading that connection.

    contender    what comes from it        leaves the state when
    ---------    ----------------------    ---------------------------------------------------------------------
    waiting      held                      first in its partition and start <= W          -> owner
                                           first in its partition and start >  W (a gap)  -> run rejected
                                           next to the owner and start <= W <= passed     -> owner, the old one retires
    owner        accepted, W moves         a newer one becomes the owner                  -> retired
      limited    accepted below X, held    the same; a newer one dies: held rows count    -> owner
    retired      ignored                   its connection closes

The newest run takes over at the first moment at which it has passed W. On a busy partition that moment might never come
(both run at the same speed, one 10 events behind), so when a newer one is within TAKEOVER_NEAR_EVENTS of W the owner
gets a limit X = W + TAKEOVER_NEAR_EVENTS: at X it stands still, and the newer one walks the last few events to it. The
limit lies ahead of both, so mostly it is never met. No deadlock: while the owner stands at X, a newer one holds nothing
(all its rows are below W), so it is never the one that is not being read.

A reader of a log (`holds=False`) cannot stop reading one run: who waits would have to be held without a bound. So
nothing limits the owner there. A newer run takes over at the first moment at which it has passed W, as above. That
moment may not come, so near misses are counted: frames of the newest run that end near W and below it, one in
TAKEOVER_NEAR_MISS_SHARE, as P decides. After TAKEOVER_NEAR_MISSES_MAX of them it takes over, and walks the last
TAKEOVER_NEAR_EVENTS events to W as the owner. (The first near miss would be too early: a new run is near before it has
brought anything, and its first event may take seconds.) A run that starts above W is refused. So nothing is ever held,
and W, the contenders, the owner and the near misses of each partition are the whole state: `state` gives it, and a
reader that restarts goes on with it. In which order the steps come depends on nothing but the log.

A run may go on to a newer generation of filters, in each partition between two events of its own (`frames`, `then`). So
what is accepted is cut where the generation changes, and a run is told to be active once more whenever all of its
partitions have come to a newer one.

A run dies as a whole: one connection of it closes, all of it is closed (Spark fails the query anyway). If a run dies
after it took partition 0 over and before it took partition 1, the older run is retired in 0 and the owner in 1:
partition 0 would have no run. So a run that is retired in a partition that has lost everybody else is rejected too, and
the matcher starts anew from the watermarks.

Rejected designs: accepting the newer run's rows from X on while the owner is still below X (rows of later events would
be delivered before earlier ones, W is no longer one number, and a restart must compare identities); taking over in all
partitions at once (the slowest partition would hold all others).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field

from headgate.outbox.link_format import Hello, Row, RunActive, RunRejected
from headgate.outbox.shards import dispatcher_of
from headgate_api import limits

# --- state ----------------------------------------------------------------------------------------
# A takeover that holds no rows, as data: what a reader of a log needs to go on after a restart.


@dataclass(frozen=True, slots=True)
class RunState:
    """A run that is alive; active once it has owned all of its partitions."""

    run: int
    generation: int
    partitions: int
    active: bool


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One partition between two steps. Runs are in order; those in `retired` are alive and were followed here."""

    watermark: int
    contenders: tuple[int, ...] = ()
    retired: tuple[int, ...] = ()
    owned: bool = False
    near_misses: int = 0


@dataclass(frozen=True, slots=True)
class TakeoverState:
    """All that a takeover without held rows is: the runs that are alive, in order, and each partition by number."""

    runs: tuple[RunState, ...] = ()
    partitions: Mapping[int, PartitionState] = field(default_factory=dict)


# --- takeover -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Accepted:
    """Rows that count, of whole events: every event of `partition` below `passed` is complete after them."""

    partition: int
    generation: int
    rows: list[Row]
    passed: int


Step = Accepted | RunActive | RunRejected
"""What the caller must do, in order."""


@dataclass(slots=True)
class _Contender:
    run: int
    generations: list[tuple[int, int]]  # offset, and the generation by which events from there on are matched
    start: int
    passed: int
    reads: bool = False  # a first frame has come
    held: list[Row] = field(default_factory=list)  # in order of offset, none below W


@dataclass(slots=True)
class _Partition:
    watermark: int
    contenders: list[_Contender] = field(default_factory=list)  # in order of run
    owned: bool = False  # whether contenders[0] is the owner
    limit: int | None = None  # X
    near_misses: int = 0  # of contenders[-1], where nothing can be held

    def find(self, run: int) -> _Contender | None:
        return next((c for c in self.contenders if c.run == run), None)


@dataclass(slots=True)
class _Run:
    generation: int
    partitions: int  # how many it reads
    seen: set[int] = field(default_factory=set)  # has or had a connection
    owned: set[int] = field(default_factory=set)
    retired: set[int] = field(default_factory=set)
    active: int | None = None  # the generation that all partitions have come to, once all are owned


class Takeover:
    """The state machine of all partitions. No clock, no I/O; every method returns the steps to take, in order.

    `watermarks` gives W per partition, as the outbox has it; others start at 0. A reader of a log cannot hold rows.
    """

    def __init__(self, watermarks: Mapping[int, int], *, holds: bool = True) -> None:
        self._partitions = {p: _Partition(w) for p, w in watermarks.items()}
        self._runs: dict[int, _Run] = {}
        self._dead: dict[int, None] = {}  # the last few, in order of death
        self._holds = holds

    @classmethod
    def restored(cls, state: TakeoverState) -> Takeover:
        """The takeover that gave this state; it holds nothing."""
        takeover = cls({p: each.watermark for p, each in state.partitions.items()}, holds=False)
        generations = {run.run: run.generation for run in state.runs}
        for partition, each in state.partitions.items():
            there = takeover._partitions[partition]
            # Where a contender started, and how far it is, matters with its own next frame only, which tells.
            there.contenders = [_Contender(run, [(0, generations[run])], 0, 0) for run in each.contenders]
            there.owned, there.near_misses = each.owned, each.near_misses
        for run in state.runs:
            contends = {p for p, each in state.partitions.items() if run.run in each.contenders}
            owned = {p for p in contends if state.partitions[p].owned and state.partitions[p].contenders[0] == run.run}
            retired = {p for p, each in state.partitions.items() if run.run in each.retired}
            takeover._runs[run.run] = _Run(
                run.generation,
                run.partitions,
                contends | retired,
                owned,
                retired,
                run.generation if run.active else None,
            )
        return takeover

    def state(self) -> TakeoverState:
        """What `restored` needs; only without held rows."""
        assert not self._holds, "held rows are no part of the state"
        runs = sorted(self._runs.items())
        return TakeoverState(
            tuple(RunState(number, run.generation, run.partitions, run.active is not None) for number, run in runs),
            {
                p: PartitionState(
                    state.watermark,
                    tuple(contender.run for contender in state.contenders),
                    tuple(number for number, run in runs if p in run.retired),
                    state.owned,
                    state.near_misses,
                )
                for p, state in sorted(self._partitions.items())
            },
        )

    def generation(self, run: int) -> int | None:
        """The generation of a run; None when it is not alive."""
        known = self._runs.get(run)
        return known.generation if known else None

    def has_opened(self, run: int, partition: int) -> bool:
        """Whether the run's hello for this partition has come, and the run is alive."""
        known = self._runs.get(run)
        return known is not None and partition in known.seen

    def watermarks(self) -> dict[int, int]:
        """W per partition: where the next run must start when no run is alive."""
        return {p: state.watermark for p, state in sorted(self._partitions.items())}

    def watermark(self, partition: int) -> int | None:
        """W of one partition; None where nothing is known of it."""
        state = self._partitions.get(partition)
        return state.watermark if state else None

    def owner(self, partition: int) -> int | None:
        """The run that owns a partition; None without one."""
        state = self._partitions.get(partition)
        return state.contenders[0].run if state and state.owned else None

    def in_force(self) -> dict[int, tuple[int, int]]:
        """Of each partition that a run owns: W, and the generation by which events from W on are matched."""
        return {p: (s.watermark, s.contenders[0].generations[0][1]) for p, s in self._partitions.items() if s.owned}

    def raise_floor(self, partition: int, offset: int) -> None:
        """Events below `offset` no longer exist (retention took them): nothing below it can be matched any more."""
        state = self._partitions.setdefault(partition, _Partition(0))
        if not state.contenders:
            state.watermark = max(state.watermark, offset)

    def held_rows(self, run: int, partition: int) -> int:
        """Rows held in memory of one connection: over LINK_HELD_ROWS_MAX it should not be read for a while."""
        state = self._partitions.get(partition)
        contender = state.find(run) if state else None
        return len(contender.held) if contender else 0

    def open(self, hello: Hello) -> list[Step]:
        """A run's connection for one partition has sent its hello."""
        number, partition = hello.run, hello.partition
        state = self._partitions.setdefault(partition, _Partition(0))
        run = self._runs.get(number)
        reason = self._refusal(hello, state, run)
        if reason:
            return self._kill(number, reason) if run is not None else [RunRejected(number, reason)]
        if run is None:
            run = self._runs[number] = _Run(hello.generation, hello.partitions)
        run.seen.add(partition)
        state.contenders.append(_Contender(number, [(hello.start, hello.generation)], hello.start, hello.start))
        state.near_misses = 0
        return self._settle(partition)

    def frames(
        self,
        run: int,
        partition: int,
        rows: list[Row],
        passed: int,
        *,
        then: int | None = None,
        is_once: bool = True,
    ) -> list[Step]:
        """Complete events from one connection, whose P is `passed` now: rows in order, from an earlier `passed` on.

        From P on, events are matched by the generation `then`, unless that is None. `is_once` is False of a frame that
        may come again with a later state: it is no near miss.
        """
        state = self._partitions.get(partition)
        contender = state.find(run) if state else None
        if state is None or contender is None:
            return []  # retired, or dead and not closed yet
        contender.passed, contender.reads = passed, True
        if then is not None:
            contender.generations.append((passed, then))
        if contender is state.contenders[0] and state.owned and not contender.held:
            rows, contender.held = self._split(rows, state.watermark, state.limit)
            reached = passed if state.limit is None else min(passed, state.limit)
            accepted = self._accept(partition, state, contender, rows, reached)
        else:
            contender.held += self._from(rows, state.watermark)
            accepted = []
            if is_once and contender is state.contenders[-1] and self._is_near_miss(state, passed):
                state.near_misses += 1
        return accepted + self._settle(partition)

    def close(self, run: int, partition: int) -> list[Step]:
        """A connection has closed: the run is dead everywhere."""
        return self.end(run, f"its connection for partition {partition} closed")

    def end(self, run: int, reason: str) -> list[Step]:
        """A run has ended: where it was followed everywhere this is the orderly end, which is not reported."""
        known = self._runs.get(run)
        if known is None:
            return []
        steps = self._kill(run, reason)
        return steps[1:] if len(known.retired) == known.partitions else steps

    def reject(self, run: int, reason: str) -> list[Step]:
        """The caller gives a run up, which broke the protocol."""
        return self._kill(run, reason) if run in self._runs else []

    # --- inside ---------------------------------------------------------------------------------------

    def _refusal(self, hello: Hello, state: _Partition, run: _Run | None) -> str:
        if hello.run in self._dead:
            return "the run is dead already"
        if run is not None and (run.generation, run.partitions) != (hello.generation, hello.partitions):
            return "its connections disagree about the generation or the number of partitions"
        if run is not None and hello.partition in run.seen:
            return f"partition {hello.partition} has a second connection"
        if state.contenders and state.contenders[-1].run > hello.run:
            return f"partition {hello.partition} has the newer run {state.contenders[-1].run}"
        if not self._holds and hello.start > state.watermark:
            return _gap(hello.partition, hello.start, state.watermark)
        if run is None and len(self._runs) >= limits.LINK_RUNS_MAX:
            return f"over {limits.LINK_RUNS_MAX} runs are alive"
        return ""

    def _settle(self, partition: int) -> list[Step]:
        """Move the partition on as far as it goes now."""
        state = self._partitions[partition]
        steps: list[Step] = []
        while state.contenders:
            first = state.contenders[0]
            if not state.owned:
                if first.start > state.watermark:
                    return steps + self._kill(first.run, _gap(partition, first.start, state.watermark))
                steps += self._promote(partition, state, first)
            if len(state.contenders) < 2:
                break
            followers = [c for c in state.contenders[1:] if c.reads and c.start <= state.watermark]
            near = [c for c in followers if c.passed >= state.watermark - limits.TAKEOVER_NEAR_EVENTS]
            ready = [c for c in near if c.passed >= state.watermark or self._has_waited(state, c)]
            if ready:
                self._retire_before(partition, state, ready[-1])
                continue
            if near and self._holds and state.limit is None:
                state.limit = state.watermark + limits.TAKEOVER_NEAR_EVENTS
            break
        return steps

    def _is_near_miss(self, state: _Partition, passed: int) -> bool:
        if self._holds or not state.watermark - limits.TAKEOVER_NEAR_EVENTS <= passed < state.watermark:
            return False
        return dispatcher_of(passed, limits.TAKEOVER_NEAR_MISS_SHARE) == 0  # a hash: offsets of batches have patterns

    @staticmethod
    def _has_waited(state: _Partition, contender: _Contender) -> bool:
        return contender is state.contenders[-1] and state.near_misses >= limits.TAKEOVER_NEAR_MISSES_MAX

    def _retire_before(self, partition: int, state: _Partition, follower: _Contender) -> None:
        while state.contenders[0] is not follower:
            older = self._runs[state.contenders.pop(0).run]
            older.owned.discard(partition)
            older.retired.add(partition)
        state.owned, state.limit, state.near_misses = False, None, 0

    def _promote(self, partition: int, state: _Partition, owner: _Contender) -> list[Step]:
        state.owned = True
        run = self._runs[owner.run]
        run.owned.add(partition)
        rows, owner.held = self._from(owner.held, state.watermark), []
        return self._accept(partition, state, owner, rows, owner.passed) + self._activate(owner.run)

    def _accept(
        self, partition: int, state: _Partition, owner: _Contender, rows: list[Row], reached: int
    ) -> list[Step]:
        """Rows of the owner, from W on: one step for each generation, and afterwards that of W stands first."""
        steps: list[Step] = []
        before = owner.generations[0]
        while len(owner.generations) > 1 and owner.generations[1][0] <= max(reached, state.watermark):
            end = owner.generations[1][0]
            if end > state.watermark:
                cut = bisect_left(rows, (end,))
                steps.append(Accepted(partition, owner.generations[0][1], rows[:cut], end))
                state.watermark, rows = end, rows[cut:]
            del owner.generations[0]
        if reached > state.watermark:
            steps.append(Accepted(partition, owner.generations[0][1], rows, reached))
            state.watermark = reached
        if steps:
            for follower in state.contenders[1:]:
                if follower.held and follower.held[0][0] < reached:
                    follower.held = self._from(follower.held, reached)
        return steps if owner.generations[0] is before else steps + self._activate(owner.run)

    def _activate(self, number: int) -> list[Step]:
        """Whether all partitions of a run are owned, and have come to a newer generation than they all had."""
        run = self._runs[number]
        if len(run.owned) < run.partitions:
            return []
        generation = min(self._partitions[partition].contenders[0].generations[0][1] for partition in run.owned)
        if run.active is not None and generation <= run.active:
            return []
        run.active = generation
        return [RunActive(number, generation)]

    def _kill(self, number: int, reason: str) -> list[Step]:
        run = self._runs.pop(number)
        self._dead[number] = None
        while len(self._dead) > limits.LINK_DEAD_RUNS_MAX:
            del self._dead[next(iter(self._dead))]
        steps: list[Step] = [RunRejected(number, reason)]
        # First it leaves every partition, then the partitions move on: what they do may kill another run.
        for partition in sorted(run.seen):
            steps += self._leave(number, partition)
        for partition in sorted(run.seen):
            steps += self._settle(partition)
            if not self._partitions[partition].contenders:
                for other in [n for n, r in self._runs.items() if partition in r.retired]:
                    if other in self._runs:
                        steps += self._kill(other, f"run {number} took partition {partition} over from it and is dead")
        return steps

    def _leave(self, number: int, partition: int) -> list[Step]:
        state = self._partitions[partition]
        contender = state.find(number)
        if contender is None:
            return []
        index = state.contenders.index(contender)
        state.contenders.pop(index)
        state.near_misses = 0
        if index == 0 and state.owned:
            state.owned, state.limit = False, None
        elif index > 0 and state.limit is not None:
            state.limit = None
            owner = state.contenders[0]
            rows, owner.held = owner.held, []
            return self._accept(partition, state, owner, rows, owner.passed)
        return []

    @staticmethod
    def _from(rows: list[Row], offset: int) -> list[Row]:
        """The rows at or above `offset`."""
        if not rows or rows[0][0] >= offset:
            return rows
        return rows[bisect_left(rows, (offset,)) :]

    def _split(self, rows: list[Row], watermark: int, limit: int | None) -> tuple[list[Row], list[Row]]:
        """Rows from W on, cut at the limit X: what counts now, and what is held."""
        rows = self._from(rows, watermark)
        if limit is None or not rows or rows[-1][0] < limit:
            return rows, []
        cut = bisect_left(rows, (limit,))
        return rows[:cut], rows[cut:]


def _gap(partition: int, start: int, watermark: int) -> str:
    return f"a gap in partition {partition}: it starts at {start}, complete below {watermark}"
