"""The newest chunks of a log as their headers show them, and which of them a reader skips for a filter.

A chunk holds events of all brokers that write to its partition. So an answer has nothing of an event, and nothing by
broker; still it says how many events others send, and when: who may ask for it may look at the log of the whole server.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Final

import msgspec

from headgate.filter.compile.request import condition
from headgate.filter.skipping.prune import DEFAULT, FilterValueRule, Pruning, filter_value_rule, pruning
from headgate.filter.tools.explain import VALUES_SHOWN, skips_of
from headgate.inspect.find import time_text
from headgate.log.directory import LogDirectory, Partition
from headgate.log.format import ChunkHeader, Codec
from headgate.log.reader import ChunkEntry, LogEnds, entries_newest_first
from headgate.objects.store.store import Store
from headgate.scan.chunks import summary_of
from headgate_api.errors import NotFoundError
from headgate_api.limits import CHUNKS_SHOWN_MAX
from headgate_api.objects.errors import ObjectNotFoundError
from headgate_api.objects.kinds import Kind, ObjectKey

_DEFAULT_RULE: Final = filter_value_rule(DEFAULT)


class NoChunksError(NotFoundError):
    """The events are in Kafka, which knows no chunks."""

    code = "no-chunks"


class NoPartitionError(NotFoundError):
    """The log has no such partition."""

    code = "no-partition"


class ChunkDecision(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """What a reader does with a chunk for a filter.

    Of a chunk that is skipped `by` is a `SkippedBy`. Of one that is read it is `value` (by its Bloom filter it may hold
    events with some of the filter's values, `values`), `unfiltered` (it holds events without a filter value, which the
    filter may take) or `any` (the filter is not limited to some values).
    """

    read: bool
    by: str
    values: tuple[str, ...] = ()
    values_left_out: int = 0


class ChunkView(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One chunk; what it has not is left out, and of a damaged one all but the offsets and `damage`.

    `bytes` are those on disk, of header, Bloom filter and body. Times are RFC 3339; `time_from` and `time_to` are the
    range of the events' own. `bloom_filled` is the share of its bits that are set, `unfiltered` says that an event has
    no filter value.
    """

    first_offset: int
    next_offset: int
    events: int = 0
    bytes: int = 0
    codec: str = ""
    stored: str = ""
    time_from: str = ""
    time_to: str = ""
    bloom_bytes: int = 0
    bloom_hashes: int = 0
    bloom_filled: float = 0.0
    unfiltered: bool = False
    decision: ChunkDecision | None = None
    damage: str = ""


