"""The follower of the log: it reads each chunk once, for the index of events and for the sketch of flows.

It begins at the end of the log. In the background it takes what comes, and goes back through what was there, for at
most FOLLOWED_BYTES_MAX. It works for a quarter of the time at most, in another process than those that take events, so
a producer does not wait for it. What it has not read is searched in the log itself: nothing is right or wrong by it.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import structlog

from headgate.errors import HeadgateError
from headgate.event.arrow import EVENT_SCHEMA
from headgate.event.attributes import media_type
from headgate.event.hops import ROOT
from headgate.event.model import DataKind
from headgate.inspect.event_index import EventIndex
from headgate.inspect.flows import FlowSketch
from headgate.limits import FOLLOW_DUTY, FOLLOW_POLL_S, FOLLOW_TURN_BYTES, FOLLOWED_BYTES_MAX, INDEXED_EVENTS_MAX
from headgate.log.directory import LogDirectory
from headgate.log.errors import CorruptChunkError
from headgate.log.files import Committed
from headgate.log.reader import Chunk, PartitionReader
from headgate.log.search import newest_of_all
from headgate.observe.logs import Recurring

_BROKER, _TYPE, _SOURCE, _ID, _EXTENSIONS, _KIND, _CONTENT_TYPE = map(
    EVENT_SCHEMA.get_field_index, ("broker", "type", "source", "id", "extensions", "data_kind", "datacontenttype")
)
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
    """Reads the log along. Its methods may block; any thread may call them."""

    def __init__(self, log: LogDirectory) -> None:
        self.index = EventIndex(INDEXED_EVENTS_MAX)
        self.log = log
        self._flows = FlowSketch()
        self._lock = threading.Lock()
        self._spans: dict[int, _Span] = {}
        self._past: Iterator[tuple[int, Chunk]] | None = None
        self._past_bytes = FOLLOWED_BYTES_MAX
        self._since_us = 0
        self._is_complete = True

    async def run(self) -> None:
        """Follow until it is cancelled."""
        turns = Recurring(_log, "the log cannot be followed, searches take longer", HeadgateError, OSError)
        while True:
            took_s = 0.0
            with turns.attempt():
                took_s = await asyncio.to_thread(self.step)
            await asyncio.sleep(took_s / FOLLOW_DUTY if took_s > FOLLOW_POLL_S * FOLLOW_DUTY else self._pause_s(took_s))

    def _pause_s(self, took_s: float) -> float:
        return FOLLOW_POLL_S if self._past is None else took_s / FOLLOW_DUTY

    def step(self) -> float:
        """Read FOLLOW_TURN_BYTES at most, what is new first.

        Returns:
            How long that took, seconds.
        """
        started = time.monotonic()
        with self._lock:
            self._begin()
            left_bytes = self._forward(FOLLOW_TURN_BYTES)
            self._back(left_bytes)
        return time.monotonic() - started

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

    @property
    def since_us(self) -> int:
        """When the oldest chunk was stored that was read; 0 when none was."""
        return self._since_us

    @property
    def is_complete(self) -> bool:
        """Whether all that was in the log was read."""
        return self._is_complete

    def _begin(self) -> None:
        """Find partitions that are new: what they have now is the past."""
        fresh = [number for number in self.log.partitions() if number not in self._spans]
        for number in fresh:
            end = _end(self.log, number)
            self._spans[number] = _Span(end, end)
        if any(self._spans[number].high for number in fresh):
            self._past, self._is_complete = self._walk(), False

    def _walk(self) -> Iterator[tuple[int, Chunk]]:
        """What is older than what was read, the newest first."""
        return newest_of_all(self.log, before={number: span.low for number, span in self._spans.items()})

    def _forward(self, left_bytes: int) -> int:
        for number, span in self._spans.items():
            if span.failed or left_bytes <= 0 or span.high >= _end(self.log, number):
                continue
            with PartitionReader(self.log.partition(number), start=span.high) as reader:
                try:
                    while left_bytes > 0 and (chunk := reader.read()) is not None:
                        self._take(number, chunk)
                        left_bytes -= chunk.size_bytes
                        span.high = chunk.next_offset
                except CorruptChunkError:
                    span.failed = True  # readers stop there, too
        return left_bytes

    def _back(self, left_bytes: int) -> None:
        while self._past is not None and left_bytes > 0:
            try:
                number, chunk = next(self._past)
                self._take(number, chunk)
            except (StopIteration, CorruptChunkError) as end:
                self._past, self._is_complete = None, isinstance(end, StopIteration)
                return
            except (HeadgateError, OSError):
                self._past = self._walk()  # an iterator that has failed is at its end; the next step goes on
                raise
            span = self._spans[number]
            left_bytes -= chunk.size_bytes
            self._past_bytes -= chunk.size_bytes
            span.low = chunk.first_offset
            if self._past_bytes <= 0:
                self._past = None

    def _take(self, number: int, chunk: Chunk) -> None:
        batch, time_us = chunk.batch, chunk.append_time_us
        self._since_us = min(self._since_us or time_us, time_us)
        columns = (batch.column(place).to_pylist() for place in (_BROKER, _TYPE, _SOURCE))
        kinds = list(zip(*columns, strict=True))
        self._flows.add(kinds, time_us, number, chunk.first_offset, _not_json(batch))
        self.index.put(number, chunk.first_offset, batch.column(_ID).to_pylist(), _roots(batch))


def _end(log: LogDirectory, number: int) -> int:
    committed = Committed(log.partition(number).directory)
    try:
        return committed.next_offset()
    finally:
        committed.close()


def _not_json(batch: pa.RecordBatch) -> list[int]:
    """The rows whose media type says JSON and whose data is none, such as JSON behind a byte order mark."""
    rows = pc.indices_nonzero(pc.equal(batch.column(_KIND), int(DataKind.BINARY))).to_pylist()
    types = batch.column(_CONTENT_TYPE)
    return [row for row in rows if (media := media_type(types[row].as_py() or "")) is not None and media.is_json]


def _roots(batch: pa.RecordBatch) -> list[str | None]:
    """What the events of a batch descend from; empty when none descends from another one, as nearly always."""
    extensions: pa.Array = batch.column(_EXTENSIONS)
    if extensions.null_count == len(extensions):
        return []
    rows = pc.indices_nonzero(pc.match_substring(extensions, _ROOTED)).to_pylist()
    if not rows:
        return []
    roots: list[str | None] = [None] * len(extensions)
    for row in rows:
        found = _ROOT.search(extensions[row].as_py())
        roots[row] = found[1] if found else None
    return roots
