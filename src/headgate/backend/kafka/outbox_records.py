"""Records of the topic `outbox` (docs/spec/outbox-topic.md), and the state that a reader commits. Pure."""

from __future__ import annotations

import binascii
import struct
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, Protocol

import msgspec

from headgate.backend.kafka.records import RecordError, decode_stored
from headgate.event.arrow import StoredEvent
from headgate.event.kafka import Header
from headgate.outbox.link_format import RunActive, RunRejected
from headgate.outbox.shards import dispatcher_of
from headgate.outbox.takeover import PartitionState, RunState, TakeoverState
from headgate_api import limits

# --- outbox records -------------------------------------------------------------------------------
# A driver writes hello, passed and over. Java writes events and their progress (`kafka/OutboxHeader.java`).

HEADER: Final = "headgate_outbox"
HEAD: Final = struct.Struct("<BBqqiq")
"""OutboxKind, flag, run, generation, source partition, offset: every record begins with them."""
EVENT: Final = struct.Struct("<q")
"""What follows in the record of an event: when it was stored, in microseconds since 1970 UTC. Then TARGETs."""
TARGET: Final = struct.Struct("<iB")
"""A target and its verdict."""
HELLO: Final = struct.Struct("<ii")
"""What follows in a hello: source partitions of the run, partitions of the outbox."""


class OutboxKind(IntEnum):
    """What a record is."""

    EVENT = 1
    PASSED = 2
    HELLO = 3
    OVER = 4


# --- outbox state ---------------------------------------------------------------------------------
# The metadata of the consumer group's commit, beside the offset at which to go on (docs/spec/outbox-topic.md). Kafka
# takes 4,096 bytes of it (`offset.metadata.max.bytes`): fixed fields, so that OUTBOX_SOURCES_MAX source partitions and
# LINK_RUNS_MAX runs always fit.

_VERSION: Final = 1
_HEAD: Final = struct.Struct("<BqHB")
_RUN: Final = struct.Struct("<qqHB")
_SOURCE: Final = struct.Struct("<BqBB")
_KNOWN: Final = 1
_OWNED: Final = 2
_NEAR_MISSES_AT: Final = 2


@dataclass(frozen=True, slots=True)
class OutboxState:
    """What a reader of an outbox partition goes on with: the takeover, by source partition.

    `newest_run` is the highest number of a run so far: a lower one that is not alive never comes back.
    """

    newest_run: int = 0
    takeover: TakeoverState = field(default_factory=TakeoverState)


def encode_state(state: OutboxState) -> str:
    """The state as text, at most OUTBOX_STATE_BYTES_MAX bytes."""
    runs, partitions = state.takeover.runs, state.takeover.partitions
    numbers = [run.run for run in runs]
    count = max(partitions, default=-1) + 1
    parts = [_HEAD.pack(_VERSION, state.newest_run, count, len(runs))]
    parts += [_RUN.pack(run.run, run.generation, run.partitions, run.active) for run in runs]
    for source in range(count):
        each = partitions.get(source)
        if each is None:
            parts.append(_SOURCE.pack(0, 0, 0, 0))
            continue
        flags = _KNOWN | (_OWNED if each.owned else 0) | each.near_misses << _NEAR_MISSES_AT
        parts.append(_SOURCE.pack(flags, each.watermark, _bits(each.contenders, numbers), _bits(each.retired, numbers)))
    return b64encode(b"".join(parts)).decode()


def decode_state(text: str) -> OutboxState:
    """Reads a state back; RecordError when Headgate has not written it, or another version of it has."""
    try:
        raw = b64decode(text, validate=True)
        version, newest, count, run_count = _HEAD.unpack_from(raw)
    except (binascii.Error, ValueError, struct.error) as error:
        raise _wrong("it is no Base64, or too short") from error
    if version != _VERSION:
        raise _wrong(f"it has version {version}, not {_VERSION}")
    sources_at = _HEAD.size + run_count * _RUN.size
    if run_count > limits.LINK_RUNS_MAX or len(raw) != sources_at + count * _SOURCE.size:
        raise _wrong(f"it has {len(raw)} bytes for {run_count} runs and {count} source partitions")
    runs = tuple(
        RunState(run, generation, partitions, bool(active))
        for run, generation, partitions, active in _RUN.iter_unpack(raw[_HEAD.size : sources_at])
    )
    numbers = [run.run for run in runs]
    if numbers != sorted(set(numbers)) or (numbers and not 0 < numbers[0] <= numbers[-1] <= newest):
        raise _wrong(f"it has the runs {numbers} of {newest}")
    if any(active > 1 for *_, active in _RUN.iter_unpack(raw[_HEAD.size : sources_at])):
        raise _wrong("a run is neither active nor not")
    partitions = {}
    for source, (flags, watermark, contenders, retired) in enumerate(_SOURCE.iter_unpack(raw[sources_at:])):
        if not flags & _KNOWN:
            continue
        each = PartitionState(
            watermark,
            _chosen(contenders, numbers),
            _chosen(retired, numbers),
            bool(flags & _OWNED),
            flags >> _NEAR_MISSES_AT,
        )
        if watermark < 0 or contenders & retired or (contenders | retired) >> len(runs):
            raise _wrong(f"source partition {source} has {each}")
        if each.near_misses and len(each.contenders) < 2:
            raise _wrong(f"source partition {source} has near misses of nobody")
        if each.owned != bool(each.contenders):
            raise _wrong(f"source partition {source} has an owner that is not there")
        partitions[source] = each
    return OutboxState(newest, TakeoverState(runs, partitions))


