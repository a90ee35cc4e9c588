"""The rows of the topic `outbox` that were read before, read again for targets that lag."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from headgate.backend.config import KafkaConfig
from headgate.backend.kafka.client import Came, TopicConsumer, offset_of
from headgate.backend.kafka.events import headers_of
from headgate.backend.kafka.outbox_reader import matched_event
from headgate.backend.kafka.outbox_records import OutboxEvent, OutboxState, decode, decode_state, encode_state
from headgate.backend.kafka.outbox_takeover import Matched, OutboxTakeover
from headgate.backend.kafka.records import RecordError
from headgate.delivery.cursors import CursorChange, CursorStore
from headgate.outbox.reader import OutboxRow, RowPage, every_row
from headgate.storage.commit import Committer
from headgate.storage.threads import Threads
from headgate_api import limits
from headgate_api.errors import UnavailableError
from headgate_api.limits import OUTBOX_SWEEP_RECORDS, OUTBOX_SWEPT_PLACES_MAX

if TYPE_CHECKING:
    from confluent_kafka import Message


# --- checkpoints ----------------------------------------------------------------------------------
# Which records of the outbox count depends on all that stand before them (`outbox_takeover.py`). So whoever looks for
# the rows of a target that lags begins at a place of which the takeover's state is known: the newest one at which
# nothing is handed over yet that it looks for. Checkpoints are kept with the cursors, as far back as a target has rows
# to read; some older ones are for seeks of subscriptions, and for people, who ask what became of an event.

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS checkpoints (position INTEGER PRIMARY KEY, next_offset INTEGER NOT NULL, state TEXT NOT NULL)
STRICT;
CREATE TABLE IF NOT EXISTS routing (id INTEGER PRIMARY KEY CHECK (id = 0), generation INTEGER NOT NULL) STRICT;
"""


@dataclass(frozen=True, slots=True)
class KnownPlace:
    """A place up to which every row has been handed over; they do not come again.

    `offset` is that of the first record to read, below `position` where an event is incomplete there. `state` is that
    of the takeover at `offset`.
    """

    position: int = 0
    offset: int = 0
    state: OutboxState = field(default_factory=OutboxState)


class Checkpoints:
    """The known places of one partition, by position. For several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: list[KnownPlace] = [KnownPlace()]

    def add(self, place: KnownPlace) -> None:
        """A place behind all others, or at the last one's position, whose place it takes."""
        with self._lock:
            if self._places and self._places[-1].position >= place.position:
                self._places.pop()
            self._places.append(place)

    def before(self, position: int) -> KnownPlace:
        """The newest place at or before a position."""
        with self._lock:
            index = bisect_right(self._places, position, key=lambda place: place.position)
            return self._places[max(0, index - 1)]

    def of_event(self, source: int, offset: int) -> KnownPlace | None:
        """The newest place at which an event (by source partition) has no row yet; None where none kept is so old."""

        def is_before(state: OutboxState) -> bool:
            known = state.takeover.partitions.get(source)
            return known is None or known.watermark <= offset

        return self.newest(is_before)

    def newest(self, fits: Callable[[OutboxState], bool] = lambda _: True) -> KnownPlace | None:
        """The newest place whose state fits."""
        with self._lock:
            places = list(self._places)
        return next((place for place in reversed(places) if fits(place.state)), None)

    def keep(self, positions: frozenset[int], from_: int) -> None:
        """Forgets the places below a position, but for the newest of them and those at some positions."""
        with self._lock:
            newest = max((each.position for each in self._places if each.position <= from_), default=from_)
            kept = [each for each in self._places if each.position >= newest or each.position in positions]
            self._places = kept or self._places[-1:]


