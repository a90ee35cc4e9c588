"""What do consumers of subscriptions get? Pull, acknowledge, seek: the outbox is the backlog, `pull.Cursor` the state.

Nothing is pushed: a subscription's rows stay in the outbox until a pull reads them, past every chunk that has none of
them. An acknowledgement is answered when it is on disk; those that come together share one transaction.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Awaitable, Callable, Container
from pathlib import Path
from typing import Final

import structlog

from headgate import limits
from headgate.control.routing import RoutingTable
from headgate.delivery.dead_letter import DeadLetterQueue
from headgate.delivery.events import Events
from headgate.delivery.verdicts import FilterErrors, Judge, LastLook
from headgate.errors import HeadgateError
from headgate.log.reader import PartitionReader
from headgate.observe.logs import Recurring
from headgate.outbox.reader import Backlog
from headgate.scan.search import OnProgress
from headgate.subscriptions.analysis import Questions
from headgate.subscriptions.backfill import Histories
from headgate.subscriptions.cursor import Acked, Saved
from headgate.subscriptions.dead_letter_policy import Abandoning
from headgate.subscriptions.messages import (
    AckNotStoredError,
    Analysis,
    Handed,
    Place,
    Pulled,
    PullsOverloadError,
    SeekBusyError,
    Sought,
    Stats,
    SubscriptionNotFoundError,
)
from headgate.subscriptions.seek import Seeking, Seeks
from headgate.subscriptions.selection import Choosing
from headgate.subscriptions.state import State
from headgate.subscriptions.store import PullStore

_US: Final = 1_000_000
_EPOCH_BITS: Final = 20  # seeks of one subscription until its epochs meet the next one's: nobody seeks so often
_log = structlog.get_logger(__name__)


class Subscriptions:
    """All subscriptions. Lives on the dispatcher's event loop.

    Args:
        store: Their cursors.
        outbox: Directory of the outbox partition.
        backlog: Reads it.
        events: The log.
        judge_filter: Decides candidates.
        errors: Where filter errors are counted, and what else people should know.
        handed: The outbox position below which every row is durable and known.
        seeks: Finds places.
        histories: Reads the log where a filter counts from an earlier place on.
        dead_letters: Takes what was handed out too often; None: it is dropped.
        clock_us: Microseconds since 1970 UTC.
    """

    def __init__(
        self,
        *,
        store: PullStore,
        outbox: Path,
        backlog: Backlog,
        events: Events,
        judge_filter: Judge,
        errors: FilterErrors,
        handed: Callable[[], int],
        seeks: Seeks,
        histories: Histories,
        dead_letters: DeadLetterQueue | None = None,
        clock_us: Callable[[], int] = lambda: time.time_ns() // 1_000,
    ) -> None:
        self._store = store
        self._outbox = outbox
        self._abandoning = Abandoning(backlog, events, dead_letters, errors, handed, clock_us)
        self._choosing = Choosing(backlog, events, histories, LastLook(judge_filter, errors), handed, clock_us)
        self._questions = Questions(backlog, events, judge_filter, handed)
        self._seeks = seeks
        self._histories = histories
        self._handed = handed
        self._clock_us = clock_us
        self._states: dict[int, State] = {}
        self._by_name: dict[str, State] = {}
        self._saved = store.load()
        self._started = False
        self._dirty: set[int] = set()
        self._gone: set[int] = set()
        self._writing = asyncio.Lock()
        self._pulls = 0

    # --- routing --------------------------------------------------------------------------------------

    def update(self, table: RoutingTable) -> None:
        """A new routing table; the first one is of the start, when nothing has been handed over yet."""
        found = {target.id: target for target in table.targets if target.pull is not None}
        for id_ in (self._states.keys() | self._saved.keys()) - found.keys():
            self._gone.add(id_)
            self._saved.pop(id_, None)
            if (state := self._states.pop(id_, None)) is not None:
                state.wake()
        for id_, target in found.items():
            if (state := self._states.get(id_)) is not None:
                state.target = target
                continue
            saved = self._saved.pop(id_, None)
            if saved is None or saved.next > self._outbox_end():
                # At the start an unknown one may have rows already: a target's first row is never before its making.
                # An acknowledgement meant for an earlier one, of this outbox or of this name, is stale.
                epoch = saved.epoch if saved is not None else id_ << _EPOCH_BITS
                saved = Saved(epoch=epoch + 1, next=self._handed() if self._started else 0)
            self._states[id_] = State(target, saved)
            self._dirty.add(id_)
        self._by_name = {state.target.name: state for state in self._states.values()}
        self._started = True

    def _outbox_end(self) -> int:
        """How far a cursor may be; one beyond the outbox's end is of another outbox."""
        with PartitionReader.open(self._outbox, start=0) as reader:
            return reader.committed_offset()

    def wake(self, target: int) -> None:
        """A row of this subscription is durable."""
        state = self._states.get(target)
        if state is not None:
            state.wake()

    # --- consumers ------------------------------------------------------------------------------------

    async def pull(
        self,
        name: str,
        consumer: str,
        *,
        count_max: int = limits.PULL_EVENTS_DEFAULT,
        wait_s: float = 0.0,
        is_gone: Callable[[], Awaitable[bool]] | None = None,
    ) -> Pulled:
        """Events for a consumer; each is its own until it is acknowledged or the ack timeout is over.

        Args:
            name: `namespace/name` of the subscription.
            consumer: Who asks.
            count_max: How many at most.
            wait_s: How long to wait for a first one.
            is_gone: Whether the consumer has left meanwhile.

        Raises:
            SubscriptionNotFoundError: There is none.
            ConsumerBusyError: It is exclusive, and another consumer has it.
            PullsOverloadError: Too many wait.
        """
        if self._pulls >= limits.PULLS_MAX:
            raise PullsOverloadError(f"{limits.PULLS_MAX} pulls are under way", hint="try again later")
        self._pulls += 1
        try:
            ends = time.monotonic() + wait_s
            search_ends = max(ends, time.monotonic() + limits.PULL_SEARCH_S)
            while True:
                state = self._state(name)
                changed = state.changed
                active = state.cursor.admit(consumer, state.rules, self._clock_us())
                found, moved = list[Handed](), False
                if active and await self._begun(state):
                    found, moved = await self._collect(state, consumer, count_max)
                if found or time.monotonic() >= (search_ends if moved else ends):
                    return Pulled(found, state.cursor.epoch, active)
                if is_gone is not None and await is_gone():
                    return Pulled([], state.cursor.epoch, active)
                if not moved:
                    await self._wait(state, changed, ends - time.monotonic(), active=active)
        finally:
            self._pulls -= 1

    async def _wait(self, state: State, changed: asyncio.Event, at_most_s: float, *, active: bool) -> None:
        """Until there may be something for a consumer, or it is time to show that it is still there."""
        look_s = _look_s(state) if self._histories.is_begun(state) else limits.BACKFILL_POLL_S
        wait_s = min(at_most_s, look_s)
        due_us = state.cursor.next_due_us(state.rules) if active else None
        if due_us is not None:
            wait_s = min(wait_s, max(0.01, (due_us - self._clock_us()) / _US))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(changed.wait(), wait_s)

    async def _begun(self, state: State) -> bool:
        """Whether its consumers may have events: its history has begun, if it has one."""
        if self._histories.is_begun(state):
            return True
        async with state.reading:
            if not await self._histories.begun(state):
                return False
            self._dirty.add(state.target.id)
            if state.rules.history:
                await self._durable(state)  # before anything is handed out: ids carry the epoch
        state.wake()
        return True

    async def _collect(self, state: State, consumer: str, count_max: int) -> tuple[list[Handed], bool]:
        """One turn: what is handed out, and whether the cursor moved, so that there may be more to look through."""
        async with state.reading:
            stood = state.cursor.stands
            chosen = await self._choosing.choose(state, count_max)
            # From here on nothing is waited for: what was chosen is still held.
            cursor, now_us = state.cursor, self._clock_us()
            for held, _ in chosen:
                cursor.hand(held, consumer, now_us, state.rules)
            self._dirty.add(state.target.id)
            handed = [
                Handed(cursor.id_of(held), held.deliveries, held.partition, held.offset, event)
                for held, event in chosen
            ]
            return handed, cursor.stands != stood

    async def ack(self, name: str, consumer: str, *, ids: tuple[str, ...] = (), up_to: str = "") -> Acked:
        """Events have been dealt with; returns when that is on disk. Who acknowledges keeps the lease it has.

        Raises:
            AckIdError: An id that pull cannot have given.
            AckNotStoredError: The disk does not take it.
        """
        state = self._state(name)
        done = state.cursor.ack_up_to(up_to, consumer) if up_to else state.cursor.ack(ids)
        self.keep(name, consumer)
        state.wake()  # there may be room again
        await self._durable(state)
        return done

    def keep(self, name: str, consumer: str) -> float:
        """A consumer is there: it keeps its turn, if it has it. Returns after how many seconds to say so again."""
        state = self._state(name)
        if state.cursor.consumer == consumer and state.rules.type != "shared":
            state.cursor.admit(consumer, state.rules, self._clock_us())
        return _look_s(state)

    async def nack(self, name: str, ids: tuple[str, ...], delay_s: float) -> Acked:
        """Events are to be handed out again after a while.

        Raises:
            AckIdError: An id that pull cannot have given.
        """
        state = self._state(name)
        done = state.cursor.nack(ids, self._clock_us() + int(delay_s * _US))
        self._dirty.add(state.target.id)
        state.wake()
        return done

    def leave(self, name: str, consumer: str) -> int:
        """A consumer goes; what it has is due at once. Returns how many events those are."""
        state = self._state(name)
        count = state.cursor.leave(consumer, self._clock_us())
        self._dirty.add(state.target.id)
        state.wake()
        return count

    # --- questions ------------------------------------------------------------------------------------

    async def stats(self, name: str) -> Stats:
        """Where it stands: exact, the outbox is read from the cursor on."""
        return await self._questions.stats(self._state(name))

    async def analyze(self, name: str, cel: str) -> Analysis:
        """How many events of the backlog a filter would accept; nothing is consumed."""
        return await self._questions.analyze(self._state(name), cel)

    # --- seek -----------------------------------------------------------------------------------------

    async def seek(self, name: str, place: Place, tell: OnProgress = lambda _, __: None) -> Sought:
        """Go on elsewhere, for all consumers; returns when it is on disk. Cancelling the task breaks it off.

        Args:
            name: `namespace/name` of the subscription.
            place: Where to.
            tell: Told how many events were looked at for an expression, and of about how many.

        Raises:
            SeekBusyError: Another one is under way.
            SeekCancelledError: `cancel_seek` was called.
            PlaceNotFoundError: The expression is true of no event there.
        """
        state = self._state(name)
        if state.seeking is not None:
            raise SeekBusyError("another seek of this subscription is under way", hint="it wins; try again later")
        state.seeking = seeking = Seeking(place, tell)
        try:
            landing = await seeking.run(self._seeks.landing(state.target.broker, place, seeking.tell))
            async with state.reading:
                self._state(name)  # it may have been deleted meanwhile
                state.cursor.seek(landing.position, landing.floor, behind=landing.behind, now_us=self._clock_us())
                await self._durable(state)  # before anything is handed out: ids carry the epoch
            state.wake()
            return Sought(state.cursor.epoch, landing.floor)
        finally:
            state.seeking = None

    def seeking(self, name: str) -> Seeking | None:
        """The seek that is under way."""
        return self._state(name).seeking

    def cancel_seek(self, name: str) -> bool:
        """Break it off: nothing has moved then. False when there is none any more."""
        seeking = self._state(name).seeking
        return seeking is not None and seeking.cancel()

    # --- disk -----------------------------------------------------------------------------------------

    async def tend(self) -> None:
        """Writes down what changed, until it is cancelled."""
        # A full disk, a damaged chunk: what a pull meets, it says as well.
        turns = Recurring(_log, "subscriptions cannot be looked after", HeadgateError)
        while True:
            await asyncio.sleep(limits.SUBSCRIPTION_FLUSH_S)
            with turns.attempt():
                for state in list(self._states.values()):
                    await self._begun(state)  # whether or not anybody consumes it: from here on the log is kept for it
                    await self.give_up(state)
                await self.flush()

    async def sweep(
        self, told: Container[int], near_us: int, near_position: int, over_us: int, over_position: int
    ) -> set[int]:
        """Give up what is over the bounds of a backlog (see `expiry.py`).

        Args:
            told: Subscriptions of which people have been told that they are near; only these lose anything.
            near_us: A backlog with events that were matched before it is near its bounds, microseconds since 1970 UTC.
            near_position: The same as a position of the outbox.
            over_us: What was matched before it is over.
            over_position: The same as a position of the outbox.

        Returns:
            Those that are near.
        """
        near: set[int] = set()
        for state in list(self._states.values()):
            id_, cursor = state.target.id, state.cursor
            async with state.reading:
                limit = min(over_position, self._handed())
                gone = id_ in told and await self._abandoning.expire(state, limit, over_us)
                if await self._abandoning.pass_others(state) or gone:
                    self._dirty.add(id_)
            first = min([cursor.next, *(held.position for held in cursor.held() if held.position >= 0)])
            if first < min(near_position, self._handed()) or cursor.is_history_older(near_us):
                near.add(id_)
        return near

    async def give_up(self, state: State) -> None:
        """End what was handed out `maxDeliveries` times."""
        if await self._abandoning.exhaust(state):
            self._dirty.add(state.target.id)
            state.wake()  # there may be room again

    async def flush(self) -> None:
        """Write down what changed; goes on when the caller is cancelled.

        Raises:
            AckNotStoredError: The disk does not take it.
        """
        await asyncio.shield(asyncio.ensure_future(self._flush()))

    async def _flush(self) -> None:
        async with self._writing:
            dirty, self._dirty = self._dirty, set()
            gone, self._gone = self._gone, set()
            changed = {id_: self._states[id_].cursor.saved() for id_ in dirty if id_ in self._states}
            if not changed and not gone:
                return
            try:
                await asyncio.to_thread(self._store.write, changed, gone)
            except sqlite3.OperationalError as error:
                self._dirty |= dirty
                self._gone |= gone
                raise AckNotStoredError(f"subscriptions.db: {error}", hint="is the disk full?") from error

    async def _durable(self, state: State) -> None:
        self._dirty.add(state.target.id)
        await self.flush()

    def _state(self, name: str) -> State:
        state = self._by_name.get(name)
        if state is None:
            raise SubscriptionNotFoundError(f"there is no subscription {name!r}", hint="headgate get subscriptions")
        return state


def _look_s(state: State) -> float:
    """How often a consumer has to show that it is there: its lease lasts for an ack timeout."""
    return min(limits.PULL_POLL_S, state.rules.ack_timeout_s / 3)
