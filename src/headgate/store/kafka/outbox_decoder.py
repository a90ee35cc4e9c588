"""Decoder of the records of the topic `outbox` (docs/spec/outbox-topic.md). Pure.

The header `headgate_outbox` is read strictly: others may be able to write to the topic. The event in a record is read
only where it counts (`decode_event`), because most records of a run that waits or ends are passed over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from headgate import limits
from headgate.event.arrow import StoredEvent
from headgate.event.kafka import Header
from headgate.outbox.shards import dispatcher_of
from headgate.store.kafka.outbox_records import EVENT, HEAD, HEADER, HELLO, TARGET, OutboxKind
from headgate.store.kafka.records import RecordError, decode_stored

_TARGETS_AT: Final = HEAD.size + EVENT.size
_VERDICT_MAX: Final = 3


class EventRecord(msgspec.Struct, frozen=True, gc=False):
    """An event and the targets of this outbox partition that want it.

    Attributes:
        run: The run that matched it.
        generation: Of the run's filters.
        source: Its partition of the topic `events`.
        offset: In that partition.
        more: Whether a further record of this event follows, with further targets.
        stored_us: When the event was stored, in microseconds since 1970 UTC.
        targets: Target and verdict, by target, ascending.
        headers: Those of the event.
        value: The event's data.
    """

    run: int
    generation: int
    source: int
    offset: int
    more: bool
    stored_us: int
    targets: tuple[tuple[int, int], ...]
    headers: list[Header]
    value: bytes | None


class PassedRecord(msgspec.Struct, frozen=True, gc=False):
    """Every event of the source partition below `passed` has been matched; its records stand before this one."""

    run: int
    generation: int
    source: int
    passed: int


class HelloRecord(msgspec.Struct, frozen=True, gc=False):
    """A run begins with a source partition.

    Attributes:
        run: Its number.
        generation: Of its filters.
        source: The source partition.
        start: First offset of it that the run reads.
        sources: How many source partitions the run reads.
        outbox_partitions: How many partitions of the outbox its writer knows.
    """

    run: int
    generation: int
    source: int
    start: int
    sources: int
    outbox_partitions: int


class OverRecord(msgspec.Struct, frozen=True, gc=False):
    """A run has ended; with `all_before`, every run with a lower number, too."""

    run: int
    all_before: bool


OutboxRecord = EventRecord | PassedRecord | HelloRecord | OverRecord


def decode(
    headers: Sequence[Header], key: bytes | None, value: bytes | None, partition: int, partitions: int
) -> OutboxRecord:
    """Reads a record, but not the event in it.

    Args:
        headers: In order.
        key: Of the record.
        value: Of the record.
        partition: Where the record is.
        partitions: How many partitions the topic `outbox` has.

    Raises:
        RecordError: Names the header, and says what is wrong.
    """
    raw = _own(headers)
    if len(raw) < HEAD.size:
        raise _wrong(f"has {len(raw)} bytes, fewer than {HEAD.size}")
    kind, flag, run, generation, source, number = HEAD.unpack_from(raw)
    if flag > 1:
        raise _wrong(f"the second byte is {flag}, neither 0 nor 1")
    if run < (kind != OutboxKind.OVER) or generation < 0 or number < 0:
        raise _wrong(f"run {run}, generation {generation} or offset {number} is out of range")
    if kind == OutboxKind.OVER:
        if source != -1 or number or len(raw) != HEAD.size:
            raise _wrong("an over names a source partition or an offset, or is too long")
    elif not 0 <= source < limits.OUTBOX_SOURCES_MAX:
        raise _wrong(f"source partition {source} is not one of {limits.OUTBOX_SOURCES_MAX}")
    if kind == OutboxKind.EVENT:
        targets, stored_us = _targets(raw, partition, partitions)
        return EventRecord(run, generation, source, number, flag == 1, stored_us, targets, list(headers[1:]), value)
    if key is not None or value is not None or len(headers) > 1:
        raise _wrong(f"kind {kind} has a key, a value or a further header")
    if kind == OutboxKind.OVER:
        return OverRecord(run, flag == 1)
    if flag:
        raise _wrong(f"kind {kind} has 1 in the second byte")
    if kind == OutboxKind.PASSED:
        if len(raw) != HEAD.size:
            raise _wrong(f"a passed has {len(raw)} bytes, not {HEAD.size}")
        return PassedRecord(run, generation, source, number)
    if kind == OutboxKind.HELLO:
        return _hello(raw, run, generation, source, number)
    raise _wrong(f"there is no kind {kind}")


def decode_event(record: EventRecord) -> StoredEvent:
    """Reads the event of a record, as strictly as one of the topic `events`.

    Raises:
        RecordError: Says which header is wrong, and how.
    """
    return decode_stored(record.headers, record.value)[0]


def _own(headers: Sequence[Header]) -> bytes:
    if not headers or headers[0][0] != HEADER:
        raise _wrong("is not the first header")
    if any(name == HEADER for name, _ in headers[1:]):
        raise _wrong("must appear only once")
    raw = headers[0][1]
    if raw is None:
        raise _wrong("has no value")
    return raw


def _hello(raw: bytes, run: int, generation: int, source: int, start: int) -> HelloRecord:
    if len(raw) != HEAD.size + HELLO.size:
        raise _wrong(f"a hello has {len(raw)} bytes, not {HEAD.size + HELLO.size}")
    sources, partitions = HELLO.unpack_from(raw, HEAD.size)
    if sources > limits.OUTBOX_SOURCES_MAX:
        raise _wrong(
            f"run {run} reads {sources} source partitions: a dispatcher keeps the state of at most"
            f" {limits.OUTBOX_SOURCES_MAX}"
        )
    if not source < sources or not 1 <= partitions <= limits.TOPIC_PARTITIONS_MAX:
        raise _wrong(f"source partition {source} of {sources}, or {partitions} outbox partitions, is out of range")
    return HelloRecord(run, generation, source, start, sources, partitions)


def _targets(raw: bytes, partition: int, partitions: int) -> tuple[tuple[tuple[int, int], ...], int]:
    size = len(raw) - _TARGETS_AT
    if size <= 0 or size % TARGET.size or size > limits.OUTBOX_RECORD_TARGETS_MAX * TARGET.size:
        raise _wrong(f"an event has {len(raw)} bytes, which is no list of targets")
    (stored_us,) = EVENT.unpack_from(raw, HEAD.size)
    targets: tuple[tuple[int, int], ...] = tuple(TARGET.iter_unpack(memoryview(raw)[_TARGETS_AT:]))
    before = -1
    for target, verdict in targets:
        if target <= before or not 1 <= verdict <= _VERDICT_MAX:
            raise _wrong(f"target {target} with verdict {verdict} behind target {before}")
        if dispatcher_of(target, partitions) != partition:
            raise _wrong(f"target {target} belongs to partition {dispatcher_of(target, partitions)}")
        before = target
    return targets, stored_us


def _wrong(what: str) -> RecordError:
    return RecordError(f"header {HEADER}: {what}", hint="somebody else than Headgate's matcher wrote to the topic")
