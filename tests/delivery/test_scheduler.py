"""The scheduler against a made-up outbox and subscribers: random answers, flushes and crashes, one seed a world."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import random
from collections import Counter
from collections.abc import Callable, Collection, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.delivery.attempt_service import Answered
from headgate.delivery.cursors import CursorChange, Cursors, TargetCursor
from headgate.delivery.events import SharedEvent
from headgate.delivery.given_up import DeadLetter
from headgate.delivery.lifecycle import Delivery, TargetDeliveries
from headgate.delivery.post import Transport
from headgate.delivery.retry import SYSTEM, Answer, Outcome
from headgate.delivery.scheduler import Scheduler
from headgate.delivery.verdicts import FilterErrors, FinalCheck, evaluate
from headgate.event.trace import Context
from headgate.objects.kinds.routing import RoutingStep, RoutingTable
from headgate.outbox.reader import OutboxRow, RowPage, every_row
from headgate.outbox.writer import OutboxChunk, RowGroup
from headgate_api import limits
from headgate_api.event.http import BATCH_JSON
from headgate_api.event.json_format import decode_batch
from tests.delivery.harness import BROKER, attempt_service, event, run, target
from tests.support import times, until


class Rows:
    """An outbox in memory: (offset, target) by position; also the backlog that reads it again.

    Args:
        shares: Rows of one event share a position, as those of a record do.
    """

    def __init__(self, *, shares: bool = False) -> None:
        self.rows: list[tuple[int, int]] = []
        self.shares = shares
        self.reads = 0
        self.blocked = False
        self.pause = 0

    def append(self, rows: list[tuple[int, int]]) -> OutboxChunk:
        first = len(self.rows)
        self.rows += rows
        row_group = RowGroup(0, 1, [(offset, t, 3) for offset, t in rows])
        return OutboxChunk(first, [row_group], len(self.rows), {0: rows[-1][0] + 1})

    def position(self, index: int) -> int:
        return self.rows[index][0] if self.shares else index

    @property
    def end(self) -> int:
        return self.position(len(self.rows) - 1) + 1 if self.rows else 0

    def hand(self, scheduler: Scheduler, first: int) -> None:
        """Hands the rows from an index on over."""
        if not self.shares:
            scheduler.hand(self.chunk_from(first))
            return
        for offset, rows in itertools.groupby(self.rows[first:], key=lambda row: row[0]):
            group = RowGroup(0, 1, [(offset, t, 3) for _, t in rows])
            scheduler.hand(OutboxChunk(offset, [group], offset + 1, {}, row_step=0))

    def chunk_from(self, position: int) -> OutboxChunk:
        row_group = RowGroup(0, 1, [(offset, t, 3) for offset, t in self.rows[position:]])
        return OutboxChunk(position, [row_group] if row_group.rows else [], len(self.rows), {})

    async def read(
        self, number: int, start: int, upto: int, count_max: int, wants: Callable[[int], bool] = every_row
    ) -> RowPage:
        self.reads += 1
        while self.blocked:
            await asyncio.sleep(0)
        for _ in range(self.pause):
            await asyncio.sleep(0)
        found: list[OutboxRow] = []
        for index, (offset, of) in enumerate(self.rows):
            position = self.position(index)
            if of == number and start <= position < upto and wants(position):
                found.append(OutboxRow(position, 0, offset, 3))
                if len(found) >= count_max:
                    return RowPage(found, position + 1)
        return RowPage(found, max(upto, start))


class AllEvents:
    """Any event, always there."""

    def __init__(self, chance: random.Random | None = None) -> None:
        self.chance = chance or random.Random(0)

    def recent(self, partition: int, offset: int) -> SharedEvent:
        return SharedEvent(BROKER, event(offset, extensions={"partitionkey": str(offset % 3)}), 0)

    def kept(self, partition: int, offset: int) -> SharedEvent | None:
        return None if self.chance.random() < 0.5 else self.recent(partition, offset)

    async def load(self, partition: int, offset: int) -> SharedEvent:
        await asyncio.sleep(0)
        return self.recent(partition, offset)


class Subscribers:
    """Answers at random, after a random number of turns; notes what was delivered."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.delivered: list[tuple[str, str]] = []
        self.calm = False

    async def post(self, url: str, headers: Sequence[tuple[str, str]], body: bytes, timeout_s: float) -> Outcome:
        for _ in range(self.chance.randint(0, 6)):
            await asyncio.sleep(0)
        if not self.calm and self.chance.random() < 0.4:
            return Outcome(503) if self.chance.random() < 0.5 else Outcome(0, "timeout")
        if self.chance.random() < 0.2 and "ce-id" in dict(headers):
            return Outcome(200, reply=Answer([("url", url)], b""))
        if dict(headers)["content-type"] == BATCH_JSON:
            events = decode_batch(body)
            if not self.calm and len(events) > 1 and self.chance.random() < 0.2:
                return Outcome(413)
            self.delivered += [(url, event.id) for event in events]
            return Outcome(202)
        self.delivered.append((url, dict(headers)["ce-id"]))
        return Outcome(202)

    async def store(self, to: Answered, answer: Answer, trace: Context) -> Outcome:
        """Replies: the delivery ends when the reply is stored, and not before."""
        for _ in range(self.chance.randint(0, 3)):
            await asyncio.sleep(0)
        if not self.calm and self.chance.random() < 0.4:
            return Outcome(200, "reply-refused")
        self.delivered.append((answer.headers[0][1], to.event.id))
        return Outcome(200)

    async def put(self, dead_letter: DeadLetter) -> None:
        for _ in range(self.chance.randint(0, 3)):
            await asyncio.sleep(0)
        self.delivered.append((dead_letter.destination, dead_letter.event.id))

    def has_room(self, _namespace: str) -> bool:
        return True

    def is_over_quota(self, _namespace: str) -> bool:
        return False


