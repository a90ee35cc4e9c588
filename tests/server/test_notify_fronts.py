"""Does whoever has written a broker wait until every front that is there knows it, and for no other?"""

from __future__ import annotations

import asyncio
import contextlib
import time
from functools import partial
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headgate.objects.api.admission import Admission
from headgate.objects.store.store import Store
from headgate.objects.views.copies import ServedBrokers
from headgate.server.peers import notify_fronts
from headgate.server.peers.local_http import answering
from headgate.server.peers.notify_fronts import news_route, tell
from headgate_api.objects.kinds import Kind
from tests.objects.support import broker

WAIT_S_MAX = 30.0


def test_every_front_knows_a_broker_when_its_write_returns(tmp_path: Path) -> None:
    async def work() -> None:
        sockets = [tmp_path / f"front-{number}.sock" for number in range(3)]
        async with contextlib.AsyncExitStack() as stack:
            fronts = []
            for socket in sockets[:2]:  # the third one is not there
                store = stack.enter_context(contextlib.closing(Store.open(tmp_path / "control.db")))
                fronts.append(brokers := ServedBrokers(store))
                brokers.refresh()
                await stack.enter_async_context(answering(Starlette(routes=[news_route(brokers)]), socket))
            written = stack.enter_context(contextlib.closing(Store.open(tmp_path / "control.db")))
            written.on_broker(partial(tell, sockets, asyncio.get_running_loop()))
            for number in range(20):
                await asyncio.to_thread(Admission(written).create, Kind.BROKER, broker(f"b{number}"))
                assert all(brokers.get(f"default/b{number}") is not None for brokers in fronts)

    asyncio.run(asyncio.wait_for(work(), WAIT_S_MAX))


def test_a_front_that_hangs_delays_a_write_for_a_while_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify_fronts, "BROKER_NEWS_S_MAX", 0.2)

    async def hang(_: Request) -> Response:
        await asyncio.sleep(WAIT_S_MAX)
        return Response()

    async def work() -> None:
        async with answering(Starlette(routes=[Route("/brokers", hang, methods=["POST"])]), tmp_path / "front.sock"):
            started = time.monotonic()
            await asyncio.to_thread(tell, [tmp_path / "front.sock"], asyncio.get_running_loop())
            assert 0.2 <= time.monotonic() - started < WAIT_S_MAX / 2

    asyncio.run(asyncio.wait_for(work(), WAIT_S_MAX))
