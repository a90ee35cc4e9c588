"""Does a process notice that nobody can ask it any more?"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from starlette.applications import Starlette

from headgate.server import child
from headgate.server.peers.local_http import SocketServerGoneError, answering


@pytest.mark.parametrize("how", ["returns", "raises", "cancelled"])
def test_the_block_ends_with_its_socket_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    async def serve(self: child.UvicornServer) -> None:
        self.config.load()
        (tmp_path / "socket").touch()
        self.started = True
        await asyncio.sleep(0.02)
        if how == "raises":
            raise OSError("no more")
        if how == "cancelled":
            raise asyncio.CancelledError

    monkeypatch.setattr(child.UvicornServer, "serve", serve)
    cleaned = []

    async def work() -> None:
        try:
            async with answering(Starlette(), tmp_path / "socket"):
                try:
                    await asyncio.sleep(60)
                finally:
                    cleaned.append(True)
        finally:
            await asyncio.sleep(0)  # nothing is cancelled beyond the block

    with pytest.raises(SocketServerGoneError) as error:
        asyncio.run(asyncio.wait_for(work(), 30))
    assert isinstance(error.value.__cause__, OSError) == (how == "raises")
    assert cleaned == [True]


def test_a_socket_that_cannot_be_made_ends_the_process(tmp_path: Path) -> None:
    (tmp_path / "socket").mkdir()

    async def work() -> None:
        async with answering(Starlette(), tmp_path / "socket"):
            raise AssertionError("not reached")

    with pytest.raises((SocketServerGoneError, OSError)):
        asyncio.run(asyncio.wait_for(work(), 30))


def test_the_block_s_own_end_and_errors_stay_what_they_are(tmp_path: Path) -> None:
    async def work(error: BaseException | None) -> None:
        async with answering(Starlette(), tmp_path / "socket"):
            if error is not None:
                raise error

    asyncio.run(asyncio.wait_for(work(None), 30))
    for error in (ValueError("mine"), asyncio.CancelledError()):
        with pytest.raises(type(error)):
            asyncio.run(work(error))


def test_a_server_looks_around_once_and_then_sleeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    look = child.UvicornServer.on_tick

    async def counted(self: child.UvicornServer, counter: int) -> bool:
        looks.append(counter)
        return await look(self, counter)

    monkeypatch.setattr(child.UvicornServer, "on_tick", counted)

    async def work() -> None:
        async with answering(Starlette(), tmp_path / "socket"):
            await asyncio.sleep(0.3)  # uvicorn's own loop would look three times more

    asyncio.run(asyncio.wait_for(work(), 30))
    assert looks == [0]
