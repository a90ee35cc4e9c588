"""Does a reader hold up nobody, and leave nothing behind? Its turns in threads, and what happens when it goes."""

from __future__ import annotations

import asyncio
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from headgate.event.arrow import EVENT_SCHEMA, StoredEvent, to_batch
from headgate.event.model import Event
from headgate.limits import READ_POLL_S
from headgate.log.writer import PartitionWriter
from headgate.scan.scan import Piece, Query, Scan
from headgate.scan.turns import LogScanner, Wish
from headgate.stream import follow
from headgate.stream.growth import Growth
from headgate.stream.request import ReadRequest
from tests.log.support import open_files
from tests.scan.test_find import BROKER, RULE, store


@pytest.mark.parametrize("who", ["scanner", "follower"])
def test_files_of_a_reader_that_leaves_in_mid_step_are_closed_when_the_step_ends(
    tmp_path: Path, who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = store(tmp_path, random.Random(1), 1)
    entered, go_on = threading.Event(), threading.Event()
    step = Scan.step

    def slow(scan: Scan, *arguments: Any) -> list[Piece]:
        entered.set()
        assert go_on.wait(30)
        return step(scan, *arguments)

    async def work() -> None:
        with ThreadPoolExecutor(1) as threads:
            if who == "scanner":
                wish = Wish(BROKER, RULE, None, {0: 0}, {0: len(places)}, 100)
                reading = asyncio.create_task(LogScanner(tmp_path, threads).sift(wish))
            else:
                turns = follow.turns(tmp_path, [0], ReadRequest(Query(BROKER, RULE)), threads, Growth(tmp_path))
                reading = asyncio.create_task(anext(turns))  # type: ignore[arg-type]
            await asyncio.to_thread(entered.wait, 30)
            reading.cancel()
            await asyncio.wait([reading])
            go_on.set()
        assert reading.cancelled()

    monkeypatch.setattr(Scan, "step", slow)
    asyncio.run(work())
    assert open_files(tmp_path) == []


def test_a_scan_is_made_where_it_is_stepped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its filter may be new, and to compile it takes a while."""
    store(tmp_path, random.Random(1), 1)
    made: list[str] = []
    make = Scan.__init__

    def named(scan: Scan, *arguments: Any) -> None:
        made.append(threading.current_thread().name)
        make(scan, *arguments)

    async def work() -> None:
        with ThreadPoolExecutor(1, thread_name_prefix="read") as threads:
            turns = follow.turns(tmp_path, [0], ReadRequest(Query(BROKER, RULE)), threads, Growth(tmp_path))
            assert [turn.at_end async for turn in turns][-1]

    monkeypatch.setattr(Scan, "__init__", named)
    asyncio.run(work())
    assert made == ["read_0"]


def test_one_that_follows_is_told_where_it_is_while_events_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events say where they are themselves, and nothing of the other partitions."""
    store(tmp_path, random.Random(1), 2)
    monkeypatch.setattr(follow, "READ_EVENTS_PER_TURN", 1)

    async def work(every_s: float) -> list[bool]:
        monkeypatch.setattr(follow, "READ_PROGRESS_S", every_s)
        with ThreadPoolExecutor(1) as threads:
            request = ReadRequest(Query(BROKER, RULE), follow=True)
            turns = follow.turns(tmp_path, [0, 1], request, threads, Growth(tmp_path))
            found = [await anext(turns) for _ in range(4)]
            await turns.aclose()
        return [bool(turn.pieces) for turn in found]

    assert asyncio.run(work(0.0)) == [True, False, True, False]
    assert asyncio.run(work(1_000.0)) == [True, False, True, True]


def test_followers_at_the_end_of_the_log_cost_nothing_until_it_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One look at a time for all of them: each by itself, 255 took half a core to see that nothing had come."""
    followers, steps = 255, 0
    places = store(tmp_path, random.Random(1), 1)
    step = Scan.step

    def counted(scan: Scan, *arguments: Any) -> list[Piece]:
        nonlocal steps
        steps += 1
        return step(scan, *arguments)

    async def first(turns: Any) -> int:
        async for turn in turns:
            if turn.pieces:
                return int(turn.pieces[0].offsets[0])
        raise AssertionError

    async def work() -> None:
        nonlocal steps
        growth, request = Growth(tmp_path), ReadRequest(Query(BROKER, RULE), "next", follow=True)
        with ThreadPoolExecutor(4) as threads:
            readers = [follow.turns(tmp_path, [0], request, threads, growth) for _ in range(followers)]
            reading = [asyncio.create_task(first(turns)) for turns in readers]
            while growth._waiting < followers:
                await asyncio.sleep(0.01)
            steps = 0
            await asyncio.sleep(20 * READ_POLL_S)
            assert steps == 0
            with PartitionWriter.open(tmp_path / "0", EVENT_SCHEMA) as writer:
                writer.append(to_batch([StoredEvent(BROKER, Event("1.0", "new", "/s", "t"))]), ["t"])
            assert await asyncio.gather(*reading) == [len(places)] * followers
            assert steps <= 2 * followers
            for turns in readers:
                await turns.aclose()
            while growth._looking is not None:
                await asyncio.sleep(0.01)
        growth.close()

    monkeypatch.setattr(Scan, "step", counted)
    monkeypatch.setattr(follow, "READ_PROGRESS_S", 1_000.0)
    asyncio.run(asyncio.wait_for(work(), 60))
