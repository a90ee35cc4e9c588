"""Events that wait for their time, on disk; when it has come, each becomes a delivery of its trigger like any other.

What is in memory is a time for each target, and at most PENDING_RELEASED_MAX deliveries of each that have begun. A row
goes away when its delivery has ended, so a restart repeats what was under way and loses nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeVar

from headgate.deadletters.sink_sender import DeadLetters
from headgate.deadletters.store import (
    Cancelled,
    DeadLetterReader,
    DeadLetterState,
    DuePending,
    Ended,
    Reschedule,
    StoredDeadLetter,
    StorePart,
    Totals,
)
from headgate.deadletters.writing import drop
from headgate.delivery.cursors import Tried
from headgate.delivery.events import EventGoneError, SharedEvent
from headgate.delivery.lifecycle import Delivery
from headgate.delivery.retry import Clocks
from headgate.event.hops import place_root, root_of
from headgate.filter.compile.plan import Verdict
from headgate.objects.kinds.routing import Target
from headgate.observe import metrics
from headgate.observe.logs import tell_failure
from headgate.outbox.writer import WhenDurable, always_durable
from headgate.storage.threads import Threads
from headgate_api import limits

_T = TypeVar("_T")
_NEVER: Final = 1 << 62
_ALL: Final = -1
_LOOK_AGAIN_US: Final = int(limits.DEADLETTER_SLEEP_S_MAX * 1e6)
_FULL: Final = "PendingFull: there is no room for more events that wait for their time, so they wait in the outbox"


class Releasing(Protocol):
    """Who delivers what is due: the scheduler."""

    def find(self, target: int) -> Target | None: ...

    def room_for_pending(self, target: int) -> int: ...

    def release(self, target: int, deliveries: Sequence[Delivery]) -> None: ...

    def dropped(self, target: int, partition: int, offset: int, result: str) -> None: ...


class Pending:
    """The pending events of a dispatcher, on one event loop; they stand in the store of its dead letters, at `path`.

    `report` gets a target's id and what is wrong with its backlog, as "Reason: message"; empty for nothing.
    """

    def __init__(
        self,
        path: Path,
        letters: DeadLetters,
        clocks: Clocks,
        when_durable: WhenDurable = always_durable,
        report: Callable[[int, str], None] = lambda _, __: None,
    ) -> None:
        self._path = path
        self._letters = letters
        self._clocks = clocks
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._writer = letters.writer(StorePart.PENDING, when_durable, self._written)
        # Not the thread that writes: a delivery does not wait for another one's sync.
        self._thread = Threads("pending")
        self._opened = contextlib.ExitStack()
        self._reader: DeadLetterReader | None = None
        self._first: dict[int, int] = {}
        """When a target is to be looked at: the first of its events is due, or there may be room for it."""
        self._heap: list[tuple[int, int]] = []
        """The same in order; what does not stand in `_first` any more is old."""
        self._late: dict[int, int] = {}
        """When the first event of a target was due that found no room."""
        self._busy: dict[int, int] = {}
        """By id, the targets of those whose deliveries have begun, until their rows are gone."""
        self._busy_of = Counter[int]()
        """How many those are of each target."""
        self._gone: set[int] = set()
        """Those whose rows went while rows were being read."""
        self._full: dict[int, str] = {}
        """Targets of which it was told that there is no room, with their namespaces."""
        self._putting = 0
        """How many are being stored: to add up those of all targets for each would take longer than to store them."""
        self._putting_of = Counter[int]()
        """How many those are of each target."""
        self._releasing: int | None = _ALL
        """The target that is looked at now; `_ALL` until it is known what there is."""
        self._wake = asyncio.Event()
        self._scheduler: Releasing | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, scheduler: Releasing) -> None:
        """Begin to release, now that targets are known."""
        self._scheduler = scheduler
        self._task = self._loop.create_task(self._run())
        self._task.add_done_callback(partial(tell_failure, what="releasing pending events failed"))

    async def stop(self) -> None:
        """Release nothing more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def close(self) -> None:
        """Write what has ended; before the dead letters are closed."""
        await self.stop()
        try:
            await self._writer.close()
            await self._thread.run(self._opened.close)
        finally:
            self._thread.close()

    # --- what deliveries say (`delivery.attempts.PendingEvents`) --------------------------------------

    def has_room(self, target: Target) -> bool:
        if self._putting >= limits.PENDING_STORING_MAX:
            return False
        has_room = self._has_room(target.namespace)
        if not has_room and target.id not in self._full:
            self._full[target.id] = target.namespace
            self._report(target.id, _FULL)
        return has_room

    def _has_room(self, namespace: str) -> bool:
        is_left = self._writer.totals.pending + self._putting < limits.PENDING_MAX
        return is_left and self._writer.has_room(namespace)

    def has_before(self, target: int, due_us: int) -> bool:
        if target in self._putting_of or self._releasing in (_ALL, target):
            return True
        return min(self._first.get(target, _NEVER), self._late.get(target, _NEVER)) <= due_us

    def forget(self, target: int) -> None:
        if target in self._first or self._releasing in (_ALL, target):
            self._expect(target, 0)

    def put(self, target: Target, delivery: Delivery, event: SharedEvent, due_us: int) -> Coroutine[None, None, None]:
        new = StoredDeadLetter(
            target=target.id,
            position=delivery.position,
            partition=delivery.partition,
            offset=delivery.offset,
            trigger=target.name,
            broker=event.broker,
            event=event.event,
            died_us=event.append_time_us,
            reason="",
            destination="",
            code=0,
            data=b"",
            attempts=0,
            state=DeadLetterState.PENDING,
            due_us=due_us,
        )
        self._putting += 1
        self._putting_of[new.target] += 1
        return self._put(new)

    async def _put(self, new: StoredDeadLetter) -> None:
        try:
            await self._writer.put(new)
        finally:
            self._putting -= 1
            drop(self._putting_of, new.target)
        is_gone = self._scheduler is not None and self._scheduler.find(new.target) is None
        self._expect(new.target, 0 if is_gone else new.due_us)

    async def load(self, id_: int) -> SharedEvent:
        found = await self._read(lambda reader: reader.get(id_))
        if found is None or found.state is not DeadLetterState.PENDING:
            raise EventGoneError("the pending event was cancelled")
        root = root_of(found.event) or place_root(found.event, found.partition, found.offset)
        return SharedEvent(found.broker, found.event, found.died_us, root)

    def tried(self, delivery: Delivery) -> None:
        state, tried_us = DeadLetterState.PENDING, delivery.tried_us
        self._writer.change(
            Reschedule(delivery.pending, state, state, delivery.failures, tried_us, delivery.due_us, "")
        )

    def ended(self, target: int, delivery: Delivery) -> None:
        self._writer.end(Ended(delivery.pending, DeadLetterState.PENDING))
        if target in self._late and self._has_much_room(target):
            self._expect(target, self._late[target])

    # --- what people do -------------------------------------------------------------------------------

    async def cancel(self, ids: Sequence[int]) -> int:
        """Forget pending events; returns how many there were. An attempt that is under way ends first."""
        return len(await self._drop(ids, "cancelled"))

    async def _drop(self, ids: Sequence[int], result: str) -> list[Cancelled]:
        gone = await self._letters.cancel(ids)
        for one in gone:
            # That of a delivery that has begun is told when it finds its event gone.
            if self._scheduler is not None and one.id not in self._busy:
                self._scheduler.dropped(one.target, one.partition, one.offset, result)
        self._writer.totals = await self._letters.stored()
        self._measure(self._writer.totals)
        return gone

    # --- release --------------------------------------------------------------------------------------

    def _written(self, gone: Sequence[Ended], _: Sequence[Reschedule], totals: Totals) -> None:
        for one in gone:
            self._gone.add(one.id)
            if (target := self._busy.pop(one.id, None)) is not None:
                drop(self._busy_of, target)
        self._measure(totals)

    def _measure(self, totals: Totals) -> None:
        metrics.PENDING_EVENTS.set(totals.pending)
        metrics.PENDING_BYTES.set(totals.pending_bytes)
        late_us = self._clocks.now_us() - min(self._late.values(), default=_NEVER)
        metrics.PENDING_OVERDUE.set(max(0.0, late_us / 1e6))
        for target in [target for target, namespace in self._full.items() if self._has_room(namespace)]:
            del self._full[target]
            self._report(target, "")

    def _expect(self, target: int, at_us: int) -> None:
        """Look at a target at a time, or before."""
        if at_us < self._first.get(target, _NEVER):
            is_first = not self._heap or at_us < self._heap[0][0]
            self._first[target] = at_us
            heapq.heappush(self._heap, (at_us, target))
            if is_first:
                self._wake.set()

    async def _run(self) -> None:
        assert self._scheduler is not None, "`start` gave it"
        for target, first_us in (await self._read(DeadLetterReader.first_pending)).items():
            self._expect(target, first_us if self._scheduler.find(target) is not None else 0)
        self._releasing = None
        while True:
            self._wake.clear()
            now_us = self._clocks.now_us()
            while self._heap and self._heap[0][0] <= now_us:
                at_us, target = heapq.heappop(self._heap)
                if self._first.get(target) == at_us:
                    del self._first[target]
                    self._releasing = target
                    await self._release(target, now_us)
                    self._releasing = None
            self._measure(self._writer.totals)
            next_us = self._heap[0][0] if self._heap else _NEVER
            wait_s = (next_us - self._clocks.now_us()) / 1e6
            # The machine's clock may jump.
            timer = self._loop.call_later(min(max(wait_s, 0.0), limits.DEADLETTER_SLEEP_S_MAX), self._wake.set)
            await self._wake.wait()
            timer.cancel()

    def _has_much_room(self, target: int) -> bool:
        """Whether a look for more is worth while."""
        assert self._scheduler is not None, "`start` gave it"
        return self._scheduler.room_for_pending(target) >= limits.PENDING_RELEASED_MAX // 2

    async def _release(self, target: int, now_us: int) -> None:
        """Hands out what is due and has room; the rest is looked at when there is more room, or its time comes."""
        scheduler = self._scheduler
        assert scheduler is not None, "`start` gave it"
        is_gone = scheduler.find(target) is None
        room = scheduler.room_for_pending(target) if not is_gone else limits.DEADLETTER_PAGE_MAX
        count_max = max(room, 0) + self._busy_of[target] + 1
        self._gone.clear()
        rows = await self._read(lambda reader: reader.pending(target, count_max))
        rows = [one for one in rows if not (one.id in self._busy or one.id in self._gone)]
        if not is_gone:
            is_gone, room = scheduler.find(target) is None, max(scheduler.room_for_pending(target), 0)
        due = [one for one in rows if is_gone or one.due_us <= now_us][:room]
        if due and is_gone:
            await self._drop([one.id for one in due], "gone")
        elif due:
            self._busy.update((one.id, target) for one in due)
            self._busy_of[target] += len(due)
            scheduler.release(target, list(map(_delivery, due)))
        self._late.pop(target, None)
        left = rows[len(due) :]
        if left and left[0].due_us > now_us and not is_gone:
            self._expect(target, left[0].due_us)
        elif left:
            self._late[target] = left[0].due_us
            self._expect(target, now_us if is_gone else now_us + _LOOK_AGAIN_US)

    async def _read(self, work: Callable[[DeadLetterReader], _T]) -> _T:
        def run() -> _T:
            if self._reader is None:
                self._reader = self._opened.enter_context(DeadLetterReader.open(self._path))
            return work(self._reader)

        return await self._thread.run(run)


def _delivery(row: DuePending) -> Delivery:
    """What was matched when the event was stored is judged again by the filter of now."""
    delivery = Delivery(-row.id, row.partition, row.offset, Verdict.CANDIDATE, pending=row.id)
    delivery.resume(Tried(-row.id, row.failures, 0, row.tried_us))
    return delivery
