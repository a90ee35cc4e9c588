"""Rules of the takeover in one partition of the outbox, one at a time; all together: tests/simulation."""

from __future__ import annotations

import pytest

from headgate.backend.kafka.outbox_records import (
    EventRecord,
    HelloRecord,
    OutboxRecord,
    OverRecord,
    PassedRecord,
    decode_state,
    encode_state,
)
from headgate.backend.kafka.outbox_takeover import Matched, OutboxTakeover, Outcome
from headgate.outbox.link_format import RunActive, RunRejected
from headgate_api.limits import LINK_ROWS_PER_EVENT_MAX, TAKEOVER_NEAR_MISS_SHARE, TAKEOVER_NEAR_MISSES_MAX

PARTITIONS = 4


class Log:
    """An outbox partition, and its takeover."""

    def __init__(self, floor: int = 0) -> None:
        self.records: list[OutboxRecord] = []
        self.takeover = OutboxTakeover(PARTITIONS, lambda source: floor)

    def add(self, *records: OutboxRecord) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for record in records:
            outcomes += self.takeover.feed(len(self.records), record)
            self.records.append(record)
        return outcomes


def hello(run: int, start: int, *, source: int = 0, sources: int = 1, partitions: int = PARTITIONS) -> HelloRecord:
    return HelloRecord(run, 10 * run, source, start, sources, partitions)


def event(run: int, offset: int, *targets: int, more: bool = False, generation: int = 0) -> EventRecord:
    rows = tuple((target, 3) for target in targets or (1,))
    return EventRecord(run, generation or 10 * run, 0, offset, more, 0, rows, [], None)


def passed(run: int, offset: int) -> PassedRecord:
    return PassedRecord(run, 10 * run, 0, offset)


def counted(outcomes: list[Outcome]) -> list[tuple[int, int, tuple[int, ...]]]:
    """Run, offset and targets of what counts."""
    return [
        (each.record.run, each.record.offset, tuple(target for target, _ in each.targets))
        for each in outcomes
        if isinstance(each, Matched)
    ]


def reasons(outcomes: list[Outcome]) -> list[str]:
    return [each.reason for each in outcomes if isinstance(each, RunRejected)]


def test_an_event_counts_with_its_own_record_and_once() -> None:
    log = Log()
    assert log.add(hello(1, 5)) == [RunActive(1, 10)]
    assert counted(log.add(event(1, 5), event(1, 7), event(1, 5), event(1, 7), passed(1, 6), event(1, 8))) == [
        (1, 5, (1,)),
        (1, 7, (1,)),
        (1, 8, (1,)),
    ]


def test_a_newer_run_takes_over_when_it_has_caught_up_and_only_what_is_left_counts() -> None:
    log = Log()
    log.add(hello(1, 0), passed(1, 100), hello(2, 0))
    assert log.add(passed(2, 0)) == [], "a run that has begun and is near has brought nothing yet"
    assert counted(log.add(event(2, 98), event(1, 100))) == [(1, 100, (1,))]
    assert log.add(event(2, 100)) == [RunActive(2, 20)]
    assert counted(log.add(event(1, 101), event(2, 101), event(2, 102))) == [(2, 101, (1,)), (2, 102, (1,))]


def test_a_newer_run_of_a_partition_without_events_takes_over_at_once() -> None:
    log = Log()
    log.add(hello(1, 0), passed(1, 100), hello(2, 100))
    assert log.add(passed(2, 100)) == [RunActive(2, 20)]


def test_a_newer_run_that_is_always_behind_takes_over_when_it_has_been_near_for_long() -> None:
    """Here a reader restarts at every record: near misses are a part of its state."""
    log = Log()
    log.add(hello(1, 0), passed(1, 9_000), hello(2, 0))
    for offset in range(9_000, 12_000):
        state = decode_state(encode_state(log.takeover.state))
        log.takeover = OutboxTakeover(PARTITIONS, lambda source: 0, log.takeover.resume_at, state)
        assert counted(log.add(event(1, offset))) == [(1, offset, (1,))]
        if log.add(event(2, offset - 5)) == [RunActive(2, 20)]:
            break
    assert offset - 9_000 < 2 * TAKEOVER_NEAR_MISSES_MAX * TAKEOVER_NEAR_MISS_SHARE
    assert counted(log.add(event(2, offset), event(2, offset + 1))) == [(2, offset + 1, (1,))]


def test_what_comes_after_over_does_not_count() -> None:
    log = Log()
    log.add(hello(1, 0), event(1, 0), OverRecord(1, False))
    assert log.add(event(1, 1), passed(1, 9), hello(1, 1), event(1, 1)) == []
    assert log.takeover.watermark(0) == 1
    assert counted(log.add(hello(2, 1), event(2, 1))) == [(2, 1, (1,))]


def test_over_ends_every_run_before_it() -> None:
    log = Log()
    log.add(hello(1, 0), passed(1, 9_000), hello(3, 0))
    assert log.add(OverRecord(4, True)) == []
    assert log.takeover.state.takeover.runs == ()
    assert log.add(hello(4, 0), hello(2, 0), event(4, 9_000)) == [], "numbers only grow"


