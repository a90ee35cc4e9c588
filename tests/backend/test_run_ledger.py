"""What the topic `runs` decides: with real takeovers, whatever the order of reports, and whoever repeats or is late."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from headgate.backend.kafka.match_run import lowest_watermarks
from headgate.backend.kafka.outbox_records import HelloRecord, OutboxRecord, OutboxState, OverRecord, PassedRecord
from headgate.backend.kafka.outbox_takeover import OutboxTakeover
from headgate.backend.kafka.records import RecordError
from headgate.backend.kafka.runs import (
    GenerationInForce,
    RefusedRun,
    ReportedRun,
    RunLedger,
    RunOver,
    RunReport,
    RunStarted,
    decode_run_record,
    encode_run_record,
    refusal,
    report_of,
)
from headgate.match.driver_link import Message
from headgate.outbox.link_format import RunActive, RunRejected
from headgate_api.limits import LINK_RUNS_MAX, OUTBOX_SOURCES_MAX, RUN_RECORD_BYTES_MAX

PARTITIONS, SOURCES = 3, 2
SCHEDULES = 400


def report(partition: int, newest: int, *active: int, alive: tuple[int, ...] = ()) -> RunReport:
    runs = [ReportedRun(run, True) for run in active] + [ReportedRun(run, False) for run in alive]
    return RunReport(partition, newest, tuple(sorted(runs, key=lambda each: each.run)))


def taken(ledger: RunLedger, *records: RunStarted | RunOver | GenerationInForce | RunReport) -> list[Message]:
    return [message for record in records for message in ledger.take(record)]


# --- one rule at a time --------------------------------------------------------------------------------


def test_a_run_is_active_when_it_is_everywhere() -> None:
    ledger = RunLedger(2)
    assert taken(ledger, RunStarted(1, 5, {0: 0}), report(0, 1, 1)) == []
    assert taken(ledger, report(1, 1, alive=(1,))) == []
    assert taken(ledger, report(1, 1, 1), report(0, 1, 1)) == [RunActive(1, 5)]


def test_a_run_that_is_gone_in_one_partition_is_rejected_once_with_the_reason() -> None:
    ledger = RunLedger(2)
    refused = RunReport(1, 2, (ReportedRun(1, True),), (RefusedRun(2, "a gap"),))
    taken(ledger, RunStarted(1, 5, {}), report(0, 1, 1), report(1, 1, 1), RunStarted(2, 6, {}))
    assert taken(ledger, refused, report(0, 2, alive=(1,)), refused) == [RunRejected(2, "outbox partition 1: a gap")]


def test_a_run_in_force_that_lost_a_partition_is_rejected_also_where_it_lives_elsewhere() -> None:
    ledger = RunLedger(2)
    taken(ledger, RunStarted(1, 5, {}), report(0, 1, 1), report(1, 1, 1), RunStarted(2, 6, {}))
    assert taken(ledger, report(0, 2, 2, alive=()), report(1, 2, 1, alive=(2,)))[0] == RunRejected(
        1, "outbox partition 0: run 1 is over there"
    )


def test_a_late_report_of_an_earlier_owner_changes_nothing() -> None:
    ledger = RunLedger(2)
    taken(ledger, RunStarted(1, 5, {}), report(0, 1, 1), report(0, 1, alive=(1,)), report(0, 0))
    assert taken(ledger, report(1, 1, 1)) == [RunActive(1, 5)]


def test_numbers_only_grow_and_what_is_over_is_forgotten() -> None:
    ledger = RunLedger(1)
    taken(ledger, RunStarted(7, 5, {}), RunStarted(3, 4, {}), GenerationInForce(5), RunOver(7, 5))
    assert (ledger.newest_run, ledger.generation) == (7, 5)
    assert taken(ledger, report(0, 7, 7), report(0, 8)) == []


def test_a_report_of_a_partition_that_is_none_is_passed_over() -> None:
    ledger = RunLedger(1)
    assert taken(ledger, RunStarted(1, 5, {}), report(1, 9), report(-1, 9)) == []


# --- records -------------------------------------------------------------------------------------------


def test_the_largest_records_come_back_whole() -> None:
    many = tuple(refusal(1 << 62, "ü" * 10_000) for _ in range(LINK_RUNS_MAX))
    runs = tuple(ReportedRun(1 << 62, True) for _ in range(LINK_RUNS_MAX))
    start = dict.fromkeys(range(OUTBOX_SOURCES_MAX), 1 << 62)
    for record in (RunReport(255, 1 << 62, runs, many), RunStarted(1 << 62, 1 << 62, start), RunOver(1, 2)):
        key, value = encode_run_record(record)
        assert len(value) < RUN_RECORD_BYTES_MAX
        assert decode_run_record(key, value) == record


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"started", None),
        (b"started", b"{"),
        (b"started", b"\xff"),
        (b"started", b'{"is":"started","run":"1","generation":1,"start":{}}'),
        (b"started", b'{"is":"started","run":1,"generation":1,"start":{},"more":1}'),
        (b"over", b'{"is":"started","run":1,"generation":1,"start":{}}'),
        (None, b'{"is":"over","run":1,"generation":1}'),
        (b"outbox/1", b'{"is":"outbox","partition":2,"newest":1}'),
        (b"other", b'{"is":"other"}'),
        (b"over", b"[" * 50_000),
        (b"over", b" " * (RUN_RECORD_BYTES_MAX + 1)),
    ],
)
def test_what_headgate_has_not_written_is_an_error(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(RecordError, match="a record of the topic runs cannot be read"):
        decode_run_record(key, value)


# --- where a run begins ----------------------------------------------------------------------------------


def test_a_run_begins_at_the_lowest_watermark_of_all_outbox_partitions() -> None:
    first, second = (OutboxTakeover(2, lambda _: 0) for _ in range(2))
    for takeover, far in ((first, 8), (second, 3)):
        takeover.feed(0, HelloRecord(1, 1, 0, 2, 1, 2))
        takeover.feed(1, PassedRecord(1, 1, 0, far))
    assert lowest_watermarks([first.state, second.state], 2) == {0: 3, 1: 0}
    assert lowest_watermarks([first.state, None], 2) == {0: 0, 1: 0}


# --- all together ------------------------------------------------------------------------------------------


def logs_of(rng: random.Random) -> list[list[OutboxRecord]]:
    """What runs write into each outbox partition: in the driver's order, their tasks in any."""
    logs: list[list[OutboxRecord]] = [[] for _ in range(PARTITIONS)]
    at = dict.fromkeys(range(SOURCES), 0)
    alive: list[int] = []
    for number in range(1, rng.randint(2, 6)):
        start = {source: max(0, offset - rng.randint(0, 5)) for source, offset in at.items()}
        gap_in = rng.randrange(PARTITIONS * 8)
        for partition, log in enumerate(logs):
            shift = 10_000 if partition == gap_in and number > 1 else 0
            log += [HelloRecord(number, number, s, offset + shift, SOURCES, PARTITIONS) for s, offset in start.items()]
        alive.append(number)
        for _ in range(rng.randint(0, 6)):
            source, run = rng.randrange(SOURCES), rng.choice(alive)
            at[source] += rng.randint(0, 2_000)
            for log in rng.sample(logs, rng.randint(1, PARTITIONS)):
                log.append(PassedRecord(run, run, source, at[source]))
        for run in list(alive):
            if rng.random() < 0.3:
                alive.remove(run)
                for log in logs:
                    log.append(OverRecord(run, False))
    return logs


