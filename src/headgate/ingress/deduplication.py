"""Publish once: of events with the same source and id a broker stores the first one of a window.

Who writes a partition looks at each chunk before it is written. What is known is in memory, and of the log: a start
reads the window again, so that nothing beside the log has to be durable. An event without a key goes to the partition
of its source and id (`EventPartitions`), so that one partition sees it whenever, and at whichever front, it comes.

An event is known by a keyed hash of 128 bits: who publishes cannot make two events look alike.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol, TypeAlias

import pyarrow as pa
import structlog

from headgate.log.directory import Partition
from headgate.log.errors import CorruptChunkError
from headgate.log.group_commit import Sifted
from headgate.log.reader import PartitionReader
from headgate.log.writer import Encoded, wall_clock_us
from headgate.observe.metrics import DEDUPLICATION_FORGOTTEN, DEDUPLICATION_KNOWN
from headgate_api.event.names import path_of
from headgate_api.limits import DEDUPLICATION_EVENTS_MAX, DEDUPLICATION_SWEEP_S

HASH_BYTES: Final = 16
_SHARD_BYTES: Final = 2
"""Of a hash: 65,536 shards, of some 150 events when ten million are known."""
_FACTS: Final = 2
"""Of an event: its offset, and its time."""
_SWEPT_EVERY: Final = 8
"""Events, for each shard that is swept: what is over stays until half a million have come, at the longest."""
_Row: TypeAlias = "tuple[str, bytes | None]"
_log = structlog.get_logger(__name__)


class KnownEvents:
    """Hashes of events with their offsets and times, which grow; those of a window longest ago are forgotten first.

    32 bytes an event, and some 350 a shard, which is searched as bytes: a sixth of what a dictionary takes.
    """

    def __init__(self) -> None:
        self._shards: dict[bytes, tuple[bytearray, array[int]]] = {}
        self._count = 0
        self._sweeping: Iterator[bytes] = iter(())

    def __len__(self) -> int:
        return self._count

    def find(self, hash_: bytes) -> tuple[int, int] | None:
        """Offset and time of an event; None when it is not known."""
        shard = self._shards.get(hash_[:_SHARD_BYTES])
        if shard is None:
            return None
        hashes, facts = shard
        at = hashes.rfind(hash_)
        while at > 0 and at % HASH_BYTES:  # the end of one and the beginning of the next one
            at = hashes.rfind(hash_, 0, at + HASH_BYTES - 1)
        if at < 0:
            return None
        place = at // HASH_BYTES * _FACTS
        return facts[place], facts[place + 1]

    def add(self, hash_: bytes, offset: int, time_us: int) -> None:
        """Knows an event from now on; no known one has a later time."""
        shard = self._shards.get(hash_[:_SHARD_BYTES])
        if shard is None:
            shard = self._shards[hash_[:_SHARD_BYTES]] = bytearray(), array("q")
        shard[0].extend(hash_)
        shard[1].extend((offset, time_us))
        self._count += 1

    def sweep(self, before_us: int, shards: int) -> None:
        """Forgets events with times before this one, in so many of the shards, turn by turn."""
        for _ in range(shards):
            key = next(self._sweeping, None)
            if key is None:
                self._sweeping = iter(tuple(self._shards))
                return
            hashes, facts = self._shards[key]
            count = 0
            while count * _FACTS < len(facts) and facts[count * _FACTS + 1] < before_us:
                count += 1
            if count:
                del hashes[: count * HASH_BYTES], facts[: count * _FACTS]
                self._count -= count
            if not hashes:
                del self._shards[key]

    def sweep_all(self, before_us: int) -> None:
        self._sweeping = iter(tuple(self._shards))
        self.sweep(before_us, len(self._shards))


class ChunkWriter(Protocol):
    """What deduplication needs of a partition's writer, which itself leaves nothing out."""

    @property
    def append_time_us(self) -> int:
        """Of the newest chunk."""

    def append(self, chunk: Encoded) -> int | Sequence[int]:
        """Stores a chunk durably; returns the offset of its first record, the others follow, or that of each."""

    def probe(self) -> None:
        """See `Appender`."""


