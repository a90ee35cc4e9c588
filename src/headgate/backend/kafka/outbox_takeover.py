"""The takeover between matcher runs in one partition of the topic `outbox`: which of its records count. Pure.

The decision is that of the match link (`outbox/takeover.py`, fed with `holds=False`). What writers promise
(docs/spec/outbox-topic.md) is about the log, not about who lives: a repeat, or a task that was given up and still
writes, says what is known already, or what is true. So the decision depends on the log alone: every reader with the
state at an offset decides all that follows in the same way, and a restart never counts another generation.

**Each (source partition, offset, target) counts once.** Per source partition there are W, below which every event is
complete, and one owner. Of the owner's records those at or above W count, and move W over their event. A follower
becomes the owner only when it has claimed everything up to near W, and it started at or below W: what it has below W is
passed over, so no event counts for two generations. W never falls, so events of one source partition count in order.

**Deaths** are records, too (`over`). A run whose number is not above the newest one that was seen, and that is not
alive, never comes back. A run that dies without `over` stops nothing: another one takes over when it is near W.

**An event in several records** counts with its last one. Its targets are gathered from the owner's records alone; a run
whose first record of an event is at or above W is the owner from that record on, so none is missed. Until it is
complete, `resume_at` stays at its first record. Records that are read again between there and the state's place change
nothing: they are at or below W, or of a hello that is known. So none of them counts as a near miss.

Rejected: taking each record as it comes, with an exact set of what has counted (no bound, and a hole shows as order
lost); a clock that declares runs dead (two readers would decide differently).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from headgate.backend.kafka.outbox_records import (
    EventRecord,
    HelloRecord,
    OutboxRecord,
    OutboxState,
    OverRecord,
    PassedRecord,
)
from headgate.outbox.link_format import Hello, Row, RunActive, RunRejected
from headgate.outbox.takeover import Accepted, Step, Takeover
from headgate_api import limits


@dataclass(frozen=True, slots=True)
class Matched:
    """An event that counts, by its last record, and all targets of this outbox partition that want it, ascending."""

    record: EventRecord
    targets: tuple[tuple[int, int], ...]


Outcome = Matched | RunActive | RunRejected
"""What one record brings, in order. `RunActive`: the run owns all its source partitions in this outbox partition."""


@dataclass(slots=True)
class _Partial:
    """An event of the owner of which further records must come."""

    run: int
    offset: int
    position: int  # of its first record
    targets: dict[int, int] = field(default_factory=dict)


class OutboxTakeover:
    """The state machine of one outbox partition. No clock, no I/O.

    Args:
        partitions: How many partitions the topic `outbox` has.
        floor: The first offset that a source partition still has; asked where a run begins above W and nobody else is
            left to match what is between: below it there is nothing to match any more.
        position: Offset in the outbox partition of the next record.
        state: As it was there.
    """

    def __init__(
        self, partitions: int, floor: Callable[[int], int], position: int = 0, state: OutboxState | None = None
    ) -> None:
        state = state or OutboxState()
        self._partitions = partitions
        self._floor = floor
        self._position = position
        self._newest_run = state.newest_run
        self._takeover = Takeover.restored(state.takeover)
        self._partials: dict[int, _Partial] = {}

    @property
    def state(self) -> OutboxState:
        """As it is before the record at `resume_at`, and after all that counted."""
        return OutboxState(self._newest_run, self._takeover.state())

    @property
    def resume_at(self) -> int:
        """Where a reader with `state` must go on."""
        return min((partial.position for partial in self._partials.values()), default=self._position)

    @property
    def next_position(self) -> int:
        """Offset of the next record to read."""
        return self._position

    def watermark(self, source: int) -> int | None:
        """Below it every event of the source partition has counted; None where nothing is known of it."""
        return self._takeover.watermark(source)

    def pass_over(self, position: int) -> None:
        """The record at this offset is none of ours."""
        self._position = position + 1

    def feed(self, position: int, record: OutboxRecord) -> list[Outcome]:
        """Takes the next record, at an offset of the outbox partition, which may have holes; returns what it brings."""
        self._position = position + 1
        if isinstance(record, HelloRecord):
            return self._outcomes(self._hello(record), None)
        if isinstance(record, OverRecord):
            return self._outcomes(self._over(record), None)
        generation = self._takeover.generation(record.run)
        if generation is None or not self._takeover.has_opened(record.run, record.source):
            return []  # over, refused, or from before what retention left
        if generation != record.generation:
            return self._reject(record.run, f"its records disagree about the generation: {generation} and another")
        if isinstance(record, PassedRecord):
            return self._passed(record)
        return self._event(position, record)

    def _hello(self, record: HelloRecord) -> list[Step]:
        takeover, run, source = self._takeover, record.run, record.source
        if takeover.has_opened(run, source):
            return []  # read again
        if takeover.generation(run) is None:
            if run <= self._newest_run:
                return []
            self._newest_run = run
        if record.outbox_partitions != self._partitions:
            reason = f"it writes to {record.outbox_partitions} outbox partitions, the topic has {self._partitions}"
            return takeover.reject(run, reason) or [RunRejected(run, reason)]
        watermark = takeover.watermark(source)
        if watermark is None:
            takeover.raise_floor(source, record.start)  # the first run says where the outbox begins
        elif record.start > watermark:
            takeover.raise_floor(source, min(self._floor(source), record.start))
        return takeover.open(Hello(run, record.generation, source, record.sources, record.start))

    def _over(self, record: OverRecord) -> list[Step]:
        self._newest_run = max(self._newest_run, record.run)
        alive = [run.run for run in self._takeover.state().runs]
        ended = [run for run in alive if run == record.run or (record.all_before and run < record.run)]
        steps: list[Step] = []
        for run in reversed(ended):  # the newest first: no older one follows it for a moment
            steps += self._takeover.end(run, "it is over")
        return [step for step in steps if not (isinstance(step, RunRejected) and step.run in ended)]

    def _passed(self, record: PassedRecord) -> list[Outcome]:
        partial = self._partials.get(record.source)
        if partial is not None and partial.run == record.run and record.passed > partial.offset:
            return self._reject(record.run, _incomplete(partial, record.source))
        return self._outcomes(self._frames(record, [], record.passed), None)

    def _event(self, position: int, record: EventRecord) -> list[Outcome]:
        run, source, offset = record.run, record.source, record.offset
        partial = self._partials.get(source)
        if partial is not None and partial.run == run:
            if offset > partial.offset:
                return self._reject(run, _incomplete(partial, source))
        else:
            partial = None
        if not record.more:
            targets = record.targets
            if partial is not None and partial.offset == offset:
                targets = _merged(partial.targets, targets)
            rows: list[Row] = [(offset, target, verdict) for target, verdict in targets]
            return self._outcomes(self._frames(record, rows, offset + 1), record)
        outcomes = self._outcomes(self._frames(record, [], offset), None)
        if self._owns(run, source, offset):
            if partial is None:
                partial = self._partials[source] = _Partial(run, offset, position)
            partial.targets = dict(_merged(partial.targets, record.targets))
            if len(partial.targets) > limits.LINK_ROWS_PER_EVENT_MAX:
                reason = f"event {offset} has over {limits.LINK_ROWS_PER_EVENT_MAX} targets"
                return outcomes + self._reject(run, reason)
        return outcomes

    def _frames(self, record: EventRecord | PassedRecord, rows: list[Row], passed: int) -> list[Step]:
        # While an event is incomplete, a reader that restarts reads this record again with the state behind it.
        return self._takeover.frames(record.run, record.source, rows, passed, is_once=not self._partials)

    def _owns(self, run: int, source: int, offset: int) -> bool:
        """Whether the run owns the source partition, and the event is the next one to be complete."""
        return self._takeover.owner(source) == run and self._takeover.watermark(source) == offset

    def _reject(self, run: int, reason: str) -> list[Outcome]:
        return self._outcomes(self._takeover.reject(run, reason), None)

    def _outcomes(self, steps: list[Step], record: EventRecord | None) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for step in steps:
            if not isinstance(step, Accepted):
                outcomes.append(step)
            elif step.rows:
                assert record is not None, "nothing is held: rows are those of the record"
                outcomes.append(Matched(record, tuple((target, verdict) for _, target, verdict in step.rows)))
        self._forget_partials()
        return outcomes

    def _forget_partials(self) -> None:
        """Those that are complete, or whose run is not the owner any more: a run may take over without a step."""
        for source, partial in list(self._partials.items()):
            if not self._owns(partial.run, source, partial.offset):
                del self._partials[source]


def _merged(targets: dict[int, int], more: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """The targets of two records of an event, with the higher verdict where a repeat has one twice."""
    both = dict(targets)
    for target, verdict in more:
        both[target] = max(verdict, both.get(target, 0))
    return tuple(sorted(both.items()))


def _incomplete(partial: _Partial, source: int) -> str:
    return f"it goes on behind event {partial.offset} of source partition {source} without the event's last record"
