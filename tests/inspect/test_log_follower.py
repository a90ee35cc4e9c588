"""The index of events, the sketch of flows, and the follower that fills both: bounded, and nothing is left out."""

from __future__ import annotations

import asyncio
import errno
import random
import threading
import tracemalloc
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.event.arrow import EVENT_SCHEMA, StoredEvent, to_batch
from headgate.event.hops import with_lineage
from headgate.inspect import log_follower
from headgate.inspect.file_records import InspectedChunks
from headgate.inspect.find import EventSearch, find_event
from headgate.inspect.flows import BrokerFlows, Flow, FlowKey, FlowSketch
from headgate.inspect.log_follower import EventIndex, LogFollower
from headgate.log.directory import LogDirectory, Partition
from headgate.log.retention import retain
from headgate.log.writer import Encoded, PartitionWriter
from headgate.scan.chunks import ChunkLog
from headgate.scan.source import SearchableLog, StoredPage
from headgate_api import limits
from headgate_api.event.data import kind_of
from headgate_api.event.model import Event

BLOCK = 1 << 16
MINUTE_US = 60_000_000
BROKER = "default/default/1"


@given(st.lists(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=9), max_size=20), st.randoms())
def test_every_event_is_found_in_whatever_order_chunks_come(chunks: list[list[str]], chance: random.Random) -> None:
    first = chance.randint(BLOCK - 30, BLOCK + 5)
    placed = []
    for ids in chunks:
        placed.append((first, ids))
        first += len(ids)
    chance.shuffle(placed)
    index = EventIndex(1 << 20)
    for at, ids in placed:
        index.put(3, at, ids, ["r" if one in "ab" else None for one in ids])
    where = {one: sorted(at + n for at, ids in placed for n, id_ in enumerate(ids) if id_ == one) for one in "abcdefg"}
    assert {one: list(index.with_id(3, one))[::-1] for one in "abcdefg"} == where
    descended = sorted(where["a"] + where["b"])
    assert list(index.with_root(3, "r")) == descended
    low, high = sorted((chance.randint(BLOCK - 40, BLOCK + 60), chance.randint(BLOCK - 40, BLOCK + 60)))
    assert list(index.with_id(3, "a", low, high))[::-1] == [at for at in where["a"] if low <= at < high]
    assert list(index.with_root(3, "r", low, high)) == [at for at in descended if low <= at < high]
    assert (list(index.with_id(2, "a")), list(index.with_root(2, "r"))) == ([], [])


def test_the_oldest_events_make_room() -> None:
    index = EventIndex(2 * BLOCK)
    for number in range(4):
        index.put(0, number * BLOCK, [f"e{number}"])
    assert index.low(0) == 2 * BLOCK
    assert [list(index.with_id(0, f"e{number}")) for number in range(4)] == [[], [], [2 * BLOCK], [3 * BLOCK]]


@given(st.lists(st.booleans(), max_size=30))
def test_what_a_full_index_does_not_know_is_below_its_low_offset(steps: list[bool]) -> None:
    """Whether the log grows at its end, or a walk through its past comes to older events."""
    index, oldest, newest = EventIndex(3 * BLOCK), 20, 20
    index.put(0, 20 * BLOCK, ["e20"])
    for forward in steps:
        newest, oldest = newest + forward, oldest - (not forward)
        number = newest if forward else oldest
        index.put(0, number * BLOCK, [f"e{number}"])
        known = [one for one in range(oldest, newest + 1) if one * BLOCK >= index.low(0)]
        assert [list(index.with_id(0, f"e{one}")) for one in known] == [[one * BLOCK] for one in known]
        assert newest in known


def test_an_id_that_every_event_has_is_found_piece_by_piece() -> None:
    index, count = EventIndex(1 << 20), 1 << 20
    index.put(0, 0, ["same"] * count)
    tracemalloc.start()
    assert next(index.with_id(0, "same")) == count - 1
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20


def test_a_rate_is_of_the_last_minutes() -> None:
    flow, start_us = Flow(0), 1_000 * MINUTE_US
    for minute in range(60):
        flow.add(60, start_us + minute * MINUTE_US, (0, minute))
    now_us = start_us + 60 * MINUTE_US
    assert round(flow.rate(start_us, now_us), 2) == 1.0
    assert round(flow.rate(start_us, now_us + 5 * MINUTE_US), 2) == round(10 / 15, 2)
    assert flow.rate(start_us, now_us + 60 * MINUTE_US) == 0
    assert flow.count == 3_600
    assert len(flow.places) == limits.CATALOGUE_SAMPLES_MAX
    assert flow.places[-1] == (0, 59)