class CheckpointedCursors(CursorStore):
    """The cursors of one outbox partition, with checkpoints; adds those of the file to `checkpoints`. Blocking.

    Attributes:
        place: What the group is to commit: the newest place at which everything is in the file.
        generation: Of the newest filters by which rows were handed over: who goes on needs their targets.
    """

    def __init__(self, path: Path, checkpoints: Checkpoints, committer: Committer | None = None) -> None:
        super().__init__(path, _SCHEMA, committer)
        self._checkpoints = checkpoints
        self._spacing = limits.OUTBOX_CHECKPOINT_RECORDS
        found = self._connection.execute("SELECT position, next_offset, state FROM checkpoints ORDER BY position")
        stored = [KnownPlace(position, offset, decode_state(state)) for position, offset, state in found]
        self._stored = [each.position for each in stored]
        for each in stored:
            checkpoints.add(each)
        row = self._connection.execute("SELECT generation FROM routing").fetchone()
        self.generation = self._stored_generation = int(row[0]) if row else 0
        self.place: KnownPlace | None = None

    def _write(self, connection: sqlite3.Connection, change: CursorChange) -> None:
        super()._write(connection, change)
        if self.generation != self._stored_generation:
            connection.execute("REPLACE INTO routing VALUES (0, ?)", (self.generation,))
            self._stored_generation = self.generation
        place = self.place = self._checkpoints.before(change.position)
        stored = list(self._stored)
        if not stored or place.position >= stored[-1] + self._spacing:
            new = [place] if stored else [self._checkpoints.before(0), place]  # a row may be needed from before it
            rows = [(each.position, each.offset, encode_state(each.state)) for each in new]
            connection.executemany("REPLACE INTO checkpoints VALUES (?, ?, ?)", rows)
            stored = sorted({*stored, *(each.position for each in new)})
            stored = self._thinned(stored, self.oldest_needed(change.position))
            gone = [(position,) for position in {*self._stored} - {*stored}]
            connection.executemany("DELETE FROM checkpoints WHERE position = ?", gone)
        self._stored = stored  # after a rollback, what is stored again and what is deleted again is the same
        self._checkpoints.keep(frozenset(stored), place.position)

    def _thinned(self, stored: list[int], needed: int) -> list[int]:
        """Without every second one where there are too many, of those that are needed and of those for `why`."""
        first = max(0, bisect_right(stored, needed) - 1)
        past, stored = stored[:first], stored[first:]
        if len(past) > limits.OUTBOX_CHECKPOINTS_PAST:
            past = past[::2]
        if len(stored) > limits.OUTBOX_CHECKPOINTS_MAX:
            self._spacing *= 2
            stored = [*stored[:-1:2], stored[-1]]
        return past + stored


# --- outbox walk ----------------------------------------------------------------------------------
# Walks over records of the topic `outbox` that were read before: what counts is decided as it was the first time.

_DOING: Final = "the outbox cannot be read again"
_POLL_S: Final = 0.2


class WalkedMatch(NamedTuple):
    """An event that counts, by the offset of its last record, written at `time_us`, microseconds since 1970 UTC."""

    position: int
    time_us: int
    matched: Matched


class OutboxWalker:
    """Walks, one after the other; `closing` ends one early. Blocking; for one thread."""

    def __init__(self, config: KafkaConfig, closing: threading.Event) -> None:
        self.topic: Final = config.topic("outbox")
        self.closing: Final = closing
        self.partitions: Final = config.topics.outbox.partitions
        self.consumer: Final = TopicConsumer.committed(config, _DOING)
        self._events_topic = config.topic("events")

    def begin(self, partition: int, place: KnownPlace) -> OutboxWalk:
        """A walk over a partition, from a checkpoint of it on."""
        return OutboxWalk(self, partition, place)

    def close(self) -> None:
        self.consumer.close()

    def bounds(self, partition: int) -> tuple[int, int]:
        """The first offset that a partition of the outbox still has, and its end."""
        return self.consumer.bounds(self.topic, partition)

    def floor(self, source: int) -> int:
        """The first offset that a source partition still has."""
        return self.consumer.bounds(self._events_topic, source)[0]

    def records(self, partition: int) -> tuple[list[Message], int]:
        """The records that come next, and the partition's end if met, else -1; UnavailableError if they are gone."""
        found: list[Message] = []
        end = -1
        for came in self.consumer.answers(f"{self.topic}/{partition}", _POLL_S):
            for what, message in came:
                if what is Came.REMOVED:
                    raise UnavailableError(f"{_DOING}: {self.topic}/{partition} was trimmed meanwhile")
                if what is Came.END:
                    end = offset_of(message)
                else:
                    found.append(message)
            if found or end >= 0 or self.closing.is_set():
                break
        return found, end