class Disk:
    """What flushes leave behind."""

    def __init__(self) -> None:
        self.position = 0
        self.targets: dict[int, TargetCursor] = {}

    def flush(self, change: CursorChange) -> None:
        self.position = change.position
        for number in change.done:
            self.targets.pop(number, None)
        self.targets |= {cursor.target: cursor for cursor in change.behind}

    def load(self) -> Cursors:
        return Cursors(self.position, {}, tuple(self.targets.values()))


class Listener:
    """Hears nothing."""

    def target_unknown(self) -> None: ...

    def cursors_changed(self) -> None: ...

    def rows_walked(self) -> None: ...

    def row_kept(self, target: int) -> None: ...


def scheduled(rows: Rows, transport: Transport, others: Subscribers, chance: random.Random) -> Scheduler:
    """A scheduler; replies and dead letters go to `others`."""
    errors = FilterErrors()
    return Scheduler(
        Listener(),
        events=AllEvents(chance),
        backlog=rows,
        service=attempt_service(transport, others),
        final_check=FinalCheck(evaluate, errors, SYSTEM.now_us),
        dead_letters=others,
    )


def routed(scheduler: Scheduler, paused: Collection[int], *, ordered: bool) -> None:
    """Tells it of four targets, some of which are paused."""
    targets = [target(n, str(n), retry=10_000, backoff_delay_s=0.0, ordered=ordered and n == 1) for n in range(1, 4)]
    batches = {"format": "batch", "batch_size": 3, "batch_wait_s": 0.0}
    targets.append(target(4, "4", retry=10_000, backoff_delay_s=0.0, ordered=ordered, **batches))
    targets[2] = target(3, "3", retry=1, backoff_delay_s=0.0, dead_letter_uri="dead")
    targets = [dataclasses.replace(one, paused=one.id in paused) for one in targets]
    scheduler.update(RoutingTable.of(1, 1, {}, targets))


def made(
    rows: Rows,
    transport: Subscribers,
    chance: random.Random,
    *,
    ordered: bool = False,
    paused: Collection[int] = (),
) -> Scheduler:
    scheduler = scheduled(rows, transport, transport, chance)
    routed(scheduler, paused, ordered=ordered)
    return scheduler