def test_a_run_that_starts_above_the_watermark_is_refused() -> None:
    log = Log()
    log.add(hello(1, 0), passed(1, 10))
    assert "a gap in partition 0: it starts at 11, complete below 10" in reasons(log.add(hello(2, 11)))[0]
    log.add(OverRecord(1, False))
    assert "a gap" in reasons(log.add(hello(3, 11)))[0]
    assert log.add(event(3, 11)) == []


@pytest.mark.parametrize(("floor", "refused"), [(11, False), (20, False), (10, True)])
def test_what_retention_took_from_the_events_is_no_gap(floor: int, refused: bool) -> None:
    log = Log(floor)
    log.add(hello(1, 0), passed(1, 5), OverRecord(1, False))
    assert bool(reasons(log.add(hello(2, 11)))) is refused
    assert log.takeover.watermark(0) == (10 if refused else 11)


def test_a_writer_that_knows_another_number_of_partitions_is_refused() -> None:
    log = Log()
    assert reasons(log.add(hello(1, 0, partitions=8))) == ["it writes to 8 outbox partitions, the topic has 4"]
    assert log.add(event(1, 0)) == []


def test_a_run_that_contradicts_itself_is_rejected() -> None:
    log = Log()
    log.add(hello(1, 0))
    assert "generation" in reasons(log.add(event(1, 0, generation=11)))[0]
    assert log.add(event(1, 0)) == []


def test_an_event_in_several_records_counts_with_the_last_one() -> None:
    """A repeat and a zombie between them change nothing."""
    log = Log()
    log.add(hello(1, 0))
    assert counted(log.add(event(1, 0), event(1, 1, 2, 3, more=True))) == [(1, 0, (1,))]
    assert log.takeover.resume_at == 2
    again = [event(1, 0), event(1, 1, 2, 3, more=True), event(1, 1, 4)]
    assert counted(log.add(*again)) == [(1, 1, (2, 3, 4))]
    assert log.takeover.resume_at == len(log.records)
    assert log.add(event(1, 1, 4)) == []


def test_a_reader_that_goes_on_at_an_incomplete_event_has_all_of_it() -> None:
    log = Log()
    log.add(hello(1, 0), event(1, 0), event(1, 1, 2, more=True), passed(1, 1), event(1, 1, 3, more=True))
    state = decode_state(encode_state(log.takeover.state))
    log.takeover = OutboxTakeover(PARTITIONS, lambda source: 0, log.takeover.resume_at, state)
    again, log.records = log.records[log.takeover.resume_at :], log.records[: log.takeover.resume_at]
    assert counted(log.add(*again, event(1, 1, 4))) == [(1, 1, (2, 3, 4))]


@pytest.mark.parametrize("next_record", [event(1, 2), event(1, 2, more=True), passed(1, 2)])
def test_a_run_that_leaves_an_event_incomplete_is_rejected(next_record: OutboxRecord) -> None:
    log = Log()
    log.add(hello(1, 0), event(1, 1, more=True))
    assert "behind event 1" in reasons(log.add(next_record))[0]
    assert log.takeover.watermark(0) == 1
    assert log.takeover.resume_at == len(log.records)


def test_parts_of_the_run_before_are_not_mixed_in() -> None:
    log = Log()
    log.add(hello(1, 0), event(1, 1, 2, more=True), hello(2, 0))
    assert counted(log.add(event(2, 1, 5, more=True), event(1, 1, 3), event(2, 1, 6))) == [(2, 1, (5, 6))]


def test_an_incomplete_event_of_a_run_that_was_followed_is_forgotten() -> None:
    """Run 2 takes source 0 over, and has source 1 still to take: what run 1 then says of source 0 is nothing wrong."""
    log = Log()
    log.add(*(hello(run, 0, source=source, sources=2) for run in (1, 2) for source in (0, 1)))
    log.add(PassedRecord(1, 10, 1, 5), event(1, 0, 2, more=True))
    assert log.add(passed(2, 0)) == []
    assert log.takeover.resume_at == len(log.records)
    assert log.add(event(1, 0, 3), passed(1, 1)) == []
    assert [run.run for run in log.takeover.state.takeover.runs] == [1, 2]


def test_targets_of_one_event_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert LINK_ROWS_PER_EVENT_MAX > 65_536
    monkeypatch.setattr("headgate_api.limits.LINK_ROWS_PER_EVENT_MAX", 2)
    log = Log()
    log.add(hello(1, 0), event(1, 0, 1, 2, more=True))
    assert "over 2 targets" in reasons(log.add(event(1, 0, 3, more=True)))[0]


def test_a_run_is_active_when_it_owns_every_source_partition() -> None:
    log = Log()
    assert log.add(hello(1, 0, source=1, sources=2)) == []
    assert log.add(hello(1, 0, source=0, sources=2)) == [RunActive(1, 10)]