def states_of(log: list[OutboxRecord]) -> list[OutboxState]:
    takeover = OutboxTakeover(PARTITIONS, lambda _: 0)
    states = [takeover.state]
    for position, record in enumerate(log):
        takeover.feed(position, record)
        states.append(takeover.state)
    return states


@pytest.mark.parametrize("seed", range(0, SCHEDULES, 100))
def test_decisions_follow_the_logs_in_every_order_of_reports(seed: int) -> None:
    kinds: Counter[str] = Counter()
    for each in range(seed, seed + 100):
        rng = random.Random(each)
        states = [states_of(log) for log in logs_of(rng)]
        runs = sorted({run.run for one in states for state in one for run in state.takeover.runs})
        newest = max(state.newest_run for one in states for state in one)
        ledger, told, begun = RunLedger(PARTITIONS), [], 0
        places, reached = [0] * PARTITIONS, [0] * PARTITIONS
        while any(reached[p] < len(states[p]) - 1 for p in range(PARTITIONS)):
            partition = rng.randrange(PARTITIONS)
            if rng.random() < 0.2:  # another dispatcher goes on where this one has committed
                places[partition] = rng.randint(0, places[partition])
            places[partition] = min(places[partition] + rng.randint(0, 4), len(states[partition]) - 1)
            state = states[partition][places[partition]]
            while begun < state.newest_run:  # a driver takes the number first
                begun += 1
                told += taken(ledger, RunStarted(begun, begun, {}))
            reached[partition] = max(reached[partition], places[partition])
            messages = taken(ledger, report_of(partition, state))
            for message in messages:
                if isinstance(message, RunActive):
                    now = [states[p][reached[p]] for p in range(PARTITIONS)]
                    assert all(_word(message.run, state) == "active" for state in now)
            told += messages
        assert begun == newest
        for run in runs:
            words = {_word(run, one[-1]) for one in states}
            about = [message for message in told if message.run == run]
            assert sum(isinstance(message, RunActive) for message in about) <= 1
            if "gone" in words:
                assert sum(isinstance(message, RunRejected) for message in about) == 1
                assert isinstance(about[-1], RunRejected)
                kinds["gone"] += 1
            else:
                assert about == ([RunActive(run, run)] if words == {"active"} else [])
                kinds["active" if words == {"active"} else "waits"] += 1
    assert min(kinds[kind] for kind in ("gone", "active", "waits")) > 0, kinds


def _word(run: int, state: OutboxState) -> str:
    alive = {each.run: each.active for each in state.takeover.runs}
    if run in alive:
        return "active" if alive[run] else "alive"
    return "gone" if state.newest_run >= run else "unknown"
