"""Encoding of events as chunks of the log."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby

import pyarrow as pa

from headgate.event.arrow import EVENT_SCHEMA, StoredEvent, columns_to_batch, time_range_us, to_batch
from headgate.filter.skipping.prune import EXTENSION
from headgate.ingress.errors import StoredEventFormatError
from headgate.log.directory import Partition
from headgate.log.errors import CorruptChunkError
from headgate.log.format import Codec
from headgate.log.group_commit import Appender, ChunkCommit
from headgate.log.reader import PartitionReader
from headgate.log.writer import Encoded, Numbers
from headgate.objects.kinds.specs import LogRule
from headgate_api.event.http import canonical
from headgate_api.event.model import Event, EventColumns
from headgate_api.event.names import namespace_of
from headgate_api.limits import BLOOM_BYTES_MIN, COMMIT_QUEUE_BYTES_MAX, COMMIT_QUEUE_EVENTS_MAX


@dataclass(frozen=True, slots=True)
class Entries:
    """Events that stay together on their way into a chunk, and how their broker wants them stored."""

    broker: str  # its identity
    rule: LogRule
    events: Sequence[Event]  # at least one
    produced: Sequence[str] = ()  # of that column, for each event, where their producer numbers them
    size_bytes: int = 0  # what they count in the namespace's quota of stored bytes
    numbers: Sequence[Numbers] = ()  # of its producer, where that numbers them

    def __len__(self) -> int:
        return len(self.events)


@dataclass(frozen=True, slots=True)
class Forwarded:
    """Events that another front has encoded for a partition of this one."""

    chunk: Encoded

    def __len__(self) -> int:
        return int(self.chunk.batch.num_rows)


def encode(groups: Sequence[Entries | Forwarded]) -> Encoded:
    """Makes one chunk of all entries, a row an event, in order.

    A chunk that several brokers share has the largest filter and the strongest compression of their rules.
    """
    pieces: list[pa.RecordBatch] = []
    for form, run in groupby(groups, _form):
        if form is Forwarded:
            pieces += [each.chunk.batch for each in run]  # type: ignore[union-attr]
        elif form is EventColumns:
            pieces.append(columns_to_batch([(each.broker, each.events) for each in run]))  # type: ignore[misc,union-attr]
        else:
            pieces.append(_batch(list(run)))  # type: ignore[arg-type]
    batch = pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces)
    values: list[str | None] = []
    also: list[str | None] = []
    sizes: defaultdict[str, int] = defaultdict(int)
    windows: dict[str, int] = {}
    numbers: list[Numbers] = []
    for each in groups:
        if isinstance(each, Entries):
            _add_values(each, values, also)
            sizes[namespace_of(each.broker)] += each.size_bytes
            if each.rule.window_us:
                windows[each.broker] = each.rule.window_us
            numbers += each.numbers
        else:
            windows |= each.chunk.windows
            numbers += each.chunk.numbers
            values += each.chunk.filter_values
            also += each.chunk.also
            for namespace, size_bytes in each.chunk.sizes.items():
                sizes[namespace] += size_bytes
    rules = [each.rule if isinstance(each, Entries) else each.chunk for each in groups]
    return Encoded(
        batch,
        values,
        time_range_us(batch),
        also=also,
        bloom_bytes=max(rule.bloom_bytes or BLOOM_BYTES_MIN for rule in rules),
        codec=max(rule.codec or Codec.NONE for rule in rules),
        sizes=sizes,
        windows=windows,
        numbers=numbers,
    )


def _form(entries: Entries | Forwarded) -> type[object]:
    """How events are held: each form has its own way into Arrow."""
    if isinstance(entries, Forwarded):
        return Forwarded
    return EventColumns if isinstance(entries.events, EventColumns) else Event


def _batch(run: Sequence[Entries]) -> pa.RecordBatch:
    produced: list[str | None] = []
    if any(each.produced for each in run):
        for each in run:
            produced += each.produced or [None] * len(each)
    return to_batch([StoredEvent(each.broker, event) for each in run for event in each.events], produced)


def _add_values(entries: Entries, values: list[str | None], also: list[str | None]) -> None:
    """One filter value an event: the producer's, else the broker's rule's.

    The value by the rule goes into the chunk's filter too: readers that skip chunks know the rule, not the producer's
    choice.
    """
    events, rule = entries.events, entries.rule.value
    if isinstance(events, EventColumns) and rule.attribute == "type" and EXTENSION not in events.extension_names:
        values += events.column("type")
        return
    for event in events:
        given = event.extensions.get(EXTENSION)
        if given is None:
            values.append(rule.of(event))
        else:
            values.append(canonical(given))
            also.append(rule.of(event))


def check_events(partition: Partition) -> None:
    """Refuse a partition whose events were stored with columns that mean something else (StoredEventFormatError)."""
    with PartitionReader(partition, start=0) as reader, suppress(CorruptChunkError):  # readers report damage
        chunk = reader.read()
        if chunk is not None and not chunk.schema.equals(EVENT_SCHEMA, check_metadata=True):
            raise StoredEventFormatError(
                f"{partition.directory} holds events in the format of another version, which this one would misread",
                hint="start the version that wrote them, or this one with another --data",
            )


def event_commit(writer: Appender) -> ChunkCommit[Entries | Forwarded]:
    """Group commit of events into one partition, with ingress's limits."""
    return ChunkCommit(
        writer,
        encode,
        queue_items_max=COMMIT_QUEUE_EVENTS_MAX,
        queue_bytes_max=COMMIT_QUEUE_BYTES_MAX,
    )
