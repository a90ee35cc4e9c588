"""The follower of the log: it reads each event once, for an index of events and for the sketch of flows.

It takes what comes, and goes back through what was there, for at most FOLLOWED_BYTES_MAX, a quarter of the time at
most: no producer waits for it. One that cannot keep up begins anew at the end. What it has not read is searched in the
log itself: nothing is right or wrong by it. On Kafka each server follows all of the log, and all answer the same.

The index says by id or by root which offsets may be the ones. Of each event 32 bits of each hash are kept, at the place
of its offset in a block; a search goes through the blocks as through one text, some 4 ms for a million events. It may
name an event that is another one, and never leaves one out: who asks reads what it names.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Final, TypeVar

import pyarrow as pa
import structlog
import xxhash

from headgate.event.arrow import EVENT_SCHEMA
from headgate.event.hops import ROOT
from headgate.inspect.flows import FlowSketch
from headgate.log.errors import UnreadableEventsError
from headgate.observe.logs import Recurring
from headgate.scan.scan import rows_of
from headgate.scan.source import SearchableLog, StoredPage, read_pages
from headgate_api.errors import HeadgateError, UnavailableError
from headgate_api.event.attributes import media_type
from headgate_api.event.model import DataKind
from headgate_api.limits import (
    FOLLOW_BEHIND_MAX,
    FOLLOW_DUTY,
    FOLLOW_POLL_S,
    FOLLOW_TURN_BYTES,
    FOLLOWED_BYTES_MAX,
    INDEXED_EVENTS_MAX,
)

_T = TypeVar("_T")
_BLOCK: Final = 1 << 16
"""Events of a block."""
_WIDTH: Final = 4
"""Bytes of a hash."""
_ALL: Final = 1 << 63
"""Behind every offset."""


def _hash(text: str) -> int:
    """Never 0, which stands for no text."""
    return xxhash.xxh32_intdigest(text.encode()) or 1


class _Column:
    """Hashes of one partition by offset; a block without any has no memory."""

    def __init__(self) -> None:
        self.blocks: dict[int, bytearray] = {}

    def put(self, first: int, hashes: array[int]) -> None:
        done = 0
        while done < len(hashes):
            number, at = divmod(first + done, _BLOCK)
            piece = hashes[done : done + _BLOCK - at]
            if any(piece):
                block = self.blocks.get(number)
                if block is None:
                    block = self.blocks[number] = bytearray(_BLOCK * _WIDTH)
                block[at * _WIDTH : (at + len(piece)) * _WIDTH] = piece.tobytes()
            done += len(piece)

    def find(self, text: str, low: int, high: int, *, newest_first: bool) -> Iterator[int]:
        """Offsets from `low` on and below `high`, of the blocks of now; one block at a time: an id may be frequent."""
        needle = array("I", [_hash(text)]).tobytes()
        blocks = [one for one in self.blocks.items() if low < (one[0] + 1) * _BLOCK and one[0] * _BLOCK < high]
        blocks.sort(reverse=newest_first)
        found = (_places(number, block, needle) for number, block in blocks)
        pieces = map(reversed, found) if newest_first else found
        return (at for at in chain.from_iterable(pieces) if low <= at < high)


def _places(number: int, block: bytearray, needle: bytes) -> list[int]:
    """Offsets of one block, in order."""
    found = []
    at = block.find(needle)
    while at >= 0:
        if at % _WIDTH == 0:
            found.append(number * _BLOCK + at // _WIDTH)
        at = block.find(needle, at + 1)
    return found


class EventIndex:
    """The index of the newest events of all partitions. One thread puts, any number of threads find.

    Of more than `events_max`, rounded to blocks, the oldest ones of the partition that has most make room.
    """

    def __init__(self, events_max: int) -> None:
        self._blocks_max = max(1, events_max // _BLOCK)
        self._ids: dict[int, _Column] = {}
        self._roots: dict[int, _Column] = {}
        self._low: dict[int, int] = {}

    def put(self, partition: int, first: int, ids: Sequence[str], roots: Sequence[str | None] = ()) -> None:
        """Take up events from the offset `first` on; `roots` is what they descend from, empty when none does."""
        given_up = max(0, self.low(partition) - first)
        first, ids, roots = first + given_up, ids[given_up:], roots[given_up:]
        if not ids:
            return
        self._ids.setdefault(partition, _Column()).put(first, array("I", map(_hash, ids)))
        if roots:
            hashes = array("I", (0 if root is None else _hash(root) for root in roots))
            self._roots.setdefault(partition, _Column()).put(first, hashes)
        self._make_room()

    def low(self, partition: int) -> int:
        """Events below this offset were given up; it never falls. Ask after a search: what it left out is below."""
        return self._low.get(partition, 0)

    def with_id(self, partition: int, id_: str, low: int = 0, high: int = _ALL) -> Iterator[int]:
        """Offsets of events that may have an id, from `low` on and below `high`; the newest first."""
        column = self._ids.get(partition)
        return iter(()) if column is None else column.find(id_, low, high, newest_first=True)

    def with_root(self, partition: int, root: str, low: int = 0, high: int = _ALL) -> Iterator[int]:
        """Offsets of events that may descend from an event, from `low` on and below `high`; in order."""
        column = self._roots.get(partition)
        return iter(()) if column is None else column.find(root, low, high, newest_first=False)

    def give_up(self, partition: int, below: int) -> None:
        self._low[partition] = max(below, self.low(partition))
        for columns in (self._ids, self._roots):
            if partition in columns:
                kept = {at: block for at, block in columns[partition].blocks.items() if below < (at + 1) * _BLOCK}
                columns[partition].blocks = kept  # a new one: another thread may go through the old one

    def _make_room(self) -> None:
        while sum(len(column.blocks) for column in self._ids.values()) > self._blocks_max:
            partition, column = max(self._ids.items(), key=lambda one: len(one[1].blocks))
            self.give_up(partition, (min(column.blocks) + 1) * _BLOCK)


_BROKER, _TYPE, _SOURCE, _ID, _EXTENSIONS, _KIND, _CONTENT_TYPE = map(
    EVENT_SCHEMA.get_field_index, ("broker", "type", "source", "id", "extensions", "data_kind", "datacontenttype")
)
_BINARY: Final = int(DataKind.BINARY)
_ROOTED: Final = f'"{ROOT}":"'
_ROOT: Final = re.compile(f'{_ROOTED}([^"]*)"')
_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Span:
    """What was read of a partition: offsets from `low` to `high`, exclusive."""

    low: int
    high: int
    failed: bool = False


class LogFollower:
    """Reads the log along. Its methods may block; any thread may call them.

    Where `rows` says which rows of a page count, the others are as if they were not there, and nothing is indexed.
    """

    def __init__(self, log: SearchableLog, rows: Callable[[StoredPage], list[int]] | None = None) -> None:
        self.index = EventIndex(INDEXED_EVENTS_MAX)
        self.log = log
        self._rows = rows
        self._flows = FlowSketch()
        self._lock = threading.Lock()
        self._spans: dict[int, _Span] = {}
        self._coming: Iterator[tuple[int, StoredPage]] | None = None
        self._past: Iterator[tuple[int, StoredPage]] | None = None
        self._past_bytes = FOLLOWED_BYTES_MAX
        self.since_us = 0
        """When the oldest event was stored that counts; 0 when none does."""
        self.is_complete = True
        """Whether all that was in the log was read."""

    async def run(self) -> None:
        turns = Recurring(_log, "the log cannot be followed, searches take longer", HeadgateError, OSError)
        while True:
            took_s = 0.0
            with turns.attempt():
                took_s = await unwaited(self.step)
            is_idle = self._past is None and took_s <= FOLLOW_POLL_S * FOLLOW_DUTY
            await asyncio.sleep(FOLLOW_POLL_S if is_idle else took_s / FOLLOW_DUTY)

    def step(self) -> float:
        """Read FOLLOW_TURN_BYTES at most, what is new first; returns how many seconds that took."""
        started = time.monotonic()
        with self._lock:
            self._begin()
            left_bytes = self._forward(FOLLOW_TURN_BYTES)
            self._back(left_bytes)
        return time.monotonic() - started

    def read_for(self, seconds: float) -> None:
        """Read on until everything is read, or so much time is over. Nothing is kept open for the next call."""
        ends = time.monotonic() + seconds
        self.step()
        while self._past is not None and time.monotonic() < ends:
            self.step()
        with self._lock:
            self._coming = None
            if self._past is not None:
                self._past = self._walk()

    def covered(self, partition: int) -> tuple[int, int]:
        """The offsets that the index knows, of which it leaves none out: first, and behind the last."""
        span = self._spans.get(partition)
        return (0, 0) if span is None else (min(max(span.low, self.index.low(partition)), span.high), span.high)

    @contextmanager
    def flows(self) -> Iterator[FlowSketch]:
        """The flows up to now, or nearly; nothing is added while they are looked at."""
        with self._lock:
            self._begin()
            self._forward(FOLLOW_TURN_BYTES)
            yield self._flows

    def close(self) -> None:
        """Gives back what it reads by; a step that waits for the store is left behind."""
        if self._lock.acquire(blocking=False):
            self._coming = self._past = None
            self._lock.release()

    def _begin(self) -> None:
        """What partitions have that are new is the past."""
        fresh = [number for number in self.log.partitions() if number not in self._spans]
        if not fresh:
            return
        ends = self.log.end_offsets()
        for number in fresh:
            self._spans[number] = _Span(ends[number], ends[number])
        if any(ends[number] for number in fresh):
            self._past, self.is_complete = self._walk(), False

    def _begin_anew(self, ends: Mapping[int, int]) -> None:
        """Forget what was read, and go on at the end; what is there now is the past."""
        _log.warning("the log grows faster than it is followed: its flows are counted anew")
        self._flows, self._past_bytes, self.since_us, self.is_complete = FlowSketch(), FOLLOWED_BYTES_MAX, 0, False
        for number, span in self._spans.items():
            self.index.give_up(number, ends[number])
            span.low = span.high = ends[number]
        self._past = self._walk()

    def _walk(self) -> Iterator[tuple[int, StoredPage]]:
        """What is older than what was read, the newest first."""
        return self.log.newest({number: span.low for number, span in self._spans.items()})

    def _read_on(self) -> Iterator[tuple[int, StoredPage]]:
        """What is newer than what was read, up to now."""
        ends = self.log.end_offsets()
        if sum(ends[number] - span.high for number, span in self._spans.items() if not span.failed) > FOLLOW_BEHIND_MAX:
            self._begin_anew(ends)
        behind = {number: span for number, span in self._spans.items() if not span.failed and span.high != ends[number]}
        for number, span in behind.items():
            if ends[number] < span.high:
                raise UnavailableError(
                    f"partition {number} of the log ends at {ends[number]}, and was read up to {span.high}",
                    hint="it is another log than when this server was started: start the server again",
                )

        def give_up(number: int, _: UnreadableEventsError) -> None:
            behind[number].failed = True  # readers stop there, too

        start = {number: span.high for number, span in behind.items()}
        for number, page in read_pages(self.log, start, ends, give_up):
            yield number, page
        for number, span in behind.items():
            if not span.failed:
                span.high = ends[number]

    def _forward(self, left_bytes: int) -> int:
        """Read what is new; returns what is left of the bytes."""
        coming = self._read_on() if self._coming is None else self._coming
        self._coming = None  # one that has failed is at its end
        while left_bytes > 0:
            found = next(coming, None)
            if found is None:
                return left_bytes
            number, page = found
            self._take(number, page)
            left_bytes -= page.size_bytes
            self._spans[number].high = page.offsets[-1] + 1
        self._coming = coming
        return left_bytes

    def _back(self, left_bytes: int) -> None:
        while self._past is not None and left_bytes > 0:
            try:
                number, page = next(self._past)
            except (StopIteration, UnreadableEventsError) as end:
                self._past, self.is_complete = None, isinstance(end, StopIteration)
                return
            except (HeadgateError, OSError):
                self._past = self._walk()  # an iterator that has failed is at its end; the next step goes on
                raise
            self._take(number, page, newest_first=True)
            left_bytes -= page.size_bytes
            self._past_bytes -= page.size_bytes
            self._spans[number].low = page.offsets[0]
            if self._past_bytes <= 0:
                self._past = None

    def _take(self, number: int, page: StoredPage, *, newest_first: bool = False) -> None:
        # Without the kernels of Arrow: mostly a page has few events, and a call costs 40 us.
        batch, offsets, times_us = page.batch, page.offsets, page.append_times_us
        if self._rows is not None:
            rows = self._rows(page)
            if not rows:
                return
            batch, offsets, times_us = rows_of(batch, rows), [offsets[row] for row in rows], [times_us[r] for r in rows]
        columns = (batch.column(place).to_pylist() for place in (_BROKER, _TYPE, _SOURCE))
        kinds, extensions = list(zip(*columns, strict=True)), _extensions(batch)
        wrong = frozenset(_not_json(batch))
        self.since_us = min(self.since_us or times_us[0], times_us[0])
        pieces = list(_pieces(times_us))
        for begin, end in reversed(pieces) if newest_first else pieces:
            not_json = [row - begin for row in range(begin, end) if row in wrong] if wrong else ()
            where = offsets[begin:end]
            self._flows.add(kinds[begin:end], times_us[begin], number, where, not_json, extensions[begin:end])
        if self._rows is None:
            self._index(number, offsets, batch.column(_ID).to_pylist(), _roots(extensions), newest_first=newest_first)

    def _index(
        self, number: int, offsets: Sequence[int], ids: list[str], roots: list[str | None], *, newest_first: bool
    ) -> None:
        pieces = list(_pieces([offset - row for row, offset in enumerate(offsets)]))
        for begin, end in reversed(pieces) if newest_first else pieces:
            self.index.put(number, offsets[begin], ids[begin:end], roots[begin:end])


async def unwaited(work: Callable[[], _T]) -> _T:
    """What `work` returns, done in a thread that no stop waits for: a store may not answer for long."""
    future = Future[_T]()
    future.set_running_or_notify_cancel()  # from here on it cannot be cancelled, only left alone

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is of who waits
            future.set_exception(error)

    threading.Thread(target=run, name="follower", daemon=True).start()
    return await asyncio.wrap_future(future)


def _pieces(values: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The rows that have one value, one behind the other: begin and end. Of a chunk's times there is one piece."""
    begin = 0
    for row in range(1, len(values)):
        if values[row] != values[begin]:
            yield begin, row
            begin = row
    yield begin, len(values)


def _not_json(batch: pa.RecordBatch) -> list[int]:
    """The rows whose media type says JSON and whose data is none, such as JSON behind a byte order mark."""
    kinds = batch.column(_KIND).to_pylist()
    rows = [row for row, kind in enumerate(kinds) if kind == _BINARY]
    types = batch.column(_CONTENT_TYPE)
    return [row for row in rows if (media := media_type(types[row].as_py() or "")) is not None and media.is_json]


def _extensions(batch: pa.RecordBatch) -> list[str | None]:
    """The extensions of a batch's events; empty when none has any."""
    column = batch.column(_EXTENSIONS)
    found: list[str | None] = [] if column.null_count == len(column) else column.to_pylist()
    return found


def _roots(extensions: Sequence[str | None]) -> list[str | None]:
    """What events descend from, by their extensions; empty when none descends from another one, as nearly always."""
    if not any(text is not None and _ROOTED in text for text in extensions):
        return []
    found = [None if text is None else _ROOT.search(text) for text in extensions]
    return [one and one[1] for one in found]