def test_made_up_types_leave_no_room_until_they_are_silent() -> None:
    flows = BrokerFlows()
    for number in range(limits.CATALOGUE_ITEMS_MAX):
        assert flows.flow(FlowKey(str(number), "/s"), number) is not None
    assert flows.flow(FlowKey("new", "/s"), MINUTE_US) is None
    late_us = limits.CATALOGUE_SILENT_S * 1_000_000 + 10
    assert flows.flow(FlowKey("new", "/s"), late_us) is not None
    assert FlowKey("0", "/s") not in flows.flows
    assert len(flows.flows) == limits.CATALOGUE_ITEMS_MAX


def test_a_full_catalogue_is_not_looked_through_for_each_type_that_is_made_up() -> None:
    looks = 0

    class Watched(dict[FlowKey, Flow]):
        def items(self) -> Any:
            nonlocal looks
            looks += 1
            return super().items()

    flows = BrokerFlows()
    flows.flows = Watched()
    for number in range(limits.CATALOGUE_ITEMS_MAX + 1_000):
        flows.flow(FlowKey(str(number), "/s"), MINUTE_US)
    assert (len(flows.flows), looks) == (limits.CATALOGUE_ITEMS_MAX, 1)


def test_brokers_are_bounded() -> None:
    sketch = FlowSketch()
    for number in range(limits.CATALOGUE_BROKERS_MAX + 3):
        sketch.add([(f"b{number}", "t", "/s")], number, 0, [number])
    assert len(list(sketch.brokers())) == limits.CATALOGUE_BROKERS_MAX
    assert not sketch.of("b0").flows


def test_json_that_is_none_is_counted(tmp_path: Path) -> None:
    writer = PartitionWriter(Partition(tmp_path / "0", "stop"), EVENT_SCHEMA)
    json, marked = b'{"n":1}', b'\xef\xbb\xbf{"n":1}'
    for type_, content_type, data in (
        ("good", "application/json", json),
        ("marked", "application/json", marked),
        ("marked", "application/vnd.shop+json", marked),
        ("marked", "application/json", json),
        ("bytes", "application/octet-stream", marked),
        ("bytes", None, marked),
    ):
        event = Event(
            "1.0", "e", "/s", type_, datacontenttype=content_type, data_kind=kind_of(content_type, data), data=data
        )
        writer.append(Encoded(to_batch([StoredEvent(BROKER, event)]), [type_]))
    follower = LogFollower(ChunkLog(LogDirectory(tmp_path, "stop")))
    follower.step()
    with follower.flows() as sketch:
        found = {key.type: (flow.count, flow.not_json) for key, flow in sketch.of(BROKER).flows.items()}
    assert found == {"good": (1, 0), "marked": (3, 2), "bytes": (2, 0)}
    writer.close()