class OutboxWalk:
    """One walk; `OutboxWalker.begin` makes it.

    The partition had offsets from `first` to `end` at the start. `is_cut`: retention has removed records behind the
    checkpoint, so the walk begins at `first`. `count` records were read.
    """

    def __init__(self, walker: OutboxWalker, partition: int, place: KnownPlace) -> None:
        self._walker = walker
        self._partition = partition
        self.first, self.end = walker.bounds(partition)
        self.count = 0
        self.is_cut = place.offset < self.first
        offset = max(place.offset, self.first)
        self._takeover = OutboxTakeover(walker.partitions, walker.floor, offset, place.state)
        walker.consumer.go(walker.topic, partition, offset)

    @property
    def position(self) -> int:
        """Offset of the next record to read."""
        return self._takeover.next_position

    @property
    def place(self) -> KnownPlace:
        """Where it is: another walk may begin here."""
        return KnownPlace(self.position, self._takeover.resume_at, self._takeover.state)

    def watermark(self, source: int) -> int:
        """Every event of the source partition below it was met, if it came behind the checkpoint."""
        return self._takeover.watermark(source) or 0

    def step(self) -> list[WalkedMatch]:
        """Goes on with what has come; nothing where the walker closes."""
        records, end_seen = self._walker.records(self._partition)
        found = [match for message in records for match in self._take(message)]
        self.count += len(records)
        if not records and end_seen > self._takeover.next_position:  # offsets have holes
            self._takeover.pass_over(end_seen - 1)
        return found

    def _take(self, message: Message) -> list[WalkedMatch]:
        offset = offset_of(message)
        try:
            headers, count = headers_of(message), self._walker.partitions
            record = decode(headers, message.key(), message.value(), self._partition, count)
            outcomes = self._takeover.feed(offset, record)
        except RecordError:
            self._takeover.pass_over(offset)  # it was told when it was read the first time
            return []
        time_us = message.timestamp()[1] * 1_000
        return [WalkedMatch(offset, time_us, one) for one in outcomes if isinstance(one, Matched)]


# --- outbox backlog -------------------------------------------------------------------------------
# A partition of the topic has everybody's records, so a target's own rows cost a walk over all. Targets that lag wait
# together: a sweep begins where the one furthest behind goes on, and each target joins it as it passes its place. After
# OUTBOX_SWEEP_RECORDS everybody gets what was found until there. A sweep begins at the newest checkpoint before the
# place, or where an earlier one has answered somebody: who asks for one page after the other, as consumers of a
# subscription do, is read on where he stands.

_RETRY_S: Final = 1.0
_log = structlog.get_logger(__name__)


@dataclass(eq=False, slots=True)
class _Request:
    """One target's wish for rows."""

    target: int
    start: int
    upto: int
    count_max: int
    wants: Callable[[int], bool]
    page: asyncio.Future[RowPage]
    rows: list[OutboxRow] = field(default_factory=list)


