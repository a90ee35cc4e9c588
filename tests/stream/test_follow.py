"""Does a reader hold up nobody, and leave nothing behind? Its turns in threads, and what happens when it goes."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

from headgate.log.directory import LogDirectory
from headgate.log.reader import LogEnds
from headgate.scan.chunks import ChunkLog
from headgate.scan.pages import LogScanner, ScanRequest
from headgate.scan.scan import Piece, Scan
from headgate.scan.source import Query, ReadableLog
from headgate.stream import follow
from headgate.stream.follow import LogGrowth
from headgate.stream.request import ReadRequest
from headgate_api.limits import READ_POLL_S
from tests.log.support import open_files
from tests.scan.test_search import BROKER, RULE, store


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
                request = ScanRequest(BROKER, RULE, None, {0: 0}, {0: len(places)}, 100)
                reading = asyncio.create_task(
                    LogScanner(ChunkLog(LogDirectory(tmp_path, "stop")), threads).scan_page(request)
                )
            else:
                turns = follow.turns(
                    ChunkLog(LogDirectory(tmp_path, "stop")),
                    ReadRequest(Query(BROKER, RULE)),
                    threads,
                    LogGrowth(ChunkLog(LogDirectory(tmp_path, "stop"))),
                )
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
            turns = follow.turns(
                ChunkLog(LogDirectory(tmp_path, "stop")),
                ReadRequest(Query(BROKER, RULE)),
                threads,
                LogGrowth(ChunkLog(LogDirectory(tmp_path, "stop"))),
            )
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
            turns = follow.turns(
                ChunkLog(LogDirectory(tmp_path, "stop")),
                ReadRequest(Query(BROKER, RULE), follow=True),
                threads,
                LogGrowth(ChunkLog(LogDirectory(tmp_path, "stop"))),
            )
            found = [await anext(turns) for _ in range(4)]
            await turns.aclose()
        return [bool(turn.pieces) for turn in found]

    assert asyncio.run(work(0.0)) == [True, False, True, False]
    assert asyncio.run(work(1_000.0)) == [True, False, True, True]


def test_readers_that_wait_at_the_end_look_through_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step is a job in a thread: 255 that wait must not take one 50 times a second."""
    places = store(tmp_path, random.Random(1), 1)
    steps, looks = 0, 0
    step, end_offset = Scan.step, LogEnds.end_offset

    def counted(scan: Scan, *arguments: Any) -> list[Piece]:
        nonlocal steps
        steps += 1
        return step(scan, *arguments)

    def looked(ends: LogEnds, partition: int) -> int:
        nonlocal looks
        looks += 1
        return end_offset(ends, partition)

    monkeypatch.setattr(follow, "READ_PROGRESS_S", 1_000.0)
    monkeypatch.setattr(Scan, "step", counted)
    monkeypatch.setattr(LogEnds, "end_offset", looked)

    async def work() -> None:
        nonlocal steps, looks
        log = ChunkLog(LogDirectory(tmp_path, "stop"))
        growth = LogGrowth(log)
        request = ReadRequest(Query(BROKER, RULE), start=f"0:{len(places)}", follow=True)
        with ThreadPoolExecutor(2) as threads:
            readers = [follow.turns(log, request, threads, growth) for _ in range(50)]
            for reader in readers:
                await anext(reader)  # says where it begins
            waiting = [asyncio.ensure_future(anext(reader)) for reader in readers]  # type: ignore[arg-type]
            while growth._waiting < len(readers):
                await asyncio.sleep(0.01)
            steps = looks = 0
            await asyncio.sleep(10 * READ_POLL_S)
            assert (steps, looks <= 11) == (0, True), "one look a poll, for all of them together"
            store(tmp_path, random.Random(2), 1)
            turns = await asyncio.gather(*waiting)
            assert all(turn.pieces[0].offsets[0] == len(places) for turn in turns)
            for reader in readers:
                await reader.aclose()
        await growth.close()
        log.close()

    asyncio.run(work())
    assert open_files(tmp_path) == []


def test_a_watch_that_ends_with_a_bug_is_started_again() -> None:
    looks = 0

    class Log:
        async def current_ends(self) -> dict[int, int]:
            nonlocal looks
            looks += 1
            if looks == 1:
                raise RuntimeError("a bug")
            return {0: 5}

    async def work() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        growth = LogGrowth(cast(ReadableLog, Log()))
        await growth.beyond({0: 4}, 2 * READ_POLL_S)
        started = time.monotonic()
        await growth.beyond({0: 4}, 60)
        assert time.monotonic() - started < 30, "the second reader is woken, and does not wait its time out"
        await growth.close()

    asyncio.run(work())