async def world(seed: int, queue_max: int, crashes: int, *, shares: bool) -> None:
    chance = random.Random(seed)
    rows, disk, subscribers = Rows(shares=shares), Disk(), Subscribers(chance)
    rows.pause = chance.randint(0, 5)
    scheduler = made(rows, subscribers, chance, ordered=True)
    offset = 0
    allowed: Counter[tuple[str, str]] = Counter()

    def not_recorded() -> Counter[tuple[str, str]]:
        """What a crash now may repeat: all that the cursors on disk do not say to have ended."""
        floors = {c.target: (c.lag_from if c.lag_from is not None else disk.position) for c in disk.targets.values()}
        pending = {(cursor.target, position) for cursor in disk.targets.values() for position in cursor.pending}
        return Counter(
            (str(t), f"e{offset}")
            for index, (offset, t) in enumerate(rows.rows)
            if rows.position(index) >= floors.get(t, disk.position) or (t, rows.position(index)) in pending
        )

    crash_at, paused = set(chance.sample(range(120), crashes)), set[int]()
    for turn in range(120):
        if chance.random() < 0.1:
            paused ^= {chance.randint(1, 4)}
            routed(scheduler, paused, ordered=True)
        if chance.random() < 0.5:
            new = [(offset + n, t) for n in range(chance.randint(1, 6)) for t in range(1, 5) if chance.random() < 0.7]
            if new:
                offset, first = new[-1][0] + 1, len(rows.rows)
                rows.append(new)
                rows.hand(scheduler, first)
        if chance.random() < 0.3:
            disk.flush(scheduler.take_change())
        for _ in range(chance.randint(0, 8)):
            await asyncio.sleep(0)
        if turn in crash_at:
            await scheduler.stop(0)
            allowed += not_recorded()
            scheduler = made(rows, subscribers, chance, ordered=True, paused=paused)
            cursors = disk.load()
            scheduler.restore(cursors.position, cursors.targets)
            indexes = range(len(rows.rows))
            rows.hand(scheduler, next((i for i in indexes if rows.position(i) >= cursors.position), len(indexes)))
    subscribers.calm = True
    routed(scheduler, (), ordered=True)
    wanted = Counter((str(t), f"e{offset}") for offset, t in rows.rows)
    while set(subscribers.delivered) != set(wanted) or scheduler.live_count:
        await asyncio.sleep(0)
    disk.flush(scheduler.take_change())
    while disk.targets or disk.position < rows.end:  # the last lag ends
        await asyncio.sleep(0)
        disk.flush(scheduler.take_change())
    got = Counter(subscribers.delivered)
    assert all(got[key] <= 1 + allowed[key] for key in got), "only what no flush had recorded came again"
    if not crashes:
        for key in range(3):
            ordered = [int(id[1:]) for url, id in subscribers.delivered if url == "1" and int(id[1:]) % 3 == key]
            assert ordered == sorted(ordered), "in order of each key"
        batched = [int(id[1:]) for url, id in subscribers.delivered if url == "4"]
        assert batched == sorted(batched)
    await scheduler.stop(0)


@settings(max_examples=times(10, 150))
@given(
    seed=st.integers(0, 2**32),
    queue_max=st.sampled_from([1, 2, 5, 50, 1_000]),
    crashes=st.integers(0, 6),
    shares=st.booleans(),
)
def test_every_row_is_delivered_and_only_crashes_repeat(seed: int, queue_max: int, crashes: int, shares: bool):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "TARGET_QUEUE_MAX", queue_max)
        patch.setattr(limits, "HAND_ROWS_PER_TURN", 3)
        patch.setattr(limits, "TARGET_PARALLEL_DEFAULT", 3)
        patch.setattr(limits, "DELIVERIES_LIVE_MAX", 40)
        patch.setattr(limits, "ATTEMPTS_HEALTHY_MAX", 4)
        patch.setattr(limits, "ATTEMPTS_SLOW_MAX", 2)
        run(world(seed, queue_max, crashes, shares=shares))


def test_a_restored_target_keeps_its_floor_while_the_position_moves():
    """Before its backlog is read again, rows for it are only in the outbox: the cursor must say from where."""

    async def work() -> None:
        chance = random.Random(0)
        rows = Rows()
        rows.append([(n, 1) for n in range(10)])
        rows.blocked = True
        scheduler = made(rows, Subscribers(chance), chance)
        scheduler.restore(10, (TargetCursor(1, None, (3,)),))
        scheduler.hand(rows.append([(10, 1), (11, 1)]))
        await asyncio.sleep(0)
        change = scheduler.take_change()
        assert change.position == 12
        assert change.behind == [TargetCursor(1, 10, (3,))]
        rows.blocked = False
        with contextlib.suppress(asyncio.CancelledError):
            await scheduler.stop(0)

    run(work())