class TopicBacklog:
    """The `Backlog` of one outbox partition, on one event loop.

    `on_event` is called in a thread with each event of which a row was found; `on_removed` on the loop with a target,
    and the positions between which retention has removed records before it had read them.
    """

    def __init__(
        self,
        config: KafkaConfig,
        partition: int,
        checkpoints: Checkpoints,
        *,
        on_event: Callable[[OutboxEvent], None],
        on_removed: Callable[[int, int, int], None],
    ) -> None:
        self._partition = partition
        self._checkpoints = checkpoints
        self._on_event = on_event
        self._on_removed = on_removed
        self._loop = asyncio.get_running_loop()
        self._thread = Threads("backlog")
        self._lock = threading.Lock()
        self._waiting: list[_Request] = []
        self._swept: deque[KnownPlace] = deque(maxlen=OUTBOX_SWEPT_PLACES_MAX)
        self._is_sweeping = False
        self._closing = threading.Event()
        self._walker = OutboxWalker(config, self._closing)

    async def read(
        self, target: int, start: int, upto: int, count_max: int, wants: Callable[[int], bool] = every_row
    ) -> RowPage:
        if start >= upto:
            return RowPage([], upto)
        page: asyncio.Future[RowPage] = self._loop.create_future()
        with self._lock:
            self._waiting.append(_Request(target, start, upto, count_max, wants, page))
            begins, self._is_sweeping = not self._is_sweeping, True
        if begins:
            self._thread.begin(self._work, self._ended)
        return await page

    async def bounds(self) -> tuple[int, int]:
        """The first position that retention has kept, and the one behind the last record."""
        return await self._thread.run(self._walker.bounds, self._partition)

    def close(self) -> None:
        """Gives everything back; nobody waits for rows any more. Blocks."""
        self._closing.set()
        self._thread.close()
        self._walker.close()

    def _ended(self, done: Future[None]) -> None:
        error = done.exception()
        if error is not None:
            context = {"message": "reading the outbox again failed", "exception": error}
            self._loop.call_exception_handler(context)

    # --- the thread -------------------------------------------------------------------------------------

    def _work(self) -> None:
        told = ""
        while not self._closing.is_set():
            with self._lock:
                requests, self._waiting = self._waiting, []
                self._is_sweeping = bool(requests)
            if not requests:
                return
            try:
                self._sweep(requests)
                told = ""
            except UnavailableError as error:
                if told != error.message:
                    told = error.message
                    _log.error("lagging targets wait", error=error.message, hint=error.hint, partition=self._partition)
                with self._lock:
                    self._waiting += requests
                self._closing.wait(_RETRY_S)
                continue
            with self._lock:
                self._waiting += requests  # the sweep has not come to where they begin

    def _sweep(self, requests: list[_Request]) -> None:
        """Reads once from the lowest place on; at its end `requests` holds only what is to be asked again."""
        walk = self._walker.begin(self._partition, self._known_before(min(each.start for each in requests)))
        for each in requests:
            if walk.is_cut and each.start < walk.first:
                self._loop.call_soon_threadsafe(self._on_removed, each.target, each.start, walk.first)
        while requests and walk.position < min(walk.end, max(each.upto for each in requests)):
            if self._closing.is_set():
                return
            if walk.count >= OUTBOX_SWEEP_RECORDS:
                break
            place = walk.place
            for match in walk.step():  # all of them, though nobody may wait any more: who joins goes on behind them
                if self._found(match.matched, match.position, requests):
                    self._remember(place)
            with self._lock:
                joining = [each for each in self._waiting if each.start >= walk.position]
                self._waiting = [each for each in self._waiting if each.start < walk.position]
            requests += joining
        reached = walk.position
        self._remember(walk.place)
        for request in list(requests):
            if reached >= min(walk.end, request.upto):  # behind the end is nothing: what was handed over is before it
                self._answer(request, request.upto, requests)
            elif reached > request.start:
                self._answer(request, reached, requests)

    def _known_before(self, position: int) -> KnownPlace:
        """The newest place at or before a position from which on rows can be decided."""
        known = self._checkpoints.before(position)
        for place in self._swept:
            if known.position < place.position <= position:
                known = place
        return known

    def _remember(self, place: KnownPlace) -> None:
        """A sweep was here: the next one may begin here."""
        if all(one.position != place.position for one in self._swept):
            self._swept.append(place)

    def _found(self, matched: Matched, position: int, requests: list[_Request]) -> bool:
        """Gives a row to those who want it; whether somebody has all that he asked for."""
        verdicts = dict(matched.targets)
        is_new, has_answered = True, False
        for request in list(requests):
            verdict = verdicts.get(request.target)
            if verdict is None or not request.start <= position < request.upto or not request.wants(position):
                continue
            if is_new:
                is_new = False
                try:
                    self._on_event(matched_event(matched, position))
                except RecordError:
                    return False  # it was told when it was read the first time
            record = matched.record
            request.rows.append(OutboxRow(position, record.source, record.offset, verdict))
            if len(request.rows) >= request.count_max:
                self._answer(request, position + 1, requests)
                has_answered = True
        return has_answered

    def _answer(self, request: _Request, reached: int, requests: list[_Request]) -> None:
        requests.remove(request)
        self._loop.call_soon_threadsafe(_put, request.page, RowPage(request.rows, reached))


def _put(page: asyncio.Future[RowPage], found: RowPage) -> None:
    if not page.done():  # else: whoever asked was broken off
        page.set_result(found)