class ChunkTotals(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Of the chunks of one answer; what is read is there for a filter alone."""

    chunks: int
    events: int
    bytes: int
    chunks_read: int | None = None
    bytes_read: int | None = None


class PartitionEnds(msgspec.Struct, frozen=True, rename="camel"):
    """A partition: its first event that is kept, and the offset behind its last one."""

    partition: int
    first_offset: int
    next_offset: int


class ChunkListView(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The answer, the newest chunk first; `before` leads to older ones, None where there are none.

    `filter_value` is CEL text that makes the events' filter values, and `skips` a sentence: what a reader may skip for
    the filter.
    """

    partition: int
    filter_value: str
    totals: ChunkTotals
    items: list[ChunkView]
    partitions: list[PartitionEnds] = []
    before: int | None = None
    skips: str = ""


@dataclass(frozen=True, slots=True)
class ChunkQuery:
    """Which chunks are asked for: `limit` of those that begin before an offset, None for the end of the partition.

    `filter` is CEL, or JSON as in a trigger's spec; empty for none.
    """

    before: int | None = None
    limit: int = CHUNKS_SHOWN_MAX
    filter: str = ""


class ChunkLists:
    """Lists chunks. Blocking, for any thread. Without a log the events are in Kafka."""

    def __init__(self, store: Store, log: LogDirectory | None) -> None:
        self._store = store
        # Damage is shown here, and what stands behind it, too.
        self._log = None if log is None else LogDirectory(log.directory, "skip")

    def read(self, asked: ChunkQuery, partition: int | None = None, broker: ObjectKey | None = None) -> ChunkListView:
        """Chunks of a partition, None for the first one with events; the filter is taken as one of this broker.

        Raises NoChunksError, NoPartitionError, ObjectNotFoundError without the broker, FilterError,
        CorruptChunkError where nothing can be told of what is damaged.
        """
        if self._log is None:
            hint = "records of its topic are read by offset, and none is skipped"
            raise NoChunksError("this server's events are in Kafka, which knows no chunks", hint=hint)
        rule = _DEFAULT_RULE
        if broker is not None:
            served = self._store.served(broker.path)
            if served is None:
                raise ObjectNotFoundError(Kind.BROKER, broker.name)
            rule = served.rule.value
        with closing(LogEnds(self._log)) as ends:
            there = [PartitionEnds(one, ends.first_offset(one), ends.end_offset(one)) for one in ends.partitions()]
        numbers = [one.partition for one in there]
        if partition is not None and partition not in numbers:
            known = f"there are {', '.join(map(str, numbers))}" if there else "nothing has been stored yet"
            raise NoPartitionError(f"the log has no partition {partition}", hint=known)
        with_events = [one.partition for one in there if one.first_offset < one.next_offset]
        chosen = partition if partition is not None else min(with_events or numbers, default=0)
        found = listed(self._log.partition(chosen), asked, rule, number=chosen)
        return msgspec.structs.replace(found, partitions=there)


def listed(partition: Partition, asked: ChunkQuery, rule: FilterValueRule, *, number: int) -> ChunkListView:
    """Chunks of one partition; `rule` makes the filter values of the broker whose filter it is. Raises as `read`."""
    cel = condition(asked.filter, "filter")
    pruned = pruning(cel, rule.cel) if cel else None
    entries = list(islice(entries_newest_first(partition, before=asked.before), asked.limit + 1))
    more = len(entries) > asked.limit
    items = [_view(entry, pruned) for entry in entries[: asked.limit]]
    return ChunkListView(
        number,
        rule.cel,
        _totals(items, filtered=pruned is not None),
        items,
        before=items[-1].first_offset if more else None,
        skips=skips_of(pruned, rule.cel).says if pruned is not None else "",
    )


def _view(entry: ChunkEntry, pruned: Pruning | None) -> ChunkView:
    header = entry.header
    if header is None:
        return ChunkView(entry.first_offset, entry.next_offset, damage=entry.damage)
    times = header.time_range_us
    return ChunkView(
        header.first_offset,
        header.next_offset,
        events=header.record_count,
        bytes=header.chunk_bytes,
        codec=Codec(header.codec).name.lower(),
        stored=time_text(header.append_time_us),
        time_from=time_text(times[0]) if times else "",
        time_to=time_text(times[1]) if times else "",
        bloom_bytes=header.bloom_bytes,
        bloom_hashes=header.hash_count,
        bloom_filled=_filled(entry.bloom),
        unfiltered=header.unfiltered,
        decision=None if pruned is None else _decision(pruned, header, entry.bloom),
    )


def _filled(bloom: bytes) -> float:
    """The share of bits that are set; 0 without a filter."""
    return round(int.from_bytes(bloom, "little").bit_count() / (8 * len(bloom)), 4) if bloom else 0.0


def _decision(pruned: Pruning, header: ChunkHeader, bloom: bytes) -> ChunkDecision:
    summary = summary_of(header, bloom)
    skipped = pruned.skipped_by(summary)
    if skipped is not None:
        return ChunkDecision(False, skipped)
    if pruned.values is None:
        return ChunkDecision(True, "any")
    found = [value for value in sorted(pruned.values - {""}) if summary.may_hold(frozenset({value}))]
    left_out = max(0, len(found) - VALUES_SHOWN)
    by = "value" if found else "unfiltered"
    return ChunkDecision(True, by, tuple(found[:VALUES_SHOWN]), left_out)


def _totals(items: Iterable[ChunkView], *, filtered: bool) -> ChunkTotals:
    whole = [one for one in items if not one.damage]
    read = [one for one in whole if one.decision is not None and one.decision.read]
    return ChunkTotals(
        len(whole),
        sum(one.events for one in whole),
        sum(one.bytes for one in whole),
        len(read) if filtered else None,
        sum(one.bytes for one in read) if filtered else None,
    )
