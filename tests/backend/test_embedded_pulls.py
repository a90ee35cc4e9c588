"""The contract of pulls on the embedded store, and what only chunks can do."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from headgate.filter.compile.plan import Verdict
from tests.backend.pulls_contract import BATCH, Consuming, PullsContract, names, stats
from tests.delivery.harness import EventLog, Routes, event, matcher, run
from tests.subscriptions.test_http import Client, ids, serving, subscription
from tests.support import until


@contextlib.asynccontextmanager
async def backlog(data: Path, events: int, *, cel: str = "true", verdict: int = Verdict.MATCH) -> AsyncIterator[Client]:
    """See `Consuming`; in chunks of BATCH."""
    log = EventLog(data)
    for first in range(0, events, BATCH):
        log.append([event(n, data=b'{"n":%d}' % n) for n in range(first, min(first + BATCH, events))])
    async with serving(data, Routes(subscription(1, "s", cel=cel))) as (dispatcher, ask):
        async with matcher(dispatcher) as peer:
            peer.match(*[(offset, 1) for offset in range(events)], verdict=verdict)
            await until(lambda: dispatcher.dispatcher.matches.passed(0) == events)
            while (await stats(ask))["backlog"] < events:
                await asyncio.sleep(0.01)
        yield ask
    log.close()


class TestEmbeddedPulls(PullsContract):
    @pytest.fixture
    def consuming(self, tmp_path: Path) -> Consuming:
        return partial(backlog, tmp_path)


def test_a_damaged_chunk_stops_a_subscription_there_or_is_lost_as_configured(tmp_path: Path) -> None:
    async def work() -> None:
        async with backlog(tmp_path, 4 * BATCH):
            pass
        (path,) = (tmp_path / "log" / "0").glob("*.seg")
        data = bytearray(path.read_bytes())
        data[data.index(b'{"n":10}')] ^= 1
        path.write_bytes(data)
        async with serving(tmp_path, Routes(subscription(1, "s"))) as (_, ask):
            first = await ask("pull", consumer="a")
            assert ids(first) == names(*range(10)), "what comes before it is not held up"
            status, refusal = await ask("pull", consumer="a")
            assert status == 500
            assert str(path) in refusal["message"]
        async with serving(tmp_path, Routes(subscription(1, "s")), on_corrupt="skip") as (_, ask):
            assert ids(await ask("pull", consumer="a")) == names(*range(15, 20))
            after = await stats(ask)
            assert (after["lost"], after["unacknowledged"]) == (5, 15)

    run(work(), 60)