def test_a_follower_reads_what_was_there_and_what_comes_once(tmp_path: Path) -> None:
    log = LogDirectory(tmp_path, "stop")
    follower = LogFollower(ChunkLog(log))
    follower.step()
    assert (follower.is_complete, follower.since_us) == (True, 0)
    writers = [PartitionWriter(Partition(tmp_path / str(n), "stop"), EVENT_SCHEMA) for n in range(2)]
    number = 0

    def store(count: int) -> None:
        nonlocal number
        for _ in range(count):
            event = with_lineage(Event("1.0", f"e{number}", "/s", f"t{number % 3}"), number % 2, "root")
            batch = to_batch([StoredEvent(BROKER, event)])
            writers[number % 2].append(Encoded(batch, [event.type]))
            number += 1

    store(30)
    follower.step()
    store(15)
    for _ in range(3):
        follower.step()
    assert [follower.covered(n) for n in range(3)] == [(0, 23), (0, 22), (0, 0)]
    assert all(list(follower.index.with_id(n % 2, f"e{n}")) == [n // 2] for n in range(45))
    assert list(follower.index.with_root(1, "root")) == list(range(22))
    with follower.flows() as sketch:
        assert {key.type: flow.count for key, flow in sketch.of(BROKER).flows.items()} == {"t0": 15, "t1": 15, "t2": 15}
    assert follower.is_complete
    for writer in writers:
        writer.close()


def test_a_follower_that_cannot_keep_up_begins_anew_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_follower, "FOLLOW_BEHIND_MAX", 10)
    log = LogDirectory(tmp_path, "stop")
    with PartitionWriter(Partition(tmp_path / "0", "stop"), EVENT_SCHEMA) as writer:

        def store(type_: str, *numbers: int) -> None:
            for number in numbers:
                event = Event("1.0", f"e{number}", "/s", type_)
                writer.append(Encoded(to_batch([StoredEvent(BROKER, event)]), [event.type]))

        def counted() -> dict[str, int]:
            with follower.flows() as sketch:
                return {key.type: flow.count for key, flow in sketch.of(BROKER).flows.items()}

        store("old", *range(5))
        follower = LogFollower(ChunkLog(log))
        follower.step()
        store("passed", *range(5, 15))
        assert counted() == {"old": 5, "passed": 10}, "so many are no reason"
        store("passed", *range(15, 26))
        assert (counted(), follower.is_complete) == ({}, False)
        store("new", 26)
        assert (counted(), follower.covered(0)) == ({"new": 1}, (26, 27))
        follower.step()
        assert (counted(), follower.is_complete) == ({"old": 5, "passed": 21, "new": 1}, True)
        searched = InspectedChunks(log, follower)
        for number in (0, 14, 25, 26):
            found = find_event(searched, BROKER, EventSearch(f"e{number}")).found
            assert found is not None
            assert found.offset == number


def test_a_follower_whose_log_does_not_answer_holds_no_stop_up() -> None:
    called, answers = threading.Event(), threading.Event()

    class Silent:
        def partitions(self) -> list[int]:
            called.set()
            answers.wait()
            return []

    async def run() -> None:
        following = asyncio.create_task(follower.run())
        await asyncio.to_thread(called.wait)
        following.cancel()
        with pytest.raises(asyncio.CancelledError):
            await following
        follower.close()

    follower = LogFollower(cast(SearchableLog, Silent()))
    asyncio.run(run())  # waits for the threads of its loop
    assert not answers.is_set()
    answers.set()


def test_what_ends_a_follower_is_raised() -> None:
    class Wrong:
        def partitions(self) -> list[int]:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(LogFollower(cast(SearchableLog, Wrong())).run())


def test_a_search_says_how_far_back_it_came_when_retention_has_taken_the_oldest_events(tmp_path: Path) -> None:
    log = LogDirectory(tmp_path, "stop")
    follower = LogFollower(ChunkLog(log))
    path, times_us = tmp_path / "0", iter(range(MINUTE_US, 10 * MINUTE_US, MINUTE_US))
    writer = PartitionWriter(
        Partition(path, "stop"), EVENT_SCHEMA, segment_bytes_max=1, clock_us=lambda: next(times_us)
    )
    with writer:
        for number in range(3):
            event = Event("1.0", f"e{number}", "/s", "t")
            writer.append(Encoded(to_batch([StoredEvent(BROKER, event)]), [event.type]))
        for _ in range(2):
            follower.step()
        assert follower.covered(0) == (0, 3)
        whole = find_event(InspectedChunks(log), BROKER, EventSearch("nosuch"))
        assert find_event(InspectedChunks(log, follower), BROKER, EventSearch("nosuch")) == whole
        retain(writer, now_us=MINUTE_US, floor_offset=1, bytes_max=1)
        left = find_event(InspectedChunks(log, follower), BROKER, EventSearch("nosuch"))
        assert (whole.searched_to_us, left.searched_to_us) == (MINUTE_US, 2 * MINUTE_US)


def test_a_follower_goes_on_after_a_failure_and_says_whether_it_has_read_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = LogDirectory(tmp_path, "stop")
    with PartitionWriter(Partition(tmp_path / "0", "stop"), EVENT_SCHEMA) as writer:
        for number in range(5):
            event = Event("1.0", f"e{number}", "/s", "t")
            writer.append(Encoded(to_batch([StoredEvent(BROKER, event)]), [event.type]))
    follower, healthy = LogFollower(ChunkLog(log)), ChunkLog.newest

    def failing(log: ChunkLog, before: Mapping[int, int]) -> Iterator[tuple[int, StoredPage]]:
        yield from islice(healthy(log, before), 2)
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(ChunkLog, "newest", failing)
    with pytest.raises(OSError, match="too many"):
        follower.step()
    assert (follower.covered(0), follower.is_complete) == ((3, 5), False)
    monkeypatch.setattr(ChunkLog, "newest", healthy)
    with pytest.raises(OSError, match="too many"):
        follower.step()
    assert (follower.covered(0), follower.is_complete) == ((1, 5), False)
    follower.step()
    assert (follower.covered(0), follower.is_complete) == ((0, 5), True)


def test_what_was_given_up_stays_so_when_an_empty_partition_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_follower, "FOLLOWED_BYTES_MAX", 1)
    with PartitionWriter(Partition(tmp_path / "0", "stop"), EVENT_SCHEMA) as writer:
        for number in range(3):
            event = Event("1.0", f"e{number}", "/s", "t")
            writer.append(Encoded(to_batch([StoredEvent(BROKER, event)]), [event.type]))
    follower = LogFollower(ChunkLog(LogDirectory(tmp_path, "stop")))
    follower.step()
    assert (follower.covered(0), follower.is_complete) == ((2, 3), False)
    PartitionWriter(Partition(tmp_path / "1", "stop"), EVENT_SCHEMA).close()
    follower.step()
    assert not follower.is_complete
