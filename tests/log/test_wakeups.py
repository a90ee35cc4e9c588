"""Readers that wait at the end of a partition are told when it grows."""

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
    """Listens as the connector does."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer

    async def told(self) -> bytes:
        """All bytes that are there, at least one; nothing at the connection's end."""
        with contextlib.suppress(ConnectionError):  # closed with a byte unread
            async with asyncio.timeout(PATIENCE_S):
                return await self._reader.read(1 << 16)
        return b""

    def was_told(self) -> bool:
        return bool(self._reader._buffer)  # type: ignore[attr-defined]


@contextlib.asynccontextmanager
async def reading(path: Path) -> AsyncIterator[Reader]:
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        yield Reader(reader, writer)
    finally:
        writer.close()


@contextlib.asynccontextmanager
async def heard(path: Path) -> AsyncIterator[Reader]:
    """A reader that the writer knows."""
    async with reading(path) as reader:
        assert await reader.told()
        yield reader


@on_a_loop
async def test_every_reader_is_told_when_the_partition_grows(tmp_path: Path) -> None:
    wakeups, path = Wakeups(), tmp_path / "run" / "log-0.wake"
    with PartitionWriter(Partition(tmp_path / "0", "stop"), EVENT_SCHEMA, on_growth=wakeups.grown) as writer:
        async with wakeups.listening(path), heard(path) as reader, heard(path) as other:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert not reader.was_told()
            for number in range(3):
                await asyncio.to_thread(append, writer, [event(number)])  # as group commit does it: in another thread
                assert await reader.told()
                assert await other.told()


@on_a_loop
async def test_no_growth_is_missed_by_who_takes_looks_and_waits(tmp_path: Path) -> None:
    """A thread that publishes as fast as it can, and readers that come at any time: each gets to the end."""
    wakeups, path, last = Wakeups(), tmp_path / "wake", 20_000
    end = 0

    def publish() -> None:
        nonlocal end
        while end < last:
            end += 1
            wakeups.grown()

    async def read_on() -> None:
        async with reading(path) as reader:
            while end < last:
                assert await reader.told()

    async with wakeups.listening(path):
        thread = threading.Thread(target=publish)
        thread.start()
        while end < last:
            await asyncio.gather(*(read_on() for _ in range(3)))
        thread.join()
        await read_on()


@on_a_loop
async def test_who_says_anything_is_no_reader(tmp_path: Path) -> None:
    wakeups, path = Wakeups(), tmp_path / "wake"
    async with wakeups.listening(path), heard(path) as good, heard(path) as bad:
        bad.writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert await bad.told() == b""
        wakeups.grown()
        assert await good.told()


@on_a_loop
async def test_readers_that_are_gone_are_forgotten_and_one_too_many_is_closed(tmp_path: Path) -> None:
    wakeups, path = Wakeups(), tmp_path / "wake"
    async with wakeups.listening(path):
        for _ in range(3 * LOG_WAITERS_MAX):
            async with heard(path):
                pass
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(LOG_WAITERS_MAX):
                await stack.enter_async_context(heard(path))
            async with reading(path) as refused:
                assert await refused.told() == b""
        wakeups.grown()  # nobody is there


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
        async with heard(path):
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
    async with wakeups.listening(path), heard(path) as awake:
        with socket.socket(socket.AF_UNIX) as deaf:
            deaf.connect(str(path))
            for _ in range(5_000):  # more than its socket takes
                wakeups.grown()
                assert await awake.told()
            assert deaf.recv(1 << 16)


@on_a_loop
async def test_the_end_of_the_writer_ends_the_connections(tmp_path: Path) -> None:
    wakeups, path = Wakeups(), tmp_path / "wake"
    async with contextlib.AsyncExitStack() as stack:
        async with wakeups.listening(path):
            reader = await stack.enter_async_context(heard(path))
        assert await reader.told() == b""
        async with Wakeups().listening(path), heard(path):  # the next one finds the name taken
            pass


@on_a_loop
async def test_a_socket_that_cannot_be_made_stops_nobody(tmp_path: Path) -> None:
    wakeups = Wakeups()
    async with wakeups.listening(tmp_path / ("x" * 200)):
        wakeups.grown()