def _bits(chosen: Sequence[int], numbers: Sequence[int]) -> int:
    return sum(1 << numbers.index(number) for number in chosen)


def _chosen(bits: int, numbers: Sequence[int]) -> tuple[int, ...]:
    return tuple(number for index, number in enumerate(numbers) if bits >> index & 1)


def _wrong(what: str) -> RecordError:
    return RecordError(
        f"the committed state of an outbox partition cannot be read: {what}",
        hint="only dispatchers of one version of Headgate may commit for their consumer group",
    )


# --- outbox page ----------------------------------------------------------------------------------

_PAGE_BYTES: Final = 16_000
_EVENT_BYTES: Final = 2_000
_TARGET_BYTES: Final = 100
"""What a page takes in memory with its checkpoint, an event beside its data, and each of its targets."""


@dataclass(frozen=True, slots=True)
class OutboxEvent:
    """An event that is to be delivered, by its partition and offset of the topic `events`.

    Attributes:
        stored_us: When it was stored, in microseconds since 1970 UTC.
        generation: Of the filters that it was matched by.
        targets: Target and verdict, by target, ascending.
        position: Offset in the outbox partition of its record, the last one where it has several.
    """

    source: int
    offset: int
    stored_us: int
    generation: int
    targets: tuple[tuple[int, int], ...]
    stored: StoredEvent
    position: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A place in an outbox partition to go on at: the offset of the first record to read again."""

    partition: int
    offset: int
    state: OutboxState


@dataclass(frozen=True, slots=True)
class OutboxPage:
    """What some records of one outbox partition brought: events that count, by offset within a source partition.

    The checkpoint is to be committed once these events, if any, and all before them need not come again.
    """

    events: list[OutboxEvent]
    runs: list[RunActive | RunRejected]
    checkpoint: Checkpoint

    @property
    def size_bytes(self) -> int:
        """What the page takes in memory, about; never 0, as pages without events wait, too."""
        data = sum(len(event.stored.event.data or b"") for event in self.events)
        targets = sum(len(event.targets) for event in self.events)
        return _PAGE_BYTES + _EVENT_BYTES * len(self.events) + data + _TARGET_BYTES * targets


class OutboxListener(Protocol):
    """Who owns the deliveries; called within `OutboxMember.read` and `close`, in their thread."""

    def taking(self, partitions: Sequence[int]) -> None:
        """The member is given partitions, whose commits it reads next: no former owner may commit any more."""

    def assigned(self, partition: int, state: OutboxState) -> None:
        """The member is given a partition; it goes on with this state."""

    def revoked(self, partitions: Sequence[int], *, is_lost: bool) -> None:
        """The partitions go now: what was handed out of them and is not committed comes again elsewhere.

        Unless they are lost, they may still be committed here, the last time. Deliveries under way must end or be given
        up before this returns.
        """

    def passed_over(self, partition: int, offset: int, error: RecordError) -> None:
        """A record is none of Headgate's; reading goes on behind it."""

    def removed(self, partition: int, first: int, end: int) -> None:
        """Retention has removed records before they were read: those from `first` up to below `end`."""


# --- outbox decoder -------------------------------------------------------------------------------
# The header `headgate_outbox` is read strictly: others may be able to write to the topic. The event in a record is read
# only where it counts (`decode_event`), because most records of a run that waits or ends are passed over.

_TARGETS_AT: Final = HEAD.size + EVENT.size
_VERDICT_MAX: Final = 3


