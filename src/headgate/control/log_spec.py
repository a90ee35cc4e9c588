"""`spec.log`: how a broker's events are stored, with types and defaults."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from headgate.control.durations import duration_s
from headgate.control.errors import Cause, invalid, not_between, not_one_of
from headgate.control.objects import LogSpec
from headgate.filter.cel.errors import FilterError
from headgate.filter.skipping.filter_value import DEFAULT, FilterValueRule, filter_value_rule
from headgate.limits import BLOOM_BYTES_MAX, BLOOM_BYTES_MIN, BROKER_RETENTION_S_MAX, BROKER_RETENTION_S_MIN
from headgate.log.format import Codec

_CODECS: Final = {"none": Codec.NONE, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}


@dataclass(frozen=True, slots=True)
class LogRule:
    """What a broker asks of the chunks that hold its events.

    Attributes:
        value: How its events get their filter values.
        bloom_bytes: Size of the Bloom filter, 16..255.
        codec: Compression of the body.
        retention_us: How long its events are seen, microseconds; None: as long as they are in the log.
    """

    value: FilterValueRule
    bloom_bytes: int = BLOOM_BYTES_MIN
    codec: Codec = Codec.NONE
    retention_us: int | None = None


@dataclass(frozen=True, slots=True)
class ServedBroker:
    """A broker that accepts events.

    Attributes:
        identity: What its events are stored with, see `event.identity`.
        rule: How they are stored.
    """

    identity: str
    rule: LogRule


DEFAULT_RULE: Final = LogRule(filter_value_rule(DEFAULT))


def log_rule(spec: LogSpec | None) -> LogRule:
    """The rule of a valid `spec.log`."""
    if spec is None:
        return DEFAULT_RULE
    return LogRule(
        filter_value_rule(spec.filter_value or DEFAULT),
        spec.filter_size_bytes or BLOOM_BYTES_MIN,
        _CODECS[spec.compression or "none"],
        retention_us(spec),
    )


def retention_us(spec: LogSpec | None) -> int | None:
    """How long events are seen by a valid `spec.log`, microseconds; None: as long as they are in the log."""
    return int(duration_s(spec.retention) * 1_000_000) if spec is not None and spec.retention else None


def log_causes(spec: LogSpec | None) -> Iterator[Cause]:
    """What is wrong with a `spec.log`."""
    if spec is None:
        return
    yield from not_between("spec.log.filterSizeBytes", spec.filter_size_bytes, BLOOM_BYTES_MIN, BLOOM_BYTES_MAX)
    yield from not_one_of("spec.log.compression", spec.compression or None, _CODECS)
    if spec.retention:
        try:
            seconds = duration_s(spec.retention)
        except ValueError as error:
            yield invalid("spec.log.retention", spec.retention, str(error))
        else:
            yield from not_between("spec.log.retention", seconds, BROKER_RETENTION_S_MIN, BROKER_RETENTION_S_MAX, " s")
    if spec.filter_value:
        try:
            filter_value_rule(spec.filter_value)
        except FilterError as error:
            yield invalid("spec.log.filterValue", spec.filter_value, error.message)


def filter_value_causes(old: LogSpec | None, new: LogSpec | None) -> Iterator[Cause]:
    """A broker's rule never changes: readers skip chunks by it. A broker that is created again is another one."""
    before, after = ((spec or LogSpec()).filter_value or DEFAULT for spec in (old, new))
    if before != after:
        yield invalid("spec.log.filterValue", after, "field is immutable")
