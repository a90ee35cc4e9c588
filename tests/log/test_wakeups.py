"""Readers that wait at the end of a partition are woken when it grows, and only then."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import socket
import stat
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import ParamSpec

import pytest

from headgate.event.arrow import EVENT_SCHEMA
from headgate.log.directory import Partition
from headgate.log.wakeups import Wakeups
from headgate.log.writer import PartitionWriter
from headgate_api.limits import LOG_WAITERS_MAX
from tests.match.events import append, event

PATIENCE_S = 60
P = ParamSpec("P")


def on_a_loop(test: Callable[P, Coroutine[None, None, None]]) -> Callable[P, None]:
    """A test that pytest calls plainly."""

    @functools.wraps(test)
    def run(*arguments: P.args, **named: P.kwargs) -> None:
        asyncio.run(test(*arguments, **named))

    return run


class Reader:
    """Asks as the connector does."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def ask(self, end: int) -> None:
        self.writer.write(end.to_bytes(8, "little", signed=True))

    async def told(self) -> bytes:
        """One byte, or nothing at the connection's end."""
        with contextlib.suppress(ConnectionError):  # closed with a question unread
            async with asyncio.timeout(PATIENCE_S):
                return await self.reader.read(1)
        return b""

    def was_told(self) -> bool:
        return bool(self.reader._buffer)  # type: ignore[attr-defined]


@contextlib.asynccontextmanager
async def reading(path: Path) -> AsyncIterator[Reader]:
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        yield Reader(reader, writer)
    finally:
        writer.close()


@on_a_loop
async def test_a_reader_is_told_when_the_partition_grows(tmp_path: Path) -> None:
    wakeups, path = Wakeups(), tmp_path / "run" / "log-0.wake"
    with PartitionWriter(Partition(tmp_path / "0", "stop"), EVENT_SCHEMA, on_growth=wakeups.grown) as writer:
        async with wakeups.listening(path), reading(path) as reader, reading(path) as behind:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            append(writer, [event(1), event(2)])
            behind.ask(0)  # the partition has grown before the question came
            assert await behind.told()
            reader.ask(2)
            behind.ask(2)
            await asyncio.to_thread(append, writer, [event(3)])  # as group commit does it: in another thread
            assert await reader.told()
            assert await behind.told()


@on_a_loop
async def test_who_has_seen_the_end_is_not_told_until_there_is_more(tmp_path: Path) -> None:
    wakeups, path = Wakeups(), tmp_path / "wake"
    wakeups.grown(5)
    async with wakeups.listening(path), reading(path) as reader, reading(path) as other:
        reader.ask(5)
        other.ask(4)
        assert await other.told()  # what was asked before it was heard before it
        assert not reader.was_told()
        wakeups.grown(6)
        assert await reader.told()
        wakeups.grown(7)  # nobody has asked again
        other.ask(6)
        assert await other.told()
        assert not reader.was_told()


@on_a_loop
async def test_no_growth_is_missed_between_question_and_answer(tmp_path: Path) -> None:
    """A thread that publishes as fast as it can, and a reader that asks for each: it always gets to the end."""
    wakeups, path, last = Wakeups(), tmp_path / "wake", 20_000
    end = 0

    def publish() -> None:
        nonlocal end
        for end in range(1, last + 1):
            wakeups.grown(end)

    async with wakeups.listening(path), reading(path) as reader:
        thread = threading.Thread(target=publish)
        thread.start()
        while (seen := end) < last:
            reader.ask(seen)
            assert await reader.told()
        thread.join()


@pytest.mark.parametrize("question", [b"\0", b"GET / HTTP/1.1\r\n\r\n"[:7]])
@on_a_loop
async def test_what_is_no_question_ends_its_connection_alone(tmp_path: Path, question: bytes) -> None:
    wakeups, path = Wakeups(), tmp_path / "wake"
    async with wakeups.listening(path), reading(path) as good, reading(path) as bad:
        good.ask(0)
        bad.writer.write(question)
        assert await bad.told() == b""
        wakeups.grown(1)
        assert await good.told()


@on_a_loop
async def test_readers_that_are_gone_are_forgotten_and_one_too_many_is_closed(tmp_path: Path) -> None:
    wakeups, path = Wakeups(), tmp_path / "wake"
    async with wakeups.listening(path):
        for _ in range(3 * LOG_WAITERS_MAX):
            async with reading(path) as reader:
                reader.ask(-1)
                assert await reader.told()
                reader.ask(0)
        async with contextlib.AsyncExitStack() as stack:
            readers = [await stack.enter_async_context(reading(path)) for _ in range(LOG_WAITERS_MAX)]
            for reader in readers:
                reader.ask(-1)
            assert all([await reader.told() for reader in readers])
            async with reading(path) as refused:
                assert await refused.told() == b""
        wakeups.grown(1)  # nobody is there


@on_a_loop
async def test_a_process_without_files_left_does_not_look_for_readers_all_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.log.wakeups._ACCEPT_AGAIN_S", 0.01)
    wakeups, path, tried = Wakeups(), tmp_path / "wake", 0
    accept = socket.socket.accept

    def without_files(listener: socket.socket) -> tuple[socket.socket, object]:
        nonlocal tried
        tried += 1
        if tried <= 3:
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", without_files)
    loop = asyncio.get_running_loop()
    async with wakeups.listening(path):
        begun = loop.time()
        async with reading(path) as reader:
            reader.ask(-1)
            assert await reader.told()
            assert loop.time() - begun >= 3 * 0.01, "it was not tried again at once"
        tried = 0
        async with reading(path):
            while not tried:
                await asyncio.sleep(0)
    await asyncio.sleep(0.02)  # nobody listens any more: nothing is tried again
    assert tried == 1


@on_a_loop
async def test_a_reader_that_does_not_read_holds_up_nobody(tmp_path: Path) -> None:
    wakeups, path = Wakeups(), tmp_path / "wake"
    async with wakeups.listening(path), reading(path) as awake:
        with socket.socket(socket.AF_UNIX) as deaf:
            deaf.connect(str(path))
            deaf.setblocking(False)
            for number in range(5_000):  # more answers than its socket takes
                with contextlib.suppress(BlockingIOError):
                    deaf.send((number - 1).to_bytes(8, "little", signed=True))
                wakeups.grown(number)
                await asyncio.sleep(0)
            awake.ask(0)
            assert await awake.told()


@on_a_loop
async def test_the_end_of_the_writer_ends_the_connections(tmp_path: Path) -> None:
    wakeups, path = Wakeups(), tmp_path / "wake"
    async with contextlib.AsyncExitStack() as stack:
        async with wakeups.listening(path):
            reader = await stack.enter_async_context(reading(path))
            reader.ask(0)
        assert await reader.told() == b""
        async with Wakeups().listening(path), reading(path):  # the next one finds the name taken
            pass


@on_a_loop
async def test_a_socket_that_cannot_be_made_stops_nobody(tmp_path: Path) -> None:
    wakeups = Wakeups()
    async with wakeups.listening(tmp_path / ("x" * 200)):
        wakeups.grown(1)
