"""Traces of events: a dispatcher at work, then what its files say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Self, cast

import pytest

from headgate.delivery.journal import Origin
from headgate.event.arrow import EVENT_SCHEMA, StoredEvent, to_batch
from headgate.event.hops import place_root, with_lineage
from headgate.filter.compile.plan import Verdict
from headgate.inspect import why as trace_module
from headgate.inspect.file_records import FileRecords
from headgate.inspect.find import EventSearch
from headgate.inspect.views import timeline
from headgate.inspect.why import EventTrace, Tracer
from headgate.log.directory import LogDirectory, Partition
from headgate.log.writer import Encoded, PartitionWriter
from headgate.objects.store.store import Store
from headgate.outbox.writer import OUTBOX_SCHEMA, RowGroup, encode_chunk
from headgate_api.event.model import Event
from headgate_api.objects.kinds import Broker, Kind, Metadata, ObjectKey
from tests.delivery.harness import BROKER, EventLog, Request, Routes, Subscriber, event, matcher, run, running, target
from tests.support import until


class Objects:
    """A store with a broker, and triggers 1 to 9."""

    def get(self, key: ObjectKey) -> object:
        return Broker(
            api_version="", kind="Broker", metadata=Metadata(key.name, "", key.namespace, uid=BROKER.rpartition("/")[2])
        )

    @property
    def targets(self) -> Self:
        return self

    def keys(self) -> dict[int, ObjectKey]:
        return {number: ObjectKey(Kind.TRIGGER, "default", f"t{number}") for number in range(1, 10)}


def traced(data: Path, id_: str, **more: Any) -> EventTrace | None:
    namespace, name, _ = BROKER.split("/")
    tracer = Tracer(FileRecords(data, LogDirectory(data / "log", "stop")), cast(Store, Objects()))
    return tracer.trace(ObjectKey(Kind.BROKER, namespace, name), EventSearch(id_, **more))[0]


def test_stored_matched_and_every_attempt(tmp_path: Path) -> None:
    log = EventLog(tmp_path)
    answers = iter([503, 404, 202])

    async def answer(request: Request) -> tuple[int, bytes]:
        return (next(answers) if request.path == "/again" else 400), b""

    async def work() -> None:
        async with Subscriber(answer) as subscriber:
            routes = Routes(
                target(1, subscriber.url + "again", backoff_delay_s=0.001),
                target(2, subscriber.url + "never"),
                target(3, subscriber.url, cel="false"),
            )
            async with running(tmp_path, routes) as work:
                log.append([event(0), event(1)])
                async with matcher(work, 7) as peer:
                    peer.match((1, 1), (1, 2), (1, 3), verdict=Verdict.CANDIDATE)
                    await until(lambda: len(subscriber.requests) == 4 and work.dispatcher.unfinished == 0)

    run(work())
    log.close()
    trace = traced(tmp_path, "e1")
    assert trace is not None
    found = trace.found
    assert (found.stored.broker, found.stored.event.id, found.partition, found.offset) == (BROKER, "e1", 0, 1)
    assert (found.chunk_first_offset, found.chunk_record_count, trace.evaluated) == (0, 2, True)
    again, never, filtered = sorted(trace.matches, key=lambda match: match.row.target)
    assert again.key == ObjectKey(Kind.TRIGGER, "default", "t1")
    assert {(match.row.generation, match.row.verdict) for match in trace.matches} == {(7, Verdict.CANDIDATE)}
    assert [(one.attempt, one.status, one.reason, one.result) for one in again.attempts] == [
        (1, 503, "503", ""),
        (2, 404, "404", ""),
        (3, 202, "", ""),
    ]
    assert [(one.attempt, one.status, one.reason, one.result) for one in never.attempts] == [
        (1, 400, "400", ""),
        (0, 0, "", "failed"),
    ]
    assert [one.result for one in filtered.attempts] == ["filtered"]
    assert again.row.time_us >= found.append_time_us  # it is handed on while it is written: an attempt may be earlier
    times = [found.append_time_us, *(one.time_us for one in again.attempts)]
    assert times == sorted(times)
    late = replace(filtered, row=replace(filtered.row, time_us=filtered.attempts[0].time_us + 1))
    told = [(one.what, one.result) for one in timeline(replace(trace, matches=(late,)))]
    assert told == [("stored", ""), ("matched", ""), ("ended", "filtered")], (
        "a row may be written after what comes of it"
    )
    other = traced(tmp_path, "e0")
    assert other is not None
    assert (other.matches, other.evaluated) == ((), True)
    assert traced(tmp_path, "e1", source="/elsewhere") is None
    assert traced(tmp_path, "nobody") is None


def test_a_dead_letter_and_who_took_it(tmp_path: Path) -> None:
    log = EventLog(tmp_path)

    async def answer(request: Request) -> tuple[int, bytes]:
        return (202 if request.path == "/sink" else 400), b""

    async def work() -> None:
        async with Subscriber(answer) as subscriber:
            routes = Routes(target(1, subscriber.url, dead_letter_uri=subscriber.url + "sink"))
            async with running(tmp_path, routes) as work:
                log.append([event(0)])
                async with matcher(work, 7) as peer:
                    peer.match((0, 1))
                    await until(lambda: len(subscriber.requests) == 2)
                    records = FileRecords(tmp_path, LogDirectory(tmp_path / "log", "stop"))
                    await until(lambda: records.dispatchers[0].dead_letter(1, 0) is None)

    run(work())
    log.close()
    trace = traced(tmp_path, "e0")
    assert trace is not None
    (match,) = trace.matches
    assert [(one.origin, one.status, one.result) for one in match.attempts] == [
        (Origin.DELIVERY, 400, ""),
        (Origin.DELIVERY, 0, "dead_lettered"),
        (Origin.DEAD_LETTER, 202, ""),
    ]
    assert match.dead_letter is None


def test_repeated_ids_are_found_one_after_the_other(tmp_path: Path) -> None:
    log = EventLog(tmp_path)
    for _ in range(2):
        log.append([event(1), event(2), event(1)])
    log.close()
    tracer = Tracer(FileRecords(tmp_path, LogDirectory(tmp_path / "log", "stop")), cast(Store, Objects()))
    namespace, name, _ = BROKER.split("/")
    key, offsets, search = ObjectKey(Kind.BROKER, namespace, name), [], EventSearch("e1")
    while True:
        trace, result = tracer.trace(key, search)
        if trace is None:
            break
        offsets.append(trace.found.offset)
        search = EventSearch("e1", before=result.next)
    assert offsets == [5, 3, 2, 0]


def test_below_a_ceiling_a_search_tells_no_place_of_other_events(tmp_path: Path) -> None:
    """Where another partition has a hidden event of the same id, a search may have looked into it."""
    log = EventLog(tmp_path)
    log.append([event(1)])
    log.append([event(1, data=b'{"n":2}'), event(1, type="hidden")], partition=1)
    log.close()
    tracer = Tracer(FileRecords(tmp_path, LogDirectory(tmp_path / "log", "stop")), cast(Store, Objects()))
    namespace, name, _ = BROKER.split("/")
    key, search = ObjectKey(Kind.BROKER, namespace, name), EventSearch("e1", ceiling="data.n == 1 && ce.type == 't'")
    trace, result = tracer.trace(key, search)
    assert trace is not None
    assert result.next == {0: 0}
    search = replace(search, before=result.next)
    assert tracer.trace(key, search)[0] is None


def replied(number: int, hops: int, root: str) -> Event:
    return with_lineage(event(number), hops, root)


def test_a_reply_and_what_it_comes_of_name_each_other(tmp_path: Path) -> None:
    log = EventLog(tmp_path)
    other = BROKER.replace("default/", "elsewhere/")
    log.append([event(0), event(1)])
    root = place_root(event(1), 0, 1)
    log.append([replied(2, 1, root), event(3)])
    log.append([replied(4, 2, root)])
    log.append([replied(5, 1, root)], broker=other)
    log.append([replied(6, 1, place_root(event(0), 0, 0))])
    log.close()

    def family(id_: str) -> list[tuple[int, str]]:
        trace = traced(tmp_path, id_)
        assert trace is not None
        assert trace.tree.complete
        return [(one.hops, one.stored.event.id) for one in trace.tree.events]

    assert family("e1") == [(1, "e2"), (2, "e4")]
    assert family("e2") == [(0, "e1"), (2, "e4")]
    assert family("e4") == [(0, "e1"), (1, "e2")]
    assert family("e0") == [(1, "e6")]
    assert family("e3") == []


def test_the_search_for_replies_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = EventLog(tmp_path)
    log.append([event(0)])
    root = place_root(event(0), 0, 0)
    for number in range(1, 6):
        log.append([replied(number, 1, root)])
    log.close()
    monkeypatch.setattr(trace_module, "TREE_EVENTS_MAX", 3)
    trace = traced(tmp_path, "e0")
    assert trace is not None
    assert ([one.stored.event.id for one in trace.tree.events], trace.tree.complete) == (["e1", "e2", "e3"], False)


@pytest.mark.parametrize("idle_s", [0, 30, 7_200])
@pytest.mark.parametrize("clock_back_s", [0, 1_800])
def test_rows_are_found_after_a_pause_and_where_the_clock_was_set_back(
    tmp_path: Path, idle_s: int, clock_back_s: int
) -> None:
    now_us = 10_000_000_000_000
    log = PartitionWriter(Partition(tmp_path / "log/0", "stop"), EVENT_SCHEMA, clock_us=lambda: now_us)
    outbox = PartitionWriter(
        Partition(tmp_path / "dispatcher/0/outbox", "stop"), OUTBOX_SCHEMA, clock_us=lambda: now_us
    )
    for number in range(3):
        now_us += idle_s * 1_000_000
        log.append(Encoded(to_batch([StoredEvent(BROKER, event(number))]), ["t"]))
        now_us -= clock_back_s * 1_000_000
        row_groups = [RowGroup(0, 1, [(number, target_id, int(Verdict.MATCH)) for target_id in (1, 2)])]
        outbox.append(encode_chunk(row_groups, {0: (number + 1, 1)}))
    log.close()
    outbox.close()
    for number in range(3):
        trace = traced(tmp_path, f"e{number}")
        assert trace is not None
        assert [(match.row.target, match.row.position) for match in trace.matches] == [
            (1, 3 * number),
            (2, 3 * number + 1),
        ]
