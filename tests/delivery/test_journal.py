"""The journal of attempts: what it remembers, and its bounds."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest

from headgate.delivery import journal as journal_module
from headgate.delivery.http_connections import _told
from headgate.delivery.journal import Journal, JournalEntry, Origin, entries, rewrite
from headgate.delivery.resolver import _words
from headgate_api import limits
from tests.delivery.harness import run


def test_why_an_attempt_was_made_is_remembered(tmp_path: Path) -> None:
    async def work() -> None:
        journal = Journal(tmp_path, clock_us=lambda: 5)
        for number, origin in enumerate(Origin, 1):
            journal.attempt(0, 7, 1, number, 503, "503", origin)
        journal.close()

    run(work())
    assert [(entry.attempt, entry.origin) for entry in entries(tmp_path, 0, 7)] == list(enumerate(Origin, 1))


@pytest.mark.parametrize(
    ("detail", "words"),
    [
        ("", ""),
        ("words that nobody knows", ""),
        ("crm.example.com: Name or service not known", "Name or service not known"),
        ("no connection: self-signed certificate; if you trust its CA, give it as CACerts", "self-signed certificate"),
        ("no connection: self-signed certificate in certificate chain", "self-signed certificate in certificate chain"),
        ("no connection: Hostname mismatch, certificate is not valid for 'crm.example.com'.", "Hostname mismatch"),
        ("no connection within 5 s", "no connection within"),
    ],
)
def test_what_was_found_behind_a_reason_is_remembered_in_known_words(tmp_path: Path, detail: str, words: str) -> None:
    """A word such as `certificate` names no cause. What an entry keeps of it is a byte: no text of anybody's."""

    async def work() -> None:
        journal = Journal(tmp_path, clock_us=lambda: 5)
        journal.attempt(0, 7, 1, 1, 0, "certificate", detail=detail)
        journal.close()

    run(work())
    assert list(entries(tmp_path, 0, 7)) == [JournalEntry(5, 0, 7, 1, 1, 0, "certificate", detail=words)]


def test_known_words_are_a_byte_and_each_can_be_found() -> None:
    known = journal_module._DETAILS
    assert len(known) <= 256
    assert [next(words for words in known if words and words in one) for one in known[1:]] == list(known[1:])


def test_why_there_is_no_connection_is_always_known(tmp_path: Path) -> None:
    """What a connection and a resolver say of the common causes, in the words of this system."""
    found = [
        _told(ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED)))[1],
        *(_told(OSError(code, os.strerror(code)))[1] for code in (errno.ENETUNREACH, errno.EHOSTUNREACH)),
        _told(ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))[1],
        *(_told(_unverified(words))[1] for words in ("certificate has expired", "certificate revoked")),
    ]
    for name in ("nobody.invalid", "x" * 64 + ".invalid"):
        with pytest.raises((OSError, UnicodeError)) as failed:  # nobody is asked for a number
            socket.getaddrinfo(name, 1, flags=socket.AI_NUMERICHOST)
        found.append(_words(failed.value))

    async def work() -> None:
        journal = Journal(tmp_path, clock_us=lambda: 5)
        for number, detail in enumerate(found, 1):
            journal.attempt(0, 7, 1, number, 0, "connection", detail=detail)
        journal.close()

    run(work())
    known = [entry.detail for entry in entries(tmp_path, 0, 7)]
    assert [detail for detail, words in zip(found, known, strict=True) if not words] == []


def _unverified(words: str) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, f"certificate verify failed: {words}")
    error.verify_message = words
    return error


def test_an_entry_of_a_version_that_knows_more_words_has_none(tmp_path: Path) -> None:
    async def work() -> None:
        journal = Journal(tmp_path, clock_us=lambda: 5)
        journal.attempt(0, 7, 1, 1, 0, "refused", detail="Connection refused")
        journal.close()

    run(work())
    newer = tmp_path / "newer.bin"
    newer.write_bytes(newer.read_bytes()[:-1] + b"\xff")
    assert list(entries(tmp_path, 0, 7)) == [JournalEntry(5, 0, 7, 1, 1, 0, "refused")]


def test_the_journal_is_bounded_and_keeps_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "JOURNAL_BYTES_MAX", 32 * 100)
    monkeypatch.setattr(limits, "JOURNAL_FLUSH_S", 0.0)

    async def work() -> None:
        journal = Journal(tmp_path / "attempts", clock_us=lambda: 5)
        for number in range(1_000):
            journal.attempt(0, number, 1, 1, 202, "")
            if number % 10 == 9:
                await asyncio.sleep(0.001)
        journal.end(3, 4, 2, "gone")
        journal.close()
        journal.end(3, 4, 2, "gone")  # nobody listens any more

    run(work())
    sizes = [path.stat().st_size for path in (tmp_path / "attempts").iterdir()]
    assert sum(sizes) <= 2 * 32 * 100 + 32 * 50
    assert list(entries(tmp_path / "attempts", 0, 0)) == []
    assert list(entries(tmp_path / "attempts", 0, 999)) == [JournalEntry(5, 0, 999, 1, 1, 202)]
    assert list(entries(tmp_path / "attempts", 3, 4)) == [JournalEntry(5, 3, 4, 2, result="gone")]


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
    assert list(entries(tmp_path, 0, 2)) == [JournalEntry(5, 0, 2, 1, 1, 500, "500")]


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


def test_journals_are_written_anew_by_their_targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What several have becomes one in the order of time, the newest that have room."""

    async def work() -> None:
        for number in range(2):
            clock = iter(range(number, 1_000, 2))
            journal = Journal(tmp_path / str(number), clock_us=lambda clock=clock: 1 + next(clock))
            for attempt in range(30):
                journal.attempt(0, 7, attempt % 3, attempt + 1, 202, "")
            journal.close()

    run(work())
    sources = [tmp_path / "0", tmp_path / "1", tmp_path / "none"]
    rewrite(sources, tmp_path / "all", lambda target: target != 1)
    found = list(entries(tmp_path / "all", 0, 7))
    assert len(found) == 40
    assert [one.time_us for one in found] == sorted(one.time_us for one in found)
    assert {one.target for one in found} == {0, 2}
    monkeypatch.setattr(limits, "JOURNAL_BYTES_MAX", 32 * 10)
    rewrite(sources, tmp_path / "few", lambda target: target != 1)
    assert list(entries(tmp_path / "few", 0, 7)) == found[-10:]
