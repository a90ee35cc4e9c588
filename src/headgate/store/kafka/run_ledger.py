"""Which runs count everywhere and which never will, from the records of the topic `runs`. Pure.

A run lives in every partition of the outbox by itself, and each is decided by its own log (`outbox_takeover.py`). So a
run goes through these stages in each of them, and never back:

    stage      what the newest report says
    -------    ----------------------------------------------------------------------------
    unknown    the highest number that was seen is below the run's
    alive      the run is alive and has not taken over every source partition
    active     the run is alive and has taken them over
    gone       the highest number is at or above the run's, and the run is not alive

A report that comes late (of a dispatcher that has lost its partition) tells an earlier stage than is known, and is
passed over. A run is active when it is in every partition, and rejected when it is gone in one. A run that was active
and is gone later has been followed there by one that died, or it is over: who asked for it starts a new one, also where
it still lives.
"""

from __future__ import annotations

from enum import IntEnum

from headgate.limits import LINK_RUNS_MAX
from headgate.match.driver_link import Active, Message, Rejected
from headgate.store.kafka.run_records import GenerationInForce, RunOver, RunRecord, RunReport, RunStarted


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
    """The state of the topic `runs`, as its records come.

    Args:
        partitions: How many partitions the topic `outbox` has.

    Attributes:
        newest_run: The highest number that a driver has taken; 0 before the first.
        generation: The generation that came into force last; None before the first.
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
                messages.append(Rejected(number, _reason(number, report)))
            elif not watched.is_active and all(each is RunStage.ACTIVE for each in watched.stages):
                watched.is_active = True
                messages.append(Active(number, watched.generation))
        for message in messages:
            if isinstance(message, Rejected):
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
