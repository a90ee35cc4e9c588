"""Is the event that is found the one that looking at every event finds? Over partitions, ends and both directions."""

from __future__ import annotations

import asyncio
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headgate.event.arrow import EVENT_SCHEMA, StoredEvent, to_batch
from headgate.filter.skipping.prune import filter_value_rule
from headgate.log.directory import LogDirectory, Partition
from headgate.log.writer import Encoded, PartitionWriter
from headgate.scan import search as search_module
from headgate.scan.chunks import ChunkLog
from headgate.scan.pages import Located, LogScanner, ScanRequest
from headgate.scan.scan import Scan
from headgate.scan.search import EventFinder, FilterSearch, offsets_at_event
from headgate.scan.source import NEXT, Query, start_offsets
from headgate_api.event.model import DataKind, Event

BROKER = "ns/a"
RULE = filter_value_rule("type")


def event(number: int) -> Event:
    data = b'{"n":%d,"tso":%d}' % (number, 400_000 + number)
    return Event("1.0", f"e{number}", "/s", f"t{number % 5}", data_kind=DataKind.JSON, data=data)


def store(directory: Path, rng: random.Random, partitions: int) -> list[Located]:
    """Chunks in partitions in turn, some at the same time; place N holds event N."""
    now_us = 1_000_000
    writers = [
        PartitionWriter(Partition(directory / str(p), "stop"), EVENT_SCHEMA, clock_us=lambda: now_us)
        for p in range(partitions)
    ]
    places: list[Located] = []
    for _ in range(12):
        partition, count = rng.randrange(partitions), rng.randrange(1, 6)
        now_us += rng.choice([0, 0, 10])
        events = [event(len(places) + row) for row in range(count)]
        batch = to_batch([StoredEvent(BROKER, one) for one in events])
        first = writers[partition].append(Encoded(batch, [one.type for one in events]))
        places += [Located(now_us, partition, first + row) for row in range(count)]
    for writer in writers:
        writer.close()
    return places


def starts_and_ends(directory: Path, rng: random.Random, partitions: int) -> tuple[dict[int, int], dict[int, int]]:
    last = start_offsets(ChunkLog(LogDirectory(directory, "stop")), NEXT)
    ends = {p: rng.randint(0, at) for p, at in last.items()} if rng.random() < 0.5 else last
    return {p: rng.choice([0, rng.randint(0, at)]) for p, at in ends.items()}, ends


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("partitions", [1, 3])
def test_it_is_the_one_that_every_event_says(
    tmp_path: Path, seed: int, partitions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_module, "FIND_EVENTS_MIN", 4)
    rng = random.Random(seed)
    places = store(tmp_path, rng, partitions)

    async def work() -> None:
        with ThreadPoolExecutor(1) as threads:
            finder = EventFinder(
                ChunkLog(LogDirectory(tmp_path, "stop")), LogScanner(ChunkLog(LogDirectory(tmp_path, "stop")), threads)
            )
            for _ in range(20):
                low, step = rng.randrange(len(places) + 3), rng.choice([1, 2, 7])
                begin, end = starts_and_ends(tmp_path, rng, partitions)
                cel = f"data.tso >= {400_000 + low} && data.n % {step} == 0"
                wanted = [
                    place
                    for number, place in enumerate(places)
                    if number >= low and number % step == 0 and begin[place.partition] <= place.offset
                    if place.offset < end[place.partition]
                ]
                for last in (False, True):
                    told: list[tuple[int, int]] = []
                    sought = FilterSearch(BROKER, RULE, cel, last)
                    found = await finder.find(sought, begin, end, lambda *at, told=told: told.append(at))
                    assert found == (None if not wanted else max(wanted) if last else min(wanted))
                    assert told == sorted(told)
                    assert told[-1][0] == told[-1][1] == sum(max(0, end[p] - begin[p]) for p in end)

    asyncio.run(work())


def test_others_go_on_with_what_was_stored_at_the_same_time_or_later(tmp_path: Path) -> None:
    rng = random.Random(3)
    places = store(tmp_path, rng, 3)
    for found in places:
        for after in (False, True):
            on = offsets_at_event(ChunkLog(LogDirectory(tmp_path, "stop")), {0: 0, 1: 2, 2: 0}, found, after=after)
            assert on[found.partition] == found.offset + after
            for partition in {0, 1, 2} - {found.partition}:
                later = [
                    one.offset for one in places if one.partition == partition and one.stored_us >= found.stored_us
                ]
                behind = [one.offset + 1 for one in places if one.partition == partition]
                least = 2 if partition == 1 else 0
                assert on[partition] == max(least, min(later, default=max(behind, default=0)))


@pytest.mark.parametrize("seed", range(4))
def test_turns_hand_out_everything_once_before_the_end(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.scan.pages.SCAN_REQUEST_TURN_S", 0.0)
    rng = random.Random(seed)
    places = store(tmp_path, rng, 3)

    async def work() -> None:
        with ThreadPoolExecutor(1) as threads:
            scanner = LogScanner(ChunkLog(LogDirectory(tmp_path, "stop")), threads)
            for _ in range(10):
                at, end = starts_and_ends(tmp_path, rng, 3)
                wanted = {p for n, p in enumerate(places) if at[p.partition] <= p.offset < end[p.partition] and n % 3}
                seen: list[Located] = []
                while any(at[p] < end[p] for p in at):
                    request = ScanRequest(BROKER, RULE, "data.n % 3 != 0", at, end, rng.randint(1, 4))
                    page = await scanner.scan_page(request)
                    assert page.positions != at
                    seen, at = seen + page.found, page.positions
                assert len(seen) == len(set(seen))
                assert set(seen) == wanted

    asyncio.run(work())


def test_a_scan_never_stands_behind_its_end(tmp_path: Path) -> None:
    places = store(tmp_path, random.Random(1), 1)
    scan = Scan(ChunkLog(LogDirectory(tmp_path, "stop")), Query(BROKER, RULE), {0: 1}, {0: 4})
    offsets = [offset for piece in scan.step(100) for offset in piece.offsets]
    assert (offsets, scan.positions, scan.at_end(), len(places) > 4) == ([1, 2, 3], {0: 4}, True, True)
    assert scan.step(100) == []
    scan.close()
