"""What the matcher's driver and the dispatchers say of runs, in the topics `runs` and `outbox`, and what follows."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from enum import IntEnum
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from headgate.backend.config import KafkaConfig
from headgate.backend.kafka.client import Delivered, TopicProducer
from headgate.backend.kafka.outbox_records import (
    HEADER,
    DriverRecord,
    HelloRecord,
    OutboxPage,
    OutboxState,
    OverRecord,
    PassedRecord,
    encode,
)
from headgate.backend.kafka.records import KafkaRecord, RecordError
from headgate.backend.kafka.state_topic import StateTopicReader, follow_state
from headgate.backend.kafka.transactions import FencedName, FencedWriter, fenced_by
from headgate.match.driver_link import Message
from headgate.outbox.link_format import RunActive, RunRejected
from headgate_api.errors import HeadgateError
from headgate_api.limits import KAFKA_APPEND_S_MAX, LINK_RUNS_MAX, RUN_REASON_CHARACTERS_MAX, RUN_RECORD_BYTES_MAX

if TYPE_CHECKING:
    from confluent_kafka import KafkaError
    from confluent_kafka import Message as KafkaMessage


# --- run records ----------------------------------------------------------------------------------
# docs/spec/runs-topic.md has the format. The topic is compacted: a key holds the newest word about one thing. Pure.


class RunStarted(msgspec.Struct, frozen=True, tag_field="is", tag="started", forbid_unknown_fields=True):
    """The driver takes a number for a run, higher than any before, before anything else knows of it."""

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
    """Reads a record; RecordError when Headgate has not written it, or another version of it has."""
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


# --- run ledger -----------------------------------------------------------------------------------
# Which runs count everywhere and which never will. Pure.
#
# A run lives in every partition of the outbox by itself, and each is decided by its own log (`outbox_takeover.py`). So
# a run goes through these stages in each of them, and never back:
#
#     stage      what the newest report says
#     -------    ----------------------------------------------------------------------------
#     unknown    the highest number that was seen is below the run's
#     alive      the run is alive and has not taken over every source partition
#     active     the run is alive and has taken them over
#     gone       the highest number is at or above the run's, and the run is not alive
#
# A report that comes late (of a dispatcher that has lost its partition) tells an earlier stage than is known, and is
# passed over. A run is active when it is in every partition, and rejected when it is gone in one. A run that was active
# and is gone later has been followed there by one that died, or it is over: who asked for it starts a new one, also
# where it still lives.


class RunStage(IntEnum):
    """Of one run in one partition of the outbox."""

    UNKNOWN = 0
    ALIVE = 1
    ACTIVE = 2
    GONE = 3


class _Watched:
    """A run that was started and is not over."""

    def __init__(self, generation: int, partitions: int) -> None:
        self.generation = generation
        self.stages = [RunStage.UNKNOWN] * partitions
        self.is_active = False


class RunLedger:
    """The state of the topic `runs`, as its records come; `partitions` are those of the topic `outbox`.

    `newest_run` is the highest number that a driver has taken, 0 before the first. `generation` is the one that came
    into force last, None before the first.
    """

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions
        self._watched: dict[int, _Watched] = {}
        self.newest_run = 0
        self.generation: int | None = None

    def take(self, record: RunRecord) -> list[Message]:
        """Takes the next record; returns what it decides about runs."""
        match record:
            case RunStarted():
                self._start(record)
            case RunOver():
                self._watched.pop(record.run, None)
            case GenerationInForce():
                self.generation = record.generation
            case RunReport() if 0 <= record.partition < self._partitions:
                return self._report(record)
        return []

    def _start(self, record: RunStarted) -> None:
        if record.run > self.newest_run:
            self.newest_run = record.run
            self._watched[record.run] = _Watched(record.generation, self._partitions)
            while len(self._watched) > LINK_RUNS_MAX:  # of drivers that ended without a word
                del self._watched[min(self._watched)]

    def _report(self, report: RunReport) -> list[Message]:
        messages: list[Message] = []
        for number, watched in sorted(self._watched.items()):
            before, stage = watched.stages[report.partition], _stage(number, report)
            watched.stages[report.partition] = max(before, stage)
            if stage is RunStage.GONE and before is not RunStage.GONE:
                messages.append(RunRejected(number, _reason(number, report)))
            elif not watched.is_active and all(each is RunStage.ACTIVE for each in watched.stages):
                watched.is_active = True
                messages.append(RunActive(number, watched.generation))
        for message in messages:
            if isinstance(message, RunRejected):
                del self._watched[message.run]
        return messages


def _stage(run: int, report: RunReport) -> RunStage:
    for each in report.runs:
        if each.run == run:
            return RunStage.ACTIVE if each.active else RunStage.ALIVE
    return RunStage.GONE if report.newest >= run else RunStage.UNKNOWN


def _reason(run: int, report: RunReport) -> str:
    for each in reversed(report.refused):
        if each.run == run:
            return f"outbox partition {report.partition}: {each.reason}"
    return f"outbox partition {report.partition}: run {run} is over there"


# --- outbox driver --------------------------------------------------------------------------------
# The driver writes a run's `hello` before the query starts, its first `passed` once every task has begun, and its
# `over` when it has ended. What lies between is written by the tasks (`kafka/OutboxWriter.java`).


class OutboxDriver:
    """What a driver writes into the outbox: blocking, with one producer for all its runs."""

    def __init__(self, config: KafkaConfig) -> None:
        self._topic = config.topic("outbox")
        own = {"message.timeout.ms": KAFKA_APPEND_S_MAX * 1e3}
        self._producer = TopicProducer(config, "the outbox cannot be written", own)
        self.partitions = self._producer.partition_count(self._topic)

    def hello(self, run: int, generation: int, start: Mapping[int, int]) -> None:
        """A run begins; `start` has the first offset of every source partition."""
        count = len(start)
        self._write(
            HelloRecord(run, generation, source, offset, count, self.partitions) for source, offset in start.items()
        )

    def passed(self, run: int, generation: int, below: Mapping[int, int]) -> None:
        """A run has matched everything below these offsets of source partitions; at first: every task has begun."""
        self._write(PassedRecord(run, generation, source, offset) for source, offset in below.items())

    def over(self, run: int, generation: int) -> None:
        self._write([OverRecord(run, all_before=False, generation=generation)])

    def over_before(self, run: int) -> None:
        """Every run below this number has ended: they were of drivers before this one."""
        self._write([OverRecord(run - 1, all_before=True)])

    def _write(self, records: Iterable[DriverRecord]) -> None:
        """Writes each into every partition, and waits for all acknowledgements."""
        done = Delivered()
        for record in records:
            own = KafkaRecord(None, None, [(HEADER, encode(record))])
            for partition in range(self.partitions):
                self._producer.send(self._topic, partition, own, done)
        error = self._producer.flush(-1, [done])  # each ends by message.timeout.ms
        if error is not None:
            raise self._producer.error(error)


# --- run registry ---------------------------------------------------------------------------------
# A run's number is committed before anything else knows of the run, and a newer driver fences the one before it. So a
# driver that stood still while another one took its place cannot take a number any more, and every number that it took
# before is known to the one that follows, which declares all of them over.

_log = structlog.get_logger(__name__)


class MatcherLeadLostError(HeadgateError):
    """This process may not start runs: another matcher has taken the lead, or Kafka has failed in a write."""

    code = "matcher-lead-lost"


_WRITER: Final = FencedName(
    topic="runs",
    transactional_id="matcher",
    doing="runs cannot be written",
    unsure="the next leader reads it",
    fenced=fenced_by(MatcherLeadLostError, "another matcher has taken the lead"),
)


class RunRegistry:
    """The topic `runs` as the driver has it; blocking, for one thread. Making one fences every earlier one."""

    def __init__(self, config: KafkaConfig, partitions: int) -> None:
        self._ledger = RunLedger(partitions)
        self._next = 0
        self._reader = StateTopicReader(config, "runs")
        try:
            self._writer = FencedWriter(config, _WRITER)  # from here on every number that was taken can be read
            self._news()
        except BaseException:
            self.close()
            raise

    @property
    def newest_run(self) -> int:
        """The highest number that a driver has taken; 0 before the first."""
        return self._ledger.newest_run

    @property
    def generation(self) -> int:
        """The one that came into force last; 0 before the first."""
        return self._ledger.generation or 0

    def started(self, run: int, generation: int, start: Mapping[int, int]) -> None:
        """Takes a number; MatcherLeadLostError when another one leads, or Kafka fails."""
        self._write(RunStarted(run, generation, dict(start)))

    def over(self, run: int, generation: int) -> None:
        """A run has ended."""
        self._write(RunOver(run, generation))

    def in_force(self, generation: int) -> None:
        """A generation counts in every outbox partition."""
        self._write(GenerationInForce(generation))

    def news(self, timeout_s: float) -> list[Message]:
        """What was decided about runs, as soon as there is any; none after this time."""
        return self._news() if self._reader.comes(self._next, timeout_s) else []

    def _news(self) -> list[Message]:
        end = self._reader.end()
        messages: list[Message] = []
        for record in self._reader.records(self._next, end):
            messages += self._take(record)
        self._next = max(self._next, end)
        return messages

    def _take(self, record: KafkaMessage) -> list[Message]:
        try:
            return self._ledger.take(decode_run_record(record.key(), record.value()))
        except RecordError as error:
            _log.warning("a record of the topic runs is passed over", offset=record.offset(), error=error.message)
            return []

    def _write(self, record: RunRecord) -> None:
        if self._writer.is_failed:
            raise MatcherLeadLostError("Kafka has failed in an earlier write of this driver")
        try:
            self._writer.send([KafkaRecord(*encode_run_record(record))])
            self._writer.commit()
        except MatcherLeadLostError:
            raise
        except HeadgateError as error:
            raise MatcherLeadLostError(f"the lead is given up: {error.message}", hint=error.hint) from error

    def close(self) -> None:
        """Gives everything back; idempotent."""
        self._reader.close()
        if hasattr(self, "_writer"):
            self._writer.close()


# --- run reports ----------------------------------------------------------------------------------


class RunReports:
    """Reports the state of each outbox partition when it has changed. Nothing here blocks; for one thread.

    An owner of an `OutboxMember` calls `assigned` and `revoked` from its `OutboxListener`, and `take` with every page
    as soon as it is read, whether or not its events are delivered or committed. A report says what the log says: it
    stays true when the partition moves, and a late one of an earlier owner changes no decision (see `RunLedger`).
    """

    def __init__(self, config: KafkaConfig) -> None:
        self._topic = config.topic("runs")
        self._told: dict[int, RunReport] = {}
        self._refused: dict[int, deque[RefusedRun]] = {}
        # Without a time limit: a report that is given up would leave the matcher waiting.
        self._producer = TopicProducer(config, "a report on runs is not stored", {"message.timeout.ms": 0})

    def assigned(self, partition: int, state: OutboxState) -> None:
        """This process has the partition now: its last owner may have died before it reported."""
        self.revoked(partition)
        self._report(partition, state)

    def take(self, page: OutboxPage) -> None:
        """Reports the partition of a page where its runs have changed."""
        partition = page.checkpoint.partition
        refused = self._refused.setdefault(partition, deque(maxlen=LINK_RUNS_MAX))
        refused.extend(refusal(each.run, each.reason) for each in page.runs if isinstance(each, RunRejected))
        self._report(partition, page.checkpoint.state)

    def revoked(self, partition: int) -> None:
        """Another process may have the partition from here on."""
        self._told.pop(partition, None)
        self._refused.pop(partition, None)

    def _report(self, partition: int, state: OutboxState) -> None:
        report = report_of(partition, state, tuple(self._refused.get(partition, ())))
        if self._told.get(partition) != report:
            try:
                self._producer.offer(self._topic, 0, KafkaRecord(*encode_run_record(report)), self._delivered)
                self._told[partition] = report
            except BufferError:
                _log.warning("a report on runs waits", partition=partition)  # the next page brings it
        self._producer.raw.poll(0)

    def _delivered(self, error: KafkaError | None, _message: KafkaMessage) -> None:
        if error is not None:
            self._told.clear()  # each next page reports again
            _log.warning(self._producer.doing, error=self._producer.faults.cause(error).str())

    def close(self, timeout_s: float = 0.0) -> None:
        """Waits for what is under way, at most so long, and gives the rest up."""
        self._producer.raw.flush(timeout_s)
        self._producer.raw.purge()


# --- generations ----------------------------------------------------------------------------------


def follow_generations(config: KafkaConfig, write: Callable[[int], None], stop: threading.Event) -> None:
    """Writes each generation that comes into force (`CounterTable.activate`); raises as `follow_state`."""
    newest: int | None = None
    written: int | None = None

    def take(record: KafkaMessage) -> None:
        nonlocal newest
        with suppress(RecordError):  # the matcher tells of it
            told = decode_run_record(record.key(), record.value())
            newest = told.generation if isinstance(told, GenerationInForce) else newest

    def write_newest() -> bool:
        nonlocal written
        if newest is not None and newest != written:
            try:
                write(newest)
            except ValueError as error:
                # The matcher's cache is ahead of this one, which follows the topic `objects` as well.
                _log.debug("the generation in force is not known here yet", reason=str(error))
                return False
            written = newest
        return True

    follow_state(config, "runs", take, write_newest, stop)
