"""Is an event's story what happened to it? A dispatcher at work, then the files; and the journal's bounds."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from headgate import limits
from headgate.dispatch import journal as journal_module
from headgate.dispatch.journal import DIRECTORY, Entry, Journal, entries
from headgate.dispatch.story import stories
from headgate.filter.plan import Verdict
from tests.dispatch.harness import EventLog, Request, Routes, Subscriber, event, matcher, run, running, target
from tests.dispatch.harness import until as eventually


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
                    await eventually(lambda: len(subscriber.requests) == 4 and work.dispatcher.unfinished == 0)
                    await asyncio.sleep(0.3)

    run(work())
    log.close()
    (story,) = stories(tmp_path, "e1")
    assert (story.broker, story.event.id, story.hit.partition, story.hit.offset) == ("default/default", "e1", 0, 1)
    assert (story.hit.first_offset, story.hit.record_count, story.evaluated) == (0, 2, True)
    again, never, filtered = sorted(story.matches, key=lambda match: match.target)
    assert {match.generation for match in story.matches} == {7}
    assert {match.verdict for match in story.matches} == {"candidate"}
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
    times = [story.hit.append_time_us, again.time_us, *(one.time_us for one in again.attempts)]
    assert times == sorted(times)
    (other,) = stories(tmp_path, "e0")
    assert (other.matches, other.evaluated) == ((), True)
    assert list(stories(tmp_path, "e1", source="/elsewhere")) == []
    assert list(stories(tmp_path, "nobody")) == []


def test_the_journal_is_bounded_and_keeps_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "JOURNAL_BYTES_MAX", 32 * 100)
    monkeypatch.setattr(limits, "JOURNAL_FLUSH_S", 0.0)

    async def work() -> None:
        journal = Journal(tmp_path / DIRECTORY, clock_us=lambda: 5)
        for number in range(1_000):
            journal.attempt(0, number, 1, 1, 202, "")
            if number % 10 == 9:
                await asyncio.sleep(0.001)
        journal.end(3, 4, 2, "gone")
        journal.close()
        journal.end(3, 4, 2, "gone")  # nobody listens any more

    run(work())
    sizes = [path.stat().st_size for path in (tmp_path / DIRECTORY).iterdir()]
    assert sum(sizes) <= 2 * 32 * 100 + 32 * 50
    assert list(entries(tmp_path / DIRECTORY, 0, 0)) == []
    assert list(entries(tmp_path / DIRECTORY, 0, 999)) == [Entry(5, 0, 999, 1, 1, 202)]
    assert list(entries(tmp_path / DIRECTORY, 3, 4)) == [Entry(5, 3, 4, 2, result="gone")]


def test_a_torn_entry_is_cut(tmp_path: Path) -> None:
    async def work(number: int) -> None:
        journal = Journal(tmp_path, clock_us=lambda: 5)
        journal.attempt(0, number, 1, 1, 500, "500")
        journal.close()

    run(work(1))
    with (tmp_path / "newer.bin").open("ab") as file:
        file.write(b"torn")
    assert len(list(entries(tmp_path, 0, 1))) == 1
    run(work(2))
    assert len(list(entries(tmp_path, 0, 1))) == 1
    assert list(entries(tmp_path, 0, 2)) == [Entry(5, 0, 2, 1, 1, 500, "500")]


@pytest.mark.parametrize("opened_before", [0, 1, 2])
def test_files_that_change_places_are_read_once_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened_before: int
) -> None:
    """The server goes on while somebody reads: the newer file takes the older one's place, and another one begins."""

    async def work(*numbers: int) -> None:
        journal = Journal(tmp_path, clock_us=lambda: 5)
        for number in numbers:
            journal.attempt(0, 7, 1, number, 503, "503")
        journal.close()

    run(work(1))
    (tmp_path / "newer.bin").replace(tmp_path / "older.bin")
    run(work(2, 3))
    opened: list[Path] = []
    plain = Path.open

    def open_and_change(path: Path, *arguments: Any, **more: Any) -> Any:
        if len(opened) == opened_before:
            (tmp_path / "newer.bin").replace(tmp_path / "older.bin")
        opened.append(path)
        return plain(path, *arguments, **more)

    monkeypatch.setattr(Path, "open", open_and_change)
    found = [entry.attempt for entry in entries(tmp_path, 0, 7)]
    assert found == ([1, 2, 3] if opened_before == 2 else [2, 3]), "what the server has dropped may be missing"


def test_entries_are_found_in_files_of_many_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "_PIECE_BYTES", 32 * 3)

    async def work() -> None:
        journal = Journal(tmp_path, clock_us=lambda: 5)
        for number in range(100):
            journal.attempt(number % 2, number // 20, number, 1, 202, "")
        journal.close()

    run(work())
    for partition in (0, 1):
        for offset in range(5):
            targets = [entry.target for entry in entries(tmp_path, partition, offset)]
            assert targets == list(range(offset * 20 + partition, (offset + 1) * 20, 2))
    assert list(entries(tmp_path, 2, 0)) == []