def test_a_paused_target_keeps_what_comes_and_goes_on_in_order() -> None:
    """Little of it in memory, all of it in the cursor; one attempt may be under way. Others are not concerned."""

    async def work() -> None:
        rows, subscribers = Rows(), Subscribers(random.Random(2))
        subscribers.calm = True
        scheduler = scheduled(rows, subscribers, subscribers, random.Random(2))
        events = 5 * limits.TARGET_CROWDED_MAX

        def route(version: int, *, paused: bool) -> None:
            one = dataclasses.replace(target(1, "1", ordered=True, parallelism=1), paused=paused)
            step = RoutingStep(version - 1, frozenset({1}))
            scheduler.update(RoutingTable(1, version, {}, {1: one, 2: target(2, "2")}, steps=(step,)))

        def came(url: str) -> list[str]:
            return [id_ for at, id_ in subscribers.delivered if at == url]

        route(1, paused=True)
        for number in range(events):
            scheduler.hand(rows.append([(number, 1), (number, 2)]))
        await until(lambda: len(came("2")) == events)
        assert came("1") == []
        assert scheduler.live_count == limits.TARGET_CROWDED_MAX
        (cursor,) = scheduler.take_change().behind
        assert cursor.target == 1
        assert min(cursor.pending) == 0, "retention keeps everything from the first one on"
        route(2, paused=False)
        while len(came("1")) < events // 2:
            await asyncio.sleep(0)  # one event follows the other: not all of them can come within a turn of the loop
        route(3, paused=True)
        await until(lambda: not scheduler.states_of({"default/t1"})["default/t1"].deliveries.attempts)
        stopped = len(came("1"))
        await asyncio.sleep(0.05)
        assert len(came("1")) == stopped < events, "nothing is sent to it any more"
        route(4, paused=False)
        await until(lambda: len(came("1")) == events)
        assert came("1") == [f"e{number}" for number in range(events)]
        await scheduler.stop(1)

    run(work())


def test_time_that_a_target_was_paused_is_no_time_of_its_attempts() -> None:
    delivery = Delivery(0, 0, 0, 3)
    deliveries = TargetDeliveries()
    deliveries.arrive(delivery)
    delivery.started_at = 10.0
    delivery.fail(11.0)
    assert delivery.begun() == 10.0
    deliveries.rebase()
    delivery.started_at = 5_000.0
    assert delivery.begun() == 4_999.0, "as long as it was tried before"


def test_a_target_that_comes_back_is_not_gone() -> None:
    """Its name and number are the same, and one of its events is under way all the time."""

    async def work() -> None:
        under_way, let = asyncio.Event(), asyncio.Event()
        sent: Counter[str] = Counter()

        class Failing:
            async def post(
                self, url: str, headers: Sequence[tuple[str, str]], body: bytes, timeout_s: float
            ) -> Outcome:
                id_ = dict(headers)["ce-id"]
                sent[id_] += 1
                if id_ == "e0":
                    under_way.set()
                    await let.wait()
                return Outcome(202 if id_ == "e0" else 503)

        rows, kept = Rows(), Subscribers(random.Random(1))
        scheduler = scheduled(rows, Failing(), kept, random.Random(1))
        one = target(1, "http://x/", retry=2, backoff_delay_s=0.001, dead_letter_uri="http://sink/")
        scheduler.update(RoutingTable.of(1, 1, {}, (one,)))
        scheduler.hand(rows.append([(0, 1)]))
        await under_way.wait()
        scheduler.update(RoutingTable.of(1, 2, {}, ()))
        scheduler.update(RoutingTable.of(1, 3, {}, (one,)))
        scheduler.hand(rows.append([(1, 1)]))
        while not kept.delivered:
            await asyncio.sleep(0.001)
        assert (kept.delivered, sent["e1"]) == ([("http://x/", "e1")], 3)
        let.set()
        while scheduler.live_count:
            await asyncio.sleep(0.001)
        await scheduler.stop(1)

    run(work())