class EventRecord(msgspec.Struct, frozen=True, gc=False):
    """An event of the topic `events`, and the targets of this outbox partition that want it.

    Attributes:
        more: Whether a further record of this event follows, with further targets.
        stored_us: When the event was stored, in microseconds since 1970 UTC.
        targets: Target and verdict, by target, ascending.
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
    """Every event of the source partition below `passed` is matched, everywhere; its records stand before this one."""

    run: int
    generation: int
    source: int
    passed: int


class HelloRecord(msgspec.Struct, frozen=True, gc=False):
    """A run begins with a source partition at `start`: one of `sources`, for so many partitions of the outbox."""

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
    generation: int = 0


DriverRecord = PassedRecord | HelloRecord | OverRecord
OutboxRecord = EventRecord | DriverRecord


def encode(record: DriverRecord) -> bytes:
    """The header of a record without an event."""
    run, generation = record.run, record.generation
    match record:
        case HelloRecord():
            head = HEAD.pack(OutboxKind.HELLO, 0, run, generation, record.source, record.start)
            return head + HELLO.pack(record.sources, record.outbox_partitions)
        case PassedRecord():
            return HEAD.pack(OutboxKind.PASSED, 0, run, generation, record.source, record.passed)
        case OverRecord():
            return HEAD.pack(OutboxKind.OVER, record.all_before, run, generation, -1, 0)


def decode(
    headers: Sequence[Header], key: bytes | None, value: bytes | None, partition: int, partitions: int
) -> OutboxRecord:
    """Reads a record of one of the partitions of the topic `outbox`, but not the event in it; raises RecordError."""
    raw = _own(headers)
    if len(raw) < HEAD.size:
        raise _wrong_header(f"has {len(raw)} bytes, fewer than {HEAD.size}")
    kind, flag, run, generation, source, number = HEAD.unpack_from(raw)
    if flag > 1:
        raise _wrong_header(f"the second byte is {flag}, neither 0 nor 1")
    if run < (kind != OutboxKind.OVER) or generation < 0 or number < 0:
        raise _wrong_header(f"run {run}, generation {generation} or offset {number} is out of range")
    if kind == OutboxKind.OVER:
        if source != -1 or number or len(raw) != HEAD.size:
            raise _wrong_header("an over names a source partition or an offset, or is too long")
    elif not 0 <= source < limits.OUTBOX_SOURCES_MAX:
        raise _wrong_header(f"source partition {source} is not one of {limits.OUTBOX_SOURCES_MAX}")
    if kind == OutboxKind.EVENT:
        targets, stored_us = _targets(raw, partition, partitions)
        return EventRecord(run, generation, source, number, flag == 1, stored_us, targets, list(headers[1:]), value)
    if key is not None or value is not None or len(headers) > 1:
        raise _wrong_header(f"kind {kind} has a key, a value or a further header")
    if kind == OutboxKind.OVER:
        return OverRecord(run, flag == 1, generation)
    if flag:
        raise _wrong_header(f"kind {kind} has 1 in the second byte")
    if kind == OutboxKind.PASSED:
        if len(raw) != HEAD.size:
            raise _wrong_header(f"a passed has {len(raw)} bytes, not {HEAD.size}")
        return PassedRecord(run, generation, source, number)
    if kind == OutboxKind.HELLO:
        return _hello(raw, run, generation, source, number)
    raise _wrong_header(f"there is no kind {kind}")


def decode_event(record: EventRecord) -> StoredEvent:
    """Reads the event of a record, as strictly as one of the topic `events`; raises RecordError."""
    return decode_stored(record.headers, record.value)[0]


def _own(headers: Sequence[Header]) -> bytes:
    if not headers or headers[0][0] != HEADER:
        raise _wrong_header("is not the first header")
    if any(name == HEADER for name, _ in headers[1:]):
        raise _wrong_header("must appear only once")
    raw = headers[0][1]
    if raw is None:
        raise _wrong_header("has no value")
    return raw


def _hello(raw: bytes, run: int, generation: int, source: int, start: int) -> HelloRecord:
    if len(raw) != HEAD.size + HELLO.size:
        raise _wrong_header(f"a hello has {len(raw)} bytes, not {HEAD.size + HELLO.size}")
    sources, partitions = HELLO.unpack_from(raw, HEAD.size)
    if sources > limits.OUTBOX_SOURCES_MAX:
        raise _wrong_header(
            f"run {run} reads {sources} source partitions: a dispatcher keeps the state of at most"
            f" {limits.OUTBOX_SOURCES_MAX}"
        )
    if not source < sources or not 1 <= partitions <= limits.TOPIC_PARTITIONS_MAX:
        raise _wrong_header(
            f"source partition {source} of {sources}, or {partitions} outbox partitions, is out of range"
        )
    return HelloRecord(run, generation, source, start, sources, partitions)


def _targets(raw: bytes, partition: int, partitions: int) -> tuple[tuple[tuple[int, int], ...], int]:
    size = len(raw) - _TARGETS_AT
    if size <= 0 or size % TARGET.size or size > limits.OUTBOX_RECORD_TARGETS_MAX * TARGET.size:
        raise _wrong_header(f"an event has {len(raw)} bytes, which is no list of targets")
    (stored_us,) = EVENT.unpack_from(raw, HEAD.size)
    targets: tuple[tuple[int, int], ...] = tuple(TARGET.iter_unpack(memoryview(raw)[_TARGETS_AT:]))
    before = -1
    for target, verdict in targets:
        if target <= before or not 1 <= verdict <= _VERDICT_MAX:
            raise _wrong_header(f"target {target} with verdict {verdict} behind target {before}")
        if dispatcher_of(target, partitions) != partition:
            raise _wrong_header(f"target {target} belongs to partition {dispatcher_of(target, partitions)}")
        before = target
    return targets, stored_us


def _wrong_header(what: str) -> RecordError:
    return RecordError(f"header {HEADER}: {what}", hint="somebody else than Headgate's matcher wrote to the topic")
