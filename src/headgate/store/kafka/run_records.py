"""Records of the topic `runs`: what the matcher's driver and the dispatchers say of runs.

docs/spec/runs-topic.md has the format. The topic is compacted: a key holds the newest word about one thing. Pure.
"""

from __future__ import annotations

import msgspec

from headgate.limits import RUN_REASON_CHARACTERS_MAX, RUN_RECORD_BYTES_MAX
from headgate.store.kafka.outbox_state import OutboxState
from headgate.store.kafka.records import RecordError


class RunStarted(msgspec.Struct, frozen=True, tag_field="is", tag="started", forbid_unknown_fields=True):
    """The driver takes a number for a run, before anything else knows of it.

    Attributes:
        run: Higher than every number before it.
        generation: Version of the filters.
        start: The first offset of every partition of `events`.
    """

    run: int
    generation: int
    start: dict[int, int]


class RunOver(msgspec.Struct, frozen=True, tag_field="is", tag="over", forbid_unknown_fields=True):
    """A run has ended, in order or not."""

    run: int
    generation: int


class GenerationInForce(msgspec.Struct, frozen=True, tag_field="is", tag="in-force", forbid_unknown_fields=True):
    """A generation has taken over in every partition of the outbox."""

    generation: int


class ReportedRun(msgspec.Struct, frozen=True, array_like=True):
    """A run that is alive in an outbox partition, and whether it has taken over all of its source partitions there."""

    run: int
    active: bool


class RefusedRun(msgspec.Struct, frozen=True, array_like=True):
    """A run that cannot take over in an outbox partition, and why."""

    run: int
    reason: str


class RunReport(msgspec.Struct, frozen=True, tag_field="is", tag="outbox", forbid_unknown_fields=True):
    """What a dispatcher knows of runs in an outbox partition, up to the place that it has read.

    Attributes:
        partition: Of the topic `outbox`.
        newest: The highest number so far. A run up to it that is not in `runs` never counts here again.
        runs: Those that are alive.
        refused: The last runs that were refused. For people: `runs` and `newest` decide.
    """

    partition: int
    newest: int
    runs: tuple[ReportedRun, ...] = ()
    refused: tuple[RefusedRun, ...] = ()


RunRecord = RunStarted | RunOver | GenerationInForce | RunReport
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(RunRecord).decode


def report_of(partition: int, state: OutboxState, refused: tuple[RefusedRun, ...] = ()) -> RunReport:
    """The report about an outbox partition whose takeover is in this state."""
    runs = tuple(ReportedRun(run.run, run.active) for run in state.takeover.runs)
    return RunReport(partition, state.newest_run, runs, refused)


def refusal(run: int, reason: str) -> RefusedRun:
    """A refused run, with a reason of a bounded length."""
    return RefusedRun(run, reason[:RUN_REASON_CHARACTERS_MAX])


def encode_run_record(record: RunRecord) -> tuple[bytes, bytes]:
    """Key and value."""
    kind = str(record.__struct_config__.tag)
    key = f"{kind}/{record.partition}" if isinstance(record, RunReport) else kind
    return key.encode(), _encode(record)


def decode_run_record(key: bytes | None, value: bytes | None) -> RunRecord:
    """Reads a record.

    Raises:
        RecordError: Headgate has not written it, or another version of it has.
    """
    if value is None or len(value) > RUN_RECORD_BYTES_MAX:
        raise _wrong(f"it has {'no value' if value is None else f'{len(value)} bytes'}")
    try:
        record: RunRecord = _decode(value)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _wrong(str(error)) from error
    if encode_run_record(record)[0] != key:
        raise _wrong(f"its key is {key!r:.80}")
    return record


def _wrong(what: str) -> RecordError:
    return RecordError(
        f"a record of the topic runs cannot be read: {what}", hint="only Headgate may write there; look at its rights"
    )
