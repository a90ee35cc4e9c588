"""All subscriptions in memory, by id and by name, what they share, and the writing of their cursors."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Final

from headgate.delivery.events import Events
from headgate.delivery.given_up import DeadLetterQueue
from headgate.delivery.verdicts import FinalCheck
from headgate.objects.kinds.routing import PullRules, RoutingTable, Target
from headgate.outbox.reader import OutboxView
from headgate.scan.pages import RuleOf, Scanner
from headgate.scan.search import OnProgress
from headgate.scan.source import ReadableLog
from headgate.subscriptions.cursor import Cursor
from headgate.subscriptions.messages import AckNotStoredError, SeekCancelledError, SeekGoal, SubscriptionNotFoundError
from headgate.subscriptions.store import SavedCursor, SubscriptionStore
from headgate_api.errors import UnavailableError


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionResources:
    """What all subscriptions share; without `dead_letters` what was handed out too often is dropped."""

    outbox: OutboxView
    log: ReadableLog
    scanner: Scanner
    rule_of: RuleOf
    events: Events
    final_check: FinalCheck
    in_force: Callable[[], dict[int, tuple[int, int]]]  # where matching stands, by partition, and by which generation
    clock_us: Callable[[], int]
    dead_letters: DeadLetterQueue | None = None


@dataclass(frozen=True, slots=True)
class SeekDestination:
    """Where a subscription goes on."""

    position: int  # of the outbox; rows below it are of events below `floor`
    floor: dict[int, int]  # of the events of each partition, those below these offsets are not wanted
    behind: bool = False  # whether it is behind everything matched so far


class RunningSeek:
    """A seek under way, which has looked at `scanned` events of about `total`."""

    def __init__(self, goal: SeekGoal, on_progress: OnProgress) -> None:
        self.goal = goal
        self.scanned = 0
        self.total = 0
        self._on_progress = on_progress
        self._task: asyncio.Task[SeekDestination] | None = None
        self._cancelled = False

    def progress(self, scanned: int, total: int) -> None:
        self.scanned, self.total = scanned, total
        self._on_progress(scanned, total)

    async def run(self, search: Coroutine[None, None, SeekDestination]) -> SeekDestination:
        """Waits for the search; raises SeekCancelledError when somebody called `cancel`."""
        self._task = asyncio.ensure_future(search)
        try:
            return await self._task
        except asyncio.CancelledError:
            if self._cancelled:
                raise SeekCancelledError("the seek was cancelled; the subscription stays where it was") from None
            raise

    def cancel(self) -> bool:
        """Cancels it; False when it is too late."""
        self._cancelled = self._task is not None and self._task.cancel()
        return self._cancelled


class SubscriptionState:
    """One subscription. Who reads its rows holds `reading`; `changed` is set, and replaced, when there may be news."""

    def __init__(self, target: Target, saved: SavedCursor, resources: SubscriptionResources) -> None:
        self.target = target
        self.resources = resources
        self.cursor = Cursor(saved)
        self.reading = asyncio.Lock()
        self.changed = asyncio.Event()
        self.seek: RunningSeek | None = None

    @property
    def rules(self) -> PullRules:
        assert self.target.pull is not None
        return self.target.pull

    def wake(self) -> None:
        """Whoever waits looks again."""
        self.changed.set()
        self.changed = asyncio.Event()


_EPOCH_BITS: Final = 20  # seeks of one subscription until its epochs meet the next one's: more than there ever are


class SubscriptionRegistry:
    """Subscriptions as routing has them. Lives on the dispatcher's event loop."""

    def __init__(self, store: SubscriptionStore, resources: SubscriptionResources) -> None:
        self._store = store
        self._resources = resources
        self._states: dict[int, SubscriptionState] = {}
        self._by_name: dict[str, SubscriptionState] = {}
        self._saved = store.load()
        self._table: RoutingTable | None = None
        self._dirty: set[int] = set()
        self._gone: set[int] = set()
        self._writing = asyncio.Lock()

    def __iter__(self) -> Iterator[SubscriptionState]:
        """Those of now, also when some are added or removed meanwhile."""
        return iter(list(self._states.values()))

    def find(self, id_: int) -> SubscriptionState | None:
        return self._states.get(id_)

    def get(self, name: str) -> SubscriptionState:
        """The subscription `namespace/name`."""
        state = self._by_name.get(name)
        if state is None:
            raise SubscriptionNotFoundError(
                f"there is no subscription {name!r}", hint="headgate get subscriptions -A lists them"
            )
        return state

    def update(self, table: RoutingTable) -> None:
        """A new routing table; the first one is of the start, when nothing has been handed over yet."""
        for id_ in table.changed_since(self._table) | self._saved.keys():
            target, state = table.targets.get(id_), self._states.get(id_)
            if target is None or target.pull is None:
                self._forget(id_)
            elif state is not None:
                state.target = target
            else:
                self._states[id_] = SubscriptionState(target, self._begin(id_), self._resources)
                self._dirty.add(id_)
        self._by_name = {state.target.name: state for state in self._states.values()}
        self._table = table

    def _forget(self, id_: int) -> None:
        saved, state = self._saved.pop(id_, None), self._states.pop(id_, None)
        if saved is not None or state is not None:
            self._gone.add(id_)
        if state is not None:
            state.wake()

    def _begin(self, id_: int) -> SavedCursor:
        """Where a subscription that is not in memory yet stands."""
        saved, outbox = self._saved.pop(id_, None), self._resources.outbox
        if saved is not None and saved.next <= outbox.places.stored_end():
            return saved
        # At the start an unknown one may have rows already: a target's first row is never before its making.
        # An acknowledgement meant for an earlier one, of this outbox or of this name, is stale.
        epoch = saved.epoch if saved is not None else id_ << _EPOCH_BITS
        return SavedCursor(epoch=epoch + 1, next=0 if self._table is None else outbox.end)

    # --- disk -----------------------------------------------------------------------------------------

    def changed(self, state: SubscriptionState) -> None:
        """Its cursor is to be written."""
        self._dirty.add(state.target.id)

    async def save(self, state: SubscriptionState) -> None:
        """Returns when its cursor, as it is now, is on disk; AckNotStoredError when the disk does not take it."""
        self.changed(state)
        await self.flush()

    async def flush(self) -> None:
        """Write the cursors that changed, or AckNotStoredError; goes on when the caller is cancelled."""
        await asyncio.shield(asyncio.ensure_future(self._flush()))

    async def _flush(self) -> None:
        async with self._writing:
            dirty, self._dirty = self._dirty, set()
            gone, self._gone = self._gone, set()
            changed = {id_: self._states[id_].cursor.snapshot() for id_ in dirty if id_ in self._states}
            if not changed and not gone:
                return
            try:
                await asyncio.to_thread(self._store.write, changed, gone)
            except (sqlite3.OperationalError, UnavailableError) as error:
                self._dirty |= dirty
                self._gone |= gone
                hint = error.hint if isinstance(error, UnavailableError) else "is the disk full?"
                raise AckNotStoredError(f"subscriptions.db: {error}", hint=hint) from error
