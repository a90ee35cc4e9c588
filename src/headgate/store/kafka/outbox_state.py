"""The state of a reader of one outbox partition, as the metadata of the consumer group's commit. Pure.

It stands beside the offset at which to go on. Kafka takes 4,096 bytes of it (`offset.metadata.max.bytes`): this is
Base64 of fixed fields, so that OUTBOX_SOURCES_MAX source partitions and LINK_RUNS_MAX runs always fit.

| part | fields, little-endian |
|---|---|
| head | u8 version, i64 newest run, u16 source partitions, u8 runs |
| a run | i64 run, i64 generation, u16 its source partitions, u8 whether it was active |
| a source partition | u8 1 = known, 2 = owned and 4 × near misses, i64 W, u8 contenders and u8 retired: one bit a run |
"""

from __future__ import annotations

import binascii
import struct
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from headgate import limits
from headgate.outbox.takeover_state import PartitionState, RunState, TakeoverState
from headgate.store.kafka.records import RecordError

_VERSION: Final = 1
_HEAD: Final = struct.Struct("<BqHB")
_RUN: Final = struct.Struct("<qqHB")
_SOURCE: Final = struct.Struct("<BqBB")
_KNOWN: Final = 1
_OWNED: Final = 2
_NEAR_MISSES_AT: Final = 2


@dataclass(frozen=True, slots=True)
class OutboxState:
    """What a reader of an outbox partition goes on with.

    Attributes:
        newest_run: The highest number of a run so far: a lower one that is not alive never comes back.
        takeover: By source partition.
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
    """Reads a state back.

    Raises:
        RecordError: Headgate has not written it, or another version of it has.
    """
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