class DeduplicatingWriter:
    """A partition's writer for group commit, which leaves out events that are stored already.

    Made before anything is appended; what appends is one thread. `events_max` is how many events it knows at most.
    Above that, events are stored and not known: `lacking` says of which brokers, until it is over.
    """

    def __init__(
        self,
        writer: ChunkWriter,
        *,
        events_max: int = DEDUPLICATION_EVENTS_MAX,
        clock_us: Callable[[], int] = wall_clock_us,
    ) -> None:
        self._writer = writer
        self._events_max = events_max
        self._clock_us = clock_us
        self._key = os.urandom(HASH_BYTES)
        self._known: dict[int, KnownEvents] = {}
        """By how long they are known: the next power of two seconds of the window, so that there are few."""
        self._lacking_until_us: dict[str, int] = {}
        self._sweep_due_us = 0

    @property
    def known(self) -> int:
        """How many events it knows."""
        return sum(map(len, tuple(self._known.values())))

    def lacking(self) -> set[str]:
        """Identities of brokers some of whose events of the window are not known now."""
        now_us = self._clock_us()
        return {broker for broker, until_us in tuple(self._lacking_until_us.items()) if until_us > now_us}

    def probe(self) -> None:
        self._writer.probe()

    def append(self, chunk: Encoded) -> int | Sifted:
        """Stores what is new in a chunk; as `PartitionWriter.append`, and `Sifted` where something was not new."""
        if not chunk.windows:
            return _answer(self._writer.append(chunk))
        rows = self._hashed(_names(chunk.batch), chunk.windows)
        places = self._places(rows, chunk.windows)
        is_new = [place is None for place in places]
        count = sum(is_new)
        if 0 < count < len(rows):
            chunk = _without(chunk, is_new)
        stored = self._writer.append(chunk) if count else 0
        new = range(stored, stored + count) if isinstance(stored, int) else stored
        if count:
            self._learn(itertools.compress(rows, is_new), new, self._writer.append_time_us, chunk.windows)
        if count == len(rows):
            return _answer(stored)
        for broker, times in Counter(row[0] for row, new in zip(rows, is_new, strict=True) if not new).items():
            DEDUPLICATION_KNOWN.labels(path_of(broker)).inc(times)
        numbers = iter(new)
        offsets = [next(numbers) if place is None else place if place >= 0 else new[~place] for place in places]
        return Sifted(offsets, [not new for new in is_new])

    def recover(self, partition: Partition, windows: Mapping[str, int]) -> None:
        """Learns what a partition holds of the brokers' windows; blocking. Comes before anything is appended."""
        if not windows:
            return
        now_us = self._clock_us()
        try:
            with PartitionReader.open_at_time(partition, now_us - max(windows.values())) as reader:
                first = reader.position if reader.position == reader.first_offset() > 0 else None
                while (chunk := reader.read()) is not None:
                    if chunk.first_offset == first:  # retention may have removed some of the window before it
                        self.lack(windows, chunk.append_time_us)
                    offsets = range(chunk.first_offset, chunk.next_offset)
                    self.learn(_names(chunk.batch), offsets, chunk.append_time_us, windows)
                if reader.records_corrupt:
                    self.lack(windows, now_us)
        except CorruptChunkError as error:
            # Readers of that place get the error; that an event may be stored twice stops nothing.
            self.lack(windows, now_us)
            _log.error("events that are stored cannot be read on", file=str(partition.directory), error=error.message)

    def learn(
        self, names: Iterable[tuple[str, str, str]], offsets: Iterable[int], time_us: int, windows: Mapping[str, int]
    ) -> None:
        """Events, by broker, source and id, are stored at these offsets, at this time."""
        self._learn(self._hashed(names, windows), offsets, time_us, windows)

    def lack(self, windows: Mapping[str, int], before_us: int) -> None:
        """Some of what was stored before a time is not known, or at it."""
        for broker, window_us in windows.items():
            until_us = before_us + window_us
            self._lacking_until_us[broker] = max(until_us, self._lacking_until_us.get(broker, 0))

    def _hashed(self, names: Iterable[tuple[str, str, str]], windows: Mapping[str, int]) -> list[_Row]:
        """Of each event its broker, and its hash; None where the broker stores everything."""
        key, blake2b = self._key, hashlib.blake2b
        return [
            (broker, blake2b(f"{broker}\0{source}\0{id_}".encode(), digest_size=HASH_BYTES, key=key).digest())
            if broker in windows  # no attribute has a NUL: no two events have the same text
            else (broker, None)
            for broker, source, id_ in names
        ]

    def _places(self, rows: Sequence[_Row], windows: Mapping[str, int]) -> list[int | None]:
        """Of each row the offset at which it is stored already; None: nowhere.

        It is below 0 where it is new, and an earlier row: ~0 for the first of those that are new.
        """
        now_us, known = self._clock_us(), tuple(self._known.values())
        places: list[int | None] = []
        earlier: dict[bytes, int] = {}
        new = 0
        for broker, hash_ in rows:
            place = None
            if hash_ is not None:
                since_us = now_us - windows[broker]
                for one in known:
                    if (found := one.find(hash_)) is not None and found[1] >= since_us:
                        place = found[0]
                        break
                else:
                    row = earlier.setdefault(hash_, new)
                    place = None if row == new else ~row
            places.append(place)
            new += place is None
        return places

    def _learn(self, rows: Iterable[_Row], offsets: Iterable[int], time_us: int, windows: Mapping[str, int]) -> None:
        room = self._events_max - self.known
        into = {broker: self._kept_for(window_us) for broker, window_us in windows.items()}
        count = 0
        for offset, (broker, hash_) in zip(offsets, rows, strict=True):
            if hash_ is None:
                continue
            if room <= count and (room := self._sweep_all(time_us) + count) <= count:
                self.lack({broker: windows[broker]}, time_us)
                DEDUPLICATION_FORGOTTEN.labels(path_of(broker)).inc()
                continue
            into[broker].add(hash_, offset, time_us)
            count += 1
        for kept_us, known in self._known.items():
            known.sweep(time_us - kept_us, 1 + count // _SWEPT_EVERY)

    def _kept_for(self, window_us: int) -> KnownEvents:
        kept_us = 1_000_000 << max(0, -(-window_us // 1_000_000) - 1).bit_length()
        known = self._known.get(kept_us)
        if known is None:
            known = self._known[kept_us] = KnownEvents()
        return known

    def _sweep_all(self, now_us: int) -> int:
        """Forgets everything that is over, if that was not done a moment ago; how much room there is then."""
        if now_us >= self._sweep_due_us:
            self._sweep_due_us = now_us + round(DEDUPLICATION_SWEEP_S * 1e6)
            for kept_us, known in self._known.items():
                known.sweep_all(now_us - kept_us)
        return self._events_max - self.known


def _names(batch: pa.RecordBatch) -> Iterator[tuple[str, str, str]]:
    """Broker, source and id of each row."""
    return zip(*(batch.column(name).to_pylist() for name in ("broker", "source", "id")), strict=True)


def _answer(stored: int | Sequence[int]) -> int | Sifted:
    """What group commit gets for a chunk of which nothing was left out."""
    return stored if isinstance(stored, int) else Sifted(stored, [False] * len(stored))


def _without(chunk: Encoded, is_new: Sequence[bool]) -> Encoded:
    """A chunk with its new rows alone. Its filter keeps the values of the others: it may say yes too often."""
    return chunk._replace(
        batch=chunk.batch.filter(pa.array(is_new)),
        filter_values=list(itertools.compress(chunk.filter_values, is_new)),
    )
